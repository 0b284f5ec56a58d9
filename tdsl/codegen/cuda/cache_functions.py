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
    "tdsl_load_shifted": """
template <int N> __device__ __forceinline__  // N: bytes of an element
void tdsl_load_shifted(void *to, const void *from, long long first, long long count) {
  typedef typename tdsl_unsigned<char, N>::type T;
  long long at = first * N, begin = at & ~15LL;
  if (0 <= begin && begin + 32 <= count * N) {  // two aligned vectors, none beyond the ends of the array
    const uint4 *vectors = (const uint4 *)((const char *)from + begin);
    int shift = (int)(at & 15);
    uint4 both[2] = {vectors[0], vectors[0]};
    if (shift != 0) both[1] = vectors[1];
    unsigned int w[8];
    memcpy(w, both, 32);
    if (shift & 8) { w[0] = w[2]; w[1] = w[3]; w[2] = w[4]; w[3] = w[5]; w[4] = w[6]; w[5] = w[7]; }
    if (shift & 4) { w[0] = w[1]; w[1] = w[2]; w[2] = w[3]; w[3] = w[4]; w[4] = w[5]; }
    if (N < 4) {
#pragma unroll
      for (int n = 0; n < 4; n++) w[n] = __funnelshift_r(w[n], w[n + 1], (shift & 3) * 8);
    }
    memcpy(to, w, 16);
  } else {
#pragma unroll
    for (int n = 0; n < 16 / N; n++) {
      T x = 0;
      if (0 <= first + n && first + n < count) x = ((const T *)from)[first + n];
      memcpy((char *)to + n * N, &x, N);
    }
  }
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
