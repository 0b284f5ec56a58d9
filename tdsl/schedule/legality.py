"""Legality of places: every read of a func must be nested in the loop at which its values are computed.

Loops change after funcs were placed in them, so every place that a directive may concern is checked again
after it, and all of them before lowering.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from graphlib import CycleError

from tdsl.errors import ScheduleError, counted
from tdsl.lang.program import FuncDef
from tdsl.schedule.dependence import check_dependences
from tdsl.schedule.inlining import inlined_into
from tdsl.schedule.pipelines import check_pipelined
from tdsl.schedule.predicates import check_predicates
from tdsl.schedule.reverse_compute_at import check_after
from tdsl.schedule.rfactor import check_thread_merge
from tdsl.schedule.state import (
    AXES,
    BLOCKS,
    CONCURRENT,
    COOPERATIVE,
    SERIAL,
    SHARED,
    SHIFT,
    THREADS,
    UNROLLED,
    AfterProducer,
    At,
    FuncPlan,
    Illegal,
    Inline,
    Level,
    Nest,
    Root,
    Split,
    State,
    WithStage,
    is_reduction,
    levels_of,
    parts_of,
)  # fmt: skip
from tdsl.schedule.tree import nested_funcs, producers_first

AT_ROOT = -1  # the definition number of a store level that means the whole kernel


def recheck(state: State, func: str) -> None:
    """Check a func that a directive changed, the funcs placed in its loops, and the funcs these read."""
    _check_acyclic(state, func)
    plan, f = state.plan(func), state.program.func(func)
    if f.definitions[0].init is not None:
        for nest in (plan.nests[0], *(s.nest for s in plan.specializations if s.definition == 0)):
            _check_shifts(f, nest)
    for n in range(len(f.definitions)):
        for nest in (plan.nests[n], *(s.nest for s in plan.specializations if s.definition == n)):
            check_dependences(state, func, n, nest)
    inside = nested_funcs(state, func)
    definitions = [d for name in inside for d in state.program.func(name).definitions]
    read = {r.name for d in (*definitions, *inlined_into(state, definitions)) for r in d.reads}
    for name in state.in_order(inside | read):
        check_place(state, name, final=False)


def _check_shifts(f: FuncDef, nest: Nest) -> None:
    """Raise Illegal if a reduction would accumulate twice into points that a shifted tail computes twice.

    Each block must initialise and complete its points before the next block starts.
    """
    for r in nest.relations:
        if not (isinstance(r, Split) and r.tail == SHIFT):
            continue
        again = f"the last block of {r.parent!r} computes points of the one before again"
        blocks = parts_of(nest, r.outer)
        last = max(nest.position(x) for x in blocks)
        for x in nest.names()[:last]:
            if is_reduction(f, 0, nest, x):
                raise Illegal(
                    f"{again}, and inside of {x!r}, a reduction, it would add to them twice",
                    f"put {r.outer!r} outside of {x!r}, or split with tail='guard'",
                )
        for x in blocks:
            if nest.kind(x) in CONCURRENT:
                raise Illegal(
                    f"{again}, and two iterations of {x!r} would add to them at a time",
                    "split with tail='guard'",
                )


def check_all(state: State) -> None:
    """Check every func before lowering; raises ScheduleError with the source line of its directive.

    Funcs without a place are at the root, or where their reads imply (`implied_places`).
    """
    for name, level in implied_places(state):
        state = state.with_plan(name, replace(state.plan(name), place=At(level)))
    for name, plan in state.plans:
        try:
            check_place(state, name, final=True)
            _check_launch(state, name)
            check_pipelined(state, name)
        except Illegal as reason:
            raise ScheduleError(
                f"schedule of {name!r}: {reason.reason}", loc=plan.loc, label="placed here",
                hint=reason.hint, related=reason.related,
            ) from None  # fmt: skip


def implied_places(state: State) -> Iterator[tuple[str, Level]]:
    """The funcs without a place that read what directives compute in a loop, with the innermost such loop.

    Only funcs that may be computed there: an output, or what others need elsewhere, may not. Consumers come
    before producers.

    >>> import tdsl as td
    >>> i, a, w, c, o = td.vars("i"), td.Tensor("a", (8,), td.f32), td.Func("w"), td.Func("c"), td.Func("o")
    >>> w[i] = a[i] + 1
    >>> c[i] = w[i] * w[i]
    >>> o[i] = c[i] + w[i]
    >>> s = td.Schedule(o)
    >>> _ = s[w].compute_at(o, i)
    >>> [(name, level.func, level.loop) for name, level in implied_places(s.state)]
    [('c', 'o', 'i')]
    """
    for f in reversed(state.program.funcs):
        if state.plan(f.name).place is not None or f.name in state.program.outputs:
            continue
        read = {r.name for d in f.definitions for r in d.reads if state.program.has_func(r.name)} - {f.name}
        places = (state.plan(name).place for name in sorted(read))
        levels = [p.level for p in places if isinstance(p, At) and depends_on(state, p.level.func, f.name)]
        if not levels or f.name in (level.func for level in levels):
            continue
        level = max(levels, key=lambda x: _depth(state, x))
        placed = state.with_plan(f.name, replace(state.plan(f.name), place=At(level)))
        with suppress(Illegal):
            check_place(placed, f.name, final=False)
            state = placed
            yield f.name, level


def check_place(state: State, func: str, *, final: bool) -> None:
    """Raise Illegal unless every read of a func is nested in the loop at which it is computed.

    Consumers that have no place yet are not checked, as later directives may place them; with `final` they
    are at the root.
    """
    plan = state.plan(func)
    for level in levels_of(plan):
        _check_level(state, func, level)
    _check_acyclic(state, func)
    if isinstance(plan.place, AfterProducer | WithStage):
        _check_order(state, func)
    match plan.place:
        case At(level):
            _check_uses(state, func, level, final=final)
            check_predicates(state, func, level, final=final)
        case AfterProducer(level):
            check_after(state, func, level)
            home = state.plan(level.func).place
            while isinstance(home, AfterProducer | WithStage):
                home = state.plan(home.level.func).place
            if isinstance(home, At):
                _check_uses(state, func, home.level, final=final)
        case WithStage(level):
            check_with(state, func, level)
        case _:
            pass
    if plan.store is not None:
        _check_store(state, func, plan, plan.store, final=final)
    for host in {level.func for level in levels_of(plan)}:
        _check_specialized(state, func, host, final=final)


def _check_level(state: State, func: str, level: Level) -> None:
    host = state.plan(level.func)
    if isinstance(host.place, Inline):
        raise Illegal(f"{level.func!r} is inlined and has no loops", f"compute {level.func!r} somewhere")
    if level.definition == AT_ROOT:
        return
    nest = host.nests[level.definition]
    if level.loop not in nest.names():
        raise Illegal(
            f"{func!r} has its place at loop {level.loop!r} of {level.func!r}, which would be gone",
            f"change the loops of {level.func!r} before placing {func!r}",
        )
    if isinstance(host.place, WithStage):
        _check_level(state, level.func, host.place.level)
        if nest.position(level.loop) < _depth(state, host.place.level):
            raise Illegal(
                f"loop {level.loop!r} of {level.func!r} is shared with {host.place.level.func!r}",
                f"name the loop of {host.place.level.func!r}",
            )


def _check_acyclic(state: State, func: str) -> None:
    stack, seen = [func], set()
    while stack:
        name = stack.pop()
        for level in levels_of(state.plan(name)):
            if level.func == name:
                continue  # a func with a write cache is stored in its own loops
            if level.func == func:
                raise Illegal(f"{func!r} would be computed inside itself", "name a loop around both")
            if level.func not in seen:
                seen.add(level.func)
                stack.append(level.func)


def _check_order(state: State, func: str) -> None:
    """Raise Illegal if stages that share loops depend on each other through stages outside these loops."""
    try:
        producers_first(state)
    except CycleError:
        raise Illegal(
            f"something that {func!r} reads, or that reads it, has to run in the middle of these loops",
            "compute it inside of a loop of its consumer",
        ) from None


def _check_uses(state: State, func: str, level: Level, *, final: bool) -> None:
    if func in state.program.outputs:
        raise Illegal(
            f"{func!r} is an output, all of which is needed outside of loop {level.loop!r} of {level.func!r}",
            "compute it, and what it follows, at the root",
        )
    for c, definition in state.consumers(func):
        inline = isinstance(state.plan(c.name).place, Inline)
        what = f"what {c.name!r} is inlined into" if inline else repr(c.name)
        for path in _loop_paths(state, c.name, definition, final=final):
            if level not in path:
                raise Illegal(
                    f"{c.name!r} reads {func!r} outside of loop {level.loop!r} of {level.func!r}",
                    f"compute {what} inside that loop, too, or {func!r} at a place around both",
                    ((c.definitions[definition].loc, "this read"),),
                )


def _depth(state: State, level: Level) -> int:
    """The number of loops down to and including a level."""
    return state.plan(level.func).nests[level.definition].position(level.loop) + 1


def check_with(state: State, func: str, level: Level) -> None:
    """Raise Illegal unless a stage can run in the loops of another, down to a level."""
    f, other = state.program.func(func), level.func
    if depends_on(state, func, other) or depends_on(state, other, func):
        raise Illegal(f"{func!r} and {other!r} depend on each other", "use compute_at")
    if len(f.definitions) > 1 or len(state.program.func(other).definitions) > 1:
        raise Illegal("only stages with one definition can share loops", "use compute_at")
    if not isinstance(state.plan(other).place, Root | WithStage | None):
        raise Illegal(f"{other!r} is not computed at the root", "share loops of a stage at the root")
    for name in _funcs_sharing_loops(state, func):
        if depends_on(state, func, name) or depends_on(state, name, func):
            raise Illegal(f"{name!r} shares these loops, too, and depends on {func!r}", "use compute_at")
    nest, depth = state.plan(func).nests[0], _depth(state, level)
    if len(nest.loops) < depth:
        raise Illegal(
            f"{func!r} has {counted(len(nest.loops), 'loop')}, fewer than the {depth} to share",
            "name a loop further out",
        )
    _check_shared_order(state, func, level, nest.names()[:depth])
    shared = nest.names()[:depth]
    for name, plan in state.plans:
        for used in levels_of(plan):
            if used.func == func and used.loop in shared and used.definition != AT_ROOT:
                raise Illegal(f"{name!r} has its place at loop {used.loop!r}", "move that one first")


def _check_shared_order(state: State, func: str, level: Level, shared: tuple[str, ...]) -> None:
    """Raise Illegal if a reduction would not be initialised before a shared loop, or not run in order."""
    f, nest, other = state.program.func(func), state.plan(func).nests[0], state.plan(level.func)
    host_nest = other.nests[level.definition]
    foreign = _depth(state, other.place.level) if isinstance(other.place, WithStage) else 0
    for n, (a, b) in enumerate(zip(shared, host_nest.names(), strict=False)):
        if not is_reduction(f, 0, nest, a):
            continue
        if n < foreign:
            raise Illegal(
                f"{func!r} reduces over {a!r}, which {level.func!r} shares with another stage",
                "share the loops of that stage",
            )
        if host_nest.kind(b) not in (SERIAL, UNROLLED):
            raise Illegal(
                f"{func!r} reduces over {a!r}, but {b!r} of {level.func!r} does not run in order",
                f"leave {b!r} serial, or share loops outside of it",
            )


def _funcs_sharing_loops(state: State, func: str) -> Iterator[str]:
    """Other funcs in the loops that a func shares, without its hosts and the funcs in its own loops."""

    def hosts(name: str) -> list[str]:
        chain = [name]
        while isinstance(place := state.plan(chain[-1]).place, WithStage | AfterProducer):
            chain.append(place.level.func)
        return chain

    func_hosts = hosts(func)
    for name, _ in state.plans:
        other_hosts = hosts(name)
        if name not in func_hosts and func not in other_hosts and other_hosts[-1] == func_hosts[-1]:
            yield name


def depends_on(state: State, func: str, on: str) -> bool:
    """True if a func reads another, directly or through other funcs."""
    seen, stack = set(), [func]
    while stack:
        name = stack.pop()
        if name == on:
            return True
        if name in seen or not state.program.has_func(name):
            continue
        seen.add(name)
        for d in state.program.func(name).definitions:
            stack += [r.name for r in d.reads if r.name != name]
    return False


def _check_store(state: State, func: str, plan: FuncPlan, store: Level, *, final: bool) -> None:
    if store.func == func:  # a func with a write cache, stored inside its own loops
        _check_uses(state, func, store, final=final)
        return
    if not isinstance(plan.place, At):
        if plan.place is None and not final:
            return
        raise Illegal(f"{func!r} is stored at a loop but not computed inside it", "add compute_at")
    compute = plan.place.level
    around = enclosing_levels(state, compute)
    if store.definition == AT_ROOT:
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
        if state.plan(x.func).nests[x.definition].kind(x.loop) in CONCURRENT:
            raise Illegal(
                f"loop {x.loop!r} of {x.func!r} is parallel, and its iterations would share {func!r}",
                "store it inside that loop",
            )


def loops_around(state: State, func: str) -> list[Level]:
    """The loops in which a func is computed or stored; a loop may occur twice."""
    levels = [x for x in levels_of(state.plan(func)) if x.definition != AT_ROOT]
    return [x for level in levels for x in enclosing_levels(state, level)]


def _is_read_elsewhere(state: State, func: str) -> bool:
    """True for an output, and where a reader is outside of the nests in which the func is computed."""
    around = {x.func for x in loops_around(state, func)}
    readers = ({f.name, *(x.func for x in loops_around(state, f.name))} for f, _ in state.consumers(func))
    return func in state.program.outputs or any(around.isdisjoint(names) for names in readers)


def _check_launch(state: State, func: str) -> None:
    """Raise Illegal unless loops bound to GPU axes, and memory shared by threads, are legally nested."""
    plan = state.plan(func)
    runs = [(x, state.plan(x.func).nests[x.definition]) for x in loops_around(state, func)]
    everywhere = {nest.kind(x.loop) for x, nest in runs}
    kinds = {nest.kind(x.loop) for x, nest in runs if x.func != func}
    for level, _ in runs:
        check_thread_merge(state, func, level)
    for nest in plan.nests:
        for n, x in enumerate(nest.loops):
            if x.kind in BLOCKS and (kinds or any(y.kind not in BLOCKS for y in nest.loops[:n])):
                raise Illegal(
                    f"loop {x.name!r} runs on {x.kind}, but is nested in another loop",
                    "loops over blocks must be outermost: reorder, or compute the func at the root",
                )
    bound = [x for nest in plan.nests for x in nest.loops if x.kind in THREADS and x.kind in kinds]
    scope = state.plan(plan.place.level.func).scope if isinstance(plan.place, AfterProducer) else ""
    cooperative = scope in COOPERATIVE or plan.scope in COOPERATIVE
    is_private = plan.scope != SHARED and not _is_read_elsewhere(state, func)
    if scope == SHARED and is_private and not kinds.isdisjoint(THREADS):
        raise Illegal(
            f"each thread has its own {func!r}, but the producer is computed once for all of them",
            'set_scope("shared")',
        )
    if bound and not cooperative:
        raise Illegal(
            f"loop {bound[0].name!r} runs on {bound[0].kind}, but each thread around it has a {func!r} "
            "of its own",
            'set_scope("shared"), or compute it outside of the loops over threads',
        )
    if plan.scope in COOPERATIVE and everywhere.isdisjoint(AXES):
        raise Illegal(
            f"{func!r} is in {plan.scope} memory, but not inside of a block",
            'compute it inside of a loop that runs on "blockIdx.x"',
        )


def _check_specialized(state: State, func: str, host: str, *, final: bool) -> None:
    """Repeat `check_place` with each specialization of the func whose loops a place names."""
    plan = state.plan(host)
    for special in plan.specializations:
        other = replace(plan.with_nest(special.definition, special.nest), specializations=())
        try:
            check_place(state.with_plan(host, other), func, final=final)
        except Illegal as reason:
            raise Illegal(
                f"in a specialization of {host!r}: {reason.reason}", reason.hint, reason.related
            ) from None


def enclosing_levels(state: State, level: Level) -> list[Level]:
    """The loops around a level and the level itself, outermost first; Illegal if the loop is gone."""
    _check_level(state, level.func, level)
    names = state.plan(level.func).nests[level.definition].names()
    loops = [Level(level.func, level.definition, x) for x in names[: names.index(level.loop) + 1]]
    match state.plan(level.func).place:
        case At(outer) | AfterProducer(outer):
            return [*enclosing_levels(state, outer), *loops]
        case WithStage(outer):
            return [*enclosing_levels(state, outer), *loops[_depth(state, outer) :]]
        case _:
            return loops


def _loop_paths(state: State, func: str, definition: int, *, final: bool) -> Iterator[list[Level]]:
    """The loops around a definition, innermost last; one list for each use of an inlined func.

    Yields nothing for funcs without a place, unless `final`.
    """
    plan = state.plan(func)
    loops = [Level(func, definition, x) for x in plan.nests[definition].names()]
    match plan.place:
        case At(level) | AfterProducer(level) | WithStage(level):
            around = [*enclosing_levels(state, level), *loops]
            if final or not _is_unplaced(state, around[0].func):
                yield around
        case Inline():
            for user, n in state.consumers(func):
                yield from _loop_paths(state, user.name, n, final=final)
        case _:
            if final or not _is_unplaced(state, func):
                yield loops


def _is_unplaced(state: State, func: str) -> bool:
    return state.plan(func).place is None and func not in state.program.outputs
