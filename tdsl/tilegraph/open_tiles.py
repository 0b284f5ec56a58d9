"""Tile trees inside of the tiles that directives cut, where these leave the loops in a tile open.

Loops by hand are cuts of a tree; what is inside of them is chosen as for a func without directives, by the
same price (`trees`). Where no tree is predicted to be faster the loops are those of `open_stages.fill_in`.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace

from tdsl.autoschedule.by_recipes import Completed, complete_by_recipes
from tdsl.autoschedule.explain import BY_HAND, Decision
from tdsl.autoschedule.patterns.rows import is_worth_threads, outermost_free_loop
from tdsl.autoschedule.problem import Problem
from tdsl.cost.least import least_seconds
from tdsl.cost.predict import Prediction
from tdsl.errors import ScheduleError
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.properties import root_boxes, unplaced_at_root
from tdsl.schedule.state import PARALLEL, Illegal, Root, State
from tdsl.tilegraph.at_root import WORTH, seconds_of
from tdsl.tilegraph.cache_tiles import best_trees
from tdsl.tilegraph.given_tile import GivenTile
from tdsl.tilegraph.sum_order import has_sums_of_floats, sum_orders
from tdsl.tilegraph.tree import Tree
from tdsl.tilegraph.trees import NEAR_BEST, NEARLY
from tdsl.tilegraph.write_tree import write_tree

TRIED = 4  # trees that are written and priced for a func


def fill_tiles(
    state: State, by_recipes: Completed, machine: Machine
) -> tuple[BaseSchedule, list[Decision]] | None:
    """A faster schedule with tile trees inside of tiles by hand, and its decisions; None where there is none.

    `by_recipes` is what the default schedule by recipes makes of the state. What changes the order of sums of
    floats is decided by the price for one thread, as in `alternatives`.
    """
    plans = by_recipes.state.by_name
    by_hand = [d.func for d in by_recipes.decisions if d.how == BY_HAND]
    names = [n for n in by_hand if n in plans and isinstance(plans[n].place, Root)]
    if state.program.sizes or not machine.has_vectors or not names:
        return None
    sums = has_sums_of_floats(state.program)
    decider = replace(machine, threads=1) if sums else machine
    schedule, decisions = BaseSchedule.of_state(state), list[Decision]()
    prediction: Prediction | None = None
    for tile in _open_tiles(state, names):
        if prediction is None:
            on_decider = by_recipes if decider == machine else complete_by_recipes(state, decider)
            prediction = Prediction.of(on_decider.state, decider)
        name = tile.op.func
        seconds = seconds_of(prediction, state.program, name)
        whole = unplaced_at_root(inline_funcs(state))
        least = least_seconds(whole.program, whole.program.func(name), root_boxes(whole), decider)
        if seconds <= max(WORTH, NEAR_BEST * least):
            continue
        limit = prediction.seconds - (1 - NEARLY) * seconds
        faster = _fastest(schedule, tile, decider, limit)
        if faster is None:
            continue
        tried, tree, prediction = faster
        if decider != machine:
            tried, tree = _for_machine(schedule, tile, tried, tree, machine)
        schedule = tried
        plan = schedule.state.plan(name)
        decisions.append(Decision(name, BY_HAND, (plan,), why=(f"by default: inside of it {tree}",)))
    return (schedule, decisions) if decisions else None


def _open_tiles(state: State, names: list[str]) -> Iterator[GivenTile]:
    """The tiles that directives cut of funcs at the root."""
    whole = unplaced_at_root(inline_funcs(state))
    boxes = root_boxes(whole)
    for name in names:
        if whole.program.has_func(name) and isinstance(whole.plan(name).place, Root):
            op = Problem.in_state(whole, whole.program.func(name), boxes)
            tile = None if op is None else GivenTile.of(whole, op)
            if tile is not None:
                yield tile


def _trees(schedule: BaseSchedule, tile: GivenTile, machine: Machine) -> list[Tree]:
    """The best trees in a tile; on one thread if loops by hand are on threads, or may be."""
    free = {a.name for a in tile.op.free}
    loops = schedule.state.plan(tile.op.func).nests[0].loops
    shared = any(v in free for v, _ in tile.outer) or any(x.kind == PARALLEL for x in loops)
    machine = replace(machine, threads=1) if shared else machine
    return [tree for _, tree in best_trees(tile.op, machine, tile.limits)]


def _fastest(
    given: BaseSchedule, tile: GivenTile, machine: Machine, limit: float
) -> tuple[BaseSchedule, Tree, Prediction] | None:
    """The schedule with the best tree in a tile, and its prediction; None above a time of all."""
    best: tuple[BaseSchedule, Tree, Prediction] | None = None
    for tree in _trees(given, tile, machine)[:TRIED]:
        tried = copy(given)
        try:
            _write(tried, tile, tree, machine)
            predicted = Prediction.of(complete_by_recipes(tried.state, machine).state, machine)
        except (ScheduleError, Illegal):
            continue  # no directives say this tree
        if predicted.seconds < limit:
            best, limit = (tried, tree, predicted), predicted.seconds
    return best


def _for_machine(
    given: BaseSchedule, tile: GivenTile, decided: BaseSchedule, tree: Tree, machine: Machine
) -> tuple[BaseSchedule, Tree]:
    """The schedule with the best tree for a machine that adds in the order of one that was decided on."""
    orders = sum_orders(decided.state)
    for other in _trees(given, tile, machine)[:TRIED]:
        tried = copy(given)
        try:
            _write(tried, tile, other, machine)
        except (ScheduleError, Illegal):
            continue
        if sum_orders(tried.state) == orders:
            return tried, other
    tried = copy(given)
    _write(tried, tile, tree, machine)
    return tried, tree


def _write(schedule: BaseSchedule, tile: GivenTile, tree: Tree, machine: Machine) -> None:
    """Write a tree in a tile, with threads on the outermost free loop if no directive says which."""
    write_tree(schedule, tile.op, tree, tile)
    state, d = schedule.state, tile.op.definition
    sizes: dict[str, int | None] = dict(tile.extents)
    nest = state.plan(tile.op.func).nests[0]
    parallel = any(x.kind == PARALLEL for x in nest.loops)
    loop = None if parallel or machine.threads == 1 else outermost_free_loop(nest, d, sizes)
    if loop is not None and not nest.loops[nest.position(loop)].fixed and is_worth_threads(d, sizes):
        schedule[tile.op.func].parallel(loop)
