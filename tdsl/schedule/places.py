"""Directives on where a func is computed and stored, and the check that all places fit together."""

from __future__ import annotations

from dataclasses import replace

from tdsl.errors import ScheduleError, did_you_mean
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in
from tdsl.schedule.loops import find_loop
from tdsl.schedule.nest import (
    PARALLEL, SCOPES, After, At, FuncPlan, Illegal, Inline, Level, PrefetchPlan, Root, State,
    With, is_reduction,
)  # fmt: skip


def _touch(state: State, func: str, plan: FuncPlan) -> State:
    return state.with_plan(func, replace(plan, touched=True))


def _level(state: State, consumer: str, definition: int, loop: str) -> Level:
    return Level(consumer, definition, find_loop(state, consumer, definition, loop))


def _not_an_output(state: State, func: str, what: str) -> None:
    if func in state.program.outputs:
        raise Illegal(f"{func!r} is an output, which is computed at the root", f"{what} its producers")


def compute_at(
    state: State, func: str, definition: int, *, consumer: str, consumer_definition: int, loop: str
) -> State:
    """Compute, in each iteration of a loop of a consumer, the box of this func that the body needs."""
    _not_an_output(state, func, "compute_at")
    level = _level(state, consumer, consumer_definition, loop)
    if consumer == func:
        raise Illegal(f"{func!r} cannot be computed inside itself", "name a consumer")
    state = _touch(state, func, replace(state.plan(func), place=At(level)))
    check_place(state, func, final=False)
    return state


def store_at(
    state: State, func: str, definition: int, *, consumer: str, consumer_definition: int, loop: str
) -> State:
    """Keep this func's memory for a whole iteration of a loop outside of where it is computed."""
    _not_an_output(state, func, "store_at")
    level = _level(state, consumer, consumer_definition, loop)
    state = _touch(state, func, replace(state.plan(func), store=level))
    check_place(state, func, final=False)
    return state


def store_root(state: State, func: str, definition: int) -> State:
    """Keep this func's memory for the whole kernel, although it is computed inside a loop."""
    _not_an_output(state, func, "store_at")
    plan = state.plan(func)
    if not isinstance(plan.place, At):
        raise Illegal(f"{func!r} is not computed inside a loop", "compute_at first")
    outermost = state.plan(plan.place.level.func).nests[plan.place.level.definition]
    return _touch(state, func, replace(plan, store=Level(plan.place.level.func, -1, outermost.names()[0])))


def compute_root(state: State, func: str, definition: int) -> State:
    """Compute all that is needed of this func before its consumers."""
    return _touch(state, func, replace(state.plan(func), place=Root(), store=None))


def inline(state: State, func: str, definition: int) -> State:
    """Compute this func anew in the place of every read."""
    _not_an_output(state, func, "inline")
    f = state.program.func(func)
    if len(f.definitions) > 1 or f.definitions[0].ranges:
        what = "has updates" if len(f.definitions) > 1 else "is a reduction"
        raise Illegal(f"{func!r} {what}; its loops cannot stand inside an expression", "use compute_at")
    if any(isinstance(p.place, At | After | With) and p.place.level.func == func for _, p in state.plans):
        raise Illegal(f"another func is computed inside the loops of {func!r}", "move that one first")
    return _touch(state, func, replace(state.plan(func), place=Inline(), store=None))


def reverse_compute_at(
    state: State, func: str, definition: int, *, producer: str, producer_definition: int, loop: str
) -> State:
    """Compute this func inside a loop of what it reads, as soon as the body has made its box."""
    level = _level(state, producer, producer_definition, loop)
    f, source = state.program.func(func), state.program.func(producer)
    d = f.definitions[0]
    if len(f.definitions) > 1 or d.ranges:
        raise Illegal(f"{func!r} is not element-wise", "only pure funcs can follow their producer")
    if len(source.definitions) > 1:
        raise Illegal(f"{producer!r} has updates, which come after that loop", "use compute_at instead")
    for r in reads_in(d.expressions()):
        if r.name == producer and sorted(map(str, r.index)) != sorted(str(Var(v)) for v in f.variables):
            raise Illegal(
                f"{func!r} reads {producer!r} at other points than its own",
                "only element-wise consumers can follow their producer; use compute_at the other way",
                ((r.loc, "this read"),),
            )
    if not any(r.name == producer for r in reads_in(d.expressions())):
        raise Illegal(f"{func!r} does not read {producer!r}", "name its producer")
    nest = state.plan(producer).nests[producer_definition]
    inside = nest.names()[: nest.position(level.loop) + 1]
    reduced = [x for x in inside if is_reduction(source, producer_definition, nest, x)]
    if reduced:
        raise Illegal(
            f"inside {reduced[0]!r} the values of {producer!r} are not complete",
            f"place it outside of {reduced[0]!r}",
        )
    for c, _ in state.consumers(producer):
        if c.name != func:
            raise Illegal(f"{c.name!r} reads {producer!r}, too", "only a sole consumer can follow it")
    if producer in state.program.outputs:
        raise Illegal(f"{producer!r} is an output", "only an intermediate can be consumed in place")
    return _touch(state, func, replace(state.plan(func), place=After(level), store=None))


