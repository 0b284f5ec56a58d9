"""The variables of a definition as expressions of the loops of its nest; loop extents and tail guards."""

from __future__ import annotations

import functools

from tdsl.core.node import frozen
from tdsl.lang.bounds import NO_FACTS, Facts, at_most
from tdsl.lang.expr import ZERO, Binary, Const, Expr, Var, const
from tdsl.lang.simplify import (
    add,
    ceildiv,
    floordiv,
    maximum,
    minimum,
    multiply,
    simplify,
    subtract,
)
from tdsl.schedule.state import ALIGN, PEEL, SHIFT, Fuse, Nest, Rename, Rotate, Split, parts_of


@frozen
class Related:
    """`roots`: each variable as an expression of the loops' names; `extents`: the extent of every loop;
    `guards`: conditions under which a point of the loops is a point of the definition; `peels`: the outer
    loops of splits with tail "peel", with the number of their full iterations."""

    roots: dict[str, Expr]
    extents: dict[str, Expr]
    guards: tuple[Expr, ...]
    peels: dict[str, Expr]


def relate(
    nest: Nest,
    bounds: dict[str, tuple[Expr, Expr]],
    facts: Facts = NO_FACTS,
    tails: frozenset[str] = frozenset(),
) -> Related:
    """The variables, extents and guards of a nest, for (first, extent) `bounds` of its variables.

    Loops count from 0, except that a variable which is itself a loop runs over its own range. `tails` are
    outer loops of peeled splits at their last, partial iteration: the inner loop then has only the remaining
    iterations, if their number is constant.
    """
    extents, peels = _extents(nest, bounds, facts, tails)
    values, guards = _values(nest, bounds, extents, facts)
    roots = {name: add(values[name], lo, facts) for name, (lo, _) in bounds.items()}
    return Related(roots, extents, guards, peels)


@functools.lru_cache(1 << 12)
def relate_known(nest: Nest, bounds: tuple[tuple[str, tuple[Expr, Expr]], ...]) -> Related:
    """`relate`, remembered: schedules that are compared share most nests."""
    return relate(nest, dict(bounds))


def _extents(
    nest: Nest, bounds: dict[str, tuple[Expr, Expr]], facts: Facts, tails: frozenset[str]
) -> tuple[dict[str, Expr], dict[str, Expr]]:
    """The extent of each loop, and the number of full iterations of the outer loops of peeled splits."""
    extents = {name: extent for name, (_, extent) in bounds.items()}
    peels: dict[str, Expr] = {}
    for r in nest.relations:
        match r:
            case Split(parent, outer, inner, factor, parts, tail):
                if factor is not None:
                    extents[inner] = const(factor)
                    whole = extents[parent]
                    if tail == ALIGN:
                        whole = add(whole, _before(bounds[parent][0], factor, facts), facts)
                    extents[outer] = ceildiv(whole, const(factor), facts)
                else:
                    assert parts is not None
                    extents[outer] = const(parts)
                    extents[inner] = ceildiv(extents[parent], const(parts), facts)
                if tail == PEEL:
                    block = maximum(extents[inner], const(1))
                    peels[outer] = maximum(floordiv(extents[parent], block, facts), ZERO, facts)
                    whole = multiply(peels[outer], block, facts)
                    left = simplify(subtract(extents[parent], whole), facts)
                    if outer in tails and isinstance(left, Const):
                        extents[inner] = left
            case Fuse(fused, outer, inner):
                # both extents of an empty box may be negative
                times = maximum(extents[outer], ZERO, facts)
                extents[fused] = multiply(times, extents[inner], facts)
            case Rename(old, new) | Rotate(old, new):
                extents[new] = extents[old]
    return extents, peels


def _values(
    nest: Nest, bounds: dict[str, tuple[Expr, Expr]], extents: dict[str, Expr], facts: Facts
) -> tuple[dict[str, Expr], tuple[Expr, ...]]:
    """Each loop and variable, counted from 0, as an expression of the current loops; the guards."""
    values: dict[str, Expr] = {
        name: subtract(Var(name), bounds[name][0]) if name in bounds else Var(name) for name in nest.names()
    }
    guards: list[Expr] = []
    for r in reversed(nest.relations):
        match r:
            case Split(parent, outer, inner, factor, _, tail):
                block = extents[inner] if factor is None else const(factor)
                start = multiply(values[outer], block, facts)
                whole = multiply(extents[outer], block, facts)
                exact = simplify(subtract(whole, extents[parent]), facts) == ZERO
                if tail == SHIFT and not exact:
                    last = subtract(extents[parent], block, facts)
                    start = maximum(minimum(start, last, facts), ZERO, facts)
                    exact = at_most(block, extents[parent], facts)
                values[parent] = add(start, values[inner], facts)
                if tail == ALIGN:
                    assert factor is not None
                    before = _before(bounds[parent][0], factor, facts)
                    values[parent] = subtract(values[parent], before)
                    exact = exact and before == ZERO
                    if before != ZERO:
                        guards.append(Binary("ge", values[parent], ZERO))
                if not exact:
                    guards.append(Binary("lt", values[parent], extents[parent]))
            case Fuse(fused, outer, inner):
                values[outer] = Binary("floordiv", values[fused], extents[inner])
                values[inner] = Binary("mod", values[fused], extents[inner])
            case Rename(old, new):
                values[old] = values[new]
            case Rotate(old, new, by):
                turned = values[new]
                for name in by:
                    turned = add(turned, values[name], facts)
                values[old] = Binary("mod", turned, extents[old])
    return values, tuple(reversed(guards))


def _before(first: Expr, factor: int, facts: Facts) -> Expr:
    """The number of points between the last multiple of a factor and a first index."""
    return simplify(Binary("mod", first, const(factor)), facts)


def is_inside(nest: Nest, outer: str) -> bool:
    """True if all loops derived from the inner loop of a split are nested in its outer loop."""
    split = next(r for r in nest.relations if isinstance(r, Split) and r.outer == outer)
    around = nest.names()[: nest.position(outer)]
    return split.factor is not None and parts_of(nest, split.inner).isdisjoint(around)
