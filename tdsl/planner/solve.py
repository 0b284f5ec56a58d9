"""The solver: elimination, message passing or an integer program, with memory as a hard limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tdsl.planner import milp
from tdsl.planner.descent import descend
from tdsl.planner.eliminate import eliminate
from tdsl.planner.messages import GAP, pass_messages
from tdsl.planner.problem import Choice, Space, Variable

BISECTIONS = 40  # of the price of memory
MAX_MILP = 400_000  # variables of an integer program that is tried
MAX_GAP = 5e-3  # of message passing; a choice farther from the bound is improved by descent over axes


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice, its seconds, a lower bound of the seconds of all choices, and how both were computed."""

    choice: Choice
    seconds: float
    bound: float
    method: str


def solve(space: Space, memory: int | None) -> Solution | None:
    """The choice of least seconds within a rank's memory; None if no choice has so little memory.

    Without SciPy the bound may be loose where memory limits the choice.
    """
    problem = space.problem
    free, bound, method = eliminate(problem), 0.0, "elimination, exact"
    if free is not None:
        bound = problem.seconds(free)
        if not np.isfinite(bound):
            return None
    else:
        bounded = pass_messages(problem)
        free, bound, method = bounded.choice, bounded.bound, "message passing"
        if bounded.cost - bound > MAX_GAP * bound:
            free, method = descend(problem, axis_entries(space), free, {}), "descent over axes"
    seconds = problem.seconds(free)
    fits = np.isfinite(seconds) and (memory is None or problem.memory(free) <= memory)
    if fits and seconds - bound <= GAP * bound:
        return _solution(space, free, bound, method)
    size = sum(t.size for t in problem.pairs.values())
    if milp.is_available() and size <= MAX_MILP:
        solved = milp.solve(problem, memory)
        bound = max(bound, solved.bound) if np.isfinite(solved.bound) else bound
        if solved.choice is not None and not (fits and seconds < problem.seconds(solved.choice)):
            return _solution(space, solved.choice, bound, "integer program (HiGHS)")
        if not np.isfinite(solved.bound):
            return None
    if fits:
        return _solution(space, free, bound, method)
    choice = _priced(space, memory)
    return None if choice is None else _solution(space, choice, bound, "descent over axes")


def _solution(space: Space, choice: Choice, bound: float, method: str) -> Solution:
    seconds = space.problem.seconds(choice)
    return Solution(choice, seconds, min(bound, seconds), method)


def axis_entries(space: Space) -> dict[Variable, list[Sequence[object]]]:
    """What each choice of a variable says of each axis of the grid."""
    entries: dict[Variable, list[Sequence[object]]] = {}
    for name, strategies in space.strategies.items():
        entries["loops", name] = [s.axes for s in strategies]
    for name, placements in space.placements.items():
        entries["place", name] = [p.entries for p in placements]
    return entries


def _priced(space: Space, memory: int | None) -> Choice | None:
    """The choice of least seconds plus a price of memory, the lowest price at which memory suffices."""
    problem, entries = space.problem, axis_entries(space)

    def at(price: float) -> Choice | None:
        prices = {v: price * x.bytes for v, x in problem.lifetimes.items()} if price else {}
        exact = eliminate(problem, prices)
        if exact is not None:
            return exact if np.isfinite(problem.seconds(exact)) else None
        choice = pass_messages(problem, prices).choice
        if not np.isfinite(problem.seconds(choice)):
            return None
        return descend(problem, entries, choice, prices)

    choice = at(0.0)
    if choice is None or memory is None or problem.memory(choice) <= memory:
        return choice
    low, high = 0.0, 1e-15
    while (choice := at(high)) is None or problem.memory(choice) > memory:
        low, high = high, high * 10
        if high > 1e6:
            return None
    best = choice
    for _ in range(BISECTIONS):
        price = (low * high) ** 0.5 if low else high / 10
        choice = at(price)
        if choice is not None and problem.memory(choice) <= memory:
            high = price
            if problem.seconds(choice) < problem.seconds(best):
                best = choice
        else:
            low = price
        if low and high / low < 1.01:
            break
    return best


def least_memory(space: Space) -> Choice | None:
    """A choice that needs little memory: the one of a high price of memory."""
    return _priced(space, 0) or None
