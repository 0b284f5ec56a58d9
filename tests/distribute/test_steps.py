"""Steps of loops of several funcs in one order: pipelines, their memory, their time, and wrong orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.execution_order import _meet
from tdsl.communication.steps import Allocate, Exchange, Finish, Free, RankPlan, Run, Start
from tdsl.distribute.check import check
from tdsl.placement.ownership import intersection
from tdsl.placement.spans import block_cyclic
from tests.distribute.pipelined import arrays, chain, gradients, on_stages, steps_of, training
from tests.distribute.volumes import assert_volume_is_of_plan

b, i, j = td.vars("b i j")
ORDERS = {
    "gpipe": td.recipes.gpipe,
    "1F1B": td.recipes.one_f_one_b,
    "eager": td.recipes.eager_one_f_one_b,
}


def most_blocks(plan: RankPlan, tensor: str) -> int:
    """The most buffers of a tensor at a time on a rank, except for those of what it receives."""
    names: set[str] = set()
    most = 0
    for step in plan.steps:
        match step:
            case Allocate(buffer, t, _) if t == tensor and " at " not in buffer:
                names.add(buffer)
            case Free(buffer):
                names.discard(buffer)
            case _:
                pass
        most = max(most, len(names))
    return most


def seconds(p: Any, path: Path, latency: float, chunks: int = 1) -> float:
    """The time of a chain in those of a part, forward or backward, of all stages of a rank."""
    return p.trace(path, latency=latency * chunks, bandwidth=1e30, operations=10, memory=1e30) / chunks


@pytest.mark.parametrize(
    "order, times, blocks",
    [
        ("gpipe", (22, 23.5, 25, 28), [8, 8, 8, 8]),
        ("1F1B", (22, 26, 30, 38), [4, 3, 2, 1]),
        ("eager", (22, 23.5, 25, 28), [7, 5, 3, 1]),
    ],
)
def test_orders_of_pipelines_take_the_published_time_and_memory(
    order: str, times: tuple[float, ...], blocks: list[int], tmp_path: Path
) -> None:
    """Four stages, eight steps; messages take no time, a quarter, a half, and all of the time of a step."""
    p = td.compile(chain(4, 8, order=ORDERS[order](4, 8)), target="python")
    latencies = (0, 0.25, 0.5, 1)
    assert [seconds(p, tmp_path / "trace", c) for c in latencies] == pytest.approx(times)
    plan = p.plan()
    assert [most_blocks(plan.rank(n), f"h{n}") for n in range(4)] == blocks
    check(plan)


def test_the_last_rank_has_the_memory_of_its_blocks() -> None:
    """It keeps dy, and of one step what it computes and what it receives or sends, of 80 bytes each."""
    plan = td.compile(chain(4, 8, order=td.recipes.one_f_one_b(4, 8), windows=False)).plan()
    assert plan.peak_memory[3] == (8 + 1 + 1) * 80
    kept = td.compile(chain(4, 8, order=td.recipes.gpipe(4, 8), windows=False)).plan()
    assert [a - b for a, b in zip(kept.peak_memory, plan.peak_memory, strict=True)][1:3] == [5 * 80, 6 * 80]


@pytest.mark.parametrize("ranks, steps, chunks, time", [(4, 8, 2, 19), (4, 8, 4, 17.5)])
def test_interleaved_stages_have_shorter_gaps(
    ranks: int, steps: int, chunks: int, time: float, tmp_path: Path
) -> None:
    s = chain(ranks, steps, chunks, td.recipes.interleaved_one_f_one_b(ranks, steps, chunks))
    p = td.compile(s, target="python")
    assert seconds(p, tmp_path / "trace", 0, chunks) == pytest.approx(time)
    assert td.recipes.interleaved_one_f_one_b(ranks, steps, 1) == td.recipes.eager_one_f_one_b(ranks, steps)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_orders_are_those_of_a_pipeline(stages: int, steps: int) -> None:
    """Each step comes once and after the loop before; each rank keeps as many steps as its order says."""
    for name, order in ORDERS.items():
        sequence = order(stages, steps)
        assert sorted(sequence) == [(k, n) for k in range(2 * stages) for n in range(steps)]
        position = {step: n for n, step in enumerate(sequence)}
        assert all(position[k - 1, n] < at for (k, n), at in position.items() if k)
        for stage in range(stages):
            kept = [1 if k == stage else -1 for k, _ in sequence if k in (stage, 2 * stages - 1 - stage)]
            left = stages - stage
            most = {"gpipe": steps, "1F1B": left, "eager": 2 * left - 1}[name]
            assert max(np.cumsum(kept)) == min(steps, most)


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("order", [None, *ORDERS])
def test_gradients_are_those_of_one_rank(order: str | None, windows: bool) -> None:
    stages, batch, width = 3, 7, 2  # steps of 2, 2, 2 and 1 rows
    s = on_stages(training(stages, batch, width), stages)
    loops = steps_of(s, stages, 4, windows=windows)
    s.interleave(loops, order=order and ORDERS[order](stages, 4))
    inputs = arrays(stages, batch, width)
    p = td.compile(s, target="python")
    outputs, counted = p.simulate(*inputs, count=True)
    for got, expected in zip(outputs, gradients(inputs, stages), strict=True):
        np.testing.assert_array_equal(got, expected)
    plan = p.plan()
    assert (counted.received, counted.sent) == (plan.received, plan.sent)
    assert counted.messages == plan.messages
    check(plan)
    assert_volume_is_of_plan(p._specialise({}))
    again = on_stages(training(stages, batch, width), stages)
    assert str(td.Schedule(*training(stages, batch, width)).replay(s.to_json())) == str(s)
    exec(str(s)[len(str(again)) :], {"s": again})
    assert str(again) == str(s)


def test_a_gradient_goes_through_an_optimizer_in_chunks() -> None:
    """As CoCoNet's: each chunk is reduced and scattered, used, and gathered before the next one."""
    x, w = td.Tensor("x", (8, 12), td.i64), td.Tensor("w", (12,), td.i64)
    g, v = td.Func("g"), td.Func("v")
    g[i] = td.sum(x[b, i], axis=b)
    v[i] = w[i] - g[i]
    grid, s = td.Grid(x=2), td.Schedule(v)
    s.place(x, "bi -> b", grid).place(w, "i -> i/2", grid).place(g, "i -> i/2", grid).place(v, "i -> *", grid)
    s[g].distribute(b, grid)
    chunk, _ = s[g].divide(i, 3)
    s[g].reorder(chunk, s[g].local(b))
    s[g].communicate(g, at=chunk)
    s[v].distribute(onto=w)
    s.interleave([chunk, s[v].loops[1]])
    p = td.compile(s, target="python")
    rows = np.arange(96).reshape(8, 12)
    got, counted = p.simulate(rows, np.ones(12, int), count=True)
    np.testing.assert_array_equal(got, 1 - rows.sum(0))
    plan = p.plan()
    assert counted.received == plan.received == (2 * 6 * 8,) * 2
    check(plan)
    steps = [
        s.func if isinstance(s, Run) else "x" for s in plan.rank(0).steps if isinstance(s, Run | Exchange)
    ]
    assert "".join(steps) == 3 * "gxvx"


