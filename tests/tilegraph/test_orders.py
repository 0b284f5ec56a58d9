"""Chains of products in the order that takes the fewest operations."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tdsl.schedule.properties import operations, root_boxes, volume
from tdsl.tilegraph.orders import STORED, fewer_operations


def chain(dims: list[int], rng: np.random.Generator) -> td.Func:
    """A product of matrices with brackets set at random."""
    v = [td.vars(f"v{n}") for n in range(len(dims))]
    matrices = [td.Tensor(f"m{n}", (dims[n], dims[n + 1]), td.f64) for n in range(len(dims) - 1)]

    def product(lo: int, hi: int) -> td.Tensor | td.Func:
        if hi - lo == 1:
            return matrices[lo]
        at = int(rng.integers(lo + 1, hi))
        a, b, f = product(lo, at), product(at, hi), td.Func(f"f{lo}_{hi}")
        f[v[lo], v[hi]] = td.sum(a[v[lo], v[at]] * b[v[at], v[hi]], axis=v[at])
        return f

    return product(0, len(dims) - 1)


def least(dims: tuple[int, ...]) -> int:
    """The multiplications of the best brackets, and what is stored between, by the textbook."""

    @cache
    def cost(i: int, j: int) -> int:
        if j - i == 1:
            return 0
        stored = STORED * dims[i] * dims[j] if j - i < len(dims) - 1 else 0
        ways = (cost(i, k) + cost(k, j) + dims[i] * dims[k] * dims[j] for k in range(i + 1, j))
        return min(ways) + stored

    return cost(0, len(dims) - 1)


def cost_of(s: td.Schedule) -> int:
    boxes, total = root_boxes(s.state), 0
    for f in s.state.program.funcs:
        ((_, lo, hi),) = f.definitions[0].ranges
        points = volume(boxes[f.name])
        total += points * (hi.value - lo.value) + STORED * points * (f.name not in s.program.outputs)
    return total


@pytest.mark.parametrize("seed", range(12))
def test_brackets_are_those_of_the_textbook(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dims = [int(n) for n in rng.choice([1, 2, 5, 30, 97, 400], 4 + seed // 3)]
    s = td.Schedule(chain(dims, rng))
    reordered, before = fewer_operations(s.program, {}), operations(s.state)
    if reordered is None:
        assert least(tuple(dims)) > 0.6 * cost_of(s)
        return
    for func, source in reordered.steps:
        s[func].reassociate(source)
    assert cost_of(s) == least(tuple(dims))
    assert operations(s.state) == pytest.approx(reordered.part * before)


def test_a_sum_that_two_chains_share_is_gone_from_both() -> None:
    @td.op
    def linear(q: td.f32["S", "D"], k: td.f32["S", "D"], v: td.f32["S", "D"]):
        i, j, d, e = td.vars("i j d e")
        score, total, out = td.Func("score"), td.Func("total"), td.Func("out")
        score[i, j] = td.sum(q[i, d] * k[j, d], axis=d) / 8
        total[i] = td.sum(score[i, j], axis=j)
        out[i, e] = td.sum(score[i, j] * v[j, e], axis=j) / total[i]
        return out

    sizes = {"S": 500, "D": 16}
    s = linear.autoschedule(**sizes)
    assert "reassociate" in str(s)
    assert not s.state.program.has_func("score_sum")
    assert "taken: reassociated" in str(s.explain())
    assert str(linear.autoschedule(**sizes)) == str(s)
    rng = np.random.default_rng(0)
    given = {n: rng.random((500, 16), dtype=np.float32) for n in "qkv"}
    (want,) = interpret(linear.program, given)
    np.testing.assert_allclose(td.compile(s)(**given), want, rtol=1e-4)
    kept = linear.autoschedule(**sizes, pin={"score_sum": "memory"})
    assert kept.state.program.has_func("score_sum")
    assert fewer_operations(linear.program, {"S": 12, "D": 16}) is None


@pytest.mark.parametrize("causal", [False, True])
def test_masks_count_as_factors(causal: bool) -> None:
    """One of rows and columns cannot leave the sum over columns; one of columns can."""
    i, j, k, l = td.vars("i j k l")
    a, b = td.Tensor("a", (200, 8), td.f64), td.Tensor("b", (200, 8), td.f64)
    s, y = td.Func("s"), td.Func("y")
    s[i, j] = td.sum(a[i, k] * b[j, k], axis=k)
    mask = j <= i if causal else b[j, 0] > 0
    y[i, l] = td.sum(td.where(mask, s[i, j], 0) * b[j, l], axis=j)
    reordered = fewer_operations(td.Schedule(y).program, {})
    assert (reordered is None) == causal


def test_weights_that_are_no_products_keep_their_order() -> None:
    i, j, d, e = td.vars("i j d e")
    q, k = td.Tensor("q", (500, 16), td.f32), td.Tensor("k", (500, 16), td.f32)
    score, out = td.Func("score"), td.Func("out")
    score[i, j] = td.maximum(td.sum(q[i, d] * k[j, d], axis=d), 0)
    out[i, e] = td.sum(score[i, j] * k[j, e], axis=j)
    assert fewer_operations(td.Schedule(out).program, {}) is None


def test_products_of_constants_cost_nothing() -> None:
    """Two weights become one, but not those of a low rank."""

    def steps(inner: int) -> object:
        i, j, k, l = td.vars("i j k l")
        x, s, y = td.Tensor("x", (64, 200), td.f32), td.Func("s"), td.Func("y")
        v, w = td.Tensor("v", (200, inner), td.f32), td.Tensor("w", (inner, 100), td.f32)
        s[i, j] = td.sum(x[i, k] * v[k, j], axis=k)
        y[i, l] = td.sum(s[i, j] * w[j, l], axis=j)
        program = td.Schedule(y).program
        inputs = tuple(replace(t, constant=t.name != "x") for t in program.inputs)
        reordered = fewer_operations(replace(program, inputs=inputs), {})
        return reordered and reordered.steps

    assert steps(300) == (("y", "s"),)
    assert steps(8) is None
