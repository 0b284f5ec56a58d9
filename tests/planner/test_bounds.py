"""Bounds in closed form are lower bounds of prices; with them the search has the plan of all strategies."""

from __future__ import annotations

import pytest

import tdsl as td
from tdsl.planner import search
from tdsl.planner.bounds import ProgramBounds
from tdsl.planner.cluster import Cluster
from tdsl.planner.problem import GridPrices
from tdsl.schedule.bind import bind_state
from tdsl.target import as_target
from tests.planner.test_prices import chain, scaled_rows
from tests.planner.test_products import VOLUME, random_product
from tests.planner.test_published import mlp, product

PROGRAMS = [*map(chain, range(8)), scaled_rows(), mlp(5, 6, 7), product(3, 6, 8), product(9, 3, 5)]
i, j, k = td.vars("i j k")


def diagonal() -> td.Schedule:
    """Reads of a diagonal, of every second element, and of a shifted window."""
    A, B, out = td.Tensor("A", (6, 6), td.f32), td.Tensor("B", (20,), td.f32), td.Func("out")
    out[i, j] = td.sum(A[k, k] * B[2 * i + k], axis=k) + B[j]
    return td.Schedule(out)


@pytest.mark.parametrize("forbid", [frozenset(), frozenset({"copies"})], ids=["all", "no copies"])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_no_strategy_costs_less_than_its_bound(shape, forbid):
    grid = td.Grid(**{f"x{n}": size for n, size in enumerate(shape)})
    tight = 0
    for s in (*PROGRAMS[:: len(shape) ** 2], diagonal()):
        state, machine = bind_state(s.state, {}), as_target(None).machine()
        cluster = Cluster(ranks=grid.size, operations=1e9, memory_bandwidth=1e10)
        placed = {"a": "ab -> " + " ".join("a*"[: len(shape)])}
        fix = placed if any(t.name == "a" for t in s.program.inputs) else {}
        fixed = search.fixed_placements(state, fix, grid)
        space = GridPrices(state, grid, cluster, machine, fixed, forbid).space()
        bounds = ProgramBounds(state, cluster, machine, copies=not forbid).on(grid, fixed)
        for f in space.funcs:
            assert {*space.strategies[f.name]} <= {*bounds.seconds[f.name]}
            rows = [x for (name, _), x in space.prices.items() if name == f.name]
            for n, strategy in enumerate(space.strategies[f.name]):
                least = space.tasks[f.name][n] + sum(row[n].seconds.min() for row in rows)
                bound = bounds.seconds[f.name][strategy]
                assert bound <= least * (1 + 1e-12), (f.name, str(strategy))
                tight += bound >= least * (1 - 1e-12)
    assert tight > 20


@pytest.mark.parametrize("seed", range(6))
def test_plans_are_those_of_a_search_without_bounds(seed, monkeypatch):
    m, n, p, ranks = random_product(seed)
    small = m // 4 + 1, n // 4 + 1, p // 4 + 1
    cases = [({}, {}), (VOLUME, {"forbid": "copies"}), ({"operations": 1e9}, {"fix": {"A": "ik -> i"}})]
    for options, request in cases:
        s, every = product(*small), product(*small)
        cluster = td.Cluster(ranks=ranks % 12 + 1, **options)
        planned = s.plan(cluster, **request)
        with monkeypatch.context() as patch:
            patch.setattr(search, "LARGE", -1)
            all_grids = every.plan(cluster, **request)
        assert str(s) == str(every)
        assert (planned.seconds, planned.gap) == (all_grids.seconds, all_grids.gap)
        assert len(planned.tried) == len(all_grids.tried)


def test_a_grid_that_cannot_be_better_is_not_priced(monkeypatch):
    priced = []
    prices = search.GridPrices
    monkeypatch.setattr(search, "GridPrices", lambda *x: priced.append(x[1].shape) or prices(*x))
    s = product(64, 64, 64)
    planned = s.plan(td.Cluster(ranks=64, **VOLUME), forbid="copies")
    assert planned.grid.shape == (4, 4, 4) and priced == [(4, 4, 4)]
    assert planned.gap == 0
    assert "Grid(rank=64) at least" in str(planned)


def test_a_product_on_65536_ranks_has_a_proved_plan():
    planned = product(512, 512, 512).plan(td.Cluster(ranks=65536))
    assert planned.grid.shape == (256, 256) and planned.gap == 0
    assert len(planned.tried) == len([*Cluster(ranks=65536).grids(search.MAX_AXES)])
