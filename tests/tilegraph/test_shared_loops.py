"""Funcs that read the same share loops over it: found, legal, right, and read from memory once."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.by_recipes import complete_by_recipes
from tdsl.autoschedule.explain import explain
from tdsl.cost.moved import total
from tdsl.cost.predict import Prediction
from tdsl.lang.interp import interpret
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.bind import bind_state
from tdsl.tilegraph.default import decide
from tdsl.tilegraph.shared_loops import find_shared_loops, write_shared_loops

i, j, k = td.vars("i j k")
LEVELS = (
    MemoryLevel("L1", 1 << 12), MemoryLevel("L2", 1 << 13), MemoryLevel("memory", None, managed=True),
)  # fmt: skip
SMALL = Machine(vector_bytes=64, threads=2, registers=32, levels=LEVELS)


def extremes(rows: int, columns: int) -> tuple[td.Func, ...]:
    x = td.Tensor("x", (rows, columns), td.f32)
    low, high, total_ = td.Func("low"), td.Func("high"), td.Func("total")
    low[i] = td.min(x[i, j], axis=j)
    high[i] = td.max(x[i, j], axis=j)
    total_[i] = td.sum(x[i, j], axis=j)
    return low, high, total_


def unlike(rows: int, columns: int) -> tuple[td.Func, ...]:
    """A window, a sum along the other axis of a turned read, and points."""
    x = td.Tensor("x", (rows, columns), td.f32)
    window, sums, points = (
        td.Func("window", shape=(rows, columns)),
        td.Func("sums"),
        td.Func("points"),
    )
    around = td.pad(x)
    window[i, j] = around[i - 1, j] + around[i + 1, j + 2]
    sums[k] = td.sum(x[k, j] * x[k, j], axis=j)
    points[j, i] = x[j, i] * 2
    return window, sums, points


def through_a_middle(rows: int, columns: int) -> tuple[td.Func, ...]:
    """What both read is made first, and one result needs another."""
    x = td.Tensor("x", (rows, columns), td.f32)
    middle, low, sums, last = (td.Func(n) for n in ("middle", "low", "sums", "last"))
    middle[i, j] = td.sum(x[k, j], axis=k) + x[i, j]
    low[i] = td.min(middle[i, j], axis=j)
    sums[i] = td.sum(middle[i, j], axis=j)
    last[i] = low[i] / sums[0]
    return low, sums, last


def lines(rows: int, columns: int) -> tuple[td.Func, ...]:
    """Vectors along the rows themselves, of several widths; a window that is left alone."""
    x = td.Tensor("x", (rows * columns,), td.f32)
    double, wide, sums = td.Func("double"), td.Func("wide"), td.Func("sums")
    double[i] = x[i] * 2
    wide[i] = td.cast(x[i], td.f64) + 1
    sums[i] = td.sum(x[i + k], axis=td.range("k", 0, 3))
    return double, wide, sums.with_shape(rows * columns - 2)


@pytest.mark.parametrize("case", [lines, extremes, unlike, through_a_middle])
@pytest.mark.parametrize("shape", [(64, 64), (49, 83)])
def test_shared_loops_give_the_same(case, shape, rng) -> None:
    s = td.Schedule(*case(*shape))
    state = bind_state(s.state, {})
    plans = find_shared_loops(state, complete_by_recipes(state, SMALL)[0], SMALL)
    assert plans
    for plan in plans:
        write_shared_loops(s, plan, SMALL)
    x = rng.integers(-9, 10, shape).astype(np.float32)
    x = x.reshape([n.value for n in s.program.input("x").shape])
    want = interpret(s.program, {"x": x})
    for target in ("cpu", "python"):
        for result, other in zip(td.compile(s, target=target)(x), want, strict=True):
            np.testing.assert_allclose(result, other, rtol=1e-5)


def test_the_default_reads_once_what_several_funcs_need() -> None:
    s = td.Schedule(*extremes(512, 256))
    state = bind_state(s.state, {})
    completed, decisions = decide(state, SMALL)
    assert [(d.func, d.how) for d in decisions] == [(n, "together") for n in ("low", "high", "total")]
    assert "rows at a time of x, which high, total read, too" in explain(decisions)
    once = 4 * 512 * 256
    assert Prediction(completed, SMALL).moved("L2")["x"].read == once
    before = Prediction(complete_by_recipes(state, SMALL)[0], SMALL)
    assert before.moved("L2")["x"].read == 3 * once
    assert total(before.moved("L2")) == 4 * 512 * (3 * 256 + 3)


def test_small_sources_and_single_readers_share_no_loops() -> None:
    small = bind_state(td.Schedule(*extremes(16, 64)).state, {})
    assert not find_shared_loops(small, complete_by_recipes(small, SMALL)[0], SMALL)
    alone = bind_state(td.Schedule(extremes(512, 256)[0]).state, {})
    assert not find_shared_loops(alone, complete_by_recipes(alone, SMALL)[0], SMALL)


def test_funcs_that_need_each_other_do_not_share_loops() -> None:
    x, top, y = td.Tensor("x", (512, 256), td.f32), td.Func("top"), td.Func("y")
    top[i] = td.max(x[i, j], axis=j)
    y[i, j] = x[i, j] + top[511 - i]
    state = bind_state(td.Schedule(y, top).state, {})
    assert not find_shared_loops(state, complete_by_recipes(state, SMALL)[0], SMALL)
