"""Element-wise functions under NumPy's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang.expr import Access, Binary, Call, Const, Expr, Select
from tdsl.lang.types import DType, as_dtype, bool_, f32, f64, i64
from tdsl.lang.value import UNKNOWN_TYPE, Value, binary, common_type, convert, lift, unary


def where(cond: Any, yes: Any, no: Any) -> Value:
    """`yes` where `cond` holds, else `no`. Both are evaluated at every point, so must be in bounds there."""
    loc = here()
    c, a, b = lift(cond, loc), lift(yes, loc), lift(no, loc)
    if c.dtype != bool_:
        raise TypeMismatch(
            f"the condition of where is {c.dtype}, not bool",
            loc=loc,
            label="this call",
            hint="compare it: x != 0",
        )
    t = common_type(a, b)
    return Value(Select(c.node, convert(a, t, loc), convert(b, t, loc), loc=loc), weak=a.weak and b.weak)


def _min_max(op: str, x: Any, y: Any) -> Value:
    for current, other in ((x, y), (y, x)):
        # f[i] = maximum(f[i], e) defines an undefined func by the identity; its type is that of e
        if isinstance(current, Value) and isinstance(current.node, Access) and current.dtype is UNKNOWN_TYPE:
            v, node = lift(other), current.node
            typed = Access(node.source, node.index, node.component, v.dtype, loc=node.loc)
            return Value(Binary(op, typed, v.node, loc=here()))
    return binary(op, x, y)


def maximum(x: Any, y: Any) -> Value:
    """The larger of two values; NaN if either is NaN."""
    return _min_max("max", x, y)


def minimum(x: Any, y: Any) -> Value:
    """The smaller of two values; NaN if either is NaN."""
    return _min_max("min", x, y)


def clip(x: Any, low: Any, high: Any) -> Value:
    """`x` limited to low..high, as `numpy.clip`; it also bounds a data-dependent index."""
    return minimum(maximum(x, low), high)


def absolute(x: Any) -> Value:
    """The absolute value; `abs(x)` is the same."""
    return unary("abs", x)


def square(x: Any) -> Value:
    """x * x."""
    return binary("mul", x, x)


def _float_type(values: list[Value]) -> DType:
    t = values[0].dtype
    weak = values[0].weak
    merged = values[0]
    for v in values[1:]:
        t = common_type(merged, v)
        weak = weak and v.weak
        merged = Value(Const(0, t), weak=weak)
    return t if t.is_float else f64


def call(fn: str, *args: Any) -> Value:
    """The call of a function of floats; as in NumPy, integers are converted to f64."""
    loc = here()
    values = [lift(x, loc) for x in args]
    t = _float_type(values)
    weak = all(v.weak for v in values)
    return Value(Call(fn, tuple(convert(v, t, loc) for v in values), t, loc=loc), weak=weak)


def _unary(fn: str, meaning: str) -> Callable[[Any], Value]:
    def function(x: Any) -> Value:
        return call(fn, x)

    function.__name__ = function.__qualname__ = fn
    function.__doc__ = f"{meaning}; integers are taken as f64."
    return function


sqrt = _unary("sqrt", "The square root")
rsqrt = _unary("rsqrt", "1 / sqrt(x)")
exp = _unary("exp", "e to the power x")
exp2 = _unary("exp2", "2 to the power x")
expm1 = _unary("expm1", "exp(x) - 1, accurate near 0")
log = _unary("log", "The natural logarithm")
log2 = _unary("log2", "The logarithm to base 2")
log10 = _unary("log10", "The logarithm to base 10")
log1p = _unary("log1p", "log(1 + x), accurate near 0")
sin = _unary("sin", "The sine of x in radians")
cos = _unary("cos", "The cosine of x in radians")
tan = _unary("tan", "The tangent of x in radians")
arcsin = _unary("arcsin", "The inverse sine")
arccos = _unary("arccos", "The inverse cosine")
arctan = _unary("arctan", "The inverse tangent")
sinh = _unary("sinh", "The hyperbolic sine")
cosh = _unary("cosh", "The hyperbolic cosine")
tanh = _unary("tanh", "The hyperbolic tangent")
arcsinh = _unary("arcsinh", "The inverse hyperbolic sine")
arccosh = _unary("arccosh", "The inverse hyperbolic cosine")
arctanh = _unary("arctanh", "The inverse hyperbolic tangent")
erf = _unary("erf", "The error function")
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x))")


def _rounding(fn: str, meaning: str) -> Callable[[Any], Value]:
    def function(x: Any) -> Value:
        v = lift(x, here())
        return call(fn, v) if v.dtype.is_float else v

    function.__name__ = function.__qualname__ = fn
    function.__doc__ = f"{meaning}; integers are left as they are."
    return function


floor = _rounding("floor", "The largest integer not above x")
ceil = _rounding("ceil", "The smallest integer not below x")
trunc = _rounding("trunc", "x without its fraction")
round = _rounding("round", "The nearest integer, halves to even")


def arctan2(y: Any, x: Any) -> Value:
    """The angle of the point (x, y), in -pi..pi."""
    return call("arctan2", y, x)


def hypot(x: Any, y: Any) -> Value:
    """sqrt(x * x + y * y) without overflow on the way."""
    return call("hypot", x, y)


def copysign(x: Any, y: Any) -> Value:
    """`x` with the sign of `y`."""
    return call("copysign", x, y)


def fma(x: Any, y: Any, z: Any) -> Value:
    """x * y + z, rounded once."""
    return call("fma", x, y, z)


def power(x: Any, y: Any) -> Value:
    """x ** y."""
    return binary("pow", x, y)


def floor_divide(x: Any, y: Any) -> Value:
    """x // y: the quotient rounded down; 0 where an integer y is 0."""
    return binary("floordiv", x, y)


