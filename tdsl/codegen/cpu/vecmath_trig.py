"""Trigonometric functions and their inverses, and hypot.

sin and cos subtract the nearest multiple q pi (for cos, q is half an odd number), where q pi is a sum of
products of which all but the last are exact; a polynomial gives sin on |r| <= pi/2. For arguments so large
that these products are inexact, a lane takes the C library's result.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tdsl.codegen.cpu import vecmath_tables as tables
from tdsl.codegen.cpu.vecmath_arith import Arith
from tdsl.codegen.cpu.vecmath_slow_path import with_slow_path
from tdsl.lang.types import f32, f64

# |q| stays below 2^15 for f32 and 2^18 for f64, so that the products of `_subtract_pi` are exact
LARGEST_ARGUMENT = {"f32": 9.0e4, "f64": 8.0e5}


def sin(a: Arith, x: str) -> str:
    """The sine of an angle in radians."""
    return _with_libm_fallback(a, "sin", _sin, x)


def cos(a: Arith, x: str) -> str:
    """The cosine of an angle in radians."""
    return _with_libm_fallback(a, "cos", _cos, x)


def tan(a: Arith, x: str) -> str:
    """The tangent of an angle in radians, in f64."""
    return _with_libm_fallback(a, "tan", _tan, x)


def _with_libm_fallback(a: Arith, name: str, fast_path: Callable[[Arith, str], str], x: str) -> str:
    is_rare: Callable[[Arith, str], str] = lambda a, x: a.cmp(
        "oge", a.abs(x), a.c(LARGEST_ARGUMENT[a.t.name])
    )
    slow_path: Callable[[Arith, str, str], str] = lambda a, x, value: a.select(
        is_rare(a, x), a.libm(name, x), value
    )
    return with_slow_path(a, name, [x], fast_path, is_rare, slow_path)


def _subtract_pi(a: Arith, x: str, q: str, unit: float = 1.0) -> tuple[str, str]:
    """x - q pi unit as a float, and its rounding error (0 in f32); `unit` is a power of 2."""
    if a.t == f32 and not a.fused:
        wide = Arith(a.b, f64, a.lanes)
        high, *rest = tables.PI_SHORT["f64"]
        x, q = a.widen(x, wide), a.widen(q, wide)
        r = wide.sub(x, wide.mul(q, wide.c(high * unit)))
        return wide.narrow(wide.sub(r, wide.mul(q, wide.c(sum(rest) * unit))), a), a.c(0.0)
    if a.t == f32:
        for part in tables.PI["f32"]:
            x = a.mad(q, a.c(-part * unit), x)
        return x, a.c(0.0)
    if a.fused:
        p1, p2, p3 = (part * unit for part in tables.PI["f64"])
        first = a.mad(q, a.c(-p1), x)
        product = a.mul(q, a.c(-p2))
        rounding_error = a.mad(q, a.c(-p2), a.neg(product))
        r, error = a.two_sum(first, product)
        return r, a.mad(q, a.c(-p3), a.add(error, rounding_error))
    p1, p2, p3, p4 = (part * unit for part in tables.PI_SHORT["f64"])
    first = a.sub(x, a.mul(q, a.c(p1)))
    second, error2 = a.two_sum(first, a.mul(q, a.c(-p2)))
    r, error3 = a.two_sum(second, a.mul(q, a.c(-p3)))
    return r, a.add(a.add(error2, error3), a.mul(q, a.c(-p4)))


def _sin_of(a: Arith, r: str, rest: str) -> str:
    """sin(r + rest) for |r| <= pi/2 and a rest of less than a unit in the last place of r."""
    z = a.mul(r, r)
    p = a.poly(z, tables.SIN[a.t.name])
    if a.t == f32:
        return a.mad(a.mul(z, r), p, r)
    # the derivative cos(r), to two digits
    slope = a.poly(z, (1 / 24, -0.5, 1.0))
    return a.add(r, a.mad(a.mul(z, r), p, a.mul(rest, slope)))


def _negate_if_odd(a: Arith, x: str, bits: str) -> str:
    """x, negated in the lanes where the integer `bits` is odd."""
    sign = a.integer("shl", bits, a.t.bits - 1)
    return a.from_bits(a.integer("xor", a.bits(x), sign))


def _sign_of(a: Arith, x: str) -> str:
    return a.integer("and", a.bits(x), -(1 << (a.t.bits - 1)))


def _sin(a: Arith, x: str) -> str:
    size = a.abs(x)
    n = a.to_integral(a.mad(size, a.c(1 / math.pi), a.c(a.shifter)))
    r, rest = _subtract_pi(a, size, n.value)
    negated = _negate_if_odd(a, _sin_of(a, r, rest), n.integer)
    return a.from_bits(a.integer("xor", a.bits(negated), _sign_of(a, x)))


def _cos(a: Arith, x: str) -> str:
    # cos(r + (m + 1/2) pi) = -(-1)^m sin(r)
    size = a.abs(x)
    m = a.to_integral(a.add(a.mad(size, a.c(1 / math.pi), a.c(-0.5)), a.c(a.shifter)))
    r, rest = _subtract_pi(a, size, a.add(m.value, a.c(0.5)))
    return _negate_if_odd(a, _sin_of(a, r, rest), a.integer("add", m.integer, 1))


def _tan(a: Arith, x: str) -> str:
    """sin / cos of the distance to the nearest multiple of pi/2; -cos / sin if the multiple is odd."""
    size = a.abs(x)
    n = a.to_integral(a.mad(size, a.c(2 / math.pi), a.c(a.shifter)))
    r, rest = _subtract_pi(a, size, n.value, 0.5)
    z = a.mul(r, r)
    s = a.add(r, a.mad(a.mul(z, r), a.poly(z, tables.SIN_QUARTER["f64"]), rest))
    square = a.mul(z, z)
    tail = a.sub(a.mul(square, a.poly(z, tables.COS_QUARTER["f64"])), a.mul(r, rest))
    half = a.mul(z, a.c(0.5))
    leading = a.sub(a.c(1.0), half)
    rounding_error = a.sub(a.sub(a.c(1.0), leading), half)
    c = a.add(leading, a.add(rounding_error, tail))
    parity = a.integer("and", n.integer, 1)
    odd = a.b.v(f"icmp ne {a.bits_type} {parity}, {a.i(0)}")
    quotient = a.div(a.select(odd, a.neg(c), s), a.select(odd, s, c))
    return a.from_bits(a.integer("xor", a.bits(quotient), _sign_of(a, x)))


def _pi(a: Arith, part: float = 1.0) -> tuple[str, str]:
    """pi times a power of 2, as the sum of two floats."""
    high, low, _ = tables.PI[a.t.name]
    return a.c(high * part), a.c(low * part)


def _arcsin_parts(a: Arith, x: str) -> tuple[str, str]:
    """The mask |x| <= 5/8, and a value: arcsin(|x|) where the mask is true, else arccos(|x|) / 2."""
    size = a.abs(x)
    inner = a.cmp("ole", size, a.c(0.625))
    z = a.select(inner, a.mul(x, x), a.mul(a.sub(a.c(1.0), size), a.c(0.5)))
    s = a.select(inner, size, a.sqrt(z))
    return inner, a.mad(a.mul(s, z), a.poly(z, tables.ARCSIN[a.t.name]), s)


def arcsin(a: Arith, x: str) -> str:
    """The angle in [-pi/2, pi/2] whose sine is x."""
    inner, v = _arcsin_parts(a, x)
    high, low = _pi(a, 0.5)
    outer = a.sub(high, a.sub(a.add(v, v), low))
    return a.copysign(a.select(inner, v, outer), x)


def arccos(a: Arith, x: str) -> str:
    """The angle in [0, pi] whose cosine is x."""
    inner, v = _arcsin_parts(a, x)
    twice = a.add(v, v)
    high, low = _pi(a)
    supplement = a.sub(high, a.sub(twice, low))
    outer = a.select(a.cmp("olt", x, a.c(0.0)), supplement, twice)
    high, low = _pi(a, 0.5)
    return a.select(inner, a.sub(high, a.sub(a.copysign(v, x), low)), outer)


def _arctan_ratio(a: Arith, y: str, x: str) -> str:
    """arctan(y / x) for y, x >= 0, not both infinite; 0 for 0 / 0."""
    zero = a.c(0.0)
    steep = a.cmp("ogt", y, a.mul(x, a.c(1 + math.sqrt(2))))
    middle = a.cmp("ogt", y, a.mul(x, a.c(math.sqrt(2) - 1)))
    above = a.select(steep, a.neg(x), a.select(middle, a.sub(y, x), y))
    below = a.select(steep, y, a.select(middle, a.add(y, x), x))
    t = a.div(above, a.select(a.cmp("oeq", below, zero), a.c(1.0), below))
    z = a.mul(t, t)
    (high2, low2), (high4, low4) = _pi(a, 0.5), _pi(a, 0.25)
    high = a.select(steep, high2, a.select(middle, high4, zero))
    low = a.select(steep, low2, a.select(middle, low4, zero))
    return a.add(high, a.add(t, a.mad(a.mul(t, z), a.poly(z, tables.ARCTAN[a.t.name]), low)))


def arctan(a: Arith, x: str) -> str:
    """The angle in [-pi/2, pi/2] whose tangent is x."""
    return a.copysign(_arctan_ratio(a, a.abs(x), a.c(1.0)), x)


def arctan2(a: Arith, y: str, x: str) -> str:
    """The angle of the point (x, y); signs of zeros and infinities count as in C's atan2."""
    one, inf = a.c(1.0), a.c(float("inf"))
    y1, x1 = a.abs(y), a.abs(x)
    # no sum of the two may overflow, none may be subnormal unless their ratio is
    top, down, up = (100, -40, 24) if a.t == f32 else (960, -100, 60)
    large = a.mask_or(a.cmp("ogt", y1, a.c(2.0**top)), a.cmp("ogt", x1, a.c(2.0**top)))
    factor = a.select(large, a.c(2.0**down), a.c(2.0**up))
    corner = a.mask_and(a.cmp("oeq", y1, inf), a.cmp("oeq", x1, inf))
    y1 = a.select(corner, one, a.mul(y1, factor))
    x1 = a.select(corner, one, a.mul(x1, factor))
    angle = _arctan_ratio(a, y1, x1)
    left = a.b.v(f"icmp slt {a.bits_type} {a.bits(x)}, {a.i(0)}")
    high, low = _pi(a)
    supplement = a.sub(high, a.sub(angle, low))
    return a.copysign(a.select(left, supplement, angle), y)


def hypot(a: Arith, x: str, y: str) -> str:
    """sqrt(x^2 + y^2) without intermediate overflow; infinite if an operand is, even if the other is NaN."""
    x1, y1, inf = a.abs(x), a.abs(y), a.c(float("inf"))
    larger: Callable[[float], str] = lambda bound: a.mask_or(
        a.cmp("ogt", x1, a.c(bound)), a.cmp("ogt", y1, a.c(bound))
    )
    up, down = a.c(2.0**600), a.c(2.0**-600)
    plain = a.select(larger(2.0**-450), a.c(1.0), up)
    factor = a.select(larger(2.0**500), down, plain)
    back = a.select(larger(2.0**500), up, a.select(larger(2.0**-450), a.c(1.0), down))
    x2, y2 = a.mul(x1, factor), a.mul(y1, factor)
    root = a.mul(a.sqrt(a.mad(x2, x2, a.mul(y2, y2))), back)
    infinite = a.mask_or(a.cmp("oeq", x1, inf), a.cmp("oeq", y1, inf))
    return a.select(infinite, inf, root)
