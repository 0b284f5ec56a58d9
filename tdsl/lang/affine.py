"""Index expressions as sums: constant + coefficient * atom + ..., where an atom is anything not linear.

    16 * y_o + y_i - 1          {Var y_o: 16, Var y_i: 1} + -1
    min(n, 3 * x) + x // 4      {Binary min: 1, Binary floordiv: 1} + 0

Two index expressions are equal when the difference of their sums is empty; this is what makes ranges of
neighbouring tiles cancel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from tdsl.lang.expr import Binary, Cast, Const, Expr, Size, Unary, Var, const, dtype_of
from tdsl.lang.types import i64
from tdsl.node import post_order

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class Sum:
    """constant + sum of coefficient * atom; no coefficient is 0. Treat as immutable."""

    terms: dict[Expr, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: Sum, times: int = 1) -> Sum:
        """self + times * other."""
        if not other.terms:
            return Sum(self.terms, self.constant + times * other.constant)
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + times * coefficient
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return Sum(terms, self.constant + times * other.constant)

    def times(self, factor: int) -> Sum:
        if factor == 0:
            return Sum()
        if factor == 1:
            return self
        return Sum({a: c * factor for a, c in self.terms.items()}, self.constant * factor)

    def without(self, atom: Expr) -> Sum:
        return Sum({a: c for a, c in self.terms.items() if a != atom}, self.constant)

    def divided(self, factor: int) -> Sum:
        """Exact division; every number is a multiple of `factor`."""
        return Sum({a: c // factor for a, c in self.terms.items()}, self.constant // factor)


class Memo(dict[K, V]):
    """Results by what they follow from; forgets all when there are very many."""

    __slots__ = ()

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= _MOST:
            self.clear()
        dict.__setitem__(self, key, value)


_MOST = 200_000
_SUMS: Memo[Expr, Sum] = Memo()


def as_sum(e: Expr) -> Sum:
    """The sum that an i64 expression is.

    >>> from tdsl.lang.show import show_expr
    >>> i, j = Var("i"), Var("j")
    >>> e = Binary("sub", Binary("add", Binary("mul", const(2), i), j), Binary("sub", i, const(3)))
    >>> show_expr(as_expr(as_sum(e)))
    'i + j + 3'
    """
    found = _SUMS.get(e)
    if found is None:
        found = _SUMS[e] = _as_sum(e)
    return found


def _as_sum(e: Expr) -> Sum:
    match e:
        case Const(value):
            return Sum({}, int(value))
        case Var() | Size():
            return Sum({e: 1})
        case Binary("add", left, right):
            return as_sum(left).plus(as_sum(right))
        case Binary("sub", left, right):
            return as_sum(left).plus(as_sum(right), -1)
        case Binary("mul", left, right):
            a, b = as_sum(left), as_sum(right)
            if not a.terms:
                return b.times(a.constant)
            if not b.terms:
                return a.times(b.constant)
            return Sum({e: 1})
        case Unary("neg", x):
            return as_sum(x).times(-1)
        case Cast(x, t) if t == i64 and dtype_of(x) == i64:
            return as_sum(x)
        case _:
            return Sum({e: 1})


def as_expr(s: Sum) -> Expr:
    """The expression of a sum: variables, larger factors first, then sizes, other atoms, the constant."""
    result: Expr | None = None
    for atom, coefficient in sorted(s.terms.items(), key=_order):
        magnitude = abs(coefficient)
        term: Expr = atom if magnitude == 1 else Binary("mul", atom, const(magnitude))
        if result is None:
            result = term if coefficient > 0 else Binary("mul", atom, const(coefficient))
        else:
            result = Binary("add" if coefficient > 0 else "sub", result, term)
    if result is None:
        return const(s.constant)
    if s.constant:
        op = "add" if s.constant > 0 else "sub"
        return Binary(op, result, const(abs(s.constant)))
    return result


def _order(item: tuple[Expr, int]) -> tuple[int, int, int, str]:
    atom, coefficient = item
    first = 0 if coefficient > 0 else 1
    match atom:
        case Var(name):
            return (first, 0, -abs(coefficient), name)
        case Size(name):
            return (first, 1, -abs(coefficient), name)
        case _:
            return (first, 2, 0, "")


def difference(a: Expr, b: Expr) -> int | None:
    """a - b where it is a constant."""
    d = as_sum(a).plus(as_sum(b), -1)
    return None if d.terms else d.constant


def variables(e: Expr) -> frozenset[str]:
    """The names of the loop variables in an expression."""
    found = _VARIABLES.get(e)
    if found is None:
        found = frozenset(n.name for n in post_order(e) if isinstance(n, Var))
        _VARIABLES[e] = found
    return found


_VARIABLES: Memo[Expr, frozenset[str]] = Memo()
