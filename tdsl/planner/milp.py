"""The problem as an integer linear program, solved by HiGHS through SciPy (the extra `plan`)."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass

import numpy as np

from tdsl.planner.problem import Choice, Problem, Variable

TIME_LIMIT = 20.0  # seconds
FIRST_STAGES = 16  # of which the bytes are limited from the start
MEMORY_UNIT = 1 << 10  # bytes, to keep coefficients in the range of the solver's tolerances


@dataclass(frozen=True, slots=True)
class Solved:
    """A choice of least cost (None: there is none), and a lower bound of all costs."""

    choice: Choice | None
    bound: float


def is_available() -> bool:
    """True if SciPy is installed."""
    return importlib.util.find_spec("scipy") is not None


def solve(
    problem: Problem, memory: int | None = None, *, relaxed: bool = False, least_memory: bool = False,
    time_limit: float = TIME_LIMIT,
) -> Solved:  # fmt: skip
    """The choice of least cost that needs at most `memory` bytes at each stage.

    As Alpa does: a 0/1 variable for each choice and for each pair of choices that costs. `relaxed` gives
    the bound of the linear relaxation only; with `least_memory` the memory is what is minimised. Stages that
    need too many bytes are added to the program one after another, from those that may need most.
    """
    limited = (memory is not None or least_memory) and bool(problem.buffers)
    stages = _largest_stages(problem) if limited else []
    end = time.monotonic() + time_limit
    while True:
        solved = _solve(problem, memory, stages, relaxed, least_memory, end - time.monotonic())
        if not limited or solved.choice is None:
            return solved
        bytes_of = problem.stage_bytes(solved.choice)
        worst = int(np.argmax(bytes_of))
        limit = solved.bound if memory is None else memory
        if worst in stages or bytes_of[worst] <= limit:
            return solved
        stages.append(worst)


def _largest_stages(problem: Problem) -> list[int]:
    """The stages that need most bytes if each tensor needs the average of its choices."""
    change = np.zeros(len(problem.buffers) + 1)
    for life in problem.lifetimes.values():
        change[life.first] += life.bytes.mean()
        change[life.last + 1] -= life.bytes.mean()
    stored = np.cumsum(change)[:-1]
    for n, pairs in enumerate(problem.buffers):
        stored[n] += sum(t.mean() for t in pairs.values())
    return [int(n) for n in np.argsort(-stored, kind="stable")[:FIRST_STAGES]]


def _solve(
    problem: Problem, memory: int | None, stages: list[int], relaxed: bool, least_memory: bool,
    time_limit: float,
) -> Solved:  # fmt: skip
    """The choice of least cost that needs at most `memory` bytes at some stages."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    offsets: dict[Variable, int] = {}
    count = 0
    for v, size in problem.sizes.items():
        offsets[v] = count
        count += size
    costs = [np.where(np.isfinite(t), t, 0.0) for t in problem.unary.values()]
    upper = [np.isfinite(t).astype(float) for t in problem.unary.values()]
    edges: dict[tuple[Variable, Variable], tuple[int, np.ndarray]] = {}
    memory_pairs = {both for n in stages for both in problem.buffers[n]}
    for both, table in problem.pairs.items():
        if not np.any(table) and both not in memory_pairs:
            continue
        edges[both] = count, table
        costs.append(np.where(np.isfinite(table), table, 0.0).ravel())
        upper.append(np.isfinite(table).astype(float).ravel())
        count += table.size
    entries: list[tuple[np.ndarray, np.ndarray, float]] = []  # columns, coefficients, right side (equal)
    for v, first in offsets.items():
        entries.append((np.arange(first, first + problem.sizes[v]), np.ones(problem.sizes[v]), 1.0))
    for (a, b), (first, table) in edges.items():
        numbers = first + np.arange(table.size).reshape(table.shape)
        for n, row in enumerate(numbers):
            entries.append((np.append(row, offsets[a] + n), np.append(np.ones(len(row)), -1.0), 0.0))
        for n, row in enumerate(numbers.T):
            entries.append((np.append(row, offsets[b] + n), np.append(np.ones(len(row)), -1.0), 0.0))
    equal = len(entries)
    for stage in stages:
        alive = [(v, x.bytes) for v, x in problem.lifetimes.items() if x.first <= stage <= x.last]
        columns = [offsets[v] + np.arange(len(t)) for v, t in alive]
        values = [t / MEMORY_UNIT for _, t in alive]
        for both, t in problem.buffers[stage].items():
            first, _ = edges[both]
            columns.append(first + np.arange(t.size))
            values.append(t.ravel() / MEMORY_UNIT)
        if least_memory:
            columns.append(np.array([count]))
            values.append(np.array([-1.0]))
        if not columns:
            continue  # of a stage that stores nothing
        limit = 0.0 if memory is None else memory / MEMORY_UNIT
        entries.append((np.concatenate(columns), np.concatenate(values), limit))
    objective, most = np.concatenate(costs), np.concatenate(upper)
    if least_memory:
        objective, most = np.append(np.zeros(count), 1.0), np.append(most, np.inf)
    scale = max(float(np.max(np.abs(objective), initial=0.0)), 1e-300)
    rows = np.concatenate([np.full(len(c), n) for n, (c, _, _) in enumerate(entries)])
    matrix = coo_array(
        (np.concatenate([v for _, v, _ in entries]), (rows, np.concatenate([c for c, _, _ in entries]))),
        shape=(len(entries), len(objective)),
    )
    right = np.array([b for _, _, b in entries])
    left = np.where(np.arange(len(entries)) < equal, right, -np.inf)
    integral = np.zeros(len(objective))
    if not relaxed:
        integral[: sum(problem.sizes.values())] = 1
    result = milp(
        objective / scale, integrality=integral, bounds=Bounds(0, most),
        constraints=LinearConstraint(matrix.tocsc(), left, right),
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )  # fmt: skip
    if result.x is None:
        return Solved(None, np.inf if result.status == 2 else 0.0)
    dual = result.mip_dual_bound if not relaxed and result.mip_dual_bound is not None else result.fun
    unit = MEMORY_UNIT if least_memory else 1.0
    if relaxed:
        return Solved(None, float(result.fun) * scale * unit)
    choice = {v: int(np.argmax(result.x[first : first + problem.sizes[v]])) for v, first in offsets.items()}
    return Solved(choice, float(dual) * scale * unit)
