"""What the literature says of single funcs and layers is what the planner has or chooses."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.placement.grid import Grid
from tdsl.planner.cluster import Cluster
from tdsl.planner.problem import Space, space_of
from tdsl.schedule.bind import bind_state
from tdsl.target import as_target

b, c, d, e, h, i, j, k, q, x = td.vars("b c d e h i j k q x")
FREE_TASKS = {"latency": 0.0, "operations": 1e24, "memory_bandwidth": 1e24}
SLOW_TASKS = {"latency": 0.0, "operations": 1e9, "memory_bandwidth": 1e12}


def space(s: td.Schedule, **axes: int) -> Space:
    """The problem of a schedule on a grid of one level."""
    grid = Grid(**axes)
    return space_of(bind_state(s.state, {}), grid, Cluster(ranks=grid.size), as_target(None).machine(), {})


def strategies(s: td.Schedule, func: str) -> set[str]:
    """The strategies of a func on two ranks."""
    return {str(x) for x in space(s, rank=2).strategies[func]}


def convolution() -> td.Schedule:
    data, weights = td.Tensor("data", (4, 4, 10), td.f32), td.Tensor("weights", (4, 4, 3), td.f32)
    out = td.Func("out", shape=(4, 4, 8))
    dx = td.vars("dx")
    out[b, c, x] = td.sum(data[b, i, x + dx] * weights[i, c, dx], axis=[i, dx])
    return td.Schedule(out)


def test_a_product_is_cut_along_each_of_its_variables():
    A, B, C = td.Tensor("A", (8, 8), td.f32), td.Tensor("B", (8, 8), td.f32), td.Func("C")
    C[i, j] = td.sum(A[i, k] * B[k, j], axis=k)
    assert strategies(td.Schedule(C), "C") == {"i", "j", "k", "*"}


def test_a_convolution_is_cut_with_a_halo():
    s, grid = convolution(), td.Grid(rank=2)
    # Tofu refuses dx, whose 3 terms two ranks do not share evenly; blocks may be uneven here
    assert strategies(s, "out") == {"b", "c", "x", "i", "dx", "*"}
    s.place("data", "bix -> x", grid).place("weights", "icd -> *", grid).place("out", "bcx -> x", grid)
    s["out"].distribute((x,), grid)
    planned = s.plan(td.Cluster(ranks=2))
    assert "halo of data" in str(planned)
    # a rank reads 4 + 2 of 10 columns, of which it has 5
    assert planned.bytes == max(td.compile(s).plan().received) == 4 * 4 * 4


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_convolution_is_summed_over_uneven_parts_of_its_filter(ranks):
    s, rng = convolution(), np.random.default_rng(0)
    s["out"].distribute(("dx",), td.Grid(rank=ranks))
    s.plan(td.Cluster(ranks=ranks))
    data, weights = rng.integers(-3, 3, (4, 4, 10)), rng.integers(-3, 3, (4, 4, 3))
    windows = np.lib.stride_tricks.sliding_window_view(data, 3, axis=2)
    got = td.compile(s, target="python").simulate(data.astype("f"), weights.astype("f"))
    np.testing.assert_array_equal(got, np.einsum("bixd,icd->bcx", windows, weights))


def test_attention_scores_are_cut_in_five_ways():
    Q, K = td.Tensor("Q", (2, 4, 8, 16), td.f32), td.Tensor("K", (2, 4, 8, 16), td.f32)
    score = td.Func("score")
    score[b, h, q, k] = td.sum(Q[b, h, q, d] * K[b, h, k, d], axis=d)
    s = td.Schedule(score)
    assert strategies(s, "score") == {"b", "h", "q", "k", "d", "*"}
    for free in (b, h, q, k):
        s, grid = td.Schedule(score), td.Grid(rank=2)
        s["score"].distribute((free,), grid)
        assert s.plan(td.Cluster(ranks=2, **FREE_TASKS)).bytes == 0


@pytest.mark.parametrize(
    "rank, rows, columns, gathers", [(3000, 10_000, 1000, False), (128, 4096, 4096, True)]
)
def test_gradients_of_small_rank_are_gathered_as_factors(rank, rows, columns, gathers):
    X, dY, dW = td.Tensor("X", (rank, rows), td.f32), td.Tensor("dY", (rank, columns), td.f32), td.Func("dW")
    dW[i, j] = td.sum(X[k, i] * dY[k, j], axis=k)
    s = td.Schedule(dW)
    fix = {"X": "ki -> k", "dY": "kj -> k", "dW": "ij -> *"}
    planned = s.plan(td.Cluster(ranks=8, **FREE_TASKS), fix=fix)
    factors, whole = 7 * rank // 8 * (rows + columns) * 4, 2 * 7 * rows * columns // 8 * 4
    assert planned.gap == 0
    assert (planned.loops("dW")[1] == ("*",)) is gathers
    assert planned.bytes == factors if gathers else planned.bytes < min(factors, whole)


def attention(s_: int = 16, width: int = 32, heads: int = 4) -> td.Schedule:
    """An attention block: projections by heads, scores, weights, the output projection."""
    each = width // heads
    X, Wo = td.Tensor("X", (2, s_, width), td.f32), td.Tensor("Wo", (heads, each, width), td.f32)
    parts = []
    for name in ("query", "key", "value"):
        W, p = td.Tensor(f"W_{name}", (width, heads, each), td.f32), td.Func(name)
        p[b, q, h, e] = td.sum(X[b, q, d] * W[d, h, e], axis=d)
        parts.append(p)
    query, key, value = parts
    score, weight, total, mixed, y = (td.Func(n) for n in ("score", "weight", "total", "mixed", "y"))
    score[b, h, q, k] = td.sum(query[b, q, h, e] * key[b, k, h, e], axis=e)
    weight[b, h, q, k] = td.exp(score[b, h, q, k])
    total[b, h, q] = td.sum(weight[b, h, q, k], axis=k)
    mixed[b, q, h, e] = td.sum(weight[b, h, q, k] / total[b, h, q] * value[b, k, h, e], axis=k)
    y[b, q, d] = td.sum(mixed[b, q, h, e] * Wo[h, e, d], axis=[h, e])
    return td.Schedule(y)


def test_attention_by_heads_needs_one_all_reduce():
    s = attention()
    fix = {f"W_{n}": "dhe -> h" for n in ("query", "key", "value")} | {"Wo": "hed -> h"}
    planned = s.plan(td.Cluster(ranks=4, **SLOW_TASKS), fix=fix | {"X": "bqd -> *", "y": "bqd -> *"})
    assert planned.bytes == max(td.compile(s).plan().received) == 2 * 3 * (2 * 16 * 32) // 4 * 4
    assert str(planned).count("all-reduce") == 1
    assert planned.gap == 0


def test_weights_of_classifiers_are_cut_where_batches_are_not():
    """The three last layers of AlexNet: 58,621,952 weights, 1,024 images."""
    X = td.Tensor("X", (1024, 9216), td.f32)
    value, weights, sizes = X, [], (9216, 4096, 4096, 1000)
    for n in range(3):
        W, y = td.Tensor(f"W{n}", sizes[n : n + 2], td.f32), td.Func(f"y{n}")
        y[b, j] = td.sum(value[b, i] * W[i, j], axis=i)
        weights.append(W)
        value = y
    seed = td.Tensor("seed", (1024, 1000), td.f32)
    news = []
    for n, (W, gradient) in enumerate(zip(weights, td.vjp(value, weights, seed=seed), strict=True)):
        new = td.Func(f"V{n}")
        new[i, j] = W[i, j] - 0.1 * gradient[i, j]
        news.append(new)
    cluster = td.Cluster(ranks=8, **SLOW_TASKS)
    batch = {"X": "bi -> b", "seed": "bj -> b"}
    same = {f"V{n}": f"W{n}" for n in range(3)}
    copies = batch | {f"W{n}": "ij -> *" for n in range(3)} | same
    s = td.Schedule(*news)
    for f in s.program.funcs:
        reduced = [v for v, *_ in f.definitions[0].ranges] if f.name.startswith("d_W") else ["b"]
        loops = ("*",) if f.name.startswith("V") else tuple(reduced)
        s[f.name].distribute(loops, td.Grid(rank=8))
    gradients = {f"d_W{n}": "ij -> *" for n in range(3)}
    assert s.plan(cluster, fix=copies | gradients).bytes == 102_588_416 * 4  # two times 7/8 of the weights
    planned = td.Schedule(*news).plan(cluster, fix=batch | same)
    assert planned.bytes <= 31_195_136 * 4
    assert planned.gap < 1e-4
    assert all(planned.placement(f"W{n}").axes_of(0) or planned.placement(f"W{n}").axes_of(1) for n in (0, 1))


def test_optimizer_states_are_cut_and_weights_only_where_memory_limits():
    """ZeRO: gradients are scattered and states cut while weights are copies; then weights are cut, too."""
    X = td.Tensor("X", (1024, 128), td.f32)
    weights = [td.Tensor(f"W{n}", (128, 128), td.f32) for n in range(2)]
    y1, y2, error, T = td.Func("y1"), td.Func("y2"), td.Func("error"), td.Tensor("T", (1024, 128), td.f32)
    y1[b, j] = td.sum(X[b, i] * weights[0][i, j], axis=i)
    y2[b, j] = td.sum(td.maximum(y1[b, i], 0) * weights[1][i, j], axis=i)
    error[b, j] = y2[b, j] - T[b, j]
    outputs, same = [], {}
    for n, (W, g) in enumerate(zip(weights, td.vjp(y2, weights, seed=error), strict=True)):
        m, v = (td.Tensor(f"{t}{n}", (128, 128), td.f32) for t in "mv")
        new_m, new_v, new = (td.Func(f"{t}{n}") for t in ("new_m", "new_v", "new_W"))
        new_m[i, j] = 0.9 * m[i, j] + 0.1 * g[i, j]
        new_v[i, j] = 0.99 * v[i, j] + 0.01 * g[i, j] ** 2
        new[i, j] = W[i, j] - 0.01 * new_m[i, j] / (td.sqrt(new_v[i, j]) + 1e-8)
        outputs += [new, new_m, new_v]
        same |= {f"new_{t}{n}": f"{t}{n}" for t in ("W", "m", "v")}
    fix = same | {"X": "bi -> b", "T": "bj -> b"}
    states = [f"{t}{n}" for t in "mv" for n in range(2)]
    cluster = td.Cluster(ranks=8, latency=0.0, operations=1e8, memory_bandwidth=1e9)
    planned = td.Schedule(*outputs).plan(cluster, fix=fix)

    def is_cut(tensor: str) -> bool:
        placement = planned.placement(tensor)
        return bool(placement.axes_of(0) or placement.axes_of(1))

    assert all(map(is_cut, states))
    assert not is_cut("W1")
    assert "reduce-scatter" in str(planned)
    planned = td.Schedule(*outputs).plan(cluster, fix=fix, memory=planned.memory - 128 * 128 * 4)
    assert all(map(is_cut, [*states, "W1"]))