def remainder(x: Any, y: Any) -> Value:
    """x % y with the sign of y; 0 where an integer y is 0."""
    return binary("mod", x, y)


def logical_and(x: Any, y: Any) -> Value:
    """The logical and of two values; numbers are true if not zero."""
    return binary("and", _condition(x), _condition(y))


def logical_or(x: Any, y: Any) -> Value:
    """The logical or of two values; numbers are true if not zero."""
    return binary("or", _condition(x), _condition(y))


def logical_not(x: Any) -> Value:
    """The logical not of a value; a number is true if not zero."""
    return unary("not", _condition(x))


def _condition(x: Any) -> Value:
    v = lift(x, here())
    return v if v.dtype == bool_ else binary("ne", v, 0)


def _float_test(fn: str, meaning: str) -> Callable[[Any], Value]:
    def function(x: Any) -> Value:
        loc = here()
        v = lift(x, loc)
        if not v.dtype.is_float:
            return Value(Const(fn == "isfinite", bool_))
        return Value(Call(fn, (v.node,), bool_, loc=loc))

    function.__name__ = function.__qualname__ = fn
    function.__doc__ = f"True where x {meaning}; integers never are, and are always finite."
    return function


isnan = _float_test("isnan", "is NaN")
isinf = _float_test("isinf", "is an infinity")
isfinite = _float_test("isfinite", "is neither NaN nor an infinity")


def _bit_function(fn: str, meaning: str) -> Callable[[Any], Value]:
    def function(x: Any) -> Value:
        loc = here()
        v = lift(x, loc)
        if not v.dtype.is_integer:
            raise TypeMismatch(
                f"{fn} needs an integer, not {v.dtype}",
                loc=loc,
                label="this call",
                hint="td.reinterpret gives the bits of a float, td.cast its value",
            )
        return Value(Call(fn, (v.node,), v.dtype, loc=loc))

    function.__name__ = function.__qualname__ = fn
    function.__doc__ = f"{meaning} of an integer, in its own type."
    return function


popcount = _bit_function("popcount", "The number of set bits")
count_leading_zeros = _bit_function("clz", "The number of leading zero bits (all bits for 0)")
count_trailing_zeros = _bit_function("ctz", "The number of trailing zero bits (all bits for 0)")


def reinterpret(x: Any, dtype: Any) -> Value:
    """The bits of `x` as another element type of equal size."""
    loc, t = here(), as_dtype(dtype)
    v = lift(x, loc)
    if v.dtype.bits != t.bits or "b" in (v.dtype.kind, t.kind):
        raise TypeMismatch(
            f"{v.dtype} and {t} do not have the same number of bits",
            loc=loc,
            label="this call",
            hint=f"for instance u{v.dtype.bits}" if v.dtype.kind != "b" else "td.cast a bool",
        )
    return Value(Call("reinterpret", (v.node,), t, loc=loc))


def absdiff(x: Any, y: Any) -> Value:
    """|x - y| without wrapping, in the common type."""
    return binary("sub", maximum(x, y), minimum(x, y))


def lerp(a: Any, b: Any, t: Any) -> Value:
    """a + (b - a) * t."""
    return binary("add", a, binary("mul", binary("sub", b, a), t))


def random(*key: Any, seed: int = 0, dtype: Any = f32) -> Value:
    """A uniform random number in [0, 1): a hash of `seed` and the integers of `key`, such as coordinates.

    It has no state: the same key gives the same number under every schedule and on every backend.
    `dtype` is f32 (24 random bits) or f64 (53).

    >>> from tdsl.lang.value import vars
    >>> i, j = vars("i j")
    >>> random(i, j, seed=1)
    random(1, i, j)
    """
    loc, t = here(), as_dtype(dtype)
    if t not in (f32, f64):
        raise TypeMismatch(
            f"random gives f32 or f64, not {t}",
            loc=loc,
            label="this call",
            hint="scale and cast it: td.cast(td.random(...) * n, td.i32)",
        )
    keys: list[Expr] = []
    for k in (seed, *key):
        v = lift(k, loc)
        if not v.dtype.is_integer:
            raise TypeMismatch(
                f"the key of random must be integers, not {v.dtype}",
                loc=loc,
                label="this call",
                hint="td.cast it",
            )
        keys.append(convert(v, i64, loc))
    return Value(Call("random", tuple(keys), t, loc=loc))
