"""Plans by other methods on the prices of the planner: python -m benchmarks.plans.baselines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

import tdsl as td
from benchmarks.plans.models import transformer
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Copies
from tdsl.planner.problem import Choice, Problem, Space, Variable, space_of
from tdsl.planner.search import same_placements
from tdsl.planner.solve import solve
from tdsl.schedule.bind import bind_state
from tdsl.target import as_target

STEPS = 20_000  # of each random method
CLUSTER = td.Cluster(ranks=8, latency=5e-6, bandwidth=25e9, operations=100e12, memory_bandwidth=2e12)


class _Costs:
    """The seconds of a choice, and the change by a choice of one variable."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.around: dict[Variable, list[tuple[Variable, np.ndarray]]] = {v: [] for v in problem.sizes}
        for (a, b), table in problem.pairs.items():
            self.around[a].append((b, table))
            self.around[b].append((a, table.T))

    def row(self, v: Variable, choice: Choice) -> np.ndarray:
        """The seconds of each choice of a variable, with all others as they are."""
        costs = self.problem.unary[v].copy()
        for u, table in self.around[v]:
            costs += table[:, choice[u]]
        return costs


WEIGHTS = {"Wq": 1, "Wk": 1, "Wv": 1, "Wo": 0, "W1": 1, "W2": 0}  # the dimension that Megatron-LM cuts


def hand_written(space: Space, *, batch: str | None) -> Choice | None:
    """Data parallel along a batch, or Megatron-LM with None; what is left open is as it costs least."""
    problem, kept = space.problem, Problem()
    for v, costs in problem.unary.items():
        kind, name = v
        legal, weight = np.ones(len(costs), bool), name.rpartition("_")[2]
        if kind == "loops" and batch is not None:
            along = np.array([all(x == batch for x in s.axes) for s in space.strategies[name]])
            legal = along if along.any() else legal
        elif kind == "place" and weight[:1] == "W" and not name.startswith(("new", "m_", "v_", "d_")):
            cut = WEIGHTS.get(weight) if batch is None else None
            axes = set(range(len(space.grid.axes)))
            for n, p in enumerate(space.placements[name]):
                copies = all(isinstance(e, Copies) for e in p.entries)
                legal[n] = copies if cut is None else {*p.axes_of(cut)} == axes
        kept.add(v, np.where(legal, costs, np.inf))
    kept.pairs, kept.lifetimes, kept.buffers = problem.pairs, problem.lifetimes, problem.buffers
    return _solved(space, kept)


def _solved(space: Space, kept: Problem) -> Choice | None:
    whole, space.problem = space.problem, kept
    try:
        solution = solve(space, None)
    finally:
        space.problem = whole
    return None if solution is None else solution.choice


def markov_chain(space: Space, start: Choice, seed: int = 0) -> Choice:
    """The best choice of a random walk as that of FlexFlow: one func changes, what is around it follows.

    Worse plans are accepted with a probability that falls with the seconds that they add.
    """
    rng, costs = np.random.default_rng(seed), _Costs(space.problem)
    names = [v for v in space.problem.sizes if v[0] == "loops"]
    choice, best = dict(start), dict(start)
    now = least = space.problem.seconds(choice)
    for _ in range(STEPS // 10):
        v, changed = names[int(rng.integers(len(names)))], dict(choice)
        changed[v] = int(rng.integers(space.problem.sizes[v]))
        tensors = [u for u, _ in costs.around[v]]
        funcs = [w for u in tensors for w, _ in costs.around[u] if w != v]
        for u in (*tensors, *funcs, *tensors):  # what is around follows
            changed[u] = int(np.argmin(costs.row(u, changed)))
        seconds = space.problem.seconds(changed)
        if seconds <= now or rng.random() < math.exp(-20 * (seconds - now) / least):
            choice, now = changed, seconds
            if now < least:
                best, least = choice, now
    return best


def random_search(space: Space, start: Choice, seed: int = 0) -> Choice:
    """The best of random choices, each legal beside those before it; `start` if all of them are worse."""
    rng, costs = np.random.default_rng(seed), _Costs(space.problem)
    names = list(space.problem.sizes)
    best, least = dict(start), space.problem.seconds(start)
    for _ in range(STEPS // len(names)):
        choice = dict(start)
        for v in rng.permutation(len(names)):
            legal = np.flatnonzero(np.isfinite(costs.row(names[v], choice)))
            choice[names[v]] = int(legal[rng.integers(len(legal))])
        seconds = space.problem.seconds(choice)
        if seconds < least:
            best, least = choice, seconds
    return best


def compare(name: str, s: td.Schedule, same: dict[str, str]) -> None:
    """Print the seconds and bytes of each method for a program."""
    machine = as_target(None).machine()
    state = bind_state(s.state, {})
    space = space_of(state, Grid(rank=8), CLUSTER, machine, {}, frozenset(), same_placements(same))
    start = hand_written(space, batch="b")
    assert start is not None, "a batch can be cut"
    methods: dict[str, Callable[[], Choice | None]] = {
        "data parallel": lambda: start,
        "Megatron": lambda: hand_written(space, batch=None),
        "random search": lambda: random_search(space, start),
        "Markov chain": lambda: markov_chain(space, start),
        "planner": lambda: _solved(space, space.problem),
    }
    for method, run in methods.items():
        begun = time.process_time()
        choice = run()
        assert choice is not None, f"{method} has a plan"
        took = time.process_time() - begun
        received = sum(price.bytes for _, _, price in space.chosen_prices(choice))
        seconds = space.problem.seconds(choice)
        print(f"{name:22} {method:14} {1e6 * seconds:10.1f} us {received:12} bytes, {took:5.2f} s of search")


if __name__ == "__main__":
    compare("2 layers, 8 x 1024", *transformer(2))
    compare("2 layers, 8 x 64", *transformer(2, rows=64))
