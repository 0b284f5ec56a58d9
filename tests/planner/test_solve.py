"""The solvers agree with a search through all choices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tdsl as td
from tdsl.planner import milp, solve
from tdsl.planner.eliminate import eliminate
from tdsl.planner.messages import _Rest, pass_messages
from tdsl.planner.problem import Lifetime, Problem, all_choices
from tests.planner.test_published import layers


def random_problem(seed: int) -> Problem:
    """A problem of few variables, with illegal pairs and memory."""
    rng, problem = np.random.default_rng(seed), Problem()
    names = [("place", str(n)) for n in range(rng.integers(2, 6))]
    for v in names:
        problem.add(v, rng.integers(0, 9, rng.integers(1, 4)).astype(float))
    for a, b in itertools.combinations(names, 2):
        if rng.random() < 0.6:
            costs = rng.integers(0, 9, (problem.sizes[a], problem.sizes[b])).astype(float)
            costs[rng.random(costs.shape) < 0.1] = np.inf
            problem.add_pair(a, b, costs)
    problem.buffers += [{}, {}]
    for v in names:
        first = int(rng.integers(2))
        sizes = 1024.0 * rng.integers(0, 9, problem.sizes[v])
        problem.lifetimes[v] = Lifetime(first, int(rng.integers(first, 2)), sizes)
    for both, costs in list(problem.pairs.items())[:1]:
        problem.buffers[1] = {both: 1024.0 * rng.integers(0, 5, costs.shape)}
    return problem


def brute_force(problem: Problem, memory: int | None = None) -> float:
    """The least cost of all choices."""
    fits = (c for c in all_choices(problem) if memory is None or problem.memory(c) <= memory)
    return min(map(problem.seconds, fits), default=np.inf)


def check_graph(seed: int) -> None:
    """All solvers against a search through all choices of a random problem."""
    problem = random_problem(seed)
    best = brute_force(problem)
    choice = eliminate(problem)
    assert choice is not None
    assert problem.seconds(choice) == best
    solved, bounded = milp.solve(problem), pass_messages(problem)
    assert bounded.bound <= best + 1e-6
    assert problem.seconds(bounded.choice) == pytest.approx(bounded.cost)
    assert bounded.cost >= best
    if np.isfinite(best):
        assert problem.seconds(solved.choice) == pytest.approx(best)
        assert milp.solve(problem, relaxed=True).bound <= best + 1e-6
    else:
        assert solved.choice is None


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_elimination_and_integer_program_equal_brute_force(first):
    for seed in range(first, first + 100):
        check_graph(seed)


@pytest.mark.parametrize("seed", range(100))
def test_memory_is_a_hard_limit(seed):
    problem = random_problem(seed)
    memory = 1024 * int(np.random.default_rng(seed).integers(5, 25))
    best = brute_force(problem, memory)
    solved = milp.solve(problem, memory)
    if np.isfinite(best):
        assert problem.memory(solved.choice) <= memory
        assert problem.seconds(solved.choice) == pytest.approx(best)
        assert solved.bound <= best + 1e-6
    else:
        assert solved.choice is None


def test_a_triangle_is_fractional_and_its_integer_program_is_not():
    problem, corners = Problem(), [("place", n) for n in "abc"]
    for v in corners:
        problem.add(v, np.zeros(2))
    for a, b in itertools.combinations(corners, 2):
        problem.add_pair(a, b, np.eye(2))
    assert milp.solve(problem, relaxed=True).bound == pytest.approx(0)
    assert problem.seconds(milp.solve(problem).choice) == 1
    assert problem.seconds(eliminate(problem)) == 1


@pytest.mark.parametrize("seed", range(20))
def test_messages_are_exact_on_trees(seed, monkeypatch):
    monkeypatch.setattr(_Rest, "_entries", lambda *_: 1 << 60)  # nothing is eliminated before
    rng, problem = np.random.default_rng(seed), Problem()
    names = [("place", str(n)) for n in range(12)]
    for n, v in enumerate(names):
        problem.add(v, rng.random(3))
        if n:
            problem.add_pair(names[int(rng.integers(n))], v, rng.random((3, 3)))
    solved, best = pass_messages(problem), problem.seconds(eliminate(problem))
    assert solved.bound == pytest.approx(best, rel=1e-3)
    assert best <= solved.cost <= best * 1.01


def test_layers_on_two_axes_are_bounded_without_an_integer_program(monkeypatch):
    monkeypatch.setattr(milp, "is_available", lambda: False)
    monkeypatch.setattr(solve, "eliminate", lambda *_: None)
    s, same = layers(8, 8, 12)
    s.place("X", "bi -> b *", td.Grid(x=2, y=2))
    planned = s.plan(td.Cluster(ranks=4, latency=1e-6, operations=1e9, memory_bandwidth=1e10), fix=same)
    assert planned.gap < 0.01
    assert max(td.compile(s).plan().received) <= planned.bytes
