"""`solve`: the range of one variable for which an index expression stays between two bounds."""

from __future__ import annotations

from tdsl.lang.affine import as_expr, as_sum, variables
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.expr import ZERO, Binary, Const, Expr, Var, const
from tdsl.lang.regions import UNBOUNDED, Interval, Ranges, interval_of
from tdsl.lang.simplify import add, floordiv, multiply, subtract


def solve(e: Expr, name: str, lo: Expr, hi: Expr, ranges: Ranges, facts: Facts = NO_FACTS) -> Interval:
    """The range of the variable `name` for which lo <= e <= hi for all values of the variables in `ranges`.

    Unbounded if `e` is neither affine in the variable nor a quotient of it.

    >>> e = Binary("add", Binary("mul", const(3), Var("i")), Var("t"))
    >>> [x.value for x in solve(e, "i", ZERO, const(99), {"t": (ZERO, const(6))})]
    [0, 31]
    """
    s = as_sum(e)
    holders = [a for a in s.terms if name in variables(a)]
    if len(holders) != 1:
        return UNBOUNDED
    atom = holders[0]
    coefficient, rest = s.terms[atom], as_expr(s.without(atom))
    least, most = interval_of(rest, ranges, facts)
    if least is None or most is None:
        return UNBOUNDED
    low, high = subtract(lo, least, facts), subtract(hi, most, facts)
    if coefficient < 0:
        low, high = subtract(ZERO, high, facts), subtract(ZERO, low, facts)
    k = const(abs(coefficient))
    low = floordiv(add(low, const(abs(coefficient) - 1), facts), k, facts)
    high = floordiv(high, k, facts)
    match atom:
        case Var():
            return low, high
        case Binary("floordiv", x, Const(m)) if m > 0:
            first = multiply(low, const(m), facts)
            last = add(multiply(high, const(m), facts), const(m - 1), facts)
            return solve(x, name, first, last, ranges, facts)
        case _:
            return UNBOUNDED
