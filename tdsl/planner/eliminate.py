"""Exact minimisation of a problem by elimination of its variables, one after another."""

from __future__ import annotations

import heapq
import itertools
import math
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

    `prices` are added to the costs of single variables.

    >>> problem = Problem()
    >>> for name in "ab":
    ...     problem.add(("place", name), np.array([0.0, 1.0]))
    >>> problem.add_pair(("place", "a"), ("place", "b"), np.array([[9.0, 9.0], [0.0, 9.0]]))
    >>> eliminate(problem)
    {('place', 'a'): 1, ('place', 'b'): 0}
    """
    order = elimination_order(problem)
    if order is None:
        return None
    factors: dict[int, Factor] = {}
    numbers = itertools.count()
    of: dict[Variable, dict[int, None]] = {v: {} for v in problem.sizes}  # the factors over each variable

    def add(factor: Factor) -> None:
        number = next(numbers)
        factors[number] = factor
        for v in factor[0]:
            of[v][number] = None

    for v, costs in problem.unary.items():
        add(((v,), costs if prices is None or v not in prices else costs + prices[v]))
    for both, costs in problem.pairs.items():
        add((both, costs))
    steps: list[tuple[Variable, tuple[Variable, ...], NDArray[np.intp]]] = []
    for v, over in order:
        joined = np.zeros([problem.sizes[u] for u in (*over, v)])
        for number in list(of[v]):
            names, costs = factors.pop(number)
            joined = joined + _aligned(names, costs, (*over, v))
            for u in names:
                del of[u][number]
        steps.append((v, over, np.argmin(joined, axis=-1)))
        add((over, joined.min(axis=-1)))
    choice: Choice = {}
    for v, over, best in reversed(steps):
        choice[v] = int(best[tuple(choice[u] for u in over)])
    return {v: choice[v] for v in problem.sizes}


def elimination_order(problem: Problem) -> list[tuple[Variable, tuple[Variable, ...]]] | None:
    """The variables in an order of elimination, each with its neighbours then; None if a table is too large.

    Each step eliminates the variable whose neighbours have the smallest table.
    """
    position = {v: n for n, v in enumerate(problem.sizes)}
    around: dict[Variable, set[Variable]] = {v: set() for v in position}
    for a, b in problem.pairs:
        around[a].add(b)
        around[b].add(a)

    def entries(v: Variable) -> int:
        return math.prod(problem.sizes[u] for u in around[v]) * problem.sizes[v]

    size = {v: entries(v) for v in position}
    queue = [(size[v], position[v], v) for v in position]
    heapq.heapify(queue)
    order = []
    while queue:
        least, _, v = heapq.heappop(queue)
        if v not in size or least != size[v]:
            continue  # eliminated, or its neighbours have changed since
        if least > MAX_ENTRIES:
            return None
        over = tuple(sorted(around.pop(v), key=position.__getitem__))
        order.append((v, over))
        del size[v]
        for u in over:
            around[u] |= {*over} - {u}
            around[u].discard(v)
        for u in over:
            size[u] = entries(u)
            heapq.heappush(queue, (size[u], position[u], u))
    return order


def _aligned(
    names: tuple[Variable, ...], costs: NDArray[np.float64], over: tuple[Variable, ...]
) -> NDArray[np.float64]:
    """A table over some variables as one over more, with axes of extent 1 for the others."""
    order = sorted(range(len(names)), key=lambda n: over.index(names[n]))
    moved = np.transpose(costs, order)
    present = [u in names for u in over]
    shape = iter(moved.shape)
    return moved.reshape([next(shape) if there else 1 for there in present])
