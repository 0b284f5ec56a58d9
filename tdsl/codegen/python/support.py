"""Support functions that emitted Python may call; a module contains only those that it uses.

All take NumPy scalars and arrays alike. Where backends could differ (a cast out of range, a random number),
these functions are the reference.
"""

from __future__ import annotations

from collections.abc import Iterable

SUPPORT = {
    "CheckFailed": '''
class CheckFailed(Exception):
    """A check of the kernel failed: the number of its message, and the values shown."""
''',
    "wrap": '''
def wrap(x):
    """A Python integer as an i64 holds it."""
    return (x + 2**63) % 2**64 - 2**63
''',
    "floordiv": """
def floordiv(x, y):
    return x // y if y else 0
""",
    "mod": """
def mod(x, y):
    return x % y if y else 0
""",
    "int_power": '''
def int_power(x, y):
    """x ** y that wraps; 0 for a negative y, except that 1 and -1 have exact inverses."""
    unit = np.where(x == 1, x, np.where(x + 1 == 0, np.where(y % 2 == 0, -x, x), x - x))
    power = np.power(x, np.maximum(y, y - y))
    return np.where(y < 0, unit, power)[()].astype(x.dtype)
''',
    "to_int": '''
def to_int(x, dtype):
    """Truncate towards zero; clip what is out of range; NaN gives 0."""
    y, limits = np.trunc(np.float64(x)), np.iinfo(dtype)
    inside = (y >= float(limits.min)) & (y < float(limits.max) + 1.0)
    whole = np.where(inside, y, 0.0).astype(dtype)
    clipped = np.where(y > 0, dtype(limits.max), np.where(y < 0, dtype(limits.min), dtype(0)))
    return np.where(inside, whole, clipped)[()]
''',
    "unsigned": '''
def unsigned(x):
    """The bits of an integer."""
    return x.view(f"u{x.dtype.itemsize}")
''',
    "popcount": """
def popcount(x):
    return np.bitwise_count(unsigned(x))
""",
    "clz": """
def clz(x):
    bits, y = 8 * x.dtype.itemsize, unsigned(x)
    for shift in (1, 2, 4, 8, 16, 32):
        y = y | (y >> min(shift, bits - 1))
    return bits - np.bitwise_count(y)
""",
    "ctz": """
def ctz(x):
    y = unsigned(x)
    return np.bitwise_count(~y & (y - 1))
""",
    "random": '''
def random(dtype, *keys):
    """Uniform in [0, 1): a hash of integers, the same for equal keys."""
    def mix(x):
        x = (x ^ (x >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> 27)) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> 31)

    seed, *rest = (np.int64(k).astype(np.uint64) for k in keys)
    h = seed
    for k in (np.uint64(1), *rest):
        h = mix(h ^ (k * np.uint64(0x9E3779B97F4A7C15)))
    return dtype(h >> 40) * dtype(2**-24) if dtype is np.float32 else dtype(h >> 11) * dtype(2**-53)
''',
    "erf": """
def erf(x):
    return np.vectorize(math.erf, otypes=[float])(x).astype(x.dtype)[()]
""",
    "sigmoid": """
def sigmoid(x):
    return 1 / (1 + np.exp(-x))
""",
    "rsqrt": """
def rsqrt(x):
    return 1 / np.sqrt(x)
""",
    "fma": '''
def fma(a, b, c):
    """a * b + c, rounded once."""
    if a.dtype != np.float64:  # the product is exact in f64
        return sum_to_odd(np.float64(a) * np.float64(b), np.float64(c)).astype(a.dtype)[()]
    return np.vectorize(fma_f64, otypes=[float])(a, b, c)[()]
''',
    "sum_to_odd": '''
def sum_to_odd(a, b):
    """a + b in f64, rounded to odd where it is inexact, so that rounding it to f32 rounds only once."""
    total = np.asarray(a + b)
    part = total - a
    error = np.asarray((a - (total - part)) + (b - part))
    up_or_down = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    is_even = (total.view(np.int64) & 1) == 0
    return np.where(is_even & (error != 0) & np.isfinite(error), up_or_down, total)
''',
    "fma_f64": """
def fma_f64(a, b, c):
    if not np.isfinite(a * b + c) or a * b == 0:
        return a * b + c
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    return float(exact) if exact else a * b + c
""",
    "load": '''
def load(buffer, index, mask):
    """buffer[index] where the mask holds, else 0."""
    *index, mask = np.broadcast_arrays(*index, mask)
    lanes = np.zeros(mask.shape, buffer.dtype)
    lanes[mask] = buffer[tuple(i[mask] for i in index)]
    return lanes
''',
    "store": '''
def store(buffer, index, mask, value):
    """buffer[index] = value where the mask holds."""
    *index, mask, value = np.broadcast_arrays(*index, mask, value)
    buffer[tuple(i[mask] for i in index)] = value[mask]
''',
    "accumulate": '''
def accumulate(op, buffer, index, mask, value):
    """buffer[index] = op(buffer[index], value) lane by lane where the mask holds."""
    *index, mask, value = np.broadcast_arrays(*index, mask, value)
    for lane in np.flatnonzero(mask):
        at = tuple(i[lane] for i in index)
        buffer[at] = op(buffer[at], value[lane])
''',
    "inside": '''
def inside(buffer, *index):
    """The index; an AssertionError where it leaves the buffer."""
    for axis, (i, extent) in enumerate(zip(index, buffer.shape, strict=True)):
        within = (0 <= i) & (i < extent)
        if not (within.all() if isinstance(i, np.ndarray) else within):
            raise AssertionError(f"index {i} on axis {axis} of extent {extent}")
    return index
''',
    "poisoned": '''
def poisoned(shape, dtype):
    """Uninitialised memory, filled with a sentinel (NaN, 99 or True)."""
    kind = np.dtype(dtype).kind
    return np.full(shape, True if kind == "b" else 99 if kind in "iu" else np.nan, dtype)
''',
}

_CALLS = {
    "popcount": ("unsigned",), "clz": ("unsigned",), "ctz": ("unsigned",), "fma": ("fma_f64", "sum_to_odd"),
}  # fmt: skip
_IMPORTS = {"erf": "import math", "fma_f64": "from fractions import Fraction"}


def support_text(used: Iterable[str], floats: Iterable[str] = ()) -> str:
    """The imports and the source of the functions `used`; `floats` are names of ml_dtypes to import.

    >>> print(support_text({"sigmoid"}))
    import numpy as np
    <BLANKLINE>
    <BLANKLINE>
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))
    """
    names = set(used)
    for name in used:
        names.update(_CALLS.get(name, ()))
    imports = sorted(_IMPORTS[name] for name in names if name in _IMPORTS)
    imports = [*imports, *([""] if imports else []), "import numpy as np"]
    if foreign := sorted(floats):
        imports.append(f"from ml_dtypes import {', '.join(foreign)}")
    functions = [f"\n\n{SUPPORT[name].strip()}" for name in SUPPORT if name in names]
    return "\n".join([*imports, *functions])
