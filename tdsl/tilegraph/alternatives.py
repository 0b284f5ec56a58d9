"""Alternatives of the tile graph to recipes, taken by default where they are predicted to be clearly faster.

Nested tiles are for large programs of a few funcs, some of which the default schedule makes as a whole before
they are read; shared loops for funcs that read the same from memory. The others have nothing to gain, and no
time is spent on them.
"""

from __future__ import annotations

from math import prod

from tdsl.autoschedule.by_recipes import choose_inline, complete_by_recipes
from tdsl.autoschedule.explain import Decision
from tdsl.core.node import frozen
from tdsl.cost.predict import Prediction
from tdsl.errors import ScheduleError
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.legality import check_all
from tdsl.schedule.properties import cost, extents, has_effects, root_boxes, unplaced_at_root, volume
from tdsl.schedule.state import Root, State
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.levels import Part, nested_tiles
from tdsl.tilegraph.shared_loops import find_shared_loops, write_shared_loops
from tdsl.tilegraph.write import write_tiles

MOST = 12  # funcs
CLEARLY = 0.8  # of the time of another schedule, from which a schedule is taken instead
MUCH = 2e8  # operations: a millisecond or so


@frozen
class NestedTiles:
    """Tiles of a func with those inside, the outermost level first: their extents and their level."""

    tiles: str


def faster_alternative(
    state: State, machine: Machine, by_recipes: State
) -> tuple[State, list[Decision]] | None:
    """A clearly faster state for known sizes, and its decisions; None where recipes are as good.

    `by_recipes` is what the default schedule makes of the state.
    """
    tiles = faster_nested_tiles(state, machine, by_recipes)
    return tiles or faster_shared_loops(state, machine, by_recipes)


def faster_shared_loops(
    state: State, machine: Machine, by_recipes: State
) -> tuple[State, list[Decision]] | None:
    """A clearly faster state in which funcs that read the same share loops; None without one."""
    touched = any(plan.scheduled for _, plan in state.plans)
    if touched or not machine.has_vectors or state.program.sizes:
        return None
    plans = find_shared_loops(state, by_recipes, machine)
    schedule = BaseSchedule.of_state(state)
    try:
        for plan in plans:
            write_shared_loops(schedule, plan, machine)
        completed = complete_by_recipes(schedule.state, machine)[0]
    except ScheduleError:
        return None  # something that is computed in these loops cannot be there
    if not plans or not _is_faster(completed, by_recipes, machine):
        return None
    decisions = []
    for plan in plans:
        first, *others = plan.funcs
        why = f"{plan.rows} rows at a time of {plan.source}, which {', '.join(others)} read, too"
        decisions.append(Decision(first, "together", why=(why,), siblings=tuple(others)))
        decisions += [Decision(n, "together", why=(f"in the loops of {first}",)) for n in others]
    return schedule.state, decisions


def faster_nested_tiles(
    state: State, machine: Machine, by_recipes: State
) -> tuple[State, list[Decision]] | None:
    """A clearly faster state with nested tiles, and its decisions; None where recipes are as good.

    `by_recipes` is what the default schedule makes of the state.
    """
    if not _may_gain(state, machine, by_recipes):
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
    if not parts or not _is_faster(completed, by_recipes, machine):
        return None
    return schedule.state, [_decision(p) for p in parts]


def _is_faster(state: State, other: State, machine: Machine) -> bool:
    seconds, others = (Prediction.of(s, machine).seconds for s in (state, other))
    return seconds < CLEARLY * others


def _may_gain(state: State, machine: Machine, by_recipes: State) -> bool:
    """Whether funcs at the root, beside results, fill the caches of the threads, or work is much."""
    funcs = state.program.funcs
    if (
        not machine.has_vectors
        or not 1 < len(funcs) <= MOST
        or state.program.sizes
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
    work = sum(points[f.name] * _terms(f, boxes[f.name]) * cost(f.definitions[0]) for f in needed)
    return stored > machine.l2_share * machine.threads or work > MUCH


def _terms(f: FuncDef, box: Box) -> int:
    d = f.definitions[0]
    sizes = extents(f, d, box)
    return prod(sizes[v] or 1 for v, _, _ in d.ranges)


def _decision(part: Part) -> Decision:
    inside = tuple(n for n in part.members if n != part.owner)
    return Decision(part.owner, "tiles", (NestedTiles(" of ".join(_tiles(part))),), inside)


def _tiles(part: Part) -> list[str]:
    text = f"{' x '.join(map(str, part.shape))} in {part.level}"
    smaller = next((p for p in part.parts if p.owner == part.owner and p.parts), None)
    return [*(_tiles(smaller) if smaller else ()), text]
