"""Source text of the CUDA device functions that kernels call.

They implement what CUDA lacks or defines otherwise than tdsl. Names of templates include type arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

from tdsl.codegen.cuda.asynchronous_functions import ASYNCHRONOUS, ASYNCHRONOUS_CALLEES
from tdsl.codegen.cuda.atomic_functions import ATOMIC_FUNCTIONS
from tdsl.codegen.cuda.cache_functions import CACHE_FUNCTIONS
from tdsl.codegen.cuda.narrow_floats import float_of_bytes
from tdsl.codegen.cuda.tensor_memory_functions import CALLEES, TENSOR_MEMORY

FUNCTIONS = {
    "tdsl_unsigned": """
template <class T, int N = sizeof(T)> struct tdsl_unsigned;
template <class T> struct tdsl_unsigned<T, 1> { typedef unsigned char type; };
template <class T> struct tdsl_unsigned<T, 2> { typedef unsigned short type; };
template <class T> struct tdsl_unsigned<T, 4> { typedef unsigned int type; };
template <class T> struct tdsl_unsigned<T, 8> { typedef unsigned long long type; };
""",
    "tdsl_add": """
template <class T> __device__ __forceinline__ T tdsl_add(T x, T y) {
  typedef typename tdsl_unsigned<T>::type U;
  return (T)(U)((U)x + (U)y);
}
""",
    "tdsl_sub": """
template <class T> __device__ __forceinline__ T tdsl_sub(T x, T y) {
  typedef typename tdsl_unsigned<T>::type U;
  return (T)(U)((U)x - (U)y);
}
""",
    "tdsl_mul": """
template <class T> __device__ __forceinline__ T tdsl_mul(T x, T y) {
  return (T)((unsigned long long)x * (unsigned long long)y);
}
""",
    "tdsl_neg": """
template <class T> __device__ __forceinline__ T tdsl_neg(T x) {
  typedef typename tdsl_unsigned<T>::type U;
  return (T)(U)(0 - (U)x);
}
""",
    "tdsl_abs": """
template <class T> __device__ __forceinline__ T tdsl_abs(T x) { return x < (T)0 ? tdsl_neg(x) : x; }
""",
    "tdsl_floordiv": """
template <class T> __device__ __forceinline__ T tdsl_floordiv(T x, T y) {
  if (y == (T)0) return (T)0;
  if ((T)-1 < (T)0 && y == (T)-1) return tdsl_neg(x);
  T q = x / y;
  return (x % y != (T)0 && (x < (T)0) != (y < (T)0)) ? q - (T)1 : q;
}
""",
    "tdsl_mod": """
template <class T> __device__ __forceinline__ T tdsl_mod(T x, T y) {
  if (y == (T)0 || ((T)-1 < (T)0 && y == (T)-1)) return (T)0;
  T r = x % y;
  return (r != (T)0 && (r < (T)0) != (y < (T)0)) ? r + y : r;
}
""",
    "tdsl_float_floordiv": """
template <class T> __device__ __forceinline__ T tdsl_float_floordiv(T x, T y) {
  if (y == (T)0) return x / y;
  T r = fmod(x, y);
  T q = (x - r) / y;
  if (r != (T)0 && (y < (T)0) != (r < (T)0)) q -= (T)1;
  if (q == (T)0) return copysign((T)0, x / y);
  T f = floor(q);
  return q - f > (T)0.5 ? f + (T)1 : f;
}
""",
    "tdsl_float_mod": """
template <class T> __device__ __forceinline__ T tdsl_float_mod(T x, T y) {
  T r = fmod(x, y);
  if (r == (T)0) return copysign(r, y);
  return (y < (T)0) != (r < (T)0) ? r + y : r;
}
""",
    "tdsl_min": """
template <class T> __device__ __forceinline__ T tdsl_min(T x, T y) { return x <= y || x != x ? x : y; }
#if __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ float tdsl_min(float x, float y) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
}
#endif
""",
    "tdsl_max": """
template <class T> __device__ __forceinline__ T tdsl_max(T x, T y) { return x >= y || x != x ? x : y; }
#if __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ float tdsl_max(float x, float y) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
}
#endif
""",
    "tdsl_shl": """
