"""Variables of a definition in terms of the loops of its nest, and of the terms that an iteration fixes."""

from __future__ import annotations

from dataclasses import replace

from tdsl.core.node import frozen, map_children
from tdsl.lang.affine import variables
from tdsl.lang.expr import ONE, ZERO, Expr, Var, dtype_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, Interval
from tdsl.lang.simplify import add, conjunction, subtract
from tdsl.lang.types import i64
from tdsl.schedule.bounds_inference import bounds_of
from tdsl.schedule.loop_relations import relate
from tdsl.schedule.state import Nest


@frozen
class DerivedVariable:
    """A variable of a definition in terms of loops: its value `root`, its guard `where`, its bounds."""

    name: str
    root: Expr
    where: Expr
    loops: frozenset[str]
    bounds: Interval


@frozen
class PointTerms:
    """A variable whose subexpressions in loops of one iteration are replaced: that of number n by "term n".

    `variable` is the derived variable after the replacement, `loops` are the other loops of it. Ranks whose
    terms have equal values have equal spans of the variable.
    """

    variable: DerivedVariable
    terms: tuple[Expr, ...]
    loops: tuple[str, ...]


def point_terms(part: DerivedVariable, points: frozenset[str]) -> PointTerms:
    """The largest subexpressions of a derived variable in the loops `points` alone, replaced by terms."""
    terms: dict[Expr, Var] = {}

    def replaced(e: Expr) -> Expr:
        names = variables(e)
        if names and names <= points and dtype_of(e) == i64:
            return terms.setdefault(e, Var(f"term {len(terms)}"))
        return map_children(e, replaced)  # type: ignore[arg-type]  # children of an Expr are Exprs

    variable = replace(part, root=replaced(part.root), where=replaced(part.where))
    return PointTerms(variable, tuple(terms), tuple(sorted(part.loops - points)))


def derived_variables(
    f: FuncDef, definition: int, nest: Nest, box: Box
) -> tuple[tuple[DerivedVariable, ...], dict[str, Interval]]:
    """The variables of a definition in terms of its loops where a box is computed, and the loops' ranges."""
    bounds = bounds_of(f, f.definitions[definition], box)
    related = relate(nest, bounds)
    ends: dict[str, Interval] = {name: (lo, subtract(add(lo, n), ONE)) for name, (lo, n) in bounds.items()}
    parts = []
    for name, root in related.roots.items():
        loops = frozenset(variables(root))
        guard = conjunction(g for g in related.guards if variables(g) <= loops)
        parts.append(DerivedVariable(name, root, guard, loops, ends[name]))
    runs = {x: ends.get(x, (ZERO, subtract(related.extents[x], ONE))) for x in nest.names()}
    return tuple(parts), runs
