"""The default schedule of programs of several funcs for a GPU: which of them share a kernel, by the price.

Recipes make a kernel of each func with what only its rows, its tile or its elements read. Where the price of
these kernels is well above that of the operations and of the least bytes, other places are tried: funcs
that wait in memory are computed in the tiles of their reader (`nested_tiles`), or by each reader again
(inlined), or those that a recipe took inside are at the root.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from copy import copy
from functools import partial
from typing import Any

from tdsl.autoschedule.by_recipes import Completed, complete_by_recipes
from tdsl.autoschedule.choose_inline import choose_inline
from tdsl.autoschedule.explain import INLINE, Decision
from tdsl.autoschedule.on_gpu import REDUCED
from tdsl.autoschedule.recipes.online_blocks import online_blocks
from tdsl.autoschedule.recipes.reduced_tiles import reduced_fragments, reduced_tiles
from tdsl.cost.least import least_work
from tdsl.cost.predict import Prediction
from tdsl.cost.seconds import LATENCY, bytes_per_second
from tdsl.errors import ScheduleError
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.program import FuncDef
from tdsl.machine.model import Machine, of_nearest
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.legality import check_all
from tdsl.schedule.properties import has_effects, root_boxes, unplaced_at_root, volume
from tdsl.schedule.state import Root, State
from tdsl.tilegraph.alternatives import tiles_decision
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.levels import Part, nested_tiles
from tdsl.tilegraph.write_blocks import write_blocks

MOST = 12  # funcs of a program whose tiles are compared
TRIED = 8  # places of single funcs that are tried
WORK = 20  # funcs of all schedules that are tried for these: compile time stays linear in the funcs
AGAIN = 1.2  # times that each point of a func is computed, from which it may be faster in memory
LIGHT = 64  # operations of all reads of a func that is computed for each of them
CLEARLY = 0.8  # of the time of a schedule, from which another is taken instead
FAR_FROM_BEST = 1.5  # times the least time of a program, from which other kernels may pay
Way = Callable[[BaseSchedule], list[Decision]]


def faster_kernels(
    state: State, by_recipes: Completed, machine: Machine
) -> tuple[BaseSchedule, list[Decision]] | None:
    """A clearly faster schedule of known sizes for a GPU, and its decisions; None where recipes are as good.

    `by_recipes` is what the default schedule makes of the state. Programs with updates, or with directives,
    are left to the recipes.
    """
    program = state.program
    if (
        len(program.funcs) < 2
        or program.sizes
        or any(plan.scheduled or plan.place is not None for _, plan in state.plans)
        or any(len(f.definitions) > 1 or has_effects(f.definitions[0]) for f in program.funcs)
    ):
        return None
    prediction = Prediction.of(by_recipes.state, machine)
    if prediction.seconds <= FAR_FROM_BEST * _least(state, prediction):
        return None
    best, limit = None, CLEARLY * prediction.seconds
    known = {d.func for d in by_recipes.decisions if d.how == REDUCED}
    for way in _ways(state, known, machine):
        tried = _tried(BaseSchedule.of_state(state), way, machine)
        if tried is not None and tried[2].seconds < limit:
            best, limit = tried[:2], tried[2].seconds
    return _with_other_places(state, prediction, limit) or best


def _least(state: State, prediction: Prediction) -> float:
    """The least seconds of a program: of its operations, or of its inputs and outputs, and of one launch.

    Operations are those of the schedule, which knows of tensor cores, if others are not fewer.
    """
    machine, program = prediction.machine, state.program
    boxes = root_boxes(unplaced_at_root(state))
    fewest = sum(least_work(f, boxes, machine) for f in program.funcs if f.name in boxes)
    units = (dict(t.units) for t in prediction.times)
    given = sum(max((s for unit, s in x.items() if unit != LATENCY), default=0.0) for x in units)
    far = bytes_per_second(machine.level("global"), machine, machine.threads)
    return max(min(fewest, given), prediction.least / far) + (of_nearest(machine.launch, 1) or 0.0)


Tried = tuple[BaseSchedule, list[Decision], Prediction]


def _tried(schedule: BaseSchedule, way: Way, machine: Machine) -> Tried | None:
    """A schedule with another way to place funcs, and its prediction; None where that is not legal."""
    try:
        decisions = way(schedule)
        completed = complete_by_recipes(schedule.state, machine).state
        check_all(completed)
        prediction = Prediction.of(completed, machine)
        if prediction.footprint("shared") > (machine.level("shared").bytes or 0):
            return None
    except ScheduleError:
        return None
    return schedule, decisions, prediction


def _ways(state: State, known: Collection[str], machine: Machine) -> Iterator[Way]:
    """Other kernels for a program: products that are reduced in tiles of sums, and tiles of several funcs.

    What is in none of these is inlined; `known` are reductions whose products are reduced already. Sums whose
    terms need other reductions over them, such as attention, may be one pass over tiles of the terms.
    """
    if len(state.program.funcs) > MOST:
        return
    inlined = choose_inline(state, products_read_values=True)[0]
    program = inline_funcs(inlined).program
    names = [name for name, plan in inlined.plans if plan.place is not None]
    sums = {f.name for f in program.funcs if f.definitions[0].init is not None}
    for f in program.funcs:
        if f.name in sums - {*known} and sums & {r.name for r in f.definitions[0].reads}:
            for rule in (reduced_fragments, reduced_tiles):
                yield partial(_reduced, name=f.name, names=names, rule=rule, machine=machine)
    for f in state.program.funcs:
        if f.definitions[0].init is not None and len(f.variables) > 1:
            yield partial(_in_one_pass, name=f.name, machine=machine)
    for parts in nested_tiles(TileGraph.of_state(inline_funcs(inlined)), machine)[:1]:
        if tiled := [p for p in parts if p.parts]:
            yield partial(_in_tiles, names=names, parts=tiled, machine=machine)


def _reduced(
    schedule: BaseSchedule, name: str, names: list[str], rule: Callable[..., Any], machine: Machine
) -> list[Decision]:
    """Reduce the product that a func reads in the kernel that makes it; some other funcs are inlined."""
    for other in names:
        schedule[other].inline()
    plan = rule(schedule[name], machine=machine)
    return [Decision(name, REDUCED, (plan,), (plan.product,))]


def _in_one_pass(schedule: BaseSchedule, name: str, machine: Machine) -> list[Decision]:
    """Compute a sum, and what its terms need, in one pass over tiles of the terms; the decision."""
    funcs = [f.name for f in schedule.state.program.funcs]
    plan = online_blocks(schedule[name], machine=machine)
    inside = [f for f in funcs if f != name and f not in schedule.state.program.outputs]
    return [Decision(name, "in one pass", (plan,), tuple(inside))]


def _in_tiles(
    schedule: BaseSchedule, names: list[str], parts: list[Part], machine: Machine
) -> list[Decision]:
    """Write tiles of groups of funcs, with some other funcs inlined; the decisions."""
    for name in names:
        schedule[name].inline()
    for part in reversed(parts):
        write_blocks(schedule, part, machine)
    return [tiles_decision(part) for part in parts]


def _with_other_places(
    state: State, prediction: Prediction, limit: float
) -> tuple[BaseSchedule, list[Decision]] | None:
    """The schedule by recipes with other places of funcs, one by one, that is below a time; None without one.

    What waits in memory is inlined, what is inside of a kernel has one of its own.
    """
    schedule, decisions = BaseSchedule.of_state(state), list[Decision]()
    tries = min(TRIED, WORK // len(state.program.funcs))
    best: tuple[BaseSchedule, list[Decision]] | None = None
    names = _open_places(state, prediction)
    while names and tries > 0:
        chosen = ""
        for name, to_root in [*names.items()][:tries]:
            tried = _tried(
                copy(schedule), partial(_elsewhere, name=name, to_root=to_root), prediction.machine
            )
            tries -= 1
            if tried is not None and tried[2].seconds < limit:
                chosen, limit, best = name, tried[2].seconds, (tried[0], [*decisions, *tried[1]])
        if best is None or not chosen:
            break
        (schedule, decisions), limit = best, CLEARLY * limit
        del names[chosen]
    return best


def _elsewhere(schedule: BaseSchedule, name: str, *, to_root: bool) -> list[Decision]:
    """Place a func at the root, or inline it; the decisions."""
    if to_root:
        schedule[name].compute_root()
        return []
    schedule[name].inline()
    return [Decision(name, INLINE, why=("predicted to be faster than through memory",))]


def _open_places(state: State, prediction: Prediction) -> dict[str, bool]:
    """Funcs that may be elsewhere, the largest first: in memory (False), or computed again (True)."""
    boxes = root_boxes(unplaced_at_root(state))
    roots = {n for n, p in prediction.state.plans if isinstance(p.place, Root)}
    names = [f.name for f in state.program.funcs if f.name not in state.program.outputs and f.name in boxes]
    again = {n for n in names if n not in roots and prediction.again.get(n, 1.0) > AGAIN}
    light = {n for n in names if n in roots and _is_light(state, state.program.func(n))}
    by_size = sorted(light | again, key=lambda n: (-(volume(boxes[n]) or 0), n))
    return {n: n in again for n in by_size}


def _is_light(state: State, f: FuncDef) -> bool:
    """True for a func that is element-wise, and little work for all of its reads."""
    d = f.definitions[0]
    reads = sum(r.name == f.name for c, n in state.consumers(f.name) for r in c.definitions[n].reads)
    return d.init is None and arithmetic_of(d) * reads <= LIGHT
