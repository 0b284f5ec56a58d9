"""rfactor: splits a reduction into partial results and their merge; vector reductions use it."""

from __future__ import annotations

from dataclasses import replace

from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, ZERO, Expr, Read, Var
from tdsl.lang.program import FuncDef, map_expressions
from tdsl.lang.simplify import add, conjunction, substitute, subtract
from tdsl.lang.types import DType
from tdsl.schedule.loop_relations import relate
from tdsl.schedule.loops import find_loop, split
from tdsl.schedule.new_stage import fresh_name, insert_func, new_name, replace_func
from tdsl.schedule.state import (
    FRAGMENT,
    THREADS,
    VECTORIZED,
    At,
    FuncPlan,
    Fuse,
    Illegal,
    Level,
    Loop,
    Nest,
    Relation,
    Rename,
    Root,
    Rotate,
    Split,
    State,
    fresh_plan,
    is_ordered,
    is_reduction,
    roots_of,
)  # fmt: skip


def rfactor(state: State, func: str, definition: int, *, loop: str, name: str | None = None) -> State:
    """Compute a partial result for each iteration of a reduction loop in a new stage, then merge them.

    The new stage has the loop as an additional dimension, in which it is free.
    """
    f, plan = state.program.func(func), state.plan(func)
    d, nest = f.definitions[definition], plan.nests[definition]
    u = find_loop(state, func, definition, loop)
    _check_reducible(f, definition, nest, u)
    if any(special.definition == definition for special in plan.specializations):
        raise Illegal(f"{func!r} has loops for special cases already", "specialize after it")
    ranges = {n: (lo, subtract(hi, lo)) for n, lo, hi in d.ranges if lo is not None and hi is not None}
    reduced = Nest(
        tuple(x for x in nest.loops if roots_of(nest, x.name) & set(ranges)),
        tuple(r for r in nest.relations if _roots_of_relation(nest, r) & set(ranges)),
    )
    partial_name = new_name(state.program, name, f"{func}_partial")
    partial, (low, high) = _partial_definition(d, reduced, ranges, u)
    definitions, merge = _partial_and_merge(f, d, partial, partial_name, (u, low, high))
    along = (low, subtract(high, ONE))
    p = FuncDef(
        partial_name,
        f.dtypes,
        definitions,
        (*f.limits, along),
        (*f.natural, along),
        False,
        f.fast_math,
        f.loc,
    )
    changed = (*f.definitions[:definition], merge, *f.definitions[definition + 1 :])
    state = replace_func(state, replace(f, definitions=changed))
    merge_nest = (
        _merge_nest(nest, set(ranges), merge)
        if _is_of_its_elements(d)
        else Nest(tuple(map(Loop, merge.variables)))
    )
    atomics = plan.atomic - {definition}
    state = state.with_plan(
        func, replace(plan.with_nest(definition, merge_nest), atomic=atomics, scheduled=True)
    )
    return insert_func(state, func, p, _partial_plan(p, reduced))


def _check_reducible(f: FuncDef, definition: int, nest: Nest, loop: str) -> None:
    """Raise Illegal unless a loop is a reduction loop whose combiner is associative."""
    if not is_reduction(f, definition, nest, loop):
        raise Illegal(f"{loop!r} is not reduced over; it is free already", "name a reduction loop")
    if is_ordered(f, definition):
        combine = f.definitions[definition].combine
        associative = combine is not None and combine.associative
        why = "reads itself" if associative else "has no associative combiner"
        raise Illegal(f"this definition of {f.name!r} {why}", "the order of its points cannot be changed")


def _partial_definition(
    d: Definition, reduced: Nest, ranges: dict[str, tuple[Expr, Expr]], loop: str
) -> tuple[Definition, tuple[Expr, Expr]]:
    """The partial reduction, free in `loop`, and (first, end) of that loop; `ranges` are (first, extent)."""
    related = relate(reduced, ranges)
    leaves = []
    for x in reduced.names():
        lo = ranges[x][0] if x in ranges else ZERO
        leaves.append((x, lo, add(lo, related.extents[x])))
    where = conjunction([*related.guards, d.where])
    # not simplified: guards bound quotients of variables only if these stay as they are
    moved = map_expressions(replace(d, where=where), lambda e: substitute(e, related.roots))
    others = tuple(x for x in leaves if x[0] != loop)
    low, high = next((lo, hi) for n, lo, hi in leaves if n == loop)
    definition = replace(
        moved, index=(*moved.index, Var(loop)), free=(*d.free, loop), ranges=others, init=d.init
    )
    return definition, (low, high)


