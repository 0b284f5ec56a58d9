"""Strategies that differ in the order of equal axes are priced once, as if each were priced."""

from __future__ import annotations

import numpy as np
import pytest

from tdsl.placement.grid import Grid
from tdsl.planner import problem
from tdsl.planner.cluster import Cluster
from tdsl.planner.problem import space_of
from tdsl.planner.symmetry import Symmetry
from tdsl.schedule.bind import bind_state
from tdsl.target import as_target
from tests.planner.test_prices import chain
from tests.planner.test_published import mlp, product


@pytest.mark.parametrize(
    "s, shape",
    [(chain(0), (2, 2)), (chain(2), (3, 3)), (mlp(6, 8, 10), (2, 2)), (product(4, 7, 6), (2, 3, 2))],
)
def test_prices_are_those_of_each_strategy(s, shape, monkeypatch):
    state, machine = bind_state(s.state, {}), as_target(None).machine()
    grid = Grid(**{f"x{n}": size for n, size in enumerate(shape)})
    arguments = state, grid, Cluster(ranks=grid.size), machine, {}
    shared, priced = space_of(*arguments), []
    rows = problem._priced_rows
    monkeypatch.setattr(problem, "_priced_rows", lambda *x: priced.append(x) or rows(*x))
    monkeypatch.setattr(Symmetry, "ordered", lambda _, strategy: strategy)
    each = space_of(*arguments)
    assert len(priced) == sum(len(each.strategies[f.name]) for f in each.funcs)
    for name, table in each.problem.unary.items():
        np.testing.assert_allclose(shared.problem.unary[name], table)
    for both, table in each.problem.pairs.items():
        np.testing.assert_allclose(shared.problem.pairs[both], table)
    for func, tensor in each.prices:
        for a, b in zip(shared.prices[func, tensor], each.prices[func, tensor], strict=True):
            legal = np.isfinite(b.seconds)
            assert [a.kinds[n] for n in np.flatnonzero(legal)] == [b.kinds[n] for n in np.flatnonzero(legal)]
            np.testing.assert_array_equal(a.bytes[legal], b.bytes[legal])
            np.testing.assert_array_equal(a.buffers[legal], b.buffers[legal])
