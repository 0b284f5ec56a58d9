"""Logarithms, inverse hyperbolic functions and powers: x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2)."""

from __future__ import annotations

from tdsl.codegen.cpu import vecmath_tables as tables
from tdsl.codegen.cpu.vecmath_arith import Arith
from tdsl.lang.types import f32

_ROOT_HALF_BITS = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}


def _split(a: Arith, x: str) -> tuple[str, str]:
    """The exponent e, an integer, and the bits of 1 + f, for a normal number x."""
    root = _ROOT_HALF_BITS[a.t.name]
    e = a.int("ashr", a.int("sub", a.bits(x), root), a.mantissa)
    return e, a.int("sub", a.bits(x), a.int("shl", e, a.mantissa))


def _exponent_and_fraction(a: Arith, x: str) -> tuple[str, str]:
    """e and f as floats, for a positive finite x; subnormal numbers are scaled first."""
    up = a.mantissa + 1
    tiny = a.cmp("olt", x, a.c(a.smallest_normal))
    e, m = _split(a, a.select(tiny, a.mul(x, a.c(2.0**up)), x))
    e = a.select_bits(tiny, a.int("sub", e, up), e)
    return a.from_int(e), a.sub(a.from_bits(m), a.c(1.0))


def _log1p_tail(a: Arith, f: str) -> str:
    """log(1 + f) - f."""
    square = a.mul(f, f)
    if a.t == f32:
        cubic = a.mul(a.mul(square, f), a.poly(f, tables.LOG_F["f32"]))
        return a.mad(square, a.c(-0.5), cubic)
    s = a.div(f, a.add(f, a.c(2.0)))
    z = a.mul(s, s)
    half = a.mul(square, a.c(0.5))
    return a.sub(a.mul(s, a.mad(z, a.poly(z, tables.LOG_S["f64"]), half)), half)


def _at_edges(a: Arith, x: str, result: str) -> str:
    """A logarithm's values at 0, below it, at infinity and NaN."""
    inside = a.both(a.cmp("ogt", x, a.c(0.0)), a.cmp("olt", x, a.c(float("inf"))))
    below = a.select(a.cmp("olt", x, a.c(0.0)), a.c(float("nan")), x)
    edge = a.select(a.cmp("oeq", x, a.c(0.0)), a.c(float("-inf")), below)
    return a.select(inside, result, edge)


def _log_from(a: Arith, e: str, f: str) -> str:
    """e log(2) + log(1 + f)."""
    high, low = tables.LN2[a.t.name]
    tail = a.mad(e, a.c(low), _log1p_tail(a, f))
    return a.mad(e, a.c(high), a.add(f, tail))


def log(a: Arith, x: str) -> str:
    """The natural logarithm."""
    e, f = _exponent_and_fraction(a, x)
    return _at_edges(a, x, _log_from(a, e, f))


def _scaled_log1p(a: Arith, f: str, factor: tuple[float, float]) -> str:
    """log(1 + f) times a factor that is the sum of two floats."""
    high, low = factor
    tail = a.mad(f, a.c(low), a.mul(_log1p_tail(a, f), a.c(high)))
    return a.mad(f, a.c(high), tail)


def log2(a: Arith, x: str) -> str:
    """The logarithm to base 2; exact for powers of 2."""
    e, f = _exponent_and_fraction(a, x)
    return _at_edges(a, x, a.add(e, _scaled_log1p(a, f, tables.LOG2E[a.t.name])))


def log10(a: Arith, x: str) -> str:
    """The logarithm to base 10."""
    e, f = _exponent_and_fraction(a, x)
    high, low = tables.LOG10_2[a.t.name]
    tail = a.mad(e, a.c(low), _scaled_log1p(a, f, tables.LOG10E[a.t.name]))
    return _at_edges(a, x, a.mad(e, a.c(high), tail))


