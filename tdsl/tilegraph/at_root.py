"""Funcs that recipes compute in the loops of their readers, computed at the root where that is faster.

A recipe inlines a func, or computes it in the loops of its reader, without a price. Where the price of such
loops is well above that of their operations and bytes alone, each of these funcs is tried at the root.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import copy

from tdsl.autoschedule.by_recipes import Completed, complete_by_recipes
from tdsl.cost.least import least_seconds
from tdsl.cost.predict import Prediction
from tdsl.errors import ScheduleError
from tdsl.lang.program import Program
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.properties import has_effects, root_boxes, unplaced_at_root
from tdsl.schedule.state import Root, State

CLEARLY = 0.8  # of the time of a schedule, from which another is taken instead
FAR_FROM_BEST = 2.0  # times the least time of what a nest computes, from which other loops may pay
WORTH = 2e-5  # seconds of a nest, from which other loops may pay
SHARE = 0.1  # of the time of all
TRIED = 8  # schedules that are priced


def faster_at_root(state: State, by_recipes: Prediction) -> tuple[BaseSchedule, Completed, Prediction] | None:
    """A schedule with more funcs at the root, and what recipes make of it; None if none is clearly faster.

    `by_recipes` is the prediction for the default schedule by recipes. Funcs are tried one by one; with the
    best of them at the root, the others are tried again.
    """
    machine = by_recipes.machine
    names = _inside_slow_nests(state, by_recipes)
    if not names:
        return None
    schedule, limit, tries = BaseSchedule.of_state(state), CLEARLY * by_recipes.seconds, TRIED
    best: tuple[BaseSchedule, Completed, Prediction] | None = None
    while names and tries > 0:
        chosen = ""
        for name in names[:tries]:
            tried, tries = copy(schedule), tries - 1
            try:
                tried[name].compute_root()
                completed = complete_by_recipes(tried.state, machine)
                prediction = Prediction.of(completed.state, machine)
                seconds = prediction.seconds
            except ScheduleError:
                continue  # something that stays inside cannot be read there
            if seconds < limit:
                chosen, limit, best = name, seconds, (tried, completed, prediction)
        if best is None or not chosen:
            break
        schedule, limit, names = best[0], CLEARLY * limit, [x for x in names if x != chosen]
    return best


def _inside_slow_nests(state: State, prediction: Prediction) -> list[str]:
    """The funcs that are computed in the loops of slow nests, or inlined there, readers first."""
    program, completed = state.program, prediction.state
    roots = {n for n, p in completed.plans if isinstance(p.place, Root) and program.has_func(n)}
    nests: dict[str, frozenset[str]] = {}  # in whose loops the values of a func are computed
    for f in reversed(program.funcs):
        readers = {c.name for c, _ in state.consumers(f.name)} - {f.name}
        nests[f.name] = frozenset({f.name} if f.name in roots else ()).union(
            *(nests[r] for r in readers if f.name not in roots)
        )
    inside = [
        f.name
        for f in reversed(program.funcs)
        if f.name not in roots | {*program.outputs}
        and state.plan(f.name).place is None
        and not state.plan(f.name).scheduled
        and not any(has_effects(d) for d in f.definitions)
    ]
    if not inside:
        return []
    boxes = root_boxes(unplaced_at_root(state))
    slow = set[str]()
    for root in {r for name in inside for r in nests[name]}:
        seconds = seconds_of(prediction, program, root)
        funcs = [f for f in program.funcs if root in nests[f.name] and f.name in boxes]
        least = sum(least_seconds(program, f, boxes, prediction.machine) for f in funcs)
        if seconds > max(WORTH, SHARE * prediction.seconds, FAR_FROM_BEST * least):
            slow.add(root)
    return [name for name in inside if nests[name] & slow]


def seconds_of(prediction: Prediction, program: Program, name: str) -> float:
    """The predicted time of a func of a program, with that of the stages that its schedule added."""
    names = {f.name for f in program.funcs}
    return sum(t.seconds for t in prediction.times if _owner(t.func, names) == name)


def _owner(func: str, names: Collection[str]) -> str:
    """The func that a stage was added for, after whose name it is called; the func itself of a program.

    >>> _owner("s_lanes", ("s", "s_mean")), _owner("s_mean", ("s", "s_mean")), _owner("t", ("s",))
    ('s', 's_mean', '')
    """
    return max((n for n in names if func == n or func.startswith(f"{n}_")), key=len, default="")
