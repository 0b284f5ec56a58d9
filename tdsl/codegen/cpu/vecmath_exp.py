"""exp, its relatives, and erf: x = n log(2) + r with |r| <= log(2)/2, a polynomial in r, times 2^n."""

from __future__ import annotations

from typing import NamedTuple

from tdsl.codegen.cpu import vecmath_tables as tables
from tdsl.codegen.cpu.vecmath_arith import Arith
from tdsl.lang.types import f32

LOG2E = 1.4426950408889634


class Reduced(NamedTuple):
    """x = n log(2) + r + rest; n is an integer, the rest is below r's last place."""

    n: str
    r: str
    rest: str


def _reduce(a: Arith, x: str) -> Reduced:
    shifted = a.mad(x, a.c(LOG2E), a.c(a.shifter))
    n = a.nearest(shifted)
    high, low = tables.LN2[a.t.name]
    first = a.mad(n, a.c(-high), x)  # exact
    r = a.mad(n, a.c(-low), first)
    rest = a.mad(n, a.c(-low), a.sub(first, r))
    return Reduced(a.as_int(shifted), r, rest)


def _exp_of(a: Arith, r: str) -> str:
    """e^r."""
    tail = a.mad(a.mul(r, r), a.poly(r, tables.EXP[a.t.name]), r)
    return a.add(tail, a.c(1.0))


def _limits(
    a: Arith, narrow: tuple[float, float], wide: tuple[float, float]
) -> tuple[float, float]:
    return narrow if a.t == f32 else wide


def exp(a: Arith, x: str) -> str:
    """e^x."""
    # outside of the limits the result is 0 or infinite; inside, halves of n are exponents
    low, high = _limits(a, (-104.0, 89.0), (-746.0, 710.0))
    n, r, _ = _reduce(a, a.at_most(a.at_least(x, low), high))
    return a.scale(_exp_of(a, r), n)


def _exp_moderate(a: Arith, x: str) -> str:
    """e^x where the result is a normal number."""
    n, r, _ = _reduce(a, x)
    return a.mul(_exp_of(a, r), a.pow2(n))


def exp2(a: Arith, x: str) -> str:
    """2^x."""
    low, high = _limits(a, (-151.0, 129.0), (-1076.0, 1025.0))
    x = a.at_most(a.at_least(x, low), high)
    shifted = a.add(x, a.c(a.shifter))
    r = a.sub(x, a.nearest(shifted))
    p = a.mad(a.poly(r, tables.EXP2[a.t.name]), r, a.c(1.0))
    return a.scale(p, a.as_int(shifted))


def _expm1_part(a: Arith, x: str, shift: int) -> str:
    """(e^x - 1) / 2^shift, where e^x / 2^shift is not out of range."""
    n, r, rest = _reduce(a, x)
    s = a.pow2(a.int("sub", n, shift))
    tail = a.mad(a.mul(r, r), a.poly(r, tables.EXPM1[a.t.name]), rest)
    whole = a.sub(s, a.c(2.0**-shift))
    return a.mad(s, tail, a.mad(s, r, whole))


def expm1(a: Arith, x: str) -> str:
    """e^x - 1."""
    low, high = _limits(a, (-20.0, 89.0), (-40.0, 710.0))
    half = _expm1_part(a, a.at_most(a.at_least(x, low), high), 1)
    tiny = a.cmp("olt", a.abs(x), a.c(2.0 ** -(a.mantissa + 2)))
    return a.select(tiny, x, a.add(half, half))


def sigmoid(a: Arith, x: str) -> str:
    """1 / (1 + e^-x), without overflow for very negative x."""
    low, _ = _limits(a, (-104.0, 0.0), (-746.0, 0.0))
    n, r, _ = _reduce(a, a.at_least(a.neg(a.abs(x)), low))
    e = a.scale(_exp_of(a, r), n)
    above = a.select(a.cmp("olt", x, a.c(0.0)), e, a.c(1.0))
    return a.div(above, a.add(e, a.c(1.0)))


def tanh(a: Arith, x: str) -> str:
    """An odd polynomial near 0, else 1 - 2 / (e^2|x| + 1)."""
    size = a.abs(x)
    z = a.mul(x, x)
    small = a.mad(a.mul(z, size), a.poly(z, tables.TANH[a.t.name]), size)
    bounded = a.at_most(size, 20.0)
    e = _exp_moderate(a, a.add(bounded, bounded))
    large = a.sub(a.c(1.0), a.div(a.c(2.0), a.add(e, a.c(1.0))))
    return a.copysign(a.select(a.cmp("olt", size, a.c(0.625)), small, large), x)


def sinh(a: Arith, x: str) -> str:
    """(m + m / (m + 1)) / 2 with m = e^|x| - 1."""
    size = a.at_most(a.abs(x), 89.5 if a.t == f32 else 710.5)
    quarter = _expm1_part(a, size, 2)
    half = a.add(quarter, quarter)
    m = a.add(half, half)
    # a quarter is finite even where the others are not
    large = a.mad(a.div(quarter, a.add(m, a.c(1.0))), a.c(2.0), half)
    tiny = a.cmp("olt", size, a.c(2.0 ** -(a.mantissa // 2 + 2)))
    return a.copysign(a.select(tiny, size, large), x)


def cosh(a: Arith, x: str) -> str:
    """e / 2 + 1 / (2 e) with e = e^|x|."""
    n, r, _ = _reduce(a, a.at_most(a.abs(x), 89.5 if a.t == f32 else 710.5))
    half = a.scale(_exp_of(a, r), a.int("sub", n, 1))
    return a.add(half, a.div(a.c(0.25), half))


def erf(a: Arith, x: str) -> str:
    """An odd polynomial near 0, else 1 - erfc(|x|)."""
    size = a.abs(x)
    z = a.mul(x, x)
    small = a.mad(size, a.poly(z, tables.ERF[a.t.name]), size)
    if a.t == f32:
        erfc = _exp_moderate(a, a.poly(a.at_most(size, 4.0), tables.LOG_ERFC["f32"]))
    else:
        s = a.at_most(size, 6.0)
        t = a.div(a.sub(s, a.c(2.5)), a.add(s, a.c(2.5)))
        erfc = a.mul(_exp_moderate(a, a.neg(a.mul(s, s))), a.poly(t, tables.ERFC_SCALED["f64"]))
    large = a.sub(a.c(1.0), erfc)
    return a.copysign(a.select(a.cmp("olt", size, a.c(0.875)), small, large), x)
