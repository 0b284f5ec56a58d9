"""Intervals of remainders and of padded indices, given those of the index before."""

from __future__ import annotations

from tdsl.lang.affine import AffineSum, as_sum
from tdsl.lang.bounds import Facts, at_most
from tdsl.lang.expr import ONE, ZERO, Binary, Expr, const
from tdsl.lang.simplify import add, floordiv, maximum, minimum, multiply, simplify, subtract

PADDINGS = ("pad_edge", "pad_reflect", "pad_symmetric", "pad_wrap")
Interval = tuple[Expr | None, Expr | None]  # inclusive ends; None is unbounded


def remainder_interval(inner: Interval, k: int, facts: Facts) -> Interval:
    """The interval of `x % k` for x in the interval `inner`."""
    lo, hi = inner
    if lo is not None and hi is not None:
        first, last = floordiv(lo, const(k), facts), floordiv(hi, const(k), facts)
        if as_sum(first).plus(as_sum(last), -1) == AffineSum():
            low, high = (_remainder_of(end, k, last, facts) for end in (lo, hi))
            return low, high
    return ZERO, const(k - 1)


def _remainder_of(x: Expr, k: int, quotient: Expr, facts: Facts) -> Expr:
    """x % k where x // k is known: for min(8 * b + 7, n) it stays a minimum of sums, min(7, n - 8 * b)."""
    if isinstance(x, Binary) and x.op in ("min", "max"):
        return subtract(x, multiply(const(k), quotient, facts), facts)
    return simplify(Binary("mod", x, const(k)), facts)


def padded_interval(mode: str, inner: Interval, n: Expr, facts: Facts) -> Interval:
    """The interval of an index that is padded to 0 <= index < n, for the index in the interval `inner`."""
    lo, hi = inner
    last = subtract(n, ONE, facts)
    if lo is None or hi is None:
        return ZERO, maximum(last, ZERO, facts)
    if at_most(ZERO, lo, facts) and at_most(hi, last, facts):
        return lo, hi
    if mode == "pad_wrap":
        return ZERO, maximum(last, ZERO, facts)
    if mode == "pad_edge":
        low, high = (maximum(minimum(e, last, facts), ZERO, facts) for e in (lo, hi))
        return low, high
    # an index beyond an edge is reflected: to -i - shift on the left, 2 * n - 2 + shift - i on the right
    shift = ZERO if mode == "pad_reflect" else ONE
    left = subtract(subtract(ZERO, lo), shift)
    right = subtract(add(add(last, last), shift), hi)
    high = maximum(minimum(maximum(hi, left, facts), last, facts), ZERO, facts)
    low = maximum(minimum(minimum(lo, right, facts), last, facts), ZERO, facts)
    return low, high
