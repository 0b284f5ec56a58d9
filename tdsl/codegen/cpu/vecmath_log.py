"""Logarithms and inverse hyperbolic functions, by the reduction x = 2^e (1 + f) with 3/4 <= 1 + f < 3/2."""

from __future__ import annotations

import math

from tdsl.codegen.cpu import vecmath_tables as tables
from tdsl.codegen.cpu.vecmath_arith import Arith
from tdsl.lang.types import f32

LN2, LOG2E = math.log(2), 1 / math.log(2)
_HUGE = 2.0**60  # above it log(x + 1) rounds to log(x), below it x^2 does not overflow


def _exponent_and_fraction(a: Arith, x: str) -> tuple[str, str]:
    e, m = a.exponent_and_mantissa(x)
    return e, a.sub(m, a.c(1.0))


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


def _special_cases(a: Arith, x: str, result: str, pole: float = 0.0) -> str:
    """`result`, with the special cases of a logarithm: x at or below its pole, infinite or NaN."""
    below = a.select(a.cmp("olt", x, a.c(pole)), a.c(float("nan")), x)
    edge = a.select(a.cmp("oeq", x, a.c(pole)), a.c(float("-inf")), below)
    if pole == 0:
        return a.select(a.in_bits(x, 0.0, float("inf")), result, edge)
    inside = a.mask_and(a.cmp("ogt", x, a.c(pole)), a.cmp("olt", x, a.c(float("inf"))))
    return a.select(inside, result, edge)


def _log_from(a: Arith, e: str, f: str) -> str:
    """e log(2) + log(1 + f)."""
    high, low = tables.LN2[a.t.name]
    tail = a.mad(e, a.c(low), _log1p_tail(a, f))
    return a.mad(e, a.c(high), a.add(f, tail))


def log(a: Arith, x: str) -> str:
    """The natural logarithm."""
    e, f = _exponent_and_fraction(a, x)
    return _special_cases(a, x, _log_from(a, e, f))


def log2(a: Arith, x: str) -> str:
    """The logarithm to base 2; exact for powers of 2."""
    e, f = _exponent_and_fraction(a, x)
    # f is added to e separately: if e is -1 the sum is exact, and most of the result cancels
    tail = a.mad(f, a.c(LOG2E - 1), a.mul(_log1p_tail(a, f), a.c(LOG2E)))
    return _special_cases(a, x, a.add(a.add(e, f), tail))


def log10(a: Arith, x: str) -> str:
    """The logarithm to base 10."""
    e, f = _exponent_and_fraction(a, x)
    high, low = tables.LOG10E[a.t.name]
    of_2, of_2_low = tables.LOG10_2[a.t.name]
    # the product of the leading half of f's bits is exact
    kept = a.integer("and", a.bits(f), -1 << (a.mantissa // 2 + 1))
    first = a.from_bits(kept)
    main = a.mad(e, a.c(of_2), a.mul(first, a.c(high)))
    rest = a.add(a.sub(f, first), _log1p_tail(a, f))
    tail = a.mad(e, a.c(of_2_low), a.mad(first, a.c(low), a.mul(rest, a.c(high + low))))
    return _special_cases(a, x, a.add(main, tail))


def log1p(a: Arith, x: str) -> str:
    """log(1 + x); f is taken from x, not from the rounded 1 + x."""
    # for huge x, 1 + x = 2^64 (x / 2^64), so that 2^-e stays a normal number
    huge = a.cmp("ogt", x, a.c(2.0**80))
    x1 = a.select(huge, a.mul(x, a.c(2.0**-64)), x)
    one = a.select(huge, a.c(0.0), a.c(1.0))
    e, _ = a.split_normal(a.add(x1, one))
    shrink = a.pow2(a.integer("sub", a.i(0), e))
    f = a.mad(x1, shrink, a.sub(a.mul(one, shrink), a.c(1.0)))
    e = a.select_bits(huge, a.integer("add", e, 64), e)
    result = a.copysign(_log_from(a, a.from_int(e), f), x)
    return _special_cases(a, x, result, pole=-1.0)


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
