"""Exact minimisation of a problem by elimination of its variables, one after another."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tdsl.planner.problem import Choice, Problem, Variable

MAX_ENTRIES = 1 << 22  # of the largest table that elimination builds
Factor = tuple[tuple[Variable, ...], NDArray[np.float64]]


def eliminate(
    problem: Problem, prices: Mapping[Variable, NDArray[np.float64]] | None = None
) -> Choice | None:
    """The choice of least cost, the first in the order of domains; None if a table would be too large.

    `prices` are added to the costs of single variables. Each step eliminates the variable whose neighbours
    have the smallest table.

    >>> problem = Problem()
    >>> for name in "ab":
    ...     problem.add(("place", name), np.array([0.0, 1.0]))
    >>> problem.add_pair(("place", "a"), ("place", "b"), np.array([[9.0, 9.0], [0.0, 9.0]]))
    >>> eliminate(problem)
    {('place', 'a'): 1, ('place', 'b'): 0}
    """
    order = {v: n for n, v in enumerate(problem.sizes)}
    factors: dict[int, Factor] = {}
    numbers = itertools.count()
    of: dict[Variable, dict[int, None]] = {v: {} for v in order}  # the factors over each variable

    def add(factor: Factor) -> None:
        number = next(numbers)
        factors[number] = factor
        for v in factor[0]:
            of[v][number] = None

    for v, costs in problem.unary.items():
        add(((v,), costs if prices is None or v not in prices else costs + prices[v]))
    for both, costs in problem.pairs.items():
        add((both, costs))

    def neighbours(v: Variable) -> set[Variable]:
        return {u for number in of[v] for u in factors[number][0]} - {v}

    size = {v: _size(problem, {v, *neighbours(v)}) for v in order}
    queue = [(size[v], order[v], v) for v in order]
    heapq.heapify(queue)
    steps: list[tuple[Variable, tuple[Variable, ...], NDArray[np.intp]]] = []
    while queue:
        entries, _, v = heapq.heappop(queue)
        if v not in size or entries != size[v]:
            continue  # eliminated, or its neighbours have changed since
        if entries > MAX_ENTRIES:
            return None
        over = tuple(sorted(neighbours(v), key=order.__getitem__))
        joined = np.zeros([problem.sizes[u] for u in (*over, v)])
        for number in of[v]:
            names, costs = factors[number]
            joined = joined + _aligned(names, costs, (*over, v))
        steps.append((v, over, np.argmin(joined, axis=-1)))
        for number in list(of[v]):
            for u in factors.pop(number)[0]:
                del of[u][number]
        del size[v]
        add((over, joined.min(axis=-1)))
        for u in over:
            size[u] = _size(problem, {u, *neighbours(u)})
            heapq.heappush(queue, (size[u], order[u], u))
    choice: Choice = {}
    for v, over, best in reversed(steps):
        choice[v] = int(best[tuple(choice[u] for u in over)])
    return {v: choice[v] for v in problem.sizes}


def _size(problem: Problem, names: set[Variable]) -> int:
    size = 1
    for v in names:
        size *= problem.sizes[v]
    return size


def _aligned(
    names: tuple[Variable, ...], costs: NDArray[np.float64], over: tuple[Variable, ...]
) -> NDArray[np.float64]:
    """A table over some variables as one over more, with axes of extent 1 for the others."""
    order = sorted(range(len(names)), key=lambda n: over.index(names[n]))
    moved = np.transpose(costs, order)
    present = [u in names for u in over]
    shape = iter(moved.shape)
    return moved.reshape([next(shape) if there else 1 for there in present])
