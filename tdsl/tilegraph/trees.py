"""Tile trees for single funcs, where the default schedule by recipes is far from what the machine could do.

A tree is asked for where the price of a nest is well above that of its operations and bytes alone. The best
trees are written as directives, and the price of the whole schedule decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace

from tdsl.autoschedule.by_recipes import Completed, complete_by_recipes
from tdsl.autoschedule.choose_inline import choose_inline
from tdsl.autoschedule.explain import GENERAL, Decision
from tdsl.autoschedule.open_stages import open_at_root
from tdsl.autoschedule.patterns.parts import count_parts, outermost
from tdsl.autoschedule.problem import Problem
from tdsl.core.node import frozen
from tdsl.cost.least import least_seconds
from tdsl.cost.predict import Prediction
from tdsl.errors import ScheduleError
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.properties import extents, root_boxes, unplaced_at_root
from tdsl.schedule.state import Inline, Root, State, levels_of
from tdsl.tilegraph.at_root import FAR_FROM_BEST, SHARE, WORTH, seconds_of
from tdsl.tilegraph.cache_tiles import best_trees
from tdsl.tilegraph.sum_order import sum_orders
from tdsl.tilegraph.tree import THREADS, Tree
from tdsl.tilegraph.write_tree import write_tree

NEARLY, CLEARLY = 0.95, 0.8  # of the time of a general schedule, and of a tuned recipe, that a tree must beat
NEAR_BEST = 1.25  # times the least time of a nest by a general schedule, from which a tree may pay
TRIED = 3  # trees that are written and priced for a func
ASKED = 3  # funcs for which trees are searched


@frozen
class TileTree:
    """A tile tree as text, its func first."""

    tree: str


def faster_trees(
    given: BaseSchedule, by_recipes: Completed, prediction: Prediction, written_for: Machine
) -> tuple[BaseSchedule, list[Decision]] | None:
    """A faster schedule in which funcs have tile trees, and its decisions; None where recipes are as good.

    `by_recipes` is what the default schedule makes of the given one, with its `prediction`. Trees are for
    funcs at the root whose loops are open and have no other func inside, and which sum, or whose reads and
    writes are along different axes. They are the best for `written_for` among those that add in the order of
    the tree that is the best for the machine of the prediction.
    """
    program, schedule = given.state.program, copy(given)
    inlined = choose_inline(given.state)[0]
    closed = {n for n, p in given.state.plans if p.scheduled} - open_at_root(given.state)
    placed = [(n, p) for n, p in by_recipes.state.plans if program.has_func(n)]
    hosts = {x.func for n, p in placed for x in levels_of(p) if x.func != n}
    kept = {n for n, p in inlined.plans if not isinstance(p.place, Inline)}
    names = [n for n, p in placed if isinstance(p.place, Root) and n in kept - hosts - closed]
    ops = [op for op in _ops_of(inlined, names) if _has_choices(op)]
    if not ops:
        return None
    for name, plan in inlined.plans:
        if isinstance(plan.place, Inline) and given.state.plan(name).place is None:
            schedule[name].inline()
    general = {d.func: d.why for d in by_recipes.decisions if d.how == GENERAL}
    machine, decisions = prediction.machine, list[Decision]()
    whole = unplaced_at_root(inline_funcs(inlined))
    boxes, slow, written = root_boxes(whole), [], schedule
    for op in ops:
        seconds = seconds_of(prediction, program, op.func)
        factor = NEAR_BEST if op.func in general else FAR_FROM_BEST
        least = least_seconds(whole.program, whole.program.func(op.func), boxes, machine)
        if seconds > max(WORTH, SHARE * prediction.seconds, factor * least):
            slow.append((seconds, op))
    for seconds, op in sorted(slow, key=lambda x: -x[0])[:ASKED]:
        clearly = NEARLY if op.func in general else CLEARLY
        limit = prediction.seconds - (1 - clearly) * seconds
        faster = _faster_tree(schedule, op, machine, limit)
        if faster is not None:
            schedule, tree, prediction = faster
            if written_for != machine:
                written, tree = _tree_for(written, op, tree, written_for)
            why = general.get(op.func, ())
            decisions.append(Decision(op.func, "tree", (TileTree(str(tree)),), why=why))
    return (schedule if written_for == machine else written, decisions) if decisions else None


def _tree_for(given: BaseSchedule, op: Problem, tree: Tree, machine: Machine) -> tuple[BaseSchedule, Tree]:
    """The schedule with the best tree for a machine that adds in the order of another tree, and that tree.

    If there is none, the other tree, with its tiles along an axis of the result shared by threads.
    """
    schedule, name = _in_parts(given, op.func)
    parts = op if name == op.func else next(_ops_of(schedule.state, [name]))
    as_before = copy(schedule)
    write_tree(as_before, parts, tree)
    orders = sum_orders(as_before.state)
    for other in (*(x for _, x in best_trees(parts, machine)), _on_threads(parts, tree)):
        tried = copy(schedule)
        with suppress(ScheduleError):
            write_tree(tried, parts, other)
            if sum_orders(tried.state) == orders:
                return tried, other
    return as_before, tree


def _on_threads(op: Problem, tree: Tree) -> Tree:
    """The tree with the first of its loops over tiles of a free axis outermost, on threads."""
    free = {a.name for a in op.free}
    first = next((c for c in tree.tiles if c.axis in free), None)
    if first is None:
        return tree
    others = (c for c in tree.tiles if c is not first)
    return replace(tree, tiles=(replace(first, how=THREADS), *others))


def _faster_tree(
    given: BaseSchedule, op: Problem, machine: Machine, limit: float
) -> tuple[BaseSchedule, Tree, Prediction] | None:
    """The schedule with the best tile tree for an operation, and its prediction; None above a time of all."""
    schedule, name = _in_parts(given, op.func)
    parts = op if name == op.func else next(_ops_of(schedule.state, [name]), None)
    best: tuple[BaseSchedule, Tree, Prediction] | None = None
    if parts is None:
        return None
    for _, tree in best_trees(parts, machine)[:TRIED]:
        tried = copy(schedule)
        try:
            write_tree(tried, parts, tree)
            predicted = Prediction.of(complete_by_recipes(tried.state, machine).state, machine)
        except ScheduleError:
            continue  # no directives say this tree
        if predicted.seconds < limit:
            best, limit = (tried, tree, predicted), predicted.seconds
    return best


def _ops_of(given: State, names: Iterable[str]) -> Iterator[Problem]:
    """The operations of funcs with inlined funcs in them; none where a tree does not describe one."""
    state = unplaced_at_root(inline_funcs(given))
    boxes = root_boxes(state)
    for name in names:
        op = Problem.in_state(state, state.program.func(name), boxes)
        if op is not None:
            yield op


def _in_parts(given: BaseSchedule, name: str) -> tuple[BaseSchedule, str]:
    """A schedule with a new func for the parts of a reduction to few values; the func with the terms."""
    state = unplaced_at_root(inline_funcs(given.state))
    f, boxes = state.program.func(name), root_boxes(state)
    count = count_parts(f, 0, boxes[name]) if name in boxes and len(f.definitions) == 1 else 0
    if not count:
        return given, name
    first = outermost(f.definitions[0])
    extent = extents(f, f.definitions[0], boxes[name])[first] or 1
    schedule = copy(given)
    part, _ = schedule[name].split(first, -(-extent // count))
    partial = schedule[name].rfactor(part)
    partial.reorder_storage(len(f.variables), *range(len(f.variables)))
    return schedule, partial.func


def _has_choices(op: Problem) -> bool:
    """True for sums, and where memory is adjacent along one axis for reads and along another for writes."""
    last = op.axes[-1].name if op.axes else ""
    return bool(op.summed) or any(x.step(last) not in (0, 1) for x in op.accesses)