template <class T> __device__ __forceinline__ T tdsl_shl(T x, T n) {
  typedef typename tdsl_unsigned<T>::type U;
  return n < (T)0 || (U)n >= 8 * sizeof(T) ? (T)0 : (T)(U)((U)x << (int)n);
}
""",
    "tdsl_shr": """
template <class T> __device__ __forceinline__ T tdsl_shr(T x, T n) {
  typedef typename tdsl_unsigned<T>::type U;
  bool far = n < (T)0 || (U)n >= 8 * sizeof(T);
  return far ? (x < (T)0 ? (T)-1 : (T)0) : (T)(x >> (int)n);
}
""",
    "tdsl_pow": """
template <class T> __device__ __forceinline__ T tdsl_pow(T x, T n) {
  if ((T)-1 < (T)0 && n < (T)0)
    return x == (T)1 ? (T)1 : x == (T)-1 ? (n % (T)2 == (T)0 ? (T)1 : (T)-1) : (T)0;
  T result = (T)1;
  for (; n != (T)0; n /= (T)2) {
    if (n % (T)2 != (T)0) result = tdsl_mul(result, x);
    x = tdsl_mul(x, x);
  }
  return result;
}
""",
    "tdsl_to_integer": """
template <class I, class T> __device__ __forceinline__ I tdsl_to_integer(T value) {
  typedef typename tdsl_unsigned<I>::type U;
  const bool is_signed = (I)-1 < (I)0;
  const I high = is_signed ? (I)((U)~(U)0 >> 1) : (I)~(U)0;
  const I low = is_signed ? (I)((U)1 << (8 * sizeof(I) - 1)) : (I)0;
  const double x = trunc((double)value);
  if (x != x) return (I)0;
  if (x >= (double)high) return high;
  if (x <= (double)low) return low;
  return (I)x;
}
""",
    "tdsl_saturate": """
template <class I, class T> __device__ __forceinline__ I tdsl_saturate(T x) {
  typedef typename tdsl_unsigned<I>::type U;
  const bool is_signed = (I)-1 < (I)0;
  const U most = is_signed ? (U)((U)~(U)0 >> 1) : (U)~(U)0;
  const unsigned long long high = most;
  const I low = is_signed ? (I)((U)1 << (8 * sizeof(I) - 1)) : (I)0;
  if (x < (T)0) return is_signed && (long long)x >= (long long)low ? (I)x : low;
  return (unsigned long long)x > high ? (I)high : (I)x;
}
""",
    "tdsl_bits": """
template <class To, class From> __device__ __forceinline__ To tdsl_bits(From x) {
  To y;
  memcpy(&y, &x, sizeof(To));
  return y;
}
""",
    "tdsl_popcount": """
template <class T> __device__ __forceinline__ T tdsl_popcount(T x) {
  typedef typename tdsl_unsigned<T>::type U;
  return (T)__popcll((unsigned long long)(U)x);
}
""",
    "tdsl_clz": """
template <class T> __device__ __forceinline__ T tdsl_clz(T x) {
  typedef typename tdsl_unsigned<T>::type U;
  return (T)(__clzll((long long)(U)x) - (64 - 8 * (int)sizeof(T)));
}
""",
    "tdsl_ctz": """
template <class T> __device__ __forceinline__ T tdsl_ctz(T x) {
  typedef typename tdsl_unsigned<T>::type U;
  return x == (T)0 ? (T)(8 * sizeof(T)) : (T)(__ffsll((long long)(U)x) - 1);
}
""",
    "tdsl_mix": """
