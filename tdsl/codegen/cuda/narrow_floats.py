"""Source text of the device functions that convert 8-bit floats to f16 and f32, and f32 back to them."""

from __future__ import annotations


def float_of_bytes(name: str, fraction: int, bias: int, kind: str, over: str) -> dict[str, str]:
    """Device functions from an 8-bit float to f32 and f16, and from f32.

    `over` is the C condition on |x| for overflow.
    """
    kept, dropped, last = 1 << fraction, 23 - fraction, {"e4m3": 0x7F, "e5m2": 0x7C}[kind]
    return {
        f"tdsl_from_{name}": f"""
__device__ __forceinline__ float tdsl_from_{name}(unsigned char x) {{
  float y;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned int pair;
  asm("cvt.rn.f16x2.{kind}x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)x));
  asm("{{.reg .b16 low, high; mov.b32 {{low, high}}, %1; cvt.f32.f16 %0, low;}}" : "=f"(y) : "r"(pair));
#else
  unsigned int rest = x & 0x7f, bits = (rest << {dropped}) + {(127 - bias) << 23:#x}u;
  y = (float)rest * {2.0 ** (1 - bias - fraction)!r}f;
  if (rest < {kept}) memcpy(&bits, &y, 4);
  if (rest >= {last:#x}) bits = rest << {dropped} | 0x7f800000u;
  bits |= (x & 0x80u) << 24;
  memcpy(&y, &bits, 4);
#endif
  return y;
}}
""",
        f"tdsl_half_from_{name}": f"""
__device__ __forceinline__ half tdsl_half_from_{name}(unsigned char x) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned int pair;
  asm("cvt.rn.f16x2.{kind}x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)x));
  return __ushort_as_half((unsigned short)pair);
#else
  int bits = (int)(signed char)x << {10 - fraction} & {0x8000 | 0x7F << (10 - fraction):#x};
  half y = __hmul(__ushort_as_half(bits), __ushort_as_half({(30 - bias) << 10:#x}));
  return (x & 0x7f) > {last - (kind == "e4m3"):#x} ? __ushort_as_half(0x7e00) : y;
#endif
}}
""",
        f"tdsl_to_{name}": f"""
__device__ __forceinline__ unsigned char tdsl_to_{name}(float x) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.{kind}x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return (unsigned char)(fabs(x) {over} ? (pair & 0x80) | {last:#x} : pair);
#else
  unsigned int bits, rest, y;
  memcpy(&bits, &x, 4);
  rest = bits & 0x7fffffffu;
  if (rest < {(128 - bias) << 23:#x}u) {{
    float aligned = fabs(x) + {2.0 ** (dropped + 1 - bias)!r}f;
    memcpy(&y, &aligned, 4);
    y -= {(127 + dropped + 1 - bias) << 23:#x}u;
  }} else {{
    y = (rest >> {dropped} & 1) + {(1 << (dropped - 1)) - 1:#x}u - {(127 - bias) << 23:#x}u;
    y = (rest + y) >> {dropped};
    y = rest > 0x7f800000u ? 0x7fu : y < {last:#x}u ? y : {last:#x}u;
  }}
  return (unsigned char)(y | (bits >> 24 & 0x80u));
#endif
}}
""",
    }