def compute_with(
    state: State, func: str, definition: int, *, other: str, other_definition: int, loop: str
) -> State:
    """Run this stage in the loops of another one, down to a loop, after the other's body."""
    level = _level(state, other, other_definition, loop)
    if other == func:
        raise Illegal("a stage cannot be computed with itself", "name another func")
    if _depends(state, func, other) or _depends(state, other, func):
        raise Illegal(f"{func!r} and {other!r} depend on each other", "use compute_at")
    f = state.program.func(func)
    if len(f.definitions) > 1 or len(state.program.func(other).definitions) > 1:
        raise Illegal("only stages with one definition can share loops", "use compute_at")
    mine, theirs = state.plan(func).nests[definition], state.plan(other).nests[other_definition]
    depth = theirs.position(level.loop) + 1
    if len(mine.loops) < depth:
        raise Illegal(f"{func!r} has {len(mine.loops)} loops, fewer than the {depth} to share")
    for a in mine.names()[:depth]:
        if is_reduction(f, definition, mine, a):
            raise Illegal(f"{a!r} of {func!r} is reduced over", "share free loops only")
    return _touch(state, func, replace(state.plan(func), place=With(level)))


def _depends(state: State, func: str, on: str) -> bool:
    seen, stack = set(), [func]
    while stack:
        name = stack.pop()
        if name == on:
            return True
        if name in seen or not state.program.has_func(name):
            continue
        seen.add(name)
        for d in state.program.func(name).definitions:
            stack += [r.name for r in reads_in(d.expressions()) if r.name != name]
    return False


def _axis(state: State, func: str, dim: int | str) -> int:
    f = state.program.func(func)
    if isinstance(dim, str):
        if dim not in f.variables:
            raise Illegal(f"{func!r} has no dimension {dim!r}", did_you_mean(dim, f.variables))
        return f.variables.index(dim)
    if not -len(f.variables) <= dim < len(f.variables):
        raise Illegal(f"{func!r} has {len(f.variables)} dimensions, not {dim + 1}")
    return dim % len(f.variables)


def reorder_storage(state: State, func: str, definition: int, *, dims: tuple[int | str, ...]) -> State:
    """The order of dimensions in memory, slowest first."""
    _not_an_output(state, func, "reorder_storage")
    axes = tuple(_axis(state, func, d) for d in dims)
    if sorted(axes) != list(range(len(state.program.func(func).variables))):
        raise Illegal("every dimension must be named once", "slowest first")
    return _touch(state, func, replace(state.plan(func), order=axes))


def align_storage(state: State, func: str, definition: int, *, dim: int | str, multiple: int) -> State:
    """Pad the memory of a dimension to a multiple, in elements."""
    _not_an_output(state, func, "align_storage")
    if multiple < 1:
        raise Illegal(f"the multiple must be positive, not {multiple}")
    plan = state.plan(func)
    kept = tuple(x for x in plan.align if x[0] != _axis(state, func, dim))
    return _touch(state, func, replace(plan, align=(*kept, (_axis(state, func, dim), multiple))))


def fold_storage(state: State, func: str, definition: int, *, dim: int | str, extent: int) -> State:
    """Keep only `extent` elements of a dimension, as a ring; checked when the program is compiled."""
    _not_an_output(state, func, "fold_storage")
    if extent < 1:
        raise Illegal(f"the extent must be positive, not {extent}")
    plan = state.plan(func)
    kept = tuple(x for x in plan.fold if x[0] != _axis(state, func, dim))
    return _touch(state, func, replace(plan, fold=(*kept, (_axis(state, func, dim), extent))))


def set_scope(state: State, func: str, definition: int, *, scope: str) -> State:
    """The memory that holds this func: heap, stack, register, or auto."""
    _not_an_output(state, func, "set_scope on")
    if scope not in SCOPES:
        raise Illegal(f"there is no memory scope {scope!r} on this target", did_you_mean(scope, SCOPES))
    return _touch(state, func, replace(state.plan(func), scope=scope))