def prefetched(since: str | None) -> td.Schedule:
    """Two layers whose weights are slices, gathered for the layer (ZeRO-3)."""
    x = td.Tensor("x", (6, 4), td.i64)
    w = [td.Tensor(f"w{n}", (4, 4), td.i64) for n in range(2)]
    h = [td.Func(f"h{n}") for n in range(2)]
    for n in range(2):
        h[n][b, j] = td.sum((h[0] if n else x)[b, i] * w[n][i, j], axis=i)
    grid, s = td.Grid(x=2), td.Schedule(h[1])
    s.place(x, "bi -> b", grid)
    for n in range(2):
        s.place(w[n], "ij -> i", grid).place(h[n], "bj -> b", grid)
        (rank,) = s[h[n]].distribute(b, grid)
        s[h[n]].communicate(w[n], at=rank, since=since if n else None)
    return s


def test_what_is_read_later_is_in_flight_since_another_func_began() -> None:
    inputs = [np.arange(24).reshape(6, 4), np.arange(16).reshape(4, 4), np.ones((4, 4), int)]
    plain, early = (td.compile(prefetched(since), target="python") for since in (None, "h0"))
    np.testing.assert_array_equal(plain.simulate(*inputs), early.simulate(*inputs))
    assert (plain.plan().received, plain.plan().messages) == (early.plan().received, early.plan().messages)
    steps = [s for s in early.plan().rank(0).steps if isinstance(s, Start | Finish | Run)]
    kinds = "".join({Start: "s", Finish: "f", Run: "r"}[type(s)] for s in steps)
    assert kinds == "ssrfrf"  # what the rank sends may end last
    check(early.plan())


