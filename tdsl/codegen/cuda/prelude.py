"""The head of CUDA source: the headers and types that the source uses, and nothing else."""

from __future__ import annotations

import re

_PACK = """
static __device__ __forceinline__ unsigned int {name}({kind} x, {kind} y) {{
  unsigned short low, high;
  memcpy(&low, &x, 2);
  memcpy(&high, &y, 2);
  return (unsigned int)high << 16 | low;
}}
"""
_FOUR = """
struct __align__(8) {kind}4 {{ {scalar} x, y, z, w; }};
"""
_MAKE = """
static __device__ __forceinline__ {kind}4 make_{kind}4({scalar} x, {scalar} y, {scalar} z, {scalar} w) {{
  return {kind}4{{x, y, z, w}};
}}
"""
_MAKE_PAIR = """
static __device__ __forceinline__ nv_bfloat162 make_nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) {
  return nv_bfloat162(x, y);
}
"""
_TYPES = (("half", "half"), ("nv_bfloat16", "nv_bfloat16"))
# what the source names, and the text that defines it, in the order of the text
_PARTS = (
    (r"\bhalf\d?\b|__half|float2half", "#include <cuda_fp16.h>\n"),
    (r"bfloat16", "#include <cuda_bf16.h>\n"),
    (r"\bCUDART_", "#include <math_constants.h>\n"),
    (r"\bprintf\(", "#ifndef __CUDACC_RTC__\n#include <cstdio>\n#endif\n"),
    *((rf"\b(?:make_)?{k}4\b", _FOUR.format(kind=k, scalar=s)) for k, s in _TYPES),
    *((rf"\bmake_{k}4\b", _MAKE.format(kind=k, scalar=s)) for k, s in _TYPES),
    (r"\bmake_nv_bfloat162\b", _MAKE_PAIR),
    (r"\b__pack_half2\b", _PACK.format(name="__pack_half2", kind="half")),
    (r"\b__pack_nv_bfloat162\b", _PACK.format(name="__pack_nv_bfloat162", kind="nv_bfloat16")),
)  # fmt: skip


def prelude(source: str) -> str:
    """The includes and definitions that CUDA source needs.

    >>> print(prelude("half x = CUDART_INF_F;"), end="")
    #include <cuda_fp16.h>
    #include <math_constants.h>
    """
    return "".join(text for pattern, text in _PARTS if re.search(pattern, source))
