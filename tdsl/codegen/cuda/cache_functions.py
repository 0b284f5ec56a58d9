"""Source text of the CUDA device functions for loads and stores of vectors, and with a cache policy.

A policy (createpolicy) says which lines L2 evicts first or last; with `evict_first`, L1 keeps none.
"""

from __future__ import annotations

from tdsl.schedule.state import CACHE_POLICIES

_L1 = {"evict_first": "L1::no_allocate", "evict_last": "L1::evict_last"}
_STORE = "st.global.cs"  # lines of L2 that are evicted first
_CONSTRAINTS = {1: ("u8", "h", "unsigned short"), 2: ("u16", "h", "unsigned short")}
_CONSTRAINTS |= {4: ("u32", "r", "unsigned int"), 8: ("u64", "l", "unsigned long long")}


def _load(policy: str) -> str:
    cases = "".join(
        f"""  {"else " * (n > 1)}if constexpr (N == {n}) {{
    {kind} x;
    asm volatile("ld.global.{_L1[policy]}.L2::cache_hint.{t} %0, [%1], %2;"
                 : "={c}"(x) : "l"(from), "l"(policy));
    memcpy(to, &x, {n});
  }}
"""
        for n, (t, c, kind) in _CONSTRAINTS.items()
    )
    return f"""
template <int N> __device__ __forceinline__
void tdsl_load_{policy}(void *to, const void *from, unsigned long long policy) {{
{cases}  else {{
    unsigned int *x = (unsigned int *)to;
    asm volatile("ld.global.{_L1[policy]}.L2::cache_hint.v4.u32 {{%0, %1, %2, %3}}, [%4], %5;"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(from), "l"(policy));
  }}
}}
template <class T> __device__ __forceinline__
T tdsl_load_{policy}(const T *from, unsigned long long policy) {{
  T x;
  tdsl_load_{policy}<sizeof(T)>(&x, from, policy);
  return x;
}}
"""


def _store_cases() -> str:
    return "".join(
        f"""  {"else " * (n > 1)}if constexpr (N == {n}) {{
    {kind} x = 0;
    memcpy(&x, from, {n});
    asm volatile("{_STORE}.{t} [%0], %1;" :: "l"(to), "{c}"(x) : "memory");
  }}
"""
        for n, (t, c, kind) in _CONSTRAINTS.items()
    )


CACHE_FUNCTIONS = {
    "tdsl_load": """
template <int N> __device__ __forceinline__ void tdsl_load(void *to, const void *from) {
  if constexpr (N == 16) *(int4 *)to = *(const int4 *)from;
  else if constexpr (N == 8) *(int2 *)to = *(const int2 *)from;
  else if constexpr (N == 4) *(int *)to = *(const int *)from;
  else memcpy(to, from, N);
}
""",
    **{
        f"tdsl_{policy}": f"""
__device__ __forceinline__ unsigned long long tdsl_{policy}() {{
  unsigned long long policy;
  asm("createpolicy.fractional.L2::{policy}.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}}
"""
        for policy in CACHE_POLICIES
    },
    **{f"tdsl_load_{policy}": _load(policy) for policy in CACHE_POLICIES},
    "tdsl_store_streaming": f"""
template <int N> __device__ __forceinline__ void tdsl_store_streaming(void *to, const void *from) {{
{_store_cases()}  else {{
    const unsigned int *x = (const unsigned int *)from;
    asm volatile("{_STORE}.v4.u32 [%0], {{%1, %2, %3, %4}};"
                 :: "l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
  }}
}}
template <class T, class U> __device__ __forceinline__ void tdsl_store_streaming(T *to, U value) {{
  T x = (T)value;
  tdsl_store_streaming<sizeof(T)>((void *)to, (const void *)&x);
}}
""",
}
