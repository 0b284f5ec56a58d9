"""Alternatives to the schedule by recipes, taken by default where they are predicted to be clearly faster.

Places at the root and tile trees change how single funcs are computed (`at_root`, `trees`). Nested tiles are
for large programs of a few funcs, some of which the default schedule computes as a whole before they are
read; shared loops for funcs that read the same from memory. The others have nothing to gain, and no time is
spent on them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tdsl.autoschedule.by_recipes import Completed, complete_by_recipes
from tdsl.autoschedule.choose_inline import choose_inline
from tdsl.autoschedule.explain import Decision
from tdsl.core.node import frozen
from tdsl.cost.predict import Prediction
from tdsl.errors import ScheduleError
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.legality import check_all
from tdsl.schedule.properties import extents, has_effects, root_boxes, unplaced_at_root, volume
from tdsl.schedule.state import Root, State
from tdsl.tilegraph.at_root import faster_at_root
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.levels import Part, nested_tiles
from tdsl.tilegraph.shared_loops import find_shared_loops, write_shared_loops
from tdsl.tilegraph.sum_order import has_sums_of_floats, sum_orders
from tdsl.tilegraph.trees import faster_trees
from tdsl.tilegraph.write import write_tiles

MOST = 12  # funcs
CLEARLY = 0.8  # of the time of another schedule, from which a schedule is taken instead
MUCH = 2e8  # operations: a millisecond or so


@frozen
class NestedTiles:
    """Tiles of a func with those inside, the outermost level first: their extents and their level."""

    tiles: str


def faster_alternative(
    state: State, by_recipes: Completed, machine: Machine
) -> tuple[BaseSchedule, list[Decision]] | None:
    """A clearly faster schedule for known sizes, and its decisions; None where recipes are as good.

    `by_recipes` is what the default schedule makes of the state. What changes the order of sums of floats is
    decided by the price for one thread, so that results do not depend on the number of threads: tile trees
    and places at the root, unless nested tiles or shared loops, which keep the order, are faster there.
    """
    if not machine.has_vectors or state.program.sizes:
        return None
    sums, several = has_sums_of_floats(state.program), len(state.program.funcs) > 1
    decider = replace(machine, threads=1) if sums else machine
    on_decider = by_recipes if decider == machine else complete_by_recipes(state, decider)
    prediction = Prediction.of(on_decider.state, decider)
    if several and (together := _faster_together(state, on_decider, prediction)) is not None:
        return together if decider == machine else _faster_together_for(state, by_recipes, machine)
    schedule, orders = BaseSchedule.of_state(state), sum_orders(on_decider.state)
    at_root = faster_at_root(state, prediction) if several else None
    if at_root is not None:
        schedule, on_decider, prediction = at_root
    trees = faster_trees(schedule, on_decider, prediction, machine)
    if trees is not None:
        return trees
    if several and decider != machine and sum_orders(on_decider.state) == orders:
        together = _faster_together_for(state, by_recipes, machine)
        if together is not None:
            return together
    return None if at_root is None else (schedule, [])


def _faster_together_for(
    state: State, by_recipes: Completed, machine: Machine
) -> tuple[BaseSchedule, list[Decision]] | None:
    return _faster_together(state, by_recipes, Prediction.of(by_recipes.state, machine))


def _faster_together(
    state: State, by_recipes: Completed, prediction: Prediction
) -> tuple[BaseSchedule, list[Decision]] | None:
    """A clearly faster schedule with nested tiles or shared loops that keeps the order of sums of floats."""
    together = faster_nested_tiles(state, prediction) or faster_shared_loops(state, prediction)
    if together is None or not has_sums_of_floats(state.program):
        return together
    completed = complete_by_recipes(together[0].state, prediction.machine)
    return together if sum_orders(completed.state) == sum_orders(by_recipes.state) else None


def faster_shared_loops(state: State, by_recipes: Prediction) -> tuple[BaseSchedule, list[Decision]] | None:
    """A clearly faster schedule in which funcs that read the same share loops; None without one."""
    if any(plan.scheduled for _, plan in state.plans):
        return None
    machine = by_recipes.machine
    plans = find_shared_loops(state, by_recipes.state, machine)
    if not plans:
        return None
    schedule = BaseSchedule.of_state(state)
    try:
        for plan in plans:
            write_shared_loops(schedule, plan, machine)
        completed = complete_by_recipes(schedule.state, machine)[0]
    except ScheduleError:
        return None  # something that is computed in these loops cannot be there
    if not _is_faster(completed, by_recipes):
        return None
    decisions = []
    for plan in plans:
        first, *others = plan.funcs
        why = f"{plan.rows} rows at a time of {plan.source}, which {', '.join(others)} read, too"
        decisions.append(Decision(first, "together", why=(why,), siblings=tuple(others)))
        decisions += [Decision(n, "together", why=(f"in the loops of {first}",)) for n in others]
    return schedule, decisions


def faster_nested_tiles(state: State, by_recipes: Prediction) -> tuple[BaseSchedule, list[Decision]] | None:
    """A clearly faster schedule with nested tiles, and its decisions; None where recipes are as good.

    `by_recipes` is the prediction for the default schedule by recipes.
    """
    machine = by_recipes.machine
    if not _may_gain(state, machine, by_recipes.state):
        return None
    inlined = choose_inline(state)[0]
    schedule = BaseSchedule.of_state(state)
    for name, plan in inlined.plans:
        if plan.place is not None:
            schedule[name].inline()
    try:
        tilings = nested_tiles(TileGraph.of_state(inline_funcs(inlined)), machine)[:1]
        parts = [p for best in tilings for p in best if p.parts]
        for part in reversed(parts):
            write_tiles(schedule, part, machine)
        completed = complete_by_recipes(schedule.state, machine)[0]
        check_all(completed)  # recipes may take into a tile what is read outside of it, too
    except ScheduleError:
        return None  # a place for each func does not suit this program
    if not parts or not _is_faster(completed, by_recipes):
        return None
    return schedule, [tiles_decision(p) for p in parts]


def _is_faster(state: State, other: Prediction) -> bool:
    return Prediction.of(state, other.machine).seconds < CLEARLY * other.seconds


def _may_gain(state: State, machine: Machine, by_recipes: State) -> bool:
    """Whether funcs at the root, beside results, fill the caches of the threads, or work is much."""
    funcs = state.program.funcs
    if (
        len(funcs) > MOST
        or any(plan.scheduled for _, plan in state.plans)
        or any(len(f.definitions) > 1 or has_effects(f.definitions[0]) for f in funcs)
    ):
        return False
    open_ = {f.name for f in funcs} - {*state.program.outputs}
    far = [n for n, p in by_recipes.plans if isinstance(p.place, Root) and n in open_]
    if not far:
        return False
    boxes = root_boxes(unplaced_at_root(state))
    needed = [f for f in funcs if f.name in boxes]
    points = {f.name: volume(boxes[f.name]) or 0 for f in needed}
    stored = sum(points[f.name] * sum(t.bytes for t in f.dtypes) for f in needed if f.name in far)
    work = sum(points[f.name] * _terms(f, boxes[f.name]) * arithmetic_of(f.definitions[0]) for f in needed)
    return stored > machine.l2_share * machine.threads or work > MUCH


def _terms(f: FuncDef, box: Box) -> int:
    d = f.definitions[0]
    sizes = extents(f, d, box)
    return prod(sizes[v] or 1 for v, _, _ in d.ranges)


def tiles_decision(part: Part) -> Decision:
    """The decision for the funcs of a part, of which its owner has nested tiles."""
    inside = tuple(n for n in part.members if n != part.owner)
    return Decision(part.owner, "tiles", (NestedTiles(" of ".join(_tiles(part))),), inside)


def _tiles(part: Part) -> list[str]:
    text = f"{' x '.join(map(str, part.shape))} in {part.level}"
    smaller = next((p for p in part.parts if p.owner == part.owner and p.parts), None)
    return [*(_tiles(smaller) if smaller else ()), text]
