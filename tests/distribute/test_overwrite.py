"""A func takes the memory of an input, once nothing reads the input any more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.distribute.check import check
from tdsl.distribute.show import show_rank
from tests.distribute.volumes import assert_volume_is_of_plan

i, j, k, b = td.vars("i j k b")


def training_step(
    ranks: int, *, first: bool = True, overwrite: bool = True, slices: bool = False
) -> td.Schedule:
    """SGD on two layers, data parallel; the weights are copies, or slices that are gathered (ZeRO-3)."""
    grid = td.Grid(x=ranks)
    x, dy = td.Tensor("x", (8, 6), td.f64), td.Tensor("dy", (8, 5), td.f64)
    w1, w2 = td.Tensor("w1", (6, 7), td.f64), td.Tensor("w2", (7, 5), td.f64)
    h, d1, d2, dh, v1, v2 = (td.Func(n) for n in ("h", "d1", "d2", "dh", "v1", "v2"))
    h[b, k] = td.sum(x[b, i] * w1[i, k], axis=i)
    d2[k, j] = td.sum(h[b, k] * dy[b, j], axis=b)
    dh[b, k] = td.sum(dy[b, j] * w2[k, j], axis=j)
    d1[i, k] = td.sum(x[b, i] * dh[b, k], axis=b)
    v2[k, j] = w2[k, j] - 0.5 * d2[k, j]
    v1[i, k] = w1[i, k] - 0.5 * d1[i, k]
    s = td.Schedule(*((v1, v2) if first else (v2, v1)))
    for t in (x, dy):
        s.place(t, "rc -> r", grid)
    for f in (h, dh):
        s.place(f, "bk -> b", grid)[f].distribute(b, grid)
    for w, d, v in ((w1, d1, v1), (w2, d2, v2)):
        for t in (w, d, v):
            s.place(t, "rc -> r" if slices else "rc -> *", grid)
        s[d].distribute(b, grid)
        s[v].distribute(onto=v)
        if overwrite:
            s.overwrite(v, w)
    return s


def step_by_numpy(x: Any, dy: Any, w1: Any, w2: Any) -> tuple[Any, Any]:
    return w1 - 0.5 * (x.T @ (dy @ w2.T)), w2 - 0.5 * ((x @ w1).T @ dy)


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_weights_are_overwritten_after_their_last_reader(first: bool, slices: bool) -> None:
    """Whichever output is named first: the stage of a weight waits for the gradient that reads it."""
    s = training_step(4, first=first, slices=slices)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 3, shape).astype(float) for shape in ((8, 6), (8, 5), (6, 7), (7, 5))]
    before = [a.copy() for a in arrays]
    p = td.compile(s, target="python")
    out, counted = p.simulate(*arrays, count=True)
    for a, kept in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a, kept)
    for got, expected in zip(out, step_by_numpy(*arrays)[:: 1 if first else -1], strict=True):
        np.testing.assert_array_equal(got, expected)
    plan = p.plan()
    assert counted.received == plan.received
    check(plan)
    assert_volume_is_of_plan(p._specialise({}))
    kept = td.compile(training_step(4, first=first, slices=slices, overwrite=False)).plan()
    saved = [a - b for a, b in zip(kept.peak_memory, plan.peak_memory, strict=True)]
    assert min(saved) >= 0 < max(saved), "an updated weight takes no memory of its own"
    assert "over 'w1'" in show_rank(plan.rank(0))


def test_a_call_writes_into_the_block_of_the_caller() -> None:
    """On a grid of one rank, whose block is the whole."""
    grid = td.Grid(x=1)
    w, v = td.Tensor("w", (3, 4), td.f64), td.Func("v")
    v[i, j] = 2 * w[i, j]
    s = td.Schedule(v).place(w, "rc -> r", grid).place(v, "rc -> r", grid)
    s[v].distribute(i, grid)
    s.overwrite(v, w)
    assert str(s).endswith('s.overwrite("v", "w")')
    assert td.Schedule(v).replay(s.to_json()).state == s.state
    p = td.compile(s)
    whole = np.arange(12.0).reshape(3, 4)
    block = p.block("w", whole)
    result = p(block)
    assert result is block or np.shares_memory(result, block)
    np.testing.assert_array_equal(block, 2 * whole)
    for wrong, what in (
        (np.arange(24.0).reshape(3, 8)[:, ::2], "not contiguous"),
        (block.view(), "read-only"),
    ):
        wrong.flags.writeable = False
        with pytest.raises(td.TargetError, match=what):
            p(wrong)


def scaled(
    value: Any, *, shape: tuple[int, int] = (4, 4), dtype: Any = td.f64
) -> tuple[td.Schedule, td.Func]:
    """An output of a tensor, placed in the same way."""
    grid = td.Grid(x=2)
    w, v = td.Tensor("w", (4, 4), td.f64), td.Func("v", shape=shape)
    v[i, j] = td.cast(value(w), dtype)
    s = td.Schedule(v).place(w, "rc -> r", grid).place(v, "rc -> r", grid)
    s[v].distribute(i, grid)
    return s, v


def test_what_cannot_be_overwritten_is_refused() -> None:
    s, v = scaled(lambda w: 2 * w[j, i])
    with pytest.raises(td.ScheduleError, match="'v' still reads 'w' where it overwrites it"):
        s.overwrite(v, "w")
    s, v = scaled(lambda w: w[i, j], dtype=td.f32)
    with pytest.raises(td.ScheduleError, match="'v' has other elements or dimensions than 'w'"):
        s.overwrite(v, "w")
    s, v = scaled(lambda w: w[i, j], shape=(3, 4))
    with pytest.raises(td.ScheduleError, match="which has another shape"):
        td.compile(s.overwrite(v, "w")).plan()
    with pytest.raises(td.ScheduleError, match="'v' overwrites 'w' already"):
        s.overwrite(v, "w")
    with pytest.raises(td.ScheduleError, match="there is no input 'v'"):
        s.overwrite(v, v)
    s, v = scaled(lambda w: w[i, j] + 1)
    steps, _ = s[v].split(j, 2)
    s[v].reorder(steps, *(x for x in s[v].loops[1:] if x.name != steps.name)).communicate("w", at=steps)
    with pytest.raises(td.ScheduleError, match="reads it in steps of a loop"):
        td.compile(s.overwrite(v, "w")).plan()
    s, v = scaled(lambda w: 2 * w[i, j])
    s[v].split(j, 3, tail="shift")  # the second block computes two columns again
    with pytest.raises(td.ScheduleError, match="reads elements again that it has written"):
        td.compile(s.overwrite(v, "w")).plan()


def test_the_func_in_a_task_that_reads_what_is_overwritten_is_named() -> None:
    grid = td.Grid(x=2)
    w, v, row = td.Tensor("w", (4, 4), td.f64), td.Func("v"), td.Func("row")
    row[i] = td.sum(w[i, k], axis=k)
    v[i, j] = w[i, j] - row[i]
    s = td.Schedule(v).place(w, "rc -> r", grid).place(v, "rc -> r", grid)
    s[v].distribute(i, grid)
    words = "'v' overwrites 'w', which 'row', a func that is computed in its tasks, reads"
    with pytest.raises(td.ScheduleError, match=words) as error:
        td.compile(s.overwrite(v, w)).plan()
    assert "'row' reads 'w' here" in str(error.value)
    assert "row[i] = td.sum(w[i, k], axis=k)" in str(error.value)
    with pytest.raises(td.UnknownAttribute, match=r"the schedule has it: schedule\.explain\(\)"):
        td.compile(scaled(lambda w: w[i, j])[0]).explain()


def test_an_input_that_is_read_later_is_not_overwritten() -> None:
    """By a func that reads the one that overwrites it: both places are shown."""
    grid = td.Grid(x=2)
    w, v, z = td.Tensor("w", (4,), td.f64), td.Func("v"), td.Func("z")
    v[i] = 2 * w[i]
    z[i] = v[i] + w[i]
    s = td.Schedule(z, v).place(w, "i -> i", grid)
    for f in (v, z):
        s.place(f, "i -> i", grid)[f].distribute(i, grid)
    s.overwrite(v, w)
    with pytest.raises(td.ScheduleError, match="'v' overwrites 'w', which 'z' still reads") as error:
        td.compile(s).plan()
    assert "read here" in str(error.value)
    assert "overwritten here" in str(error.value)
    s = td.Schedule(z, v).place(w, "i -> *", grid).place(v, "i -> i", grid).place(z, "i -> i", grid)
    for f in (v, z):
        s[f].distribute(i, grid)
    s.overwrite(z, w)
    with pytest.raises(td.ScheduleError, match="which has another placement: i -> i, i -> \\*"):
        td.compile(s).plan()
