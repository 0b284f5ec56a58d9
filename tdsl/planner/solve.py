"""The solver: elimination, integer programming or descent over axes, with memory as a hard limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tdsl.planner import milp
from tdsl.planner.descent import descend
from tdsl.planner.eliminate import eliminate
from tdsl.planner.problem import Choice, Space, Variable

BISECTIONS = 40  # of the price of memory
MAX_MILP = 400_000  # variables of an integer program that is tried


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice, its seconds, a lower bound of the seconds of all choices, and how both were computed."""

    choice: Choice
    seconds: float
    bound: float
    method: str


def solve(space: Space, memory: int | None, *, proof: bool = True) -> Solution | None:
    """The choice of least seconds within a rank's memory; None if no choice has so little memory.

    Without `proof`, or without SciPy where memory limits the choice, the bound may be loose.
    """
    problem = space.problem
    free = eliminate(problem)
    if free is not None:
        seconds = problem.seconds(free)
        if not np.isfinite(seconds):
            return None
        if memory is None or problem.memory(free) <= memory:
            return Solution(free, seconds, seconds, "elimination, exact")
    bound = 0.0 if free is None else problem.seconds(free)
    size = sum(t.size for t in problem.pairs.values())
    if proof and milp.is_available() and size <= MAX_MILP:
        solved = milp.solve(problem, memory)
        if solved.choice is not None:
            return _solution(space, solved.choice, max(bound, solved.bound), "integer program (HiGHS)")
        if not np.isfinite(solved.bound):
            return None
    choice = _priced(space, memory)
    if choice is None:
        return None
    return _solution(space, choice, bound, "descent over axes, not proved")


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
        start = _any_choice(space)
        return None if start is None else descend(problem, entries, start, prices)

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


def _any_choice(space: Space) -> Choice | None:
    """A choice of finite cost: copies everywhere where nothing is fixed."""
    problem = space.problem
    choice: Choice = {}
    for v, n in problem.sizes.items():
        finite = np.flatnonzero(np.isfinite(problem.unary[v]))
        if not len(finite):
            return None
        choice[v] = int(finite[-1]) if n else 0
    for f in space.funcs:  # a strategy that fits the placements
        loops = ("loops", f.name)
        costs = problem.unary[loops].copy()
        for (a, b), t in problem.pairs.items():
            if a == loops:
                costs = costs + t[:, choice[b]]
        if not np.isfinite(costs.min()):
            return None
        choice[loops] = int(np.argmin(costs))
    return choice


def least_memory(space: Space) -> Choice | None:
    """A choice that needs little memory: the one of a high price of memory."""
    return _priced(space, 0) or None
