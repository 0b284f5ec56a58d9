"""Factors by which a partial sum is rescaled when a result that its terms read changes, as in online softmax.

A term t(x, m) of a sum over x depends on m, which is known only after all x are read. If

    t(x, m) = g(x) * exp(a(x) + b(m)) * h(m)

a partial sum computed with some c instead of m becomes the one of m by a factor without x (and is rounded
with c if the term converts to another float type):

    sum of g(x) * exp(a(x) + b(m)) = exp(b(m) - b(c)) * sum of g(x) * exp(a(x) + b(c))

and the end result is multiplied by h(m). `result_factors` derives b and h from the structure of the term. If

    t(x, m) = (a(x) + b(m)) ** k

the sums of lower powers give the correction for another m, by the binomial theorem; `shift_of` derives b.
"""

from __future__ import annotations

from collections.abc import Callable

from tdsl.core.node import frozen, post_order
from tdsl.lang.expr import Binary, Call, Cast, Expr, Read, Unary, dtype_of

Predicate = Callable[[Expr], bool]
_EXPONENTIALS = ("exp", "exp2")


@frozen
class ResultFactors:
    """The factors of a term that depend on results of other reductions.

    `shifts` are pairs of an exponential function and the part b(m) of its argument; `scales` are h(m) as
    pairs of a factor and whether it divides.
    """

    shifts: tuple[tuple[str, Expr], ...] = ()
    scales: tuple[tuple[Expr, bool], ...] = ()

    def __add__(self, other: ResultFactors) -> ResultFactors:
        return ResultFactors(self.shifts + other.shifts, self.scales + other.scales)


def result_factors(term: Expr, of_results: Predicate, of_points: Predicate) -> ResultFactors | None:
    """The factors of a term that depend on results; None if it depends on them otherwise.

    `of_results` is true for leaves that are results, `of_points` for leaves that vary over the terms.

    >>> from tdsl.lang.expr import Var
    >>> from tdsl.lang.types import f32
    >>> x, m = Read("x", (Var("j"),), 0, f32), Read("m", (), 0, f32)
    >>> factors = result_factors(
    ...     Call("exp", (Binary("sub", x, m),), f32), lambda n: n == m, lambda n: n == Var("j")
    ... )
    >>> factors.shifts == (("exp", Unary("neg", m)),)
    True
    """

    def depends(e: Expr) -> bool:
        return _contains(e, of_results)

    def factors(e: Expr, divides: bool) -> ResultFactors | None:
        if not depends(e):
            return ResultFactors()
        match e:
            case Binary("mul" | "div" as op, x, y):
                left, right = factors(x, divides), factors(y, divides != (op == "div"))
                return None if left is None or right is None else left + right
            case Unary("neg", x) | Cast(x):
                return factors(x, divides) if dtype_of(x).is_float else None
            case Call(fn, (x,)) if fn in _EXPONENTIALS and not divides:
                part = shift_of(x, of_results, of_points)
                return None if part is None else ResultFactors(((fn, part),))
            case Read():
                return ResultFactors(scales=((e, divides),))
            case _:
                return None

    return factors(term, False) if dtype_of(term).is_float else None


def shift_of(e: Expr, of_results: Predicate, of_points: Predicate) -> Expr | None:
    """The summand of `e` that does not vary over the terms; None if another summand depends on results."""

    def depends(x: Expr) -> bool:
        return _contains(x, of_results)

    def summand(x: Expr) -> Expr | None:
        return shift_of(x, of_results, of_points)

    if not _contains(e, of_points):
        return e
    match e:
        case Binary("add" | "sub" as op, x, y):
            if not depends(x):
                right = summand(y)
                return right if right is None or op == "add" else Unary("neg", right)
            if not depends(y):
                return summand(x)
            left, right = summand(x), summand(y)
            return None if left is None or right is None else Binary(op, left, right)
        case Unary("neg", x):
            part = summand(x)
            return None if part is None else Unary("neg", part)
        case Binary("mul" | "div" as op, x, y) if not _contains(y, of_points) and not depends(y):
            part = summand(x)
            return None if part is None else Binary(op, part, y)
        case Binary("mul", x, y) if not _contains(x, of_points) and not depends(x):
            part = summand(y)
            return None if part is None else Binary("mul", x, part)
        case _:
            return None


def _contains(e: Expr, holds: Predicate) -> bool:
    return any(holds(n) for n in post_order(e))  # type: ignore[arg-type]  # all are Exprs
