"""Device functions of atomic updates: instructions where there are some, else loops of compare-and-swap."""

from __future__ import annotations

_UPDATES = {
    "add": "(T)(old + (T)x)", "mul": "(T)(old * (T)x)",
    "min": "tdsl_min<T>(old, (T)x)", "max": "tdsl_max<T>(old, (T)x)",
    "and": "(T)(old & (T)x)", "or": "(T)(old | (T)x)", "xor": "(T)(old ^ (T)x)",
}  # fmt: skip
_INSTRUCTIONS = {"min": "Min", "max": "Max", "and": "And", "or": "Or", "xor": "Xor"}  # of integers

_ADD = """  if constexpr (sizeof(T) == 4) {
    atomicAdd(p, (T)x);
    return;
  } else if constexpr (sizeof(T) == 8 && (T)0.5 == (T)0) {
    atomicAdd((unsigned long long *)p, (unsigned long long)x);
    return;
  } else if constexpr (sizeof(T) == 8) {
    atomicAdd(p, (T)x);
    return;
  }
"""


def _instruction(op: str) -> str:
    """The part of a function that uses the instruction of an operator for integers of 4 and 8 bytes."""
    if op == "add":
        return _ADD
    if op not in _INSTRUCTIONS:
        return ""
    name = f"atomic{_INSTRUCTIONS[op]}"
    return f"""  if constexpr (sizeof(T) >= 4 && (T)0.5 == (T)0) {{
    if constexpr (sizeof(T) == 4)
      {name}(p, (T)x);
    else if constexpr ((T)-1 < (T)0)
      {name}((long long *)p, (long long)x);
    else
      {name}((unsigned long long *)p, (unsigned long long)x);
    return;
  }}
"""


ATOMIC_FUNCTIONS = {
    "tdsl_swapped": """
template <class T> __device__ __forceinline__ bool tdsl_swapped(T *p, T &old, T x) {
  bool same;
  if constexpr (sizeof(T) < 4) {
    unsigned int *word = (unsigned int *)((unsigned long long)p & ~3ull);
    int shift = 8 * (int)((unsigned long long)p & 3ull);
    unsigned int mask = (sizeof(T) == 1 ? 0xffu : 0xffffu) << shift, was = 0, next = 0;
    memcpy(&was, &old, sizeof(T));
    memcpy(&next, &x, sizeof(T));
    unsigned int around = *(volatile unsigned int *)word & ~mask;
    unsigned int found = atomicCAS(word, around | was << shift, around | next << shift);
    same = found == (around | was << shift);
    found = (found & mask) >> shift;
    memcpy(&old, &found, sizeof(T));
  } else if constexpr (sizeof(T) == 4) {
    unsigned int was = *(unsigned int *)&old;
    unsigned int found = atomicCAS((unsigned int *)p, was, *(unsigned int *)&x);
    same = found == was;
    memcpy(&old, &found, sizeof(T));
  } else {
    unsigned long long was = *(unsigned long long *)&old;
    unsigned long long found = atomicCAS((unsigned long long *)p, was, *(unsigned long long *)&x);
    same = found == was;
    memcpy(&old, &found, sizeof(T));
  }
  return same;
}
""",
    **{
        f"tdsl_atomic_{op}": f"""
template <class T, class U> __device__ __forceinline__ void tdsl_atomic_{op}(T *p, U x) {{
{_instruction(op)}  T old = *p;
  while (!tdsl_swapped(p, old, {value})) {{
  }}
}}
"""
        for op, value in _UPDATES.items()
    },
}