def _partial_and_merge(
    f: FuncDef, d: Definition, partial: Definition, partial_name: str, over: tuple[str, Expr, Expr]
) -> tuple[tuple[Definition, ...], Definition]:
    """The definitions of the stage `partial_name`, and the merge; for an update with an initial value."""
    assert d.combine is not None
    loop, low, high = over
    if _is_of_its_elements(d):
        partial = replace(partial, init=d.combine.init)
        values = _partial_reads(partial_name, (*d.index, Var(loop)), f.dtypes)
        return (partial,), replace(d, values=values, where=TRUE, ranges=(over,), mask=TRUE)
    axis = f"{partial_name}_{loop}" if loop in f.variables else loop
    dims = tuple(Var(v) for v in f.variables)
    start = Definition((*dims, Var(axis)), (*f.variables, axis), (), TRUE, d.combine.init, None, None, d.loc)
    merge = Definition(
        dims, f.variables, ((axis, low, high),), TRUE,
        _partial_reads(partial_name, (*dims, Var(axis)), f.dtypes), d.combine, None, d.loc,
    )  # fmt: skip
    return (start, partial), merge


def _is_of_its_elements(d: Definition) -> bool:
    """True where each point of the free variables reduces to its element: no range chooses elements."""
    return d.init is not None or d.index == tuple(map(Var, d.free))


def _partial_plan(p: FuncDef, reduced: Nest) -> FuncPlan:
    """The plan of the new stage: at the root, with the loop kinds of the nest `reduced`."""
    plan = replace(fresh_plan(p), scheduled=True, place=Root())
    before, last = {x.name: x for x in reduced.loops}, plan.nests[-1]
    loops = tuple(before.get(x.name, x) for x in last.loops)
    return plan.with_nest(len(p.definitions) - 1, replace(last, loops=loops))


def _roots_of_relation(nest: Nest, r: Relation) -> frozenset[str]:
    before = replace(nest, relations=nest.relations[: nest.relations.index(r)])
    match r:
        case Split(parent):
            return roots_of(before, parent)
        case Fuse(_, outer, inner):
            return roots_of(before, outer) | roots_of(before, inner)
        case Rename(old) | Rotate(old):
            return roots_of(before, old)


def _partial_reads(name: str, index: tuple[Expr, ...], dtypes: tuple[DType, ...]) -> tuple[Expr, ...]:
    return tuple(Read(name, index, c, t) for c, t in enumerate(dtypes))


def _merge_nest(nest: Nest, ranges: set[str], merge: Definition) -> Nest:
    """The free loops of a nest, unchanged, with the loops of the merge inside them."""
    free = tuple(x for x in nest.loops if not roots_of(nest, x.name) & ranges)
    relations = tuple(r for r in nest.relations if not _roots_of_relation(nest, r) & ranges)
    return Nest((*free, *(Loop(n) for n, _, _ in merge.ranges)), relations, nest.aliases)


def vectorize_reduction(state: State, func: str, definition: int, name: str, factor: int | None) -> State:
    """Reduce a loop in `factor` vector lanes, each with a partial result, merged after the loop."""
    if factor is None:
        return reduce_concurrently(state, func, definition, name, VECTORIZED)
    lane = state.plan(func).nests[definition].fresh_name(f"{name}_v")
    state = split(state, func, definition, loop=name, factor=factor, names=(None, lane))
    return reduce_concurrently(state, func, definition, lane, VECTORIZED)


def reduce_concurrently(state: State, func: str, definition: int, lane: str, kind: str) -> State:
    """Reduce the iterations of a loop concurrently, as partial results that are merged after the loops."""
    nest = state.plan(func).nests[definition]
    partial_name = fresh_name(state.program, f"{func}_lanes")
    f = state.program.func(func)
    first = next(n for n, x in enumerate(nest.names()) if is_reduction(f, definition, nest, x))
    outside = nest.names()[:first]
    state = rfactor(state, func, definition, loop=lane, name=partial_name)
    merge = state.plan(func).nests[definition]
    merge = merge.with_kind(merge.names()[-1], kind)
    state = state.with_plan(func, state.plan(func).with_nest(definition, merge))
    plan = state.plan(partial_name)
    for n, partial_nest in enumerate(plan.nests):
        names = partial_nest.names()
        axis = lane if lane in names else names[-1]
        order = [x for x in partial_nest.loops if x.name != axis]
        order.insert(len(order) if kind == VECTORIZED else 0, Loop(axis, kind))
        plan = plan.with_nest(n, replace(partial_nest, loops=tuple(order)))
    if outside:
        plan = replace(plan, place=At(Level(func, definition, outside[-1])))
    return state.with_plan(partial_name, replace(plan, scope="auto"))


def check_thread_merge(state: State, func: str, level: Level) -> None:
    """Raise Illegal if a func is computed in a loop in which threads merge results of another func."""
    plan, f = state.plan(level.func), state.program.func(level.func)
    nest = plan.nests[level.definition]
    merged = nest.kind(level.loop) in THREADS and level.definition not in plan.atomic
    merged = merged and is_reduction(f, level.definition, nest, level.loop)
    if merged and level.func != func and plan.scope != FRAGMENT:
        raise Illegal(
            f"threads combine their results in {level.loop!r} of {level.func!r}, where {func!r} is computed",
            "place it outside of that loop",
        )
