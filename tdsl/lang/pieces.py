"""Pieces of a range: intervals of a variable in which the value and the element of an update have one form.

    f[where(s < k, 9, s - k)] = where(s < k, f[9] + a[s], b[s])

has the pieces s < k and k <= s. Pieces also begin and end at a point that writes an element which the others
read: x[i] = x[i] - c[i] * x[j] has i < j, i == j and j < i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tdsl.core.node import post_order
from tdsl.lang.affine import as_expr, as_sum, variables
from tdsl.lang.bounds import Facts, at_most
from tdsl.lang.expr import ONE, Binary, Const, Expr, Select, Var, dtype_of
from tdsl.lang.simplify import add, simplify, subtract
from tdsl.lang.types import i64

Index = tuple[Expr, ...]
# Where x + d (key 1) or -x + d (key -1) begins to compare with 0 in another way: at x = -d, or d, plus these.
_BEGINS: dict[str, dict[int, tuple[int, ...]]] = {
    "lt": {1: (0,), -1: (1,)},
    "ge": {1: (0,), -1: (1,)},
    "le": {1: (1,), -1: (0,)},
}
_BEGINS |= {"gt": _BEGINS["le"], "eq": {1: (0, 1), -1: (0, 1)}, "ne": {1: (0, 1), -1: (0, 1)}}
_BEGINS |= {"min": _BEGINS["le"], "max": _BEGINS["ge"]}  # of the operand with x and the other one


def first_values(
    values: Sequence[Expr],
    index: Index,
    reads: Iterable[Index],
    name: str,
    facts: Facts,
    is_fixed: Callable[[Expr], bool],
) -> tuple[Expr, ...]:
    """The first values of the pieces of an update, in order, without that of the first piece.

    `values` go to the element at `index` of a tensor, of which they read those at `reads`. A piece begins
    only at an expression that `is_fixed`, and that is provably in order with the others.

    >>> from tdsl.lang.bounds import NO_FACTS
    >>> from tdsl.lang.expr import Var, const
    >>> from tdsl.lang.show import show_expr
    >>> s, k = Var("s"), Var("k")
    >>> chosen = Select(Binary("lt", s, k), const(9), Binary("sub", s, k))
    >>> def of(*args):
    ...     return [show_expr(e) for e in first_values(*args, "s", NO_FACTS, lambda e: True)]
    >>> of((chosen,), (s,), ()), of((s,), (s,), [(k,)])
    (['k'], ['k', 'k + 1'])
    """
    ordered: list[Expr] = []
    for e in (*_choices(values, index, name), *_conflicts(index, reads, name)):
        if name in variables(e) or not is_fixed(e):
            continue
        at = sum(at_most(x, e, facts) for x in ordered)
        before, later = ordered[:at], ordered[at:]
        is_ordered = all(at_most(x, e, facts) for x in before) and all(at_most(e, x, facts) for x in later)
        if is_ordered and e not in ordered:
            ordered.insert(at, e)
    return tuple(ordered)


def is_point(first: Expr, after: Expr) -> bool:
    """True if a piece that ends before `after` has one value, `first`."""
    return subtract(after, first) == ONE


def in_piece(e: Expr, name: str, first: Expr, after: Expr, facts: Facts) -> Expr:
    """An expression as it is where first <= name < after."""
    return simplify(e, facts.with_range(name, first, subtract(after, ONE)))


def _conflicts(index: Index, reads: Iterable[Index], name: str) -> Iterator[Expr]:
    """The point that writes the element which another point reads, and the one after it."""
    for read in reads:
        for a, b in zip(index, read, strict=True):
            both = as_sum(a).plus(as_sum(b), -1)
            sign = both.terms.get(Var(name), 0)
            if sign in (1, -1):
                point = simplify(as_expr(both.without(Var(name)).times(-sign)))
                yield point
                yield add(point, ONE)


def _choices(values: Iterable[Expr], index: Index, name: str) -> Iterator[Expr]:
    """The values of a variable at which one of the values, or an index, takes another form."""
    for e in values:
        while isinstance(e, Select):
            yield from _changes(e.cond, name)
            yield from _choices((e.yes,), (), name)
            e = e.no
    for n in post_order(*index):
        match n:
            case Select(cond):
                yield from _changes(cond, name)
            case Binary("min" | "max"):
                yield from _changes(n, name)
            case _:
                pass


def _changes(cond: Expr, name: str) -> Iterator[Expr]:
    for n in post_order(cond):
        if not isinstance(n, Binary) or n.op not in _BEGINS or dtype_of(n.left) != i64:
            continue
        pairs = [(n.left, n.right)]
        if n.op in ("min", "max"):
            pairs = [(x, y) for x in _arms(n.left) for y in _arms(n.right)]
            pairs = [(y, x) if name in variables(y) else (x, y) for x, y in pairs]
        for x, y in pairs:
            both = as_sum(subtract(x, y))
            sign = both.terms.get(Var(name), 0)
            if sign in (1, -1):
                at = both.without(Var(name)).times(-sign)
                for offset in _BEGINS[n.op][sign]:
                    yield simplify(add(as_expr(at), Const(offset, i64)))


def _arms(e: Expr) -> list[Expr]:
    match e:
        case Binary("min" | "max", x, y):
            return [*_arms(x), *_arms(y)]
        case _:
            return [e]
