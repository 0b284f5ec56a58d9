"""What directives leave open: the default fills in the loops that they do not mention.

Each aspect of a stage is fixed only by a directive on it. With a place, storage or properties of its kernel
alone (`PROPERTIES`), all loops are open.
With `parallel(y)` alone, other loops have no threads, and the rest is as by default. Loops that were split or
reordered stay; where no `reorder` is in the way, the loop along contiguous memory becomes the innermost one,
in vectors, and the outermost free loop runs on threads. `tilegraph.open_tiles` then looks for tiles inside of
these loops. `serial()` and `pin()` close what should stay as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from tdsl.autoschedule.patterns.rows import is_worth_threads, outermost_free_loop, vectors_of
from tdsl.cost.loopnests import Nests
from tdsl.errors import IndexBoundError, ScheduleError, ShapeError
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.legality import implied_places
from tdsl.schedule.loops import iterations_of
from tdsl.schedule.properties import extents, lanes_for, unplaced_at_root
from tdsl.schedule.state import (
    AUTO,
    COOPERATIVE,
    PARALLEL,
    SERIAL,
    UNROLLED,
    VECTORIZED,
    AfterProducer,
    At,
    FuncPlan,
    Loop,
    Nest,
    Rename,
    Root,
    Split,
    State,
    WithStage,
    fresh_plan,
    is_ordered_outside,
    levels_of,
    roots_of,
)  # fmt: skip

# fields of a plan that say how a kernel loads, stores or is launched, whatever its loops are, by directive
PROPERTIES = {
    "stream": "stream_stores", "policies": "cache_policy", "min_blocks": "launch_bounds",
    "grid_sync": "grid_sync",
}  # fmt: skip


def open_at_root(state: State) -> set[str]:
    """The funcs that directives place at the root, or store in some way, whose loops are all open."""
    hosts = host_funcs(state)
    return {n for n, p in state.plans if n not in hosts and _is_at_root(p) and _has_open_loops(state, n, p)}


def with_threads_only(state: State) -> dict[str, str]:
    """The funcs at the root of which directives say only the loop of the threads, with this loop."""
    threads: dict[str, str] = {}
    hosts = host_funcs(state)
    for name, plan in state.plans:
        f = state.program.func(name)
        parallel = [x.name for x in plan.nests[0].loops if x.kind == PARALLEL]
        if len(f.definitions) > 1 or len(parallel) != 1 or parallel[0] not in f.definitions[0].free:
            continue
        serial = without_threads(plan)
        if name not in hosts and _is_at_root(plan) and _has_open_loops(state, name, serial):
            threads[name] = parallel[0]
    return threads


def without_threads(plan: FuncPlan) -> FuncPlan:
    """The plan with its parallel loops serial, as if no directive had mentioned them."""
    nests = (
        replace(n, loops=tuple(Loop(x.name) if x.kind in (SERIAL, PARALLEL) else x for x in n.loops))
        for n in plan.nests
    )
    return replace(plan, nests=tuple(nests))


def host_funcs(state: State) -> set[str]:
    """The funcs at whose loops other funcs are placed, which therefore keep these loops."""
    return {level.func for _, plan in state.plans for level in levels_of(plan)}


def _is_at_root(plan: FuncPlan) -> bool:
    return plan.scheduled and (plan.place is None or isinstance(plan.place, Root))


def _has_open_loops(state: State, name: str, plan: FuncPlan) -> bool:
    """True if the directives of a func are on its place, storage and `PROPERTIES` only."""
    fresh = fresh_plan(state.program.func(name))
    scope = plan.scope if plan.scope in COOPERATIVE else AUTO
    rest = replace(
        plan, place=None, store=None, scope=scope, order=None, align=(), fold=(), extents=(), scheduled=False,
        **{field: getattr(fresh, field) for field in PROPERTIES},
    )  # fmt: skip
    return rest == fresh


def text_by_hand(plan: FuncPlan) -> Iterator[str]:
    """What directives say of a stage whose other loops are open, for `explain`."""
    said = ["the place"] if plan.place is not None else []
    said += [f"threads over {x.name}" for n in plan.nests for x in n.loops if x.kind == PARALLEL]
    said += [directive for field, directive in PROPERTIES.items() if getattr(plan, field)]
    if plan.scheduled:
        yield f"by hand: {' and '.join(said) or 'the storage'}"


def place_readers(schedule: BaseSchedule) -> None:
    """Compute funcs without a place in the loops that directives imply for them (`implied_places`)."""
    for name, level in implied_places(schedule.state):
        with suppress(ScheduleError):  # it is needed elsewhere, too
            schedule[name].compute_at(Stage(schedule, level.func, level.definition), level.loop)


def open_threads(stage: Stage, loop: str) -> None:
    """Undo `parallel(loop)` of a stage with no other directive on loops: a recipe chooses all loops."""
    stage.serial(loop)
    state = stage.schedule.state
    stage.schedule.state = state.with_plan(stage.func, without_threads(state.plan(stage.func)))


def move_threads(stage: Stage, variable: str) -> None:
    """Run the outermost loop of a variable on threads, and no loop of another variable.

    ScheduleError if no loop is of this variable alone.
    """
    nest = stage.schedule.state.plan(stage.func).nests[stage.definition]
    of_variable = [x for x in nest.loops if roots_of(nest, x.name) == {variable}]
    if any(x.kind == PARALLEL for x in of_variable):
        return
    for x in nest.loops:
        if x.kind == PARALLEL:
            stage.serial(x.name)
    stage.parallel(next((x.name for x in of_variable if x.kind == SERIAL), variable))


def fill_in(
    schedule: BaseSchedule, names: Iterable[str], boxes: dict[str, Box], machine: Machine
) -> dict[str, tuple[str, ...]]:
    """Vectors and threads for loops that the directives of funcs leave open; what was added, by func.

    `boxes` are those of funcs at the root.
    """
    added: dict[str, tuple[str, ...]] = {}
    todo = [n for n in names if may_be_filled(schedule.state, n)]
    inside = [n for n in todo if isinstance(schedule.state.plan(n).place, At | AfterProducer)]
    for name in todo:
        if name not in inside and name in boxes:
            added[name] = tuple(_fill_func(schedule, name, boxes[name], machine, root=True))
    needed = _boxes_inside(schedule.state) if inside else {}
    for name in inside:
        unknown = ((None, None),) * len(schedule.state.program.func(name).variables)
        added[name] = tuple(_fill_func(schedule, name, needed.get(name, unknown), machine, root=False))
    return {name: texts for name, texts in added.items() if texts}


def _boxes_inside(state: State) -> dict[str, Box]:
    """The box of each func that an iteration around it needs; empty if sizes are unknown."""
    if not state.program.sizes:
        with suppress(IndexBoundError, ShapeError):
            return {spot.func.name: spot.box for spot in Nests.of(unplaced_at_root(state)).every()}
    return {}


def may_be_filled(state: State, name: str) -> bool:
    """True unless a func has loops that are shared, distributed, special cases, or those of instructions."""
    plan = state.plan(name)
    shares = isinstance(plan.place, WithStage) or any(
        isinstance(p.place, WithStage) and p.place.level.func == name for _, p in state.plans
    )
    special = plan.specializations or plan.tensorizations or plan.distributed or plan.atomic or plan.bulk
    return not shares and not special and plan.scope not in COOPERATIVE


def _fill_func(schedule: BaseSchedule, name: str, box: Box, machine: Machine, *, root: bool) -> Iterator[str]:
    state = schedule.state
    others = {*state.placed_in.get(name, ())} - {name}
    slides = any(state.plan(other).store is not None for other in others)
    for n in range(len(state.program.func(name).definitions)):
        stage = Stage(schedule, name, n)
        kinds = {x.kind for x in state.plan(name).nests[n].loops}
        copied_out = any(isinstance(state.plan(other).place, AfterProducer) for other in others)
        tiled = copied_out and VECTORIZED in kinds  # a tile tree, which says its threads
        for rule, possible in ((_fill_vectors, True), (_fill_threads, root and not slides and not tiled)):
            if possible:
                with suppress(ScheduleError), schedule.all_or_nothing():  # not legal for these loops
                    yield from rule(stage, box, machine)


def _fill_vectors(stage: Stage, box: Box, machine: Machine) -> Iterator[str]:
    state, n = stage.schedule.state, stage.definition
    f, nest = state.program.func(stage.func), state.plan(stage.func).nests[n]
    d = f.definitions[n]
    if any(x.kind not in (SERIAL, PARALLEL, UNROLLED) for x in nest.loops):
        return
    sizes = extents(f, d, box)
    whole = not isinstance(state.plan(f.name).place, At)
    vectors = vectors_of(f, n, sizes, machine.vector_bytes, whole=whole)
    if vectors is None:
        return
    variable, lanes = vectors
    names, loop = nest.names(), _innermost_of(nest, variable)
    movable = names[first_open(state, f.name, n) :]
    if loop not in movable or not _is_open(nest, loop):
        return
    if loop != variable:
        lanes = min(lanes, lanes_for(d, iterations_of(state, f.name, n, loop, sizes), machine.vector_bytes))
    inside = movable[movable.index(loop) + 1 :]
    stays = any(is_ordered_outside(nest, loop, x) for x in inside)
    if lanes == 1 or (variable not in d.free and inside and (stays or nest.relations)):
        return
    if inside and not stays and (d.ranges or nest.relations):
        stage.reorder(*_unrolled_last(nest, [x for x in movable if x != loop]), loop)
    stage.vectorize(loop, lanes)
    if stays:
        new = stage.schedule.state.plan(f.name).nests[n]
        lane = next(x.name for x in new.loops if x.kind == VECTORIZED)
        rest = [x for x in new.names()[-len(movable) - 1 :] if x != lane]
        stage.reorder(*_unrolled_last(new, rest), lane)
    yield f"vectors along {loop}"


def _unrolled_last(nest: Nest, loops: Iterable[str]) -> list[str]:
    """Loops with the unrolled ones innermost."""
    return sorted(loops, key=lambda x: nest.kind(x) == UNROLLED)


def first_open(state: State, func: str, definition: int) -> int:
    """The number of outer loops that stay as they are, since another func is computed or stored inside."""
    nest = state.plan(func).nests[definition]
    levels = (x for _, p in state.plans for x in levels_of(p) if (x.func, x.definition) == (func, definition))
    return max((nest.position(x.loop) + 1 for x in levels), default=0)


def _innermost_of(nest: Nest, variable: str) -> str:
    """The loop that takes single steps of a variable, "" if that is no loop of this variable alone."""
    loop = variable
    for r in nest.relations:
        match r:
            case Split(parent, _, inner) if parent == loop:
                loop = inner
            case Rename(old, new) if old == loop:
                loop = new
    return loop if loop in nest.names() else ""


def _fill_threads(stage: Stage, box: Box, machine: Machine) -> Iterator[str]:
    state, n = stage.schedule.state, stage.definition
    f, nest = state.program.func(stage.func), state.plan(stage.func).nests[n]
    d = f.definitions[n]
    sizes = extents(f, d, box)
    if any(x.kind not in (SERIAL, UNROLLED, VECTORIZED) for x in nest.loops):
        return
    if not is_worth_threads(d, sizes):
        return
    loop = outermost_free_loop(nest, d, sizes)
    if loop is not None and _is_open(nest, loop):
        stage.parallel(loop)
        yield f"threads over {loop}"


def _is_open(nest: Nest, loop: str) -> bool:
    """True for a loop of which no directive says how it runs."""
    return nest.kind(loop) == SERIAL and not nest.loops[nest.position(loop)].fixed
