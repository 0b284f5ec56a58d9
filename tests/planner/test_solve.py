"""The solvers agree with a search through all choices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tdsl.planner import milp
from tdsl.planner.eliminate import eliminate
from tdsl.planner.problem import Lifetime, Problem, all_choices


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


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_elimination_and_integer_program_equal_brute_force(first):
    for seed in range(first, first + 100):
        problem = random_problem(seed)
        best = brute_force(problem)
        choice = eliminate(problem)
        assert choice is not None
        assert problem.seconds(choice) == best
        solved = milp.solve(problem)
        if np.isfinite(best):
            assert problem.seconds(solved.choice) == pytest.approx(best)
            assert milp.solve(problem, relaxed=True).bound <= best + 1e-6
        else:
            assert solved.choice is None


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