def stream_stores(state: State, func: str, definition: int) -> State:
    """Write this func past the caches: for large results that are not read again soon."""
    return _touch(state, func, replace(state.plan(func), stream=True))


def prefetch(
    state: State, func: str, definition: int, *, source: str, loop: str, offset: int = 1
) -> State:
    """Prefetch the box of `source` that the body of a loop reads `offset` iterations later."""
    name = find_loop(state, func, definition, loop)
    d = state.program.func(func).definitions[definition]
    read = sorted({r.name for r in reads_in(d.expressions())})
    if source not in read:
        raise Illegal(f"{func!r} does not read {source!r}", did_you_mean(source, read))
    if offset < 1:
        raise Illegal(f"the offset must be positive, not {offset}")
    plan = state.plan(func)
    made = PrefetchPlan(definition, name, source, offset)
    return _touch(state, func, replace(plan, prefetches=(*plan.prefetches, made)))


def pin(state: State, func: str, definition: int) -> State:
    """Leave this func as it is now: no default and no automatic schedule changes it."""
    plan = state.plan(func)
    return _touch(state, func, replace(plan, place=plan.place or Root()))


def check_place(state: State, func: str, *, final: bool) -> None:
    """Raise Illegal unless every use of a func lies where its values exist.

    While a schedule is being written, funcs without a place may still get a fitting one; in the final
    check they are at the root.
    """
    plan = state.plan(func)
    if plan.store is not None and plan.store.func == func:
        return  # written by a cache inside its own loops
    match plan.place:
        case At(level):
            for c, definition in state.consumers(func):
                path = _path(state, c.name, definition, final=final)
                if path is not None and level not in path:
                    raise Illegal(
                        f"{c.name!r} reads {func!r} outside of loop {level.loop!r} of {level.func!r}",
                        f"compute {c.name!r} inside that loop, too, or {func!r} at a place around both",
                        ((c.definitions[definition].loc, "this read"),),
                    )
            if plan.store is not None:
                _check_store(state, func, level, plan.store)
        case None if plan.store is not None and final:
            raise Illegal(f"{func!r} is stored at a loop but not computed inside it", "add compute_at")
        case _:
            if plan.store is not None and plan.place is not None:
                raise Illegal(f"{func!r} is stored at a loop but not computed inside it", "add compute_at")


def _check_store(state: State, func: str, compute: Level, store: Level) -> None:
    around = _enclosing(state, compute)
    if store.definition == -1:
        between = around
    elif store not in around:
        raise Illegal(
            f"loop {store.loop!r} of {store.func!r} is not around loop {compute.loop!r} of "
            f"{compute.func!r}, where {func!r} is computed",
            "store at the same loop or further out",
        )
    else:
        between = around[around.index(store) + 1 :]
    for x in between:
        if state.plan(x.func).nests[x.definition].kind(x.loop) == PARALLEL:
            raise Illegal(
                f"loop {x.loop!r} of {x.func!r} is parallel, and its iterations would share {func!r}",
                "store it inside that loop",
            )


def _enclosing(state: State, level: Level) -> list[Level]:
    """The loops around a place and the place itself, outermost first."""
    nest = state.plan(level.func).nests[level.definition]
    own = [
        Level(level.func, level.definition, x) for x in nest.names()[: nest.position(level.loop) + 1]
    ]
    place = state.plan(level.func).place
    return [*_enclosing(state, place.level), *own] if isinstance(place, At | After) else own


def _path(state: State, func: str, definition: int, *, final: bool) -> list[Level] | None:
    """The places that hold a definition, innermost last; None where that is still open."""
    nest = state.plan(func).nests[definition]
    path = [Level(func, definition, x) for x in nest.names()]
    while True:
        place = state.plan(func).place
        match place:
            case At(level) | After(level) | With(level):
                path = [*_enclosing(state, level), *path]
                return path
            case Inline():
                users = list(state.consumers(func))
                if len(users) == 1:
                    inner = _path(state, users[0][0].name, users[0][1], final=final)
                    return inner
                return None
            case None if not final and func not in state.program.outputs:
                return None
            case _:
                return path


def check_all(state: State) -> None:
    """The final check of every func, with the directive's place in the program."""
    for name, plan in state.plans:
        try:
            check_place(state, name, final=True)
        except Illegal as reason:
            raise ScheduleError(
                f"schedule of {name!r}: {reason.reason}", loc=plan.loc, label="placed here",
                hint=reason.hint, related=reason.related,
            ) from None  # fmt: skip

