"""fold_update: computes the points of an update in the nest of the first definition, by a select."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tdsl.core.node import Node, map_children, transform
from tdsl.lang.affine import as_expr, as_sum, variables
from tdsl.lang.bounds import NO_FACTS, at_most
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import ONE, TRUE, Binary, Const, Expr, Param, Read, Select, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Interval, interval_of, reads_in
from tdsl.lang.simplify import conjunction, maximum, minimum, simplify, substitute, subtract
from tdsl.schedule.new_stage import replace_func
from tdsl.schedule.state import FuncPlan, Illegal, State, fresh_nest, levels_of


def fold_update(state: State, func: str, definition: int) -> State:
    """Compute the points of the first update in the loops of the first definition.

        o[i] = b[i]                 o[i] = where(1 <= i and i < 9, a[i - 1] + a[i + 1], b[i])
        o[r] = a[r - 1] + a[r + 1]      r in range(1, 9)

    Where the select chooses the first value, the update reads other elements of those that are read anyway.
    """
    f, plan = state.program.func(func), state.plan(func)
    folded = folded_definition(f, definition)
    if isinstance(folded, str):
        raise Illegal(
            f"update {definition - 1} of {func!r} {folded}", "schedule the nest of the update instead"
        )
    _check_open(state, func, plan)
    definitions = (folded, *f.definitions[2:])
    state = replace_func(state, replace(f, definitions=definitions))
    return state.with_plan(func, replace(plan, nests=(plan.nests[0], *plan.nests[2:])))


def _check_open(state: State, func: str, plan: FuncPlan) -> None:
    """Raise Illegal if the update has directives, or other stages are placed in the loops of updates."""
    f = state.program.func(func)
    fresh = plan.nests[1] == fresh_nest(f.definitions[1])
    special = plan.specializations or plan.tensorizations or plan.prefetches or plan.atomic
    if not fresh or special or plan.distributed:
        raise Illegal(f"{func!r} has directives that would be lost", "fold the update first")
    if any(x.func == func and x.definition > 0 for _, p in state.plans for x in levels_of(p)):
        raise Illegal(f"a func is placed in the loops of an update of {func!r}", "fold the update first")


def folded_definition(f: FuncDef, definition: int) -> Definition | str:
    """The first definition with the points of the first update in it, or the reason against it."""
    if definition != 1:
        return "is not the first update" if definition else "is no update"
    first, d = f.definitions[:2]
    if first.init is not None or first.ranges or has_effects(first) or has_effects(d):
        return "follows a definition that reduces, checks or prints"
    ranges = _all_ranges(d, f)
    for (lo, hi), e in zip(f.natural, d.index, strict=True):
        low, high = interval_of(e, ranges)
        ends = (lo, hi, low, high)
        if any(x is None for x in ends) or not (at_most(lo, low, NO_FACTS) and at_most(high, hi, NO_FACTS)):  # type: ignore[arg-type]  # none is None
            return f"may write outside of {f.name!r}"
    places = _places(first, d)
    if isinstance(places, str):
        return places
    at, conditions = places
    reread = [r for r in reads_in((*d.values, *d.index, d.where)) if r.name == f.name]
    if any(r.index != d.index for r in reread):
        return f"reads other elements of {f.name!r}"
    if d.where != TRUE and any(r.name != f.name for r in reads_in(d.values)):
        return "reads tensors under a condition"
    old = dict(enumerate(first.values))

    def replaced(n: Node) -> Node:
        return old[n.component] if isinstance(n, Read) and n.name == f.name else n

    values = [transform(v, replaced) for v in _Mover(f, at).moved(d.values)]
    if d.combine is not None:
        operands = {f"a{c}": value for c, value in old.items()}
        operands |= {f"b{c}": value for c, value in enumerate(values)}
        values = [
            transform(e, lambda n: operands.get(n.name, n) if isinstance(n, Param) else n)
            for e in d.combine.exprs
        ]
    points = conjunction([*conditions, substitute(d.where, {name: value for name, (value, _) in at.items()})])
    chosen = tuple(
        Select(points, new, value) if points != TRUE else new
        for new, value in zip(values, first.values, strict=True)
    )
    return replace(first, values=chosen)


Places = dict[str, tuple[Expr, Expr]]


def _places(first: Definition, d: Definition) -> tuple[Places, list[Expr]] | str:
    """The variables of an update at a point of the first definition, as they are and moved into their range.

    And the conditions under which the point is one of the update; or the reason why there are none.
    """
    ranges = {name: (lo, hi) for name, lo, hi in d.ranges}
    at: Places = {}
    conditions: list[Expr] = []
    for axis, e in zip(first.index, d.index, strict=True):
        assert isinstance(axis, Var)
        used = variables(e) & {*d.variables}
        if any(True for _ in reads_in((e,))):
            return "writes elements that data chooses"
        if not used:
            conditions.append(Binary("eq", axis, e))
            continue
        (name, *more) = used
        s = as_sum(e)
        sign = s.terms.get(Var(name), 0)
        rest = s.without(Var(name))
        if more or sign not in (1, -1) or variables(as_expr(rest)) & used or name in at:
            return "writes elements that no single point of its ranges gives"
        value = simplify(subtract(axis, as_expr(rest)) if sign > 0 else subtract(as_expr(rest), axis))
        if name in d.free:
            at[name] = value, value
            continue
        lo, hi = ranges[name]
        if lo is None or hi is None or not at_most(ONE, subtract(hi, lo), NO_FACTS):
            return f"may have no points of {name!r}"
        last = subtract(hi, ONE)
        at[name] = value, minimum(maximum(value, lo), last)
        conditions += [Binary("le", lo, value), Binary("le", value, last)]
    missing = [v for v in d.variables if v not in at]
    return f"runs over {missing[0]!r} for each element" if missing else (at, conditions)


class _Mover:
    """The values of an update as expressions of the variables of the first definition.

    A read is moved into the interval of what the update, or the first definition, reads of its source along
    the dimension: that of its nearest element. Where this interval is not known, the variables are moved.
    """

    def __init__(self, f: FuncDef, at: Places) -> None:
        self.f, self.at = f, at
        first, d = f.definitions[:2]
        self.values = {name: value for name, (value, _) in at.items()}
        self.nearest = {name: nearest for name, (_, nearest) in at.items()}
        whole = _ranges(first, f)
        part = _all_ranges(d, f)
        self.limits: dict[tuple[str, int], Interval] = {}
        for ranges, values in ((part, d.values), (whole, first.values)):
            for r in reads_in(values):
                for axis, e in enumerate(r.index):
                    lo, hi = interval_of(e, ranges)
                    known = self.limits.get((r.name, axis), (lo, hi))
                    self.limits[r.name, axis] = _hull(known, (lo, hi))

    def moved(self, values: tuple[Expr, ...]) -> list[Expr]:
        """The values, with reads of other elements than that of the update moved."""
        return [self.expression(v) for v in values]

    def expression(self, e: Expr) -> Expr:
        if isinstance(e, Read):
            if e.name == self.f.name:
                return e
            return replace(e, index=tuple(self.index(e.name, n, i) for n, i in enumerate(e.index)))
        if isinstance(e, Var):
            return self.nearest.get(e.name, e)
        return map_children(e, self.expression)  # type: ignore[arg-type]  # children of an Expr are Exprs

    def index(self, name: str, axis: int, e: Expr) -> Expr:
        lo, hi = self.limits[name, axis]
        if any(True for _ in reads_in((e,))) or not isinstance(lo, Const) or not isinstance(hi, Const):
            return self.expression(e)
        return minimum(maximum(substitute(e, self.values), lo), hi)


def _ranges(d: Definition, f: FuncDef) -> dict[str, Interval]:
    """The range of each free variable of a definition over the whole func."""
    ends = zip(d.index, f.natural, strict=True)
    return {e.name: box for e, box in ends if isinstance(e, Var) and e.name in d.free}


def _all_ranges(d: Definition, f: FuncDef) -> dict[str, Interval]:
    """The range of each variable of a definition over the whole func."""
    ends = {name: (lo, None if hi is None else subtract(hi, ONE)) for name, lo, hi in d.ranges}
    return {**_ranges(d, f), **ends}


def _hull(a: Interval, b: Interval) -> Interval:
    """The interval from the lower to the higher end of two of constant ends; unbounded for others."""
    if not all(isinstance(e, Const) for e in (*a, *b)):
        return None, None
    return minimum(a[0], b[0]), maximum(a[1], b[1])  # type: ignore[arg-type]  # as tested


def is_most_of(f: FuncDef, sizes: Mapping[str, int | None]) -> bool:
    """True if the first update has at least half of the points of the func."""
    d, points, part = f.definitions[1], 1, 1
    for (lo, hi), e in zip(f.natural, d.index, strict=True):
        if not isinstance(lo, Const) or not isinstance(hi, Const):
            return False
        whole = int(hi.value) - int(lo.value) + 1
        (name, *_) = (*(variables(e) & {*d.variables}), "")
        points *= whole
        part *= whole if name in d.free else (sizes.get(name) or 0) if name else 1
    return 2 * part >= points