def two_funcs(count: int = 4) -> tuple[td.Schedule, list[Any]]:
    """A func and a reader of it on two ranks, with their loops over steps."""
    x, f, g = td.Tensor("x", (8,), td.i64), td.Func("f"), td.Func("g")
    f[i] = x[i] + 1
    g[i] = f[i] * 2
    grid, s = td.Grid(x=2), td.Schedule(g)
    s.place(x, "i -> 0", grid).place(f, "i -> 0", grid).place(g, "i -> 1", grid)
    s[f].distribute(0, grid)
    s[g].distribute(1, grid)
    loops = [s[f].divide(i, 4)[0], s[g].divide(i, count)[0]]
    s[g].communicate(f, at=loops[1])
    return s, loops


@pytest.mark.parametrize(
    "order, message",
    [
        ([(0, 0), (1, 1)], "step 1 of 'g' comes where step 0 is next"),
        ([(0, n) for n in range(4)], "'g' has 4 steps, of which 0 are named"),
        ([(0, n) for n in range(5)], "'f' has 4 steps, of which 5 are named"),
        ([(2, 0)], "there is no loop 2"),
        ([(0, 0), (0, 0)], "step 0 of 'f' comes where step 1 is next"),
        (
            [(k, n) for n in range(4) for k in (1, 0)],
            "step 0 of 'g' waits for step 0 of 'f', which comes later",
        ),
    ],
)
def test_an_order_names_each_step_after_what_it_reads(order: Any, message: str) -> None:
    s, loops = two_funcs()
    s.interleave(loops, order=order)
    with pytest.raises(td.ScheduleError, match=message) as error:
        td.compile(s).plan()
    assert "s.interleave(loops" in str(error.value)
    assert error.value.hint


def test_loops_that_advance_together_have_as_many_steps() -> None:
    s, loops = two_funcs(2)
    s.interleave([loops])
    with pytest.raises(td.ScheduleError, match="'f' has 4 steps, 'g' has 2"):
        td.compile(s).plan()
    s, loops = two_funcs(2)  # in turn, until both are done
    with pytest.raises(td.ScheduleError, match="step 0 of 'g' waits for step 1 of 'f'"):
        td.compile(s.interleave(loops)).plan()


def test_wrong_loops_and_windows_are_refused() -> None:
    s, loops = two_funcs()
    for wrong, message in (
        ([loops[0]], "one loop has one order"),
        ([loops[0], loops[0]], "is interleaved already"),
        ([loops[0], ("g", "i_i")], "'i_i' of 'g' is not the first loop"),
        ([loops[0], ("x", "i")], "'x' is not distributed"),
    ):
        with pytest.raises(td.ScheduleError, match=message):
            s.interleave(wrong)
    with pytest.raises(td.TypeMismatch, match="3 is no loop of a func"):
        s.interleave([loops[0], 3])
    s.interleave(loops)
    with pytest.raises(td.ScheduleError, match="'i_o' of 'g' is not the first loop"):
        s["g"].reorder("i_i", "i_o")
    with pytest.raises(td.ScheduleError, match="'q' is no other func"):
        two_funcs()[0]["g"].communicate("x", at="i_o", since="q")
    with pytest.raises(td.ScheduleError, match="two times to start"):
        two_funcs()[0]["g"].communicate("x", at="i_o", since="f", prefetch=1)


