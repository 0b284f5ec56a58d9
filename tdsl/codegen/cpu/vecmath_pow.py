"""Powers: x^y = 2^(y log2(|x|)), with the logarithm in more than the precision of the type.

f32 is computed in f64. In f64 the logarithm is an unevaluated sum of two floats, from exact products;
they need a fused multiply-add, and a CPU without it calls the C library.
"""

from __future__ import annotations

import math

from tdsl.codegen.cpu import vecmath_tables as tables
from tdsl.codegen.cpu.vecmath_arith import Arith
from tdsl.codegen.cpu.vecmath_slow_path import with_slow_path
from tdsl.lang.types import f32, f64


def pow(a: Arith, x: str, y: str) -> str:
    """x^y; special cases as C's pow."""
    if a.t == f64 and not a.fused:
        return a.libm("pow", x, y)
    fast_path = _pow_f32 if a.t == f32 else _pow_f64
    return with_slow_path(a, "pow", [x, y], fast_path, _is_rare, _special_cases)


def _is_rare(a: Arith, x: str, y: str) -> str:
    """The mask where x is not positive, or x or y is not finite."""
    return a.mask_or(a.mask_not(a.in_bits(x, 0.0, math.inf)), a.cmp("uge", a.abs(y), a.c(math.inf)))


def _pow_f32(a: Arith, x: str, y: str) -> str:
    w = Arith(a.b, f64, a.lanes)
    e, m = w.exponent_and_mantissa(a.widen(a.abs(x), w))
    f = w.sub(m, w.c(1.0))
    log = w.mad(w.poly(f, tables.POW_LOG2["f64"]), f, e)
    power = w.at_most(w.at_least(w.mul(a.widen(y, w), log), -200.0), 200.0)
    n = w.to_integral(w.add(power, w.c(w.shifter)))
    grown = w.scale(w.poly(w.sub(power, n.value), tables.POW_EXP2["f64"]), n)
    return w.narrow(grown, a)


def _pow_f64(a: Arith, x: str, y: str) -> str:
    log, log_rest = _log2_in_two(a, a.abs(x))
    power, error = _product(a, y, log)
    # an exponent out of range is clamped, and its rest ignored: the result is 0 or infinite
    rest = a.mad(y, log_rest, error)
    rest = a.select(a.cmp("olt", a.abs(power), a.c(1100.0)), rest, a.c(0.0))
    power = a.at_most(a.at_least(power, -1100.0), 1100.0)
    n = a.to_integral(a.add(power, a.c(a.shifter)))
    r = a.sub(power, n.value)
    grown = a.mul(a.poly(r, tables.EXP2["f64"]), r)
    grown = a.mad(a.mul(rest, a.c(math.log(2))), a.add(grown, a.c(1.0)), grown)
    return a.scale(a.add(grown, a.c(1.0)), n)


def _product(a: Arith, x: str, y: str) -> tuple[str, str]:
    """The rounded product and its exact error."""
    p = a.mul(x, y)
    return p, a.fma(x, y, a.neg(p))


def _times(a: Arith, x: tuple[str, str], factor: tuple[float, float]) -> tuple[str, str]:
    """The product of two unevaluated sums of two floats each, as such a sum."""
    high, low = map(a.c, factor)
    p, error = _product(a, x[0], high)
    return p, a.mad(x[0], low, a.mad(x[1], high, error))


def _log2_in_two(a: Arith, x: str) -> tuple[str, str]:
    """log2(x), for a positive finite x, as the sum of two floats.

    x = 2^e m, and m = (1 + f) / c with |f| <= 1/8, where c has so few bits that f is exact. With
    s = f / (2 + f), log(1 + f) = 2 (s + s^3/3 + ...); the first two terms are sums of two floats.
    """
    e, m = a.exponent_and_mantissa(x)
    c, log_c, log_c_rest = _factor(a, m)
    f = a.fma(m, c, a.c(-1.0))
    below = a.add(f, a.c(2.0))
    below_rest = a.sub(f, a.sub(below, a.c(2.0)))
    inverse = a.div(a.c(1.0), below)
    s = a.mul(f, inverse)
    left = a.fma(a.neg(s), below_rest, a.fma(a.neg(s), below, f))
    s_rest = a.mul(left, inverse)
    z, z_error = _product(a, s, s)
    z_rest = a.mad(a.add(s, s), s_rest, z_error)
    cube, cube_error = _product(a, s, z)
    cube_rest = a.mad(s, z_rest, a.mad(s_rest, z, cube_error))
    first, first_rest = _times(a, (s, s_rest), tables.POW_FIRST["f64"])
    cubic, cubic_rest = _times(a, (cube, cube_rest), tables.POW_CUBIC["f64"])
    tail = a.mad(a.mul(cube, z), a.poly(z, tables.POW_ATANH["f64"]), a.add(first_rest, cubic_rest))
    main = a.add(first, cubic)
    tail = a.add(tail, a.add(a.sub(first, main), cubic))
    total, error = a.two_sum(a.sub(e, log_c), main)
    tail = a.add(error, a.sub(tail, log_c_rest))
    log = a.add(total, tail)
    return log, a.add(a.sub(total, log), tail)


def _factor(a: Arith, m: str) -> tuple[str, str, str]:
    """c with |m c - 1| <= 1/8, and log2(c) as the sum of two floats."""
    chosen: tuple[str, ...] = (a.c(1.25), *map(a.c, tables.LOG2_5_4["f64"]))
    for bound, c, log in (
        (0.875, 1.0, (0.0, 0.0)),
        (1.09375, 0.875, tables.LOG2_7_8["f64"]),
        (1.28125, 0.75, tables.LOG2_3_4["f64"]),
    ):
        above = a.cmp("oge", m, a.c(bound))
        other = (a.c(c), *map(a.c, log))
        chosen = tuple(map(a.select, [above] * 3, other, chosen))
    c_value, high, low = chosen
    return c_value, high, low


def _special_cases(a: Arith, x: str, y: str, result: str) -> str:
    """x^y with all special cases, given `result` = |x|^y for finite |x| > 0."""
    zero, one, inf = a.c(0.0), a.c(1.0), a.c(float("inf"))
    magnitude = a.abs(x)
    grows = a.cmp("ogt", a.select(a.cmp("ogt", magnitude, one), y, a.neg(y)), zero)
    at_zero_or_infinity = a.mask_or(a.cmp("oeq", magnitude, zero), a.cmp("oeq", magnitude, inf))
    result = a.select(at_zero_or_infinity, a.select(grows, inf, zero), result)
    half = a.mul(y, a.c(0.5))
    fraction = a.cmp("one", a.intrinsic("floor", y), y)
    half_fraction = a.cmp("one", a.intrinsic("floor", half), half)
    signed = a.select(fraction, result, a.select(half_fraction, a.copysign(result, x), result))
    undefined = a.mask_and(fraction, a.mask_and(a.cmp("olt", x, zero), a.cmp("olt", magnitude, inf)))
    signed = a.select(a.mask_or(undefined, a.cmp("uno", x, y)), a.c(float("nan")), signed)
    is_one = a.mask_and(a.cmp("oeq", magnitude, one), a.cmp("oeq", a.abs(y), inf))
    is_one = a.mask_or(is_one, a.mask_or(a.cmp("oeq", x, one), a.cmp("oeq", y, zero)))
    return a.select(is_one, one, signed)
