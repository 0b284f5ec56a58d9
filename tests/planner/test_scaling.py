"""Equal layers are priced once, whatever their names; graphs are planned as a whole, with their gradients."""

import gc

import numpy as np
import pytest

import tdsl as td
from tdsl.planner import problem
from tests.planner.test_published import SLOW, layers

b, i, j = td.vars("b i j")


@pytest.fixture
def priced(monkeypatch):
    """The names of the funcs that are priced."""
    names: list[str] = []
    price = problem._price

    def counting(choices, f, *rest):
        names.append(f.name)
        return price(choices, f, *rest)

    monkeypatch.setattr(problem, "_price", counting)
    return names


def test_equal_layers_are_priced_once(priced):
    counts = {}
    for count in (4, 12):
        priced.clear()
        s, same = layers(8, 8, count)
        planned = s.plan(td.Cluster(ranks=3, **SLOW), fix=same)
        counts[count] = len(priced)
        assert len(planned.space.funcs) > 3 * count
        assert planned.gap == 0
    assert counts[4] == counts[12] < 10


def test_funcs_that_differ_in_more_than_names_have_their_own_prices(priced):
    A, B = td.Tensor("A", (8, 8), td.f32), td.Tensor("B", (8, 8), td.f32)
    funcs = {n: td.Func(n) for n in ("rows", "same", "columns", "sums", "longer", "doubles")}
    wide, double = td.Tensor("wide", (8, 9), td.f32), td.Tensor("double", (8, 8), td.f64)
    funcs["rows"][i] = td.sum(A[i, j], axis=j)
    funcs["same"][b] = td.sum(B[b, i], axis=i)
    funcs["columns"][i] = td.sum(A[j, i], axis=j)
    funcs["sums"][i] = td.max(A[i, j], axis=j)
    funcs["longer"][i] = td.sum(wide[i, j], axis=j)
    funcs["doubles"][i] = td.sum(double[i, j], axis=j)
    fix = {"A": "ij -> i", "B": "bi -> b", "rows": "i -> i", "same": "b -> b"}
    planned = td.Schedule(*funcs.values()).plan(td.Cluster(ranks=2, **SLOW), fix=fix)
    assert priced == ["rows", "columns", "sums", "longer", "doubles"]
    assert (planned.loops("rows")[1], planned.loops("same")[1]) == (("i",), ("b",))


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_after_a_plan_if_it_was_before(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        s, same = layers(8, 8, 2)
        s.plan(td.Cluster(ranks=2), fix=same)
        assert gc.isenabled() is enabled
        with pytest.raises(td.ScheduleError):
            layers(8, 8, 2)[0].plan(td.Cluster(ranks=2), memory=1)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_a_graph_with_its_gradient_runs_on_ranks_as_on_one():
    @td.op
    def layer(x: td.f32["B", "K"], w: td.f32["K", "N"]):
        k = td.vars("k")
        y = td.Func("y")
        y[b, j] = td.maximum(td.sum(x[b, k] * w[k, j], axis=k), 0)
        return y

    graph = td.Graph(lambda x, w, v: layer(layer(x, w), v), target="python")
    gradient = td.vjp(graph, ["w", "v"])
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, n).astype(np.float32) for n in ((8, 4), (4, 6), (6, 2), (8, 2))]
    s = gradient.distribute(td.Cluster(ranks=4, **SLOW), *(td.f32[x.shape] for x in arrays))
    p = td.compile(s, target="python")
    out, counted = p.simulate(*arrays, count=True)
    assert counted.received == p.plan().received
    for block, expected in zip(out, gradient(*arrays), strict=True):
        np.testing.assert_allclose(block, expected, rtol=1e-5)
