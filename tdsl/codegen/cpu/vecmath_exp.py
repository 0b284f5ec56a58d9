"""exp, its relatives, and erf: x = n log(2) + r with |r| <= log(2)/2, a polynomial in r, times 2^n."""

from __future__ import annotations

import math
from typing import NamedTuple

from tdsl.codegen.cpu import vecmath_tables as tables
from tdsl.codegen.cpu.vecmath_arith import Arith, Integral
from tdsl.lang.types import f32

LOG2E = 1 / math.log(2)


class Reduced(NamedTuple):
    """x = n log(2) + r + rest; n is an integer, rest is less than a unit in the last place of r."""

    n: Integral
    r: str
    rest: str


def _reduce(a: Arith, x: str) -> Reduced:
    n = a.to_integral(a.mad(x, a.c(LOG2E), a.c(a.shifter)))
    high, low = tables.LN2[a.t.name]
    first = a.mad(n.value, a.c(-high), x)  # exact
    r = a.mad(n.value, a.c(-low), first)
    rest = a.mad(n.value, a.c(-low), a.sub(first, r))
    return Reduced(n, r, rest)


def _exp_of(a: Arith, r: str) -> str:
    """e^r."""
    tail = a.mad(a.mul(r, r), a.poly(r, tables.EXP[a.t.name]), r)
    return a.add(tail, a.c(1.0))


def _limits(a: Arith, narrow: tuple[float, float], wide: tuple[float, float]) -> tuple[float, float]:
    return narrow if a.t == f32 else wide


def exp(a: Arith, x: str) -> str:
    """e^x."""
    # beyond the limits the result is 0 or infinite; within them 2^(n/2) is a normal number
    low, high = _limits(a, (-104.0, 89.0), (-746.0, 710.0))
    n, r, _ = _reduce(a, a.at_most(a.at_least(x, low), high))
    return a.scale(_exp_of(a, r), n)


def _exp_moderate(a: Arith, x: str) -> str:
    """e^x, if the result is a normal number."""
    n, r, _ = _reduce(a, x)
    return a.mul(_exp_of(a, r), a.pow2(n.integer))


def exp2(a: Arith, x: str) -> str:
    """2^x."""
    low, high = _limits(a, (-151.0, 129.0), (-1076.0, 1025.0))
    x = a.at_most(a.at_least(x, low), high)
    n = a.to_integral(a.add(x, a.c(a.shifter)))
    r = a.sub(x, n.value)
    return a.scale(a.mad(a.poly(r, tables.EXP2[a.t.name]), r, a.c(1.0)), n)


def expm1(a: Arith, x: str) -> str:
    """e^x - 1, as 2 (s (e^r - 1) + (s - 1/2)) with s = 2^(n - 1), which does not overflow."""
    low, high = _limits(a, (-20.0, 89.0), (-40.0, 710.0))
    n, r, rest = _reduce(a, a.at_most(a.at_least(x, low), high))
    s = a.pow2(a.integer("sub", n.integer, 1))
    tail = a.mad(a.mul(r, r), a.poly(r, tables.EXPM1[a.t.name]), rest)
    half = a.mad(s, tail, a.mad(s, r, a.sub(s, a.c(0.5))))
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


def _half_exp(a: Arith, size: str) -> str:
    """e^size / 2 for size >= 0."""
    n, r, _ = _reduce(a, a.at_most(size, 89.5 if a.t == f32 else 710.5))
    return a.scale(_exp_of(a, r), n, down=1)


def sinh(a: Arith, x: str) -> str:
    """An odd polynomial near 0, else e / 2 - 1 / (2 e) with e = e^|x|."""
    size = a.abs(x)
    z = a.mul(x, x)
    small = a.mad(a.mul(z, size), a.poly(z, tables.SINH[a.t.name]), size)
    half = _half_exp(a, size)
    large = a.sub(half, a.div(a.c(0.25), half))
    return a.copysign(a.select(a.cmp("olt", size, a.c(1.0)), small, large), x)


def cosh(a: Arith, x: str) -> str:
    """e / 2 + 1 / (2 e) with e = e^|x|."""
    half = _half_exp(a, a.abs(x))
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