def log1p(a: Arith, x: str) -> str:
    """log(1 + x); f is taken from x, not from the rounded 1 + x."""
    # for huge x, 1 + x = 2^64 (x / 2^64), so that 2^-e stays a normal number
    huge = a.cmp("ogt", x, a.c(2.0**80))
    x1 = a.select(huge, a.mul(x, a.c(2.0**-64)), x)
    one = a.select(huge, a.c(0.0), a.c(1.0))
    e, _ = _split(a, a.add(x1, one))
    shrink = a.pow2(a.int("sub", a.i(0), e))
    f = a.mad(x1, shrink, a.sub(a.mul(one, shrink), a.c(1.0)))
    e = a.select_bits(huge, a.int("add", e, 64), e)
    result = a.copysign(_log_from(a, a.from_int(e), f), x)
    inside = a.both(a.cmp("ogt", x, a.c(-1.0)), a.cmp("olt", x, a.c(float("inf"))))
    below = a.select(a.cmp("olt", x, a.c(-1.0)), a.c(float("nan")), x)
    edge = a.select(a.cmp("oeq", x, a.c(-1.0)), a.c(float("-inf")), below)
    return a.select(inside, result, edge)


LN2 = 0.6931471805599453
_HUGE = 2.0**60  # log(x + 1) is log(x), and x^2 is in range


def arcsinh(a: Arith, x: str) -> str:
    """log1p(u) with u = |x| + x^2 / (1 + sqrt(x^2 + 1)); for huge x, log(|x|) + log(2)."""
    size = a.abs(x)
    square = a.mul(size, size)
    root = a.sqrt(a.add(square, a.c(1.0)))
    u = a.add(size, a.div(square, a.add(root, a.c(1.0))))
    return a.copysign(_log1p_or_double(a, size, u), x)


def arccosh(a: Arith, x: str) -> str:
    """log1p(t + sqrt(t (t + 2))) with t = x - 1; for huge x, log(x) + log(2)."""
    t = a.select(a.cmp("olt", x, a.c(1.0)), a.c(float("nan")), a.sub(x, a.c(1.0)))
    u = a.add(t, a.sqrt(a.mul(t, a.add(t, a.c(2.0)))))
    return _log1p_or_double(a, x, u)


def _log1p_or_double(a: Arith, x: str, u: str) -> str:
    huge = a.cmp("ogt", x, a.c(_HUGE))
    return a.add(log1p(a, a.select(huge, x, u)), a.select(huge, a.c(LN2), a.c(0.0)))


def arctanh(a: Arith, x: str) -> str:
    """log1p(2 |x| / (1 - |x|)) / 2."""
    size = a.abs(x)
    u = a.div(a.add(size, size), a.sub(a.c(1.0), size))
    return a.copysign(a.mul(log1p(a, u), a.c(0.5)), x)


def pow_by_double(a: Arith, x: str, y: str) -> str:
    """x^y of f32 values held in f64, to a little more than f32's precision; special cases as C's pow."""
    size = a.abs(x)
    e, m = _split(a, size)  # a subnormal f32 is a normal f64
    f = a.sub(a.from_bits(m), a.c(1.0))
    s = a.div(f, a.add(f, a.c(2.0)))
    log = a.mad(s, a.poly(a.mul(s, s), tables.POW_LOG2["f64"]), a.from_int(e))
    log = a.select(a.cmp("oeq", size, a.c(0.0)), a.c(float("-inf")), log)
    log = a.select(a.cmp("ueq", size, a.c(float("inf"))), size, log)
    power = a.at_most(a.at_least(a.mul(y, log), -200.0), 200.0)
    shifted = a.add(power, a.c(a.shifter))
    r = a.sub(power, a.nearest(shifted))
    grown = a.mul(a.poly(r, tables.POW_EXP2["f64"]), a.pow2(a.as_int(shifted)))
    return _pow_special(a, x, y, grown)


def _pow_special(a: Arith, x: str, y: str, result: str) -> str:
    """`result` is |x|^y; NaN for NaN operands."""
    one, zero = a.c(1.0), a.c(0.0)
    whole = a.cmp("oeq", a.intrinsic("floor", y), y)
    half = a.mul(y, a.c(0.5))
    odd = a.both(whole, a.cmp("one", a.intrinsic("floor", half), half))
    result = a.select(odd, a.copysign(result, x), result)
    nowhere = a.both(a.cmp("olt", x, zero), a.cmp("one", a.intrinsic("floor", y), y))
    nowhere = a.both(nowhere, a.cmp("ogt", x, a.c(float("-inf"))))
    result = a.select(nowhere, a.c(float("nan")), result)
    flat = a.both(a.cmp("oeq", a.abs(x), one), a.cmp("oeq", a.abs(y), a.c(float("inf"))))
    flat = a.either(flat, a.either(a.cmp("oeq", x, one), a.cmp("oeq", y, zero)))
    return a.select(flat, one, result)
