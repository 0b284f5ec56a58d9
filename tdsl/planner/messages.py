"""A choice and a bound of all costs by messages between variables: for problems too large for exact tables.

The cost of a choice is the sum of the entries of tables. To move costs from the table of a pair to those of
its two variables changes no sum, and the sum of the least entries of all tables is a lower bound. Sequential
tree-reweighted message passing (Kolmogorov, 2006) moves costs so that this bound rises.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdsl.planner.problem import Choice, Problem, Table, Variable

MAX_SWEEPS = 200
MIN_RISE = 1e-4  # of the bound in PATIENCE sweeps; if it rises less, no more sweeps follow
PATIENCE = 5
GAP = 1e-4  # a choice so close to the bound ends the sweeps
MAX_JOINED = 1 << 19  # entries of a table that the elimination of a variable builds


@dataclass(frozen=True, slots=True)
class Bounded:
    """A choice, its cost (infinite if none was legal), and a lower bound of the costs of all choices."""

    choice: Choice
    cost: float
    bound: float


@dataclass(slots=True)
class _Edge:
    """A pair of variables, for one of them: rows of `table` are its choices, columns those of the other.

    `received` are the costs of this variable that come from the pair, `sent` those of the other one.
    """

    other: int
    table: Table
    received: Table
    sent: Table


def pass_messages(problem: Problem, prices: Mapping[Variable, Table] | None = None) -> Bounded:
    """A choice of low cost, and a bound; `prices` are added to the costs of single variables.

    >>> problem = Problem()
    >>> for name in "abc":
    ...     problem.add(("place", name), np.array([0.0, 1.0]))
    >>> for a, b in ("ab", "bc", "ca"):
    ...     problem.add_pair(("place", a), ("place", b), np.array([[9.0, 1.0], [1.0, 9.0]]))
    >>> solved = pass_messages(problem)
    >>> solved.cost, solved.bound <= solved.cost
    (12.0, True)
    """
    rest = _Rest(problem, prices or {})
    names = list(rest.unary)
    number = {v: n for n, v in enumerate(names)}
    illegal = _more_than_all(rest)
    unary = [np.minimum(costs, illegal) for costs in rest.unary.values()]
    edges: list[list[_Edge]] = [[] for _ in names]
    for v, around in rest.around.items():
        for w, table in around.items():
            a, b = number[v], number[w]
            if a < b:
                costs = np.minimum(table, illegal)
                to_a, to_b = np.zeros(costs.shape[0]), np.zeros(costs.shape[1])
                edges[a].append(_Edge(b, costs, to_a, to_b))
                edges[b].append(_Edge(a, np.ascontiguousarray(costs.T), to_b, to_a))
    best, cost, bound, bounds = [0] * len(names), np.inf, -np.inf, list[float]()
    for _ in range(MAX_SWEEPS):
        choice, _ = _sweep(unary, edges, range(len(names)), forward=True)
        now = _cost(unary, edges, choice)
        if now < cost:
            best, cost = choice, now
        bound = max(bound, _sweep(unary, edges, range(len(names))[::-1], forward=False)[1])
        bounds.append(bound)
        rise = bound - bounds[-1 - PATIENCE] if len(bounds) > PATIENCE else np.inf
        if cost - bound <= GAP * abs(bound) or rise <= MIN_RISE * abs(bound):
            break
    whole = rest.completed(dict(zip(names, best, strict=True)))
    total = problem.seconds(whole) + sum(float(p[whole[v]]) for v, p in (prices or {}).items())
    return Bounded(whole, total, min(bound + rest.constant, total))


class _Rest:
    """The problem after exact elimination of variables with at most two neighbours."""

    def __init__(self, problem: Problem, prices: Mapping[Variable, Table]) -> None:
        self.sizes, self.constant = problem.sizes, 0.0
        self.unary = {v: t + prices[v] if v in prices else t for v, t in problem.unary.items()}
        self.around: dict[Variable, dict[Variable, Table]] = {v: {} for v in problem.sizes}
        self.steps: list[tuple[Variable, tuple[Variable, ...], NDArray[np.intp]]] = []
        for (a, b), table in problem.pairs.items():
            self.around[a][b], self.around[b][a] = table, table.T
        order = {v: n for n, v in enumerate(problem.sizes)}
        queue = [(self._entries(v), order[v], v) for v in order]
        heapq.heapify(queue)
        while queue:
            entries, _, v = heapq.heappop(queue)
            if v in self.around and len(self.around[v]) <= 2 and entries <= MAX_JOINED:
                for u in self._eliminate(v):
                    heapq.heappush(queue, (self._entries(u), order[u], u))

    def _entries(self, v: Variable) -> int:
        size = self.sizes[v]
        for u in self.around[v]:
            size *= self.sizes[u]
        return size

    def _eliminate(self, v: Variable) -> tuple[Variable, ...]:
        """Replace a variable by the costs of its best choice; returns its neighbours."""
        around, costs = self.around.pop(v), self.unary.pop(v)
        over = tuple(around)
        for u in over:
            del self.around[u][v]
            costs = costs[:, None] + around[u] if costs.ndim == 1 else costs[:, :, None] + around[u][:, None]
        self.steps.append((v, over, costs.argmin(axis=0)))
        least = costs.min(axis=0)
        if len(over) == 2:
            a, b = over
            table = least + self.around[a][b] if b in self.around[a] else least
            self.around[a][b], self.around[b][a] = table, table.T
        elif over:
            self.unary[over[0]] = self.unary[over[0]] + least
        else:
            self.constant += float(least)
        return over

    def completed(self, choice: Choice) -> Choice:
        """A choice of the variables that are left, with the best one of each that was eliminated."""
        whole = dict(choice)
        for v, over, best in reversed(self.steps):
            whole[v] = int(best[tuple(whole[u] for u in over)])
        return {v: whole[v] for v in self.sizes}


least_of = np.minimum.reduce  # without the checks of arguments of `min`, of tables with few entries


def _sweep(
    unary: list[Table], edges: list[list[_Edge]], order: Iterable[int], *, forward: bool
) -> tuple[list[int], float]:
    """Send messages along an order of the variables; returns a choice that follows from it, and a bound.

    Each variable divides its costs among the chains of pairs that pass through it.
    """
    choice, bound = [0] * len(unary), 0.0
    for n in order:
        costs, chosen = unary[n].copy(), unary[n].copy()
        behind = [(e.other < n) == forward for e in edges[n]]
        for e, is_behind in zip(edges[n], behind, strict=True):
            costs += e.received
            chosen += e.table[:, choice[e.other]] if is_behind else e.received
        choice[n] = int(chosen.argmin())
        least = float(least_of(costs))
        bound += least
        costs = (costs - least) / max(1, sum(behind), len(behind) - sum(behind))
        for e, is_behind in zip(edges[n], behind, strict=True):
            if not is_behind:
                message = least_of(e.table + (costs - e.received)[:, None])
                least = float(least_of(message))
                bound += least
                e.sent[:] = message - least
    return choice, bound


def _cost(unary: list[Table], edges: list[list[_Edge]], choice: list[int]) -> float:
    total = 0.0
    for n, pairs in enumerate(edges):
        total += float(unary[n][choice[n]])
        total += sum(float(e.table[choice[n], choice[e.other]]) for e in pairs if e.other > n)
    return total


def _more_than_all(rest: _Rest) -> float:
    """A cost above that of every legal choice."""
    pairs = (table for around in rest.around.values() for table in around.values())
    return 1.0 + sum(float(t[np.isfinite(t)].max(initial=0.0)) for t in (*rest.unary.values(), *pairs))
