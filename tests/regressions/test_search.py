"""Searches and predictions that once failed or were far off."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tdsl.target import Target
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.search import candidates
from tdsl.tuning import random_values
from tests.tilegraph.operators import attention, softmax


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_of_nothing_a_schedule_is_found(shape: tuple[int, int]) -> None:
    x = np.zeros(shape, np.float32)
    s = softmax.autoschedule(x)
    assert "taken: default" in str(s.explain())
    assert td.compile(s)(x).shape == shape


def test_one_row_on_a_gpu_has_threads_of_its_own() -> None:
    x = np.random.default_rng(0).standard_normal((1, 83)).astype(np.float32)
    made = td.emulate(softmax.compile(target="cuda"))(x)
    np.testing.assert_allclose(made, softmax(x), rtol=1e-5)


def test_one_row_of_attention_on_a_gpu_reads_no_further() -> None:
    q, k, v = (np.ones((n, 16), np.float32) for n in (1, 5, 5))
    s = attention.autoschedule(q, k, v, target="cuda")
    np.testing.assert_allclose(td.emulate(td.compile(s))(q, k, v), v[:1], rtol=1e-5)


def test_a_short_last_tile_does_not_stand_for_all() -> None:
    """Of 65 terms in tiles of 64 the bytes were those of two tiles of one term."""
    for terms in (65, 96, 129):
        s = attention.autoschedule(Q=64, S=terms, D=32, target="cuda")
        assert s.traffic("global") >= s.prediction().least


def test_inputs_that_no_memory_holds_are_not_made_to_measure() -> None:
    with pytest.raises(td.ShapeError, match=r"(?s)no memory for 'x' of shape .*measure="):
        random_values(softmax.program, {"M": 1 << 40, "N": 1 << 40})


@pytest.mark.parametrize("seconds", [float("nan"), True, 0, "10"])
def test_what_is_no_time_to_measure_in_is_refused(seconds: object) -> None:
    with pytest.raises(td.TypeMismatch, match="seconds= a time"):
        softmax.autoschedule(M=8, N=8, measure=1, seconds=seconds)


def test_there_may_be_any_time_to_measure_in() -> None:
    s = softmax.autoschedule(M=8, N=8, target="python", measure=1, seconds=float("inf"))
    assert "default" in str(s.explain())


@pytest.mark.parametrize("args, given", [((8, 8), {}), ((np.zeros((8, 8), np.float32),), {"M": 8})])
def test_sizes_beside_arrays_and_without_names_are_refused(
    args: tuple[object, ...], given: dict[str, int]
) -> None:
    with pytest.raises(td.TypeMismatch, match=r"(?s)sizes by name.*softmax.autoschedule\(M="):
        softmax.autoschedule(*args, **given)


def test_tile_graphs_name_what_is_wrong_with_tiles() -> None:
    with pytest.raises(td.ShapeError, match="not known: N"):
        TileGraph.of(softmax.program, {"M": 8})
    graph = TileGraph.of(softmax.program, {"M": 49, "N": 83})
    assert repr(graph) == "<tile graph of 'softmax', 6 edges: top; e; total; out>"
    group = ["top", "e", "total", "out"]
    for wrong in ({"out": (7,)}, {"out": (0, 5)}, {}, {"out": (7, 83), "e": (7, 83)}):
        with pytest.raises(td.ScheduleError, match=r"(?s)one func of the group.*'out': \(49, 83\)"):
            graph.traffic(group, wrong)
    with pytest.raises(td.ScheduleError, match="no func 'x_y' in this graph"):
        graph.recomputed(group, {"x_y": (7, 83)})
    with pytest.raises(td.ScheduleError, match="no func 'x' in this graph"):
        graph.traffic(["x"], {"out": (7, 83)})
    assert (
        TileGraph.of(softmax.program, {"M": 0, "N": 83}).traffic(group, {"out": (0, 83)}).total == 0
    )


@td.op
def in_bf16(x: td.bf16["M", "K"], w: td.bf16["K", "N"], u: td.bf16["N", "P"]):
    i, k, j, p = td.vars("i k j p")
    total, hidden, out = td.Func("total"), td.Func("hidden"), td.Func("out")
    total[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, j], td.f32), axis=k)
    hidden[i, j] = td.cast(td.maximum(total[i, j], 0), td.bf16)
    out[i, p] = td.sum(td.cast(hidden[i, j], td.f32) * td.cast(u[j, p], td.f32), axis=j)
    return out


def test_what_is_inlined_is_no_operand_of_an_instruction() -> None:
    rng = np.random.default_rng(0)
    x, w, u = (rng.integers(-2, 3, (64, 64)).astype(td.bf16.numpy) for _ in range(3))
    found = td.compile(in_bf16.autoschedule(x, w, u))(x, w, u)
    np.testing.assert_array_equal(found, in_bf16(x, w, u))
    hidden = np.maximum(x.astype(np.float32) @ w.astype(np.float32), 0)
    np.testing.assert_array_equal(found, hidden @ u.astype(np.float32))


@td.op
def gradients(dy: td.f32["R", "C"], x: td.f32["R", "C"], gain: td.f32["C"]):
    """Of rows, and two sums over all rows that go along with them."""
    i, j = td.vars("i j")
    first, dx, dgain, dshift = (td.Func(n) for n in ("first", "dx", "dgain", "dshift"))
    first[i] = td.sum(dy[i, j] * gain[j], axis=j)
    dx[i, j] = dy[i, j] * gain[j] - first[i] * x[i, j]
    dgain[j] = td.sum(dy[i, j] * x[i, j], axis=i)
    dshift[j] = td.sum(dy[i, j], axis=i)
    return dx, dgain, dshift


def test_outputs_that_rows_sum_up_beside_them_are_not_cut_off_first() -> None:
    s = gradients.autoschedule(R=4096, C=512)
    rng = np.random.default_rng(0)
    dy, x = (rng.standard_normal((4096, 512), np.float32) for _ in range(2))
    gain = rng.standard_normal(512, np.float32)
    own = dy * gain
    right = own - own.sum(1, keepdims=True) * x, (dy * x).sum(0), dy.sum(0)
    for made, expected in zip(td.compile(s)(dy, x, gain), right, strict=True):
        np.testing.assert_allclose(made, expected, rtol=2e-3, atol=2e-3)


@td.op
def norm(x: td.f32["M", "N"], y: td.f32["M", "N"]):
    i, j = td.vars("i j")
    total = td.Func("total")
    total[()] = td.sum(x[i, j] * y[i, j], axis=(i, j))
    return total


def test_products_summed_to_one_value_on_a_gpu() -> None:
    x = np.random.default_rng(0).integers(-3, 4, (9, 17)).astype(np.float32)
    s = norm.autoschedule(x, x, target="cuda")
    assert td.emulate(td.compile(s))(x, x) == (x * x).sum()


def test_rows_that_read_through_what_is_inlined_have_a_schedule_on_a_gpu() -> None:
    i, j, k = td.vars("i j k")
    x = td.Tensor("x", (1120, 272), td.f32)
    e, y, top, power, total, f = (td.Func(n) for n in ("e", "y", "top", "power", "total", "f"))
    e[i, j] = td.exp(td.minimum(x[i, j], 2.0))
    y[i, j] = e[i, j] + x[i, j]
    top[i] = td.max(y[i, k], axis=k)
    power[i, j] = td.exp(y[i, j] - top[i])
    total[i] = td.sum(power[i, k], axis=k)
    f[i, j] = power[i, j] / total[i] - total[i]
    found = candidates(td.Schedule(f).program, {}, Target("cuda"))
    (default,) = (c.schedule for c in found if c.label == "default")
    assert "blockIdx" in str(td.compile(default, target="cuda").loops())


def test_a_window_that_shared_memory_cannot_hold_is_no_tile() -> None:
    o, c, i, j, p, q = td.vars("o c i j p q")
    for side, shared in ((48, True), (400, False)):
        a = td.Tensor("a", (16, side + 63, side + 63), td.f32)
        w, f = td.Tensor("w", (64, 16, side, side), td.f32), td.Func("f")
        f[o, i, j] = td.sum(a[c, i + p, j + q] * w[o, c, p, q], axis=(c, p, q))
        best = candidates(td.Schedule(f).program, {}, Target("cuda"))[0].schedule
        assert 0 <= best.footprint("shared") <= 99 << 10
        assert (best.footprint("shared") > 0) == shared


def test_groups_that_read_through_what_is_inlined_are_rows() -> None:
    b, i, j, k = td.vars("b i j k")
    x, y = td.Tensor("x", (5, 128, 5), td.f32), td.Tensor("y", (5, 5, 64), td.f32)
    product, turned, power, f = (td.Func(n) for n in ("product", "turned", "power", "f"))
    product[b, i, j] = td.sum(x[b, i, k] * y[b, k, j], axis=k)
    turned[b, i, j] = product[b, j, i]
    power[b, i, j] = td.exp(td.minimum(turned[b, i, j], 2.0))
    f[b, i, j] = power[b, i, j] + power[b, i + 1, j] + power[b, i + 2, j + 1]
    program = td.Schedule(power, f).program
    rng = np.random.default_rng(0)
    given = {t.name: rng.random([e.value for e in t.shape], np.float32) for t in program.inputs}
    want = interpret(program, given)
    for c in candidates(program, {}, Target("cpu"))[:3]:
        for mine, own in zip(td.compile(c.schedule)(**given), want, strict=True):
            np.testing.assert_allclose(mine, own, rtol=1e-5)
