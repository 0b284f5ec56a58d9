"""Reference semantics of the expression nodes on NumPy arrays, which every backend reproduces.

Integers wrap; integer division floors, and gives 0 for a zero divisor; NaN propagates through min and max; a
float is cast to an integer by truncation with saturation, NaN to 0. Floats of 8 and 16 bits are computed in
f32 and rounded after each node. Shift counts outside the width give 0, or -1 for a negative number >> count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tdsl.lang.expr import COMPARISONS, Const
from tdsl.lang.types import DType, f32

Array = np.ndarray[Any, Any]

BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "floordiv": np.floor_divide, "mod": np.remainder, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift,
    "shr": np.right_shift, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
UNARY: dict[str, Callable[..., Any]] = {"neg": np.negative, "not": np.invert, "abs": np.absolute}


def constant(c: Const) -> Array:
    """A literal as a 0-dimensional array."""
    return np.asarray(c.value).astype(c.dtype.numpy)


def unary(op: str, x: Array) -> Array:
    """`neg`, `not` or `abs` of an array.

    >>> unary("neg", np.array([1, 128], np.uint8))
    array([255, 128], dtype=uint8)
    """
    with np.errstate(all="ignore"):
        result: Array = UNARY[op](x)
    return result


def binary(op: str, x: Array, y: Array) -> Array:
    """`x op y` of two arrays of one dtype; comparisons give bools.

    >>> binary("floordiv", np.int8([-128, 7, 7]), np.int8([-1, 0, -2]))
    array([-128,    0,   -4], dtype=int8)
    """
    assert x.dtype == y.dtype, f"{op} of {x.dtype} and {y.dtype}"
    dtype = x.dtype
    narrow = _is_narrow(dtype)
    if narrow:
        x, y = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        if op == "pow":
            result = np.power(x, y) if x.dtype.kind == "f" else _integer_power(x, y)
        else:
            result = BINARY[op](x, y)
    return result.astype(dtype) if narrow and op not in COMPARISONS else result


def _is_narrow(d: np.dtype[Any]) -> bool:
    return d.itemsize < 4 and d.kind not in "biu"


def _integer_power(x: Array, y: Array) -> Array:
    """x ** y that wraps; 0 for a negative y, except that 1 and -1 stay units."""
    if x.dtype.kind == "u":
        return np.power(x, y)
    unit = np.where(x == -1, np.where(y % 2 == 0, 1, -1), np.where(x == 1, 1, 0)).astype(x.dtype)
    return np.where(y < 0, unit, np.power(x, np.maximum(y, 0)))


def select(cond: Array, yes: Array, no: Array) -> Array:
    """`yes` where `cond`, else `no`."""
    return np.where(cond, yes, no)


def cast(x: Array, to: DType, saturate: bool = False) -> Array:
    """An array as another element type.

    >>> from tdsl.lang.types import i8, u8
    >>> cast(np.array([300.7, -1.0, np.nan]), u8), cast(np.array([300, -1]), i8, saturate=True)
    (array([255,   0,   0], dtype=uint8), array([127,  -1], dtype=int8))
    """
    if x.dtype == to.numpy:
        return x
    with np.errstate(all="ignore"):
        if to.kind == "b":
            return x != 0  # type: ignore[no-any-return]  # an array of bools
        if to.is_float:
            # integers reach narrow floats by way of f32
            step = x.astype(np.float32) if x.dtype.kind in "iu" and to.is_narrow else x
            return step.astype(to.numpy)
        if x.dtype.kind in "biu":
            return _clip(x, to) if saturate and x.dtype.kind != "b" else x.astype(to.numpy)
        return _to_integer(x.astype(np.float64), to)


def _clip(x: Array, to: DType) -> Array:
    source = np.iinfo(x.dtype)
    low, high = max(int(to.low), source.min), min(int(to.high), source.max)
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(to.numpy)


def _to_integer(x: Array, to: DType) -> Array:
    whole = np.trunc(x)
    inside = (whole >= float(to.low)) & (whole < float(to.high) + 1.0)
    if to.bits == 64:  # 2 ** 63 - 1 and 2 ** 64 - 1 are not floats
        inside = (whole >= float(to.low)) & (whole < float(to.high))
    numpy = to.numpy.type
    outside = np.where(x > 0, numpy(to.high), np.where(x < 0, numpy(to.low), numpy(0)))
    return np.where(inside, np.where(inside, whole, 0.0).astype(numpy), outside)


def call(fn: str, args: tuple[Array, ...], dtype: DType) -> Array:
    """The result of a function of `expr.FUNCTIONS` on arrays; `dtype` is the type of the result.

    >>> from tdsl.lang.types import u8
    >>> call("clz", (np.array([1, 0], np.uint8),), u8)
    array([7, 8], dtype=uint8)
    """
    with np.errstate(all="ignore"):
        if fn in _TESTS:
            x = args[0].astype(np.float32) if _is_narrow(args[0].dtype) else args[0]
            return _TESTS[fn](x)
        if fn == "random":
            return _random(args, dtype)
        if fn == "reinterpret":
            return np.asarray(args[0].view(dtype.numpy))
        if fn in _BITS:
            return _BITS[fn](args[0]).astype(dtype.numpy)
        if fn.startswith("pad_"):
            return _PADDING[fn](*args)
        if dtype.is_narrow:
            wide = (x.astype(np.float32) for x in args)
            return np.asarray(FLOATS[fn](*wide).astype(dtype.numpy))
        return np.asarray(FLOATS[fn](*args))


_TESTS: dict[str, Callable[..., Array]] = {
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
}  # fmt: skip


def _unsigned(x: Array) -> Array:
    return np.asarray(x.view(f"u{x.dtype.itemsize}"))


def _leading_zeros(x: Array) -> Array:
    bits, y = 8 * x.dtype.itemsize, _unsigned(x)
    for shift in (1, 2, 4, 8, 16, 32):
        y = y | (y >> y.dtype.type(min(shift, bits - 1)))
    return np.asarray(bits - np.bitwise_count(y).astype(np.int64))


def _trailing_zeros(x: Array) -> Array:
    y = _unsigned(x)
    return np.asarray(np.bitwise_count(~y & (y - y.dtype.type(1))))


_BITS: dict[str, Callable[[Array], Array]] = {
    "popcount": lambda x: np.bitwise_count(_unsigned(x)),
    "clz": _leading_zeros,
    "ctz": _trailing_zeros,
}


def _mix(x: Array) -> Array:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _random(keys: tuple[Array, ...], dtype: DType) -> Array:
    """Uniform numbers in [0, 1): splitmix64's finaliser, which maps 0 to 0, chained over seed, 1 and keys."""
    seed, *rest = (np.asarray(k).astype(np.uint64) for k in keys)
    h: Array = seed
    for k in (np.ones((), np.uint64), *rest):
        h = _mix(h ^ (k * np.uint64(0x9E3779B97F4A7C15)))
    if dtype == f32:
        return (h >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    return (h >> np.uint64(11)).astype(np.float64) * np.float64(2**-53)


def _pad_edge(i: Array, n: Array) -> Array:
    return np.asarray(np.maximum(np.minimum(i, n - 1), 0))


def _pad_reflect(i: Array, n: Array) -> Array:
    period = np.maximum(2 * (n - 1), 1)
    at = i % period
    return np.where(n <= 1, 0, np.where(at < n, at, period - at))


def _pad_symmetric(i: Array, n: Array) -> Array:
    period = np.maximum(2 * n, 1)
    at = i % period
    return np.where(n <= 0, 0, np.where(at < n, at, period - 1 - at))


def _pad_wrap(i: Array, n: Array) -> Array:
    return np.asarray(i % n)


_PADDING: dict[str, Callable[..., Array]] = {
    "pad_edge": _pad_edge, "pad_reflect": _pad_reflect, "pad_symmetric": _pad_symmetric,
    "pad_wrap": _pad_wrap,
}  # fmt: skip


def _by_element(f: Callable[..., float]) -> Callable[..., Array]:
    """A function of Python floats, vectorised; its f64 result is rounded to the dtype of the arrays."""
    wide = np.vectorize(f, otypes=[np.float64])

    def function(*args: Array) -> Array:
        return np.asarray(wide(*args)).astype(args[0].dtype)

    return function


def _fma(x: float, y: float, z: float) -> float:
    plain = float(np.float64(x) * np.float64(y) + np.float64(z))
    if not math.isfinite(plain) or not (math.isfinite(x) and math.isfinite(y)):
        return plain
    from fractions import Fraction  # imports decimal, and few programs have a constant fma

    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    return float(exact) if exact else plain


def _fused(x: Array, y: Array, z: Array) -> Array:
    if x.dtype == np.float64:
        return np.asarray(_by_element(_fma)(x, y, z))
    product = x.astype(np.float64) * y.astype(np.float64)  # exact: 2 * 24 bits fit in 53
    return sum_to_odd(product, z.astype(np.float64)).astype(x.dtype)


def sum_to_odd(a: Array, b: Array) -> Array:
    """a + b in f64, rounded to odd where it is inexact, so that rounding the sum to f32 rounds only once.

    Source: S. Boldo, G. Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd, IEEE Transactions on Computers 57, 2008.
    """
    total = np.asarray(a + b)
    part = total - a
    error = np.asarray((a - (total - part)) + (b - part))
    up_or_down = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    is_even = (total.view(np.int64) & 1) == 0
    return np.where(is_even & (error != 0) & np.isfinite(error), up_or_down, total)


def _one(x: Array) -> Any:
    return x.dtype.type(1)


FLOATS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(np, name)
        for name in (
            "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
            "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "arcsinh", "arccosh",
            "arctanh", "hypot", "floor", "ceil", "trunc", "copysign",
        )
    },
    "round": np.rint,
    "rsqrt": lambda x: _one(x) / np.sqrt(x),
    "sigmoid": lambda x: _one(x) / (_one(x) + np.exp(-x)),
    "erf": _by_element(math.erf),
    "fma": _fused,
}  # fmt: skip
