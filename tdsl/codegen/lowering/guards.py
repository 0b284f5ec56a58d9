"""The guards of a loop nest: tests of split tails and predicates, each placed where its loops are open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from tdsl.codegen.lowering.definition_nest import DefinitionNest
from tdsl.codegen.lowering.position import FULL, INIT, SHUFFLE, Guard, NestPosition
from tdsl.lang.affine import variables
from tdsl.lang.bounds import Facts
from tdsl.lang.expr import ONE, TRUE, Binary, Expr, Var
from tdsl.lang.regions import reads_in, restrict_ranges
from tdsl.lang.simplify import add, conjunction, conjuncts, simplify, substitute, subtract
from tdsl.schedule.full_tiles import adds_zeros_beyond
from tdsl.schedule.loop_relations import Related, relate
from tdsl.schedule.predicates import read_in_condition
from tdsl.schedule.state import Level


def guards_of(
    builder: DefinitionNest, related: Related, bounds: Mapping[str, tuple[Expr, Expr]]
) -> tuple[Guard, ...]:
    """The guards of a nest: the guards of split tails, and the conditions of the predicate.

    Conditions that read funcs come last: these funcs are computed only where the other conditions are true.
    """
    ends, conditions = related.guards, conjuncts(builder.d.where)
    if builder.full_tiles:
        ends = tuple(c for c in ends if not _adds_zeros_beyond(builder, c, related))
        conditions = [c for c in conditions if not _adds_zeros_beyond(builder, c, related)]
    tails = [_make_guard(builder, c, related, predicate=False) for c in ends]
    if builder.full_tiles:  # guards restrict the terms, not the results, which cover whole tiles
        tails = [g for g in tails if g.loops & builder.reduced]
    where = [(c, _make_guard(builder, c, related, predicate=True)) for c in conditions]
    if builder.d.tested is None:
        return (*tails, *(g for _, g in where))
    plain = [(c, g) for c, g in where if not any(reads_in((c,)))]
    reading = [(c, g) for c, g in where if any(reads_in((c,)))]
    ranges = {v: (lo, subtract(add(lo, n), ONE)) for v, (lo, n) in bounds.items()}
    narrow = restrict_ranges(ranges, builder.d.tested[0])
    delayed = []
    for c, g in reading:
        early = restrict_ranges(ranges, conjunction(p for p, h in plain if h.loops <= g.loops))
        if any(early[v] != narrow[v] for v in variables(c) & ranges.keys()):
            g = replace(g, loops=g.loops.union(*(h.loops for _, h in plain)))
        delayed.append(g)
    return (*tails, *(g for _, g in plain), *delayed)


def _adds_zeros_beyond(builder: DefinitionNest, cond: Expr, related: Related) -> bool:
    """True if the terms for which a guard `at < end` is false are 0."""
    if not isinstance(cond, Binary) or cond.op != "lt":
        return False
    at = next((Var(v) for v, _, _ in builder.d.ranges if related.roots[v] == cond.left), cond.left)
    return adds_zeros_beyond(builder.low.state, builder.d, at, cond.right)


def _make_guard(builder: DefinitionNest, cond: Expr, related: Related, *, predicate: bool) -> Guard:
    over_loops = substitute(cond, related.roots)
    names = builder.nest.names()
    needed = variables(over_loops) & frozenset(names)
    if predicate:  # with constant sizes it may have fewer variables than `check_predicates` saw
        for x, inner in pairwise(names):
            computed = builder.low.tree.computed.get(Level(builder.f.name, builder.n, x), ())
            if any(read_in_condition(builder.low.state, builder.d, cond, name) for name in computed):
                needed |= {inner}
    return Guard(over_loops, needed, predicate)


def has_guards(builder: DefinitionNest, pos: NestPosition, facts: Facts) -> bool:
    """True if a guard that depends on loops not open yet may be false in one of their iterations."""
    for x in builder.nest.names()[pos.depth :]:
        first = pos.first_of(x)
        facts = facts.with_range(x, first, subtract(add(first, pos.related.extents[x]), ONE))
    conditions = (substitute(g.cond, pos.opened) for g in pos.guards)
    return any(simplify(c, facts) != TRUE for c in conditions)


def ready_guards(builder: DefinitionNest, pos: NestPosition) -> tuple[list[Expr], NestPosition]:
    """The guards to test here, all of whose loops are open, as loop IR; and the position without them."""
    if pos.depth < max(builder.shared_depth, builder.common_depth):
        return [], pos  # other nests in these loops have points of their own
    # every element is initialised, also one without terms
    inits = pos.mode in (FULL, SHUFFLE) and builder.d.init is not None
    ready = [g for g in pos.guards if g.loops <= pos.opened.keys() and not (g.predicate and inits)]
    remaining = tuple(g for g in pos.guards if g not in ready)
    tests = [g for g in ready if not (g.predicate and pos.mode == INIT)]
    return [substitute(g.cond, pos.opened) for g in tests], replace(pos, guards=remaining)


def deferred_guards(builder: DefinitionNest, pos: NestPosition) -> list[Expr]:
    """Guards whose loops are all open but that are tested further inside, around the nest's own points."""
    if pos.depth >= builder.common_depth:
        return []
    return [
        substitute(g.cond, pos.opened) for g in pos.guards if g.loops <= pos.opened.keys() and not g.predicate
    ]


def with_new_guards(builder: DefinitionNest, pos: NestPosition, facts: Facts) -> NestPosition:
    """The position with loop extents and guards recomputed from bounds and tails, without tested guards."""
    related = relate(builder.nest, pos.bounds, facts, pos.tails)
    late = max(builder.shared_depth, builder.common_depth)
    tested = pos.opened.keys() if pos.depth >= late else set()
    guards = (g for g in guards_of(builder, related, pos.bounds) if g.predicate or not g.loops <= tested)
    return replace(pos, related=related, guards=(*(g for g in pos.guards if g.enclosing), *guards))
