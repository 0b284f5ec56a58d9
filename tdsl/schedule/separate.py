"""How the terms of a reduction depend on the results of others, so that one can be corrected for another.

A term t(x, m) of a sum over x depends on m, which is known only after all x were seen. Where

    t(x, m) = g(x) * exp(a(x) + b(m)) * h(m)

a partial sum that was made with some c instead of m becomes that of m by a factor without x:

    sum of g(x) * exp(a(x) + b(m)) = exp(b(m) - b(c)) * sum of g(x) * exp(a(x) + b(c))

and h(m) is multiplied in the end. `separate` finds b and h by the structure of the term alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tdsl.lang.expr import Binary, Call, Expr, Read, Unary, dtype_of
from tdsl.node import post_order

Holds = Callable[[Expr], bool]
_EXPONENTIALS = ("exp", "exp2")


@dataclass(frozen=True, slots=True)
class Separated:
    """The factors of a term that depend on other results.

    `shifts` are pairs of an exponential function and the part b(m) of its argument; `scales` are h(m) as
    pairs of a factor and whether it divides.
    """

    shifts: tuple[tuple[str, Expr], ...] = ()
    scales: tuple[tuple[Expr, bool], ...] = ()

    def __add__(self, other: Separated) -> Separated:
        return Separated(self.shifts + other.shifts, self.scales + other.scales)


def separate(term: Expr, of_results: Holds, of_points: Holds) -> Separated | None:
    """The factors of a term that depend on results; None where there is another way than by factors.

    `of_results` says if a leaf depends on those, `of_points` if it differs from point to point.

    >>> from tdsl.lang.expr import Var
    >>> from tdsl.lang.types import f32
    >>> x, m = Read("x", (Var("j"),), 0, f32), Read("m", (), 0, f32)
    >>> found = separate(
    ...     Call("exp", (Binary("sub", x, m),), f32), lambda n: n == m, lambda n: n == Var("j")
    ... )
    >>> found.shifts == (("exp", Unary("neg", m)),)
    True
    """

    def depends(e: Expr) -> bool:
        return any(of_results(n) for n in post_order(e))  # type: ignore[arg-type]  # all are Exprs

    def varies(e: Expr) -> bool:
        return any(of_points(n) for n in post_order(e))  # type: ignore[arg-type]  # as above

    def factors(e: Expr, divides: bool) -> Separated | None:
        if not depends(e):
            return Separated()
        match e:
            case Binary("mul" | "div" as op, x, y):
                left, right = factors(x, divides), factors(y, divides != (op == "div"))
                return None if left is None or right is None else left + right
            case Unary("neg", x):
                return factors(x, divides)
            case Call(fn, (x,)) if fn in _EXPONENTIALS and not divides:
                part = summand(x)
                return None if part is None else Separated(((fn, part),))
            case Read():
                return Separated(scales=((e, divides),))
            case _:
                return None

    def summand(e: Expr) -> Expr | None:
        """The part of a sum that does not vary, of which no other part depends on results."""
        if not varies(e):
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
            case Binary("mul" | "div" as op, x, y) if not varies(y) and not depends(y):
                part = summand(x)
                return None if part is None else Binary(op, part, y)
            case Binary("mul", x, y) if not varies(x) and not depends(x):
                part = summand(y)
                return None if part is None else Binary("mul", x, part)
            case _:
                return None

    return factors(term, False) if dtype_of(term).is_float else None
