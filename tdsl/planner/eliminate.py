"""Exact minimisation of a problem by elimination of its variables, one after another."""

from __future__ import annotations

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
    factors: list[Factor] = []
    for v, costs in problem.unary.items():
        factors.append(((v,), costs if prices is None or v not in prices else costs + prices[v]))
    factors += [(both, costs) for both, costs in problem.pairs.items()]
    left = list(problem.sizes)
    steps: list[tuple[Variable, tuple[Variable, ...], NDArray[np.intp]]] = []
    while left:
        neighbours = {v: {u for over, _ in factors if v in over for u in over} - {v} for v in left}
        sizes = {v: _size(problem, neighbours[v] | {v}) for v in left}
        v = min(left, key=lambda u: (sizes[u], left.index(u)))
        if sizes[v] > MAX_ENTRIES:
            return None
        over = tuple(sorted(neighbours[v], key=left.index))
        joined = np.zeros([problem.sizes[u] for u in (*over, v)])
        for names, costs in (x for x in factors if v in x[0]):
            joined = joined + _aligned(names, costs, (*over, v))
        steps.append((v, over, np.argmin(joined, axis=-1)))
        factors = [x for x in factors if v not in x[0]]
        factors.append((over, joined.min(axis=-1)))
        left.remove(v)
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
