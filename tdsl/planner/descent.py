"""Minimisation along one axis of the grid at a time: all other axes fixed, the problem of one axis exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tdsl.planner.eliminate import eliminate
from tdsl.planner.problem import Choice, Problem, Variable

MAX_ROUNDS = 20
Prices = Mapping[Variable, NDArray[np.float64]]


def restricted(problem: Problem, kept: Mapping[Variable, Sequence[int]]) -> Problem:
    """The problem with the choices `kept` of each variable only."""
    small = Problem()
    for v, costs in problem.unary.items():
        small.add(v, costs[list(kept[v])])
    for (a, b), costs in problem.pairs.items():
        small.add_pair(a, b, costs[np.ix_(list(kept[a]), list(kept[b]))])
    return small


def descend(
    problem: Problem, entries: Mapping[Variable, Sequence[Sequence[object]]], start: Choice, prices: Prices
) -> Choice:
    """A choice from which no change along one axis of the grid saves anything.

    `entries` has what each choice of a variable says of each axis. The variables that are changed along an
    axis are all of them if elimination is possible, else one after another.
    """
    count = len(next(iter(next(iter(entries.values())))))
    choice, best = start, _cost(problem, start, prices)
    for _ in range(MAX_ROUNDS):
        before = best
        for axis in range(count):
            kept = {v: _neighbours(entries[v], choice[v], axis) for v in problem.sizes}
            small = restricted(problem, kept)
            part = {v: p[list(kept[v])] for v, p in prices.items()}
            chosen = eliminate(small, part)
            if chosen is None:
                chosen = _one_by_one(small, {v: kept[v].index(choice[v]) for v in kept}, part)
            moved = {v: kept[v][n] for v, n in chosen.items()}
            cost = _cost(problem, moved, prices)
            if cost < best:
                choice, best = moved, cost
        if best == before:
            break
    return choice


def _neighbours(entries: Sequence[Sequence[object]], at: int, axis: int) -> list[int]:
    """The choices that differ from one along an axis only; that one is among them."""
    now = entries[at]
    return [
        n for n, other in enumerate(entries)
        if n == at or all(a == b for k, (a, b) in enumerate(zip(now, other, strict=True)) if k != axis)
    ]  # fmt: skip


def _cost(problem: Problem, choice: Choice, prices: Prices) -> float:
    return problem.seconds(choice) + sum(float(p[choice[v]]) for v, p in prices.items())


def _one_by_one(problem: Problem, start: Choice, prices: Prices) -> Choice:
    """A choice that no change of one variable improves."""
    choice = dict(start)
    for _ in range(MAX_ROUNDS):
        before = dict(choice)
        for v in problem.sizes:
            costs = problem.unary[v] + prices.get(v, 0.0)
            for (a, b), t in problem.pairs.items():
                if a == v:
                    costs = costs + t[:, choice[b]]
                elif b == v:
                    costs = costs + t[choice[a], :]
            if costs.min() < costs[choice[v]]:
                choice[v] = int(np.argmin(costs))
        if choice == before:
            break
    return choice