def test_partial_results_are_received_in_a_window() -> None:
    a, b, grid = td.Tensor("a", (8, 8), td.i64), td.Tensor("b", (8, 4), td.i64), td.Grid(x=4)
    i, j, k = td.vars("i j k")
    y, z = td.Func("y"), td.Func("z")
    y[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    z[i, j] = y[i, j] + 1
    s = td.Schedule(z).place(a, "ik -> k", grid).place(b, "kj -> k", grid)
    s.place(y, "ij -> partial(sum)", grid).place(z, "ij -> i", grid)
    s[y].distribute(k, grid)
    (at,) = s[z].distribute(i, grid)
    s[z].communicate(y, at=at, since=y)
    values = np.arange(64).reshape(8, 8), np.arange(32).reshape(8, 4)
    p = td.compile(s, target="python")
    got, counted = p.simulate(*values, count=True)
    np.testing.assert_array_equal(got, values[0] @ values[1] + 1)
    assert (counted.received, counted.sent) == (p.plan().received, p.plan().sent)


def test_a_window_ends_after_it_starts() -> None:
    """Before what it waits for begins, no window can start; and it ends at a step, which has an order."""
    x, f, g, h = td.Tensor("x", (8,), td.i64), td.Func("f"), td.Func("g"), td.Func("h")
    f[i] = x[i] + 1
    g[i] = f[i] * 2
    h[i] = g[i] + 3

    def schedule(since: str, at: str) -> td.Schedule:
        grid, s = td.Grid(x=2), td.Schedule(h)
        s.place(x, "i -> 0", grid)
        for n, name in enumerate("fgh"):
            s.place(name, f"i -> {n % 2}", grid)[name].distribute(n % 2, grid)
            s[name].divide(i, 2)
        s["g"].communicate(f, at=at, since=since)
        return s

    with pytest.raises(td.ScheduleError, match="'h' begins after it"):
        td.compile(schedule("h", "i_o").interleave([("f", "i_o"), ("g", "i_o"), ("h", "i_o")])).plan()
    with pytest.raises(td.ScheduleError, match="at a loop without an order"):
        td.compile(schedule("f", "i_o")).plan()


def test_a_func_between_steps_is_stepped_too() -> None:
    x, f, g, h = td.Tensor("x", (8,), td.i64), td.Func("f"), td.Func("g"), td.Func("h")
    f[i] = x[i] + 1
    g[i] = f[i] * 2
    h[i] = g[i] + f[i]
    grid, s = td.Grid(x=2), td.Schedule(h)
    s.place(x, "i -> i", grid)
    for name in "fgh":
        s.place(name, "i -> i", grid)[name].distribute(i, grid)
        s[name].divide(s[name].local(i), 2)
    s.interleave([("f", s["f"].loops[1].name), ("h", s["h"].loops[1].name)])
    with pytest.raises(td.ScheduleError, match="'g' reads 'f' and is read by 'h'") as error:
        td.compile(s).plan()
    assert "interleave a loop of 'g', too" in str(error.value)


@pytest.mark.parametrize("order", [td.recipes.gpipe, td.recipes.one_f_one_b, td.recipes.eager_one_f_one_b])
def test_orders_of_no_stages_are_refused(order: Any) -> None:
    for stages, steps in ((0, 1), (2, 0), (1.5, 2), (True, 2)):
        with pytest.raises(td.ScheduleError, match="a pipeline has a positive number of"):
            order(stages, steps)
    with pytest.raises(td.ScheduleError, match="7 steps are no multiple of 2 stages"):
        td.recipes.interleaved_one_f_one_b(2, 7, 2)


@pytest.mark.parametrize("ndim", [0, 1, 2])
def test_boxes_of_ranks_meet_where_two_of_them_intersect(ndim: int) -> None:
    """As found pair by pair; sets of boxes may be empty, and boxes have gaps."""
    rng = np.random.default_rng(ndim)

    def box() -> tuple[Any, ...]:
        spans = ((lo, lo + n) for lo, n in rng.integers((0, 1), (40, 4), (ndim, 2)).tolist())
        return tuple(
            block_cyclic((lo, hi + 9), 1, 3, lo) if rng.random() < 0.2 else (lo, hi) for lo, hi in spans
        )

    outcomes = set()
    for _ in range(100):
        a = {box() for _ in range(rng.integers(0, 4))}
        b = {tuple((int(lo), int(hi)) for lo, hi in box()) for _ in range(rng.integers(0, 4))}
        expected = any(intersection(x, y) is not None for x in a for y in b)
        assert _meet(a, b) is _meet(b, a) is expected
        outcomes.add(expected)
    assert outcomes == {True, False}