__device__ __forceinline__ unsigned long long tdsl_mix(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
""",
    "tdsl_mix_in": """
__device__ __forceinline__ unsigned long long tdsl_mix_in(unsigned long long h, unsigned long long key) {
  return tdsl_mix(h ^ (key * 0x9E3779B97F4A7C15ull));
}
""",
    "tdsl_unit_f32": """
__device__ __forceinline__ float tdsl_unit_f32(unsigned long long h) {
  return (float)(h >> 40) * 5.9604644775390625e-08f;
}
""",
    "tdsl_unit_f64": """
__device__ __forceinline__ double tdsl_unit_f64(unsigned long long h) {
  return (double)(h >> 11) * 1.1102230246251565e-16;
}
""",
    **ATOMIC_FUNCTIONS,
    "tdsl_failed": """
template <class T> __device__ __forceinline__ long long tdsl_bits(T x) {
  long long bits = 0;
  memcpy(&bits, &x, sizeof(T));
  return bits;
}
template <class R, class... T> __device__ __forceinline__ void tdsl_failed(R *record, int site, T... values) {
  if (atomicCAS((unsigned long long *)record, 0ull, (unsigned long long)site) == 0) {
    int n = 0;
    (void(record[++n] = tdsl_bits(values)), ...);
  }
}
""",
    "tdsl_word": """
__device__ __forceinline__ const char *tdsl_word(bool x) { return x ? "True" : "False"; }
""",
    "tdsl_shuffle": """
template <class T> __device__ __forceinline__ T tdsl_shuffle(T x, int distance, int width) {
  unsigned mask = 0xffffffffu;
  if (width < 32) {
    int lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
    mask = ((1u << width) - 1) << (lane & -width);
  }
  if constexpr (sizeof(T) == 8) {
    long long y;
    memcpy(&y, &x, 8);
    y = __shfl_xor_sync(mask, y, distance);
    memcpy(&x, &y, 8);
  } else {
    unsigned y = 0;
    memcpy(&y, &x, sizeof(T));
    y = __shfl_xor_sync(mask, y, distance);
    memcpy(&x, &y, sizeof(T));
  }
  return x;
}
""",
    "tdsl_isnan": """
template <class T> __device__ __forceinline__ bool tdsl_isnan(T x) { return x != x; }
""",
    "tdsl_isinf": """
template <class T> __device__ __forceinline__ bool tdsl_isinf(T x) { return x - x != x - x && x == x; }
""",
    "tdsl_isfinite": """
template <class T> __device__ __forceinline__ bool tdsl_isfinite(T x) { return x - x == x - x; }
""",
    "tdsl_sigmoid": """
template <class T> __device__ __forceinline__ T tdsl_sigmoid(T x) { return (T)1 / ((T)1 + exp(-x)); }
""",
    "tdsl_exp2_approx": """
__device__ __forceinline__ float tdsl_exp2_approx(float x) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}
""",
    **float_of_bytes("f8e4m3", 3, 7, "e4m3", "> 464.0f"),
    **float_of_bytes("f8e5m2", 2, 15, "e5m2", ">= 61440.0f"),
    **CACHE_FUNCTIONS,
    **ASYNCHRONOUS,
    **TENSOR_MEMORY,
}  # in an order in which each function calls only earlier ones

_CALLEES = {
    "tdsl_add": ("tdsl_unsigned",), "tdsl_sub": ("tdsl_unsigned",), "tdsl_neg": ("tdsl_unsigned",),
    "tdsl_abs": ("tdsl_unsigned", "tdsl_neg"), "tdsl_floordiv": ("tdsl_unsigned", "tdsl_neg"),
    "tdsl_shl": ("tdsl_unsigned",), "tdsl_shr": ("tdsl_unsigned",), "tdsl_pow": ("tdsl_mul",),
    "tdsl_to_integer": ("tdsl_unsigned",), "tdsl_saturate": ("tdsl_unsigned",),
    "tdsl_popcount": ("tdsl_unsigned",), "tdsl_clz": ("tdsl_unsigned",), "tdsl_ctz": ("tdsl_unsigned",),
    "tdsl_mix_in": ("tdsl_mix",),
    "tdsl_load_shifted": ("tdsl_unsigned",),
    **ASYNCHRONOUS_CALLEES,
    **CALLEES,
    **dict.fromkeys(ATOMIC_FUNCTIONS, ("tdsl_swapped",)),
    "tdsl_atomic_min": ("tdsl_swapped", "tdsl_min"), "tdsl_atomic_max": ("tdsl_swapped", "tdsl_max"),
}  # fmt: skip


def functions_text(used: Iterable[str]) -> str:
    """The source of the functions `used` and those they call; type arguments in the names are ignored.

    >>> print(functions_text(["tdsl_max"]).strip().splitlines()[0])
    template <class T> __device__ __forceinline__ T tdsl_max(T x, T y) { return x >= y || x != x ? x : y; }
    """
    names = {name.partition("<")[0] for name in used}
    for name in list(names):
        names.update(_CALLEES.get(name, ()))
    return "".join(text for name, text in FUNCTIONS.items() if name in names)
