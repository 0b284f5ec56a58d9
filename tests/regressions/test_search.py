"""Searches and predictions that once failed or were far off."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tdsl.target import Target
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.search import candidates
from tdsl.tuning.oracle import random_values
from tests.tilegraph.chains import CHAINS
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
        graph.traffic(group, {"x_y": (7, 83)})
    for ask in (graph.traffic, graph.propagate):
        with pytest.raises(td.ScheduleError, match="no func 'x' in this graph"):
            ask(["x"], {"out": (7, 83)})
    with pytest.raises(td.ScheduleError, match=r"(?s)'out' does not read 'top'.*is read by e$"):
        graph.connect("top", "out", 1)


def test_tile_graphs_of_nothing() -> None:
    graph, group = TileGraph.of(softmax.program, {"M": 0, "N": 83}), ["e", "out"]
    assert graph.traffic(group, {"out": (0, 83)}).total == 0
    assert "0 x 83" in graph._repr_svg_()
    with pytest.raises(td.ScheduleError, match=r"'out': \(0, 83\)"):
        graph.traffic(group, {"e": (1, 83)})


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


def test_windows_larger_than_shared_memory_are_cut() -> None:
    o, c, i, j, p, q = td.vars("o c i j p q")
    for side in (48, 400):
        a = td.Tensor("a", (16, side + 63, side + 63), td.f32)
        w, f = td.Tensor("w", (64, 16, side, side), td.f32), td.Func("f")
        f[o, i, j] = td.sum(a[c, i + p, j + q] * w[o, c, p, q], axis=(c, p, q))
        best = candidates(td.Schedule(f).program, {}, Target("cuda"))[0].schedule
        assert 0 < best.footprint("shared") <= Target("cuda").capacity("shared")


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


def test_rows_that_warps_reduce_in_a_tile_are_as_many_at_edges() -> None:
    i, j, k = td.vars("i j k")
    x, f = td.Tensor("x", (3, 33, 96), td.f32), td.Func("f", shape=(3, 31))
    f[i, j] = td.sum(x[i, j, k] + x[i, j + 1, k] + x[i, j + 2, k + 1], axis=k) / 4
    given = np.random.default_rng(0).integers(-3, 4, (3, 33, 96)).astype(np.float32)
    found = candidates(td.Schedule(f).program, {}, Target("cuda"))
    want = given[:, :-2, :-1] + given[:, 1:-1, :-1] + given[:, 2:, 1:]
    assert len(found) > 1
    for c in found:
        got = td.emulate(td.compile(c.schedule, target="cuda"))(given)
        np.testing.assert_array_equal(got, want.sum(2) / 4)


def test_what_a_thread_keeps_after_what_its_block_shares_is_made_by_each_thread() -> None:
    s = attention.schedule(Q=256, S=4096, D=64, target="cuda")
    td.recipes.online_blocks(s["out_sum"])
    made: dict[str, float] = {}
    for spot in s.prediction().nests.every():
        made[spot.func.name] = made.get(spot.func.name, 0.0) + spot.times * np.prod(spot.points())
    assert made["out_sum_tile"] >= 256 * 4096 * 64
    assert made["total_tile"] >= 256 * 4096


def test_rows_of_one_sum_are_reduced_on_a_gpu() -> None:
    """The only element of a row had the number of a thread, and the sum was shared with nobody."""
    b, i, j, k = td.vars("b i j k")
    x, f, g = td.Tensor("x", (3, 1, 33), td.f32), td.Func("f"), td.Func("g")
    f[b, i, j] = td.sum(x[b, i, k] * x[b, j, k], axis=k)
    g[b, i] = td.min(f[b, i, k], axis=k)
    given = np.random.default_rng(0).integers(-3, 4, (3, 1, 33)).astype(np.float32)
    got = td.emulate(td.compile(g, target="cuda"))(given)
    np.testing.assert_array_equal(got, (given * given).sum(2))


def test_sums_of_two_trees_are_arranged_one_after_the_other() -> None:
    i, j, k = td.vars("i j k")
    x, v, w = (td.Tensor(n, s, td.f32) for n, s in (("x", (64, 3)), ("v", (3, 64)), ("w", (64, 3))))
    s, t, rows, columns = (td.Func(n) for n in ("s", "t", "rows", "columns"))
    s[i, j] = td.sum(x[i, k] * v[k, j], axis=k)
    t[i, j] = td.sum(s[i, k] * w[k, j], axis=k)
    rows[i] = td.sum(t[i, k], axis=k)
    columns[j] = td.sum(t[k, j], axis=k)
    program = td.Schedule(rows, columns).program
    rng = np.random.default_rng(0)
    given = {
        a.name: rng.integers(-3, 4, [e.value for e in a.shape]).astype(np.float32) for a in program.inputs
    }
    best = candidates(program, {}, Target("cpu"))[0]
    assert best.label.startswith("reassociated")
    for mine, own in zip(td.compile(best.schedule)(**given), interpret(program, given), strict=True):
        np.testing.assert_array_equal(mine, own)


@pytest.mark.parametrize("batch, rows, terms, scaled", [(2, 33, 5, False), (80, 1024, 80, True)])
def test_what_ends_a_product_has_tiles_where_tensor_cores_do_not_make_it(
    batch: int, rows: int, terms: int, scaled: bool
) -> None:
    """No whole tiles, or read through what is inlined: the loops of a block are those of its owner."""
    b, i, j, k = td.vars("b i j k")
    x, bias = td.Tensor("x", (batch, rows, terms), td.bf16), td.Tensor("bias", (rows,), td.bf16)
    product, half, y = td.Func("product"), td.Func("half"), td.Func("y")
    product[b, i, j] = td.sum(td.cast(x[b, i, k], td.f32) * td.cast(x[b, j, k], td.f32), axis=k)
    half[b, i, j] = product[b, i, j] / 2
    y[b, i, j] = (half if scaled else product)[b, i, j] + td.cast(bias[j], td.f32)
    program = td.Schedule(y).program
    found = {c.label: c.schedule for c in candidates(program, {}, Target("cuda"))}
    loops = td.compile(found["no cuts, tiles"], target="cuda").loops()
    assert str(loops).count("blockIdx") == 1


def test_what_a_thread_beyond_a_small_tile_keeps_is_not_less_than_nothing() -> None:
    program = td.Schedule(*CHAINS["two products"](12)).program
    for c in candidates(program, {}, Target("cuda")):
        assert c.schedule.footprint("registers") >= 0
        assert ", -" not in str(c.schedule.explain())


def test_a_matrix_of_halves_is_multiplied_by_itself() -> None:
    i, j, k = td.vars("i j k")
    a, y = td.Tensor("a", (48, 48), td.bf16), td.Func("y")
    y[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(a[k, j], td.f32), axis=k)
    (x,) = random_values(td.Schedule(y).program, {}).values()
    wanted = x.astype(np.float32) @ x.astype(np.float32)
    np.testing.assert_allclose(td.compile(y)(x), wanted, rtol=1e-3, atol=1e-3)


def test_rows_of_what_is_inlined_on_a_gpu_are_those_of_its_reader() -> None:
    b, i, j = td.vars("b i j")
    a = td.Tensor("a", (2, 33, 64), td.f32)
    u, w = td.Tensor("u", (64,), td.f32), td.Tensor("w", (64,), td.f32)
    first, second, wide, turned, mean, var, y = (
        td.Func(n) for n in ("first", "second", "wide", "turned", "mean", "var", "y")
    )
    first[b, i, j] = a[b, i, j] + u[j]
    second[b, i, j] = first[b, i, j] + w[j]
    wide[b, i, j] = second[b, i, j] * a[b, i, j]
    turned[b, i, j] = wide[b, j, i]
    mean[b, i] = td.sum(turned[b, i, j], axis=j) / 33
    centred = turned[b, i, j] - mean[b, i]
    var[b, i] = td.sum(centred * centred, axis=j) / 33
    y[b, i, j] = centred / td.sqrt(var[b, i] + 1)
    program = td.Schedule(second, y).program
    given = random_values(program, {})
    wanted = interpret(program, given)
    for c in candidates(program, {}, Target("cuda"))[:2]:
        for mine, own in zip(td.emulate(td.compile(c.schedule))(**given), wanted, strict=True):
            np.testing.assert_allclose(mine, own, rtol=1e-4, atol=1e-4)


def test_bands_of_more_rows_than_there_are_have_a_price() -> None:
    """Sums that stay in a band were looked up among what moves."""
    b, i, j, k = td.vars("b i j k")
    a, w = td.Tensor("a", (3, 17, 64), td.bf16), td.Tensor("w", (3, 64, 128), td.bf16)
    around = td.pad(a, mode="reflect")
    near, top, wide, y = (td.Func(n) for n in ("near", "top", "wide", "y"))
    reads = (around[b, i, j - 1], around[b, i, j + 1], a[b, i, j])
    near[b, i, j] = sum(td.cast(x, td.f32) for x in reads)
    top[b, i] = td.max(near[b, i, k], axis=k)
    wide[b, i, j] = td.tanh(near[b, i, j] - top[b, i])
    halves = td.cast(td.cast(wide[b, i, k], td.bf16), td.f32)
    y[b, i, j] = td.sum(halves * td.cast(w[b, k, j], td.f32), axis=k) / 8
    found = candidates(td.Schedule(y).program, {}, Target("cpu"))
    assert "bands of 64 rows" in {c.label for c in found}


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("beyond", [3, 64])
def test_what_is_read_in_an_empty_range_alone_leaves_candidates(first: int, beyond: int) -> None:
    i, j = td.vars("i j")
    c, f, g = td.Tensor("c", (64,), td.i32), td.Func("f", shape=(1, 7)), td.Func("g", shape=(7, 7))
    f[i, j] = c[j] < 3
    f[i, 1] = c[i] >= 2
    g[i, j] = c[j]
    r, q, o = td.range("r", first, 0), td.range("q", 1, 7), td.Func("o", shape=(3,))
    g[r, q] = td.where(td.pad(f)[q * -2, q + beyond], c[q * 2], c[q])
    o[i] = g[(i * 3 + 1) % 7, i]
    x = np.arange(64, dtype=np.int32)
    for candidate in candidates(td.Schedule(o).program, {}, Target("cpu"), None):
        np.testing.assert_array_equal(td.compile(candidate.schedule)(x), x[:3])


def test_a_func_whose_updates_write_anywhere_on_a_diagonal_has_no_tiles():
    i, j, r = *td.vars("i j"), td.range("r", 1, 7)
    f, g = td.Func("f"), td.Func("g", shape=3)
    f[i, j] = td.cast(0, td.i32)
    f[r + 1, r + 1] = td.cast(r, td.i32)
    f[i, i] += 1
    g[i] = f[i, 0] + f[1, i]
    for candidate in candidates(td.Schedule(g).program, {}, td.Target("cpu")):
        np.testing.assert_array_equal(td.compile(candidate.schedule)(), [1, 1, 0])
