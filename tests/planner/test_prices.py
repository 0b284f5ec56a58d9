"""Prices of the planner are those of the volume, which is that of the plans that run."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.planner import prices
from tdsl.planner.cluster import Cluster
from tdsl.planner.problem import space_of
from tdsl.schedule.bind import bind_state
from tdsl.target import as_target
from tests.planner.test_published import mlp, product

i, j, k = td.vars("i j k")


def chain(seed: int) -> td.Schedule:
    """A product, a stencil or a transpose, then sums or maxima of it, of uneven extents."""
    rng = np.random.default_rng(seed)
    m, n, p = (int(x) for x in rng.integers(1, 9, 3))
    a, b = td.Tensor("a", (m, p), td.f64), td.Tensor("b", (p, n), td.f64)
    f, g = td.Func("f"), td.Func("g")
    kind = seed % 4
    if kind == 0:
        f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
        g[j, i] = f[i, j] + 1
    elif kind == 1:
        f[i, j] = td.max(a[i, k] + b[k, j], axis=k)
        g[i] = td.sum(f[i, j], axis=j)
    elif kind == 2:
        padded = td.pad(a, mode="constant")
        f = td.Func("f", shape=(m, p))
        f[i, j] = padded[i - 1, j] + padded[i + 1, j]
        g[i, j] = td.sum(f[i, k] * b[k, j], axis=k)
    else:
        f[i] = td.sum(a[i, k], axis=k)
        g[i, j] = f[i] * td.sum(b[k, j], axis=k)
    return td.Schedule(g)


def scaled_rows() -> td.Schedule:
    """Rows divided by the sum of all elements."""
    a, total, g = td.Tensor("a", (5, 4), td.f64), td.Func("total"), td.Func("g")
    total[()] = td.sum(a[i, j], axis=[i, j])
    g[i, j] = a[i, j] / total[()]
    return td.Schedule(g)


def random_choices(space, seed, grid, rng, count):
    """Random legal choices of the planner for `chain(seed)`, each with its schedule."""
    while count:
        choice = {v: int(rng.integers(n)) for v, n in space.problem.sizes.items()}
        if not np.isfinite(space.problem.seconds(choice)):
            continue
        count -= 1
        s = chain(seed)
        for t in space.tensors:
            s.place(t, str(space.placements[t][choice["place", t]]), grid)
        for f in space.funcs:
            s[f.name].distribute(space.strategies[f.name][choice["loops", f.name]].entries, grid)
        yield choice, s


@pytest.mark.parametrize("shape", [(2,), (3,), (4,), (2, 2), (3, 2)])
@pytest.mark.parametrize("seed", range(8))
def test_bytes_are_those_of_the_plan(seed, shape):
    s, rng = chain(seed), np.random.default_rng((seed, *shape))
    grid = td.Grid(**{f"x{n}": size for n, size in enumerate(shape)})
    state = bind_state(s.state, {})
    machine = as_target(None).machine()
    space = space_of(state, grid, Cluster(ranks=grid.size), machine, {})
    for choice, now in random_choices(space, seed, grid, rng, 6):
        plan = td.compile(now, target="python").plan()
        planned: dict[str, int] = {}
        least = 0
        for _, tensor, price in space.chosen_prices(choice):
            planned[tensor] = planned.get(tensor, 0) + price.bytes
            least += price.bytes
        for tensor, levels in plan.volume.moved.items():
            most = int(np.sum(levels, axis=0).max())
            assert most <= planned.get(tensor, 0), (tensor, str(now))
            if sum(tensor == t and price.bytes > 0 for _, t, price in space.chosen_prices(choice)) == 1:
                assert most == planned[tensor], (tensor, str(now))
        assert max(plan.received) <= least
        assert max(plan.peak_memory) <= space.problem.memory(choice), str(now)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_partial_sums_are_combined_as_the_volume_has_it(shape, monkeypatch):
    fetched, checked = prices.StagePrices._fetched, []

    def compared(self, source, placements, legal):
        row = fetched(self, source, placements, legal)
        for n, p in enumerate(placements):
            if legal[n] and {*p.partial} - {*self.stage.partial_axes}:
                exact, price = self._computed(source, p), row.price(n)
                assert (price.bytes, price.buffer, price.kind) == (exact.bytes, exact.buffer, exact.kind)
                checked.append(p)
        return row

    monkeypatch.setattr(prices.StagePrices, "_fetched", compared)
    grid = td.Grid(**{f"x{n}": size for n, size in enumerate(shape)})
    for s in (mlp(5, 6, 7), scaled_rows()):
        checked.clear()
        space_of(bind_state(s.state, {}), grid, Cluster(ranks=grid.size), as_target(None).machine(), {})
        assert len(checked) >= 2 ** len(shape)


@pytest.mark.parametrize("shape", [(5,), (2, 5)])
def test_results_of_ranks_without_iterations_have_the_volume_s_price(shape, monkeypatch):
    deliver, checked = prices.StagePrices._deliver, []

    def compared(self, placements, partial):
        row = deliver(self, placements, partial)
        idle = not self._boxes(self.stage.name).present.all()
        for n, p in enumerate(placements):
            if idle and p.partial == partial:
                exact, price = self._computed(self.stage.name, p), row.price(n)
                assert price.bytes == exact.bytes, (str(p), self.stage.entries)
                assert price.buffer >= exact.buffer, (str(p), self.stage.entries)
                checked.append(p)
        return row

    monkeypatch.setattr(prices.StagePrices, "_deliver", compared)
    grid = td.Grid(**{f"x{n}": size for n, size in enumerate(shape)})
    for s in (product(3, 6, 8), product(6, 9, 3), product(9, 3, 6), mlp(4, 6, 9)):
        space_of(bind_state(s.state, {}), grid, Cluster(ranks=grid.size), as_target(None).machine(), {})
    assert len(checked) > 30
