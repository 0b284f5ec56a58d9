"""Kernels of a GPU that were wrong, or were never done."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import REGISTER, Alloc, Kernel, Shuffle
from tdsl.lang.expr import Const
from tdsl.lang.interp import interpret
from tdsl.target import Target
from tdsl.tilegraph.search import candidates

i, j, k, m = td.vars("i j k m")


def test_threads_of_a_stage_with_four_axes_are_found_apart(rng):
    # numbers of threads that are taken apart more than twice were put together again without an end
    a, g, f = td.Tensor("a", ("A", "B", "C", "D"), td.i32), td.Func("g"), td.Func("f")
    g[i, j, k, m] = a[i, j, k, m] * 3
    f[i, j, k, m] = g[i, j, k, m] + 1
    s = td.Schedule(f)
    for stage in (s[g].compute_root(), s[f]):
        flat = stage.fuse(stage.fuse(stage.fuse(i, j), k), m)
        block, thread = stage.split(flat, 32)
        stage.bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    x = rng.integers(-9, 9, (2, 3, 5, 7)).astype(np.int32)
    (want,) = interpret(s.program, {"a": x})
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(x), want)


def test_fused_loops_of_an_empty_box_do_not_run():
    # behind the end of f both loops of g had extents below 0, whose product was positive
    a, g, f = td.Tensor("a", ("N", "N"), td.i32), td.Func("g"), td.Func("f")
    g[i, j, k] = a[j, k] + i
    f[i] = g[0, i, i]
    s = td.Schedule(f)
    s[f].vectorize(i, 4)
    block, _ = s[f].split("i_o", 2)
    s[f].bind(block, "blockIdx.x")
    s[g].compute_at(s[f], "i_v").set_scope("shared")
    s[g].fuse(j, k)
    x = np.arange(4, dtype=np.int32).reshape(2, 2)
    (want,) = interpret(s.program, {"a": x})
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(x), want)


def test_threads_combine_the_lanes_of_vectors():
    # a vector of results was passed on in registers of one element
    a, f = td.Tensor("a", ("N",), td.i32), td.Func("f")
    f[()] = td.sum(a[k], axis=k)
    s = td.Schedule(f)
    s[f].vectorize(k, 2)
    s["f_lanes"].split("k_o", 4)
    s["f_lanes"].bind("k_o_i", "threadIdx.x")
    compiled = td.compile(s, target="cuda")
    assert "shuffle(" in str(compiled.loops("final", N=21))
    x = np.arange(21, dtype=np.int32) * 7 % 11
    assert td.emulate(compiled)(x) == x.sum()


def tail_with_a_copy(scope):
    a, f = td.Tensor("a", (4, 23), td.i32), td.Func("f")
    f[i, j] = a[i, j] * 2
    s = td.Schedule(f)
    outer, inner = s[f].split(j, 8, tail="peel")
    if scope == "shared":
        s[f].bind(i, "blockIdx.x").bind(inner, "threadIdx.x")
        s.cache_read(a, f, at=outer, scope=scope)
    else:
        s[f].reorder(outer, i, inner)
        s[f].unroll(outer)
        s.cache_read(a, f, at=outer)
    return td.compile(s, target="cuda")


@pytest.mark.parametrize("scope", ["shared", "auto"])
def test_memory_of_a_loop_and_of_its_tail_are_apart(scope):
    # both had one name, by which the larger got the place and the size of the smaller
    x = np.arange(4 * 23, dtype=np.int32).reshape(4, 23)
    compiled = tail_with_a_copy(scope)
    np.testing.assert_array_equal(td.emulate(compiled)(x), 2 * x)
    loops = str(compiled.loops("final"))
    made = re.findall(r"(\w+) = alloc", loops)
    assert len(made) == len(set(made)) >= 2, loops


@pytest.mark.parametrize("dtype", [td.f16, td.bf16, td.f32, td.f64], ids=str)
def test_reductions_start_at_infinities_of_every_type(dtype):
    # TVM wrote that of bfloat16 as `inff`, which CUDA does not know
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    a, f = td.Tensor("a", (4, 8), dtype), td.Func("f")
    f[i] = td.where(td.max(a[i, k], axis=k) > 0, td.cast(float("nan"), dtype), a[i, 0])
    assert td.compile(f, target="cuda").launch.kernels


def summed_of(place):
    """Sums over tiles of what `place` schedules, copied as a whole."""
    a, g, f = td.Tensor("a", (64, 64), td.i32), td.Func("g"), td.Func("f")
    g[i, k] = a[i, k] + a[k, i] * 2
    f[i, j] = td.sum(g[i, k] * a[k, j], axis=k)
    s = td.Schedule(f)
    ko, _ = s[f].split(k, 16)
    s[f].reorder(i, ko, j).bind(i, "blockIdx.x").bind(j, "threadIdx.x")
    place(s[g], s[f])
    s.cache_read(g, f, at=ko, scope="shared").bulk_copy()
    s[f].pipeline(ko, 2)
    return td.emulate(td.compile(s, target="cuda"))


def test_what_is_copied_as_a_whole_is_not_computed_in_the_copy():
    # the default schedule inlined it, and nothing was left to copy
    x = np.arange(64 * 64, dtype=np.int32).reshape(64, 64) % 7
    np.testing.assert_array_equal(summed_of(lambda g, f: None)(x), (x + x.T * 2) @ x)
    with pytest.raises(td.ScheduleError, match="what it copies is computed in the same kernel"):
        summed_of(lambda g, f: g.inline())(x)
    with pytest.raises(td.ScheduleError, match="what it copies is computed in the same kernel"):
        summed_of(lambda g, f: g.compute_at(f, i).set_scope("shared"))(x)
    # at the loop of the copy it has tiles of its own, one for each stage
    with pytest.raises(td.ScheduleError, match="what it copies is computed in the same kernel"):
        summed_of(lambda g, f: g.compute_at(f, f.loops[1]).set_scope("shared"))(x)


@pytest.mark.parametrize("rows, length, threads", [(7, 130, 64), (5, 300, 128)])
def test_some_of_the_rows_of_a_block_wait_for_no_others(rng, rows, length, threads):
    """Barriers stood under the condition that a row is one of the array."""
    x, most, e, total, y = (
        td.Tensor("x", (rows, length), td.f32),
        *map(td.Func, ("most", "e", "total", "y")),
    )
    most[i] = td.max(x[i, k], axis=k)
    e[i, j] = td.exp(x[i, j] - most[i])
    total[i] = td.sum(e[i, k], axis=k)
    y[i, j] = e[i, j] / total[i]
    s = td.Schedule(y)
    assert td.recipes.block_rows(s[y], threads=threads, together=4).together == 4
    values = rng.standard_normal((rows, length)).astype(np.float32)
    weights = np.exp(values - values.max(1, keepdims=True))
    got = td.emulate(td.compile(s, target="cuda"))(values)
    np.testing.assert_allclose(got, weights / weights.sum(1, keepdims=True), rtol=1e-5)


def window_of_a_thread(n, each):
    """Sums of `each` windows for a thread, made one by one of what its block shares."""
    a, g, h, f = td.Tensor("a", (n + 1,), td.i32), td.Func("g"), td.Func("h"), td.Func("f")
    g[i] = a[i] * 2 + td.cast(i, td.i32)
    h[i] = td.sum(g[i + m], axis=td.range("m", 0, 2))
    f[i] = h[n - 1 - i]
    f.with_shape(n)
    s = td.Schedule(f)
    block, inner = s[f].split(i, 4 * each)
    thread, _ = s[f].split(inner, each)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s[h].compute_at(s[f], thread)
    s[g].compute_at(s[h], i).set_scope("shared")
    return s, h


@pytest.mark.parametrize("pipelined", [False, True])
def test_what_a_block_shares_is_made_for_the_iterations_of_all_threads(pipelined):
    # each iteration made what the first thread needed, and others read that
    s, h = window_of_a_thread(16, 2)
    if pipelined:
        s[h].pipeline(i, 2)
    x = np.arange(17, dtype=np.int32) ** 2
    (want,) = interpret(s.program, {"a": x})
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(x), want)


def test_a_loop_that_threads_run_differently_often_is_not_pipelined():
    s, h = window_of_a_thread(6, 1)
    s[h].pipeline(i, 2)
    with pytest.raises(td.ScheduleError, match="how often it runs differs from thread to thread"):
        td.compile(s, target="cuda").source()


def test_nothing_is_made_where_threads_combine_results():
    # the loop was no longer seen to combine, and its threads added to one element at a time
    a, f = td.Tensor("a", (4, 64), td.i32), td.Func("f")
    f[i] = td.sum(a[i, j], axis=j)
    s = td.Schedule(f)
    _, part = s[f].split(j, 16)
    s[f].bind(i, "blockIdx.x").bind(part, "threadIdx.x")
    s.cache_read("f_lanes", s[f], at="j_i", scope="shared")
    with pytest.raises(td.ScheduleError, match="threads combine their results in 'j_i' of 'f'"):
        td.compile(s, target="cuda").source()


@pytest.mark.parametrize("cooperates", [False, True])
def test_all_threads_make_what_one_of_them_needs_for_all(cooperates):
    # the thread that made the first of both was the only one that came to the loop over threads of the other
    a, g, h, f = td.Tensor("a", (8,), td.i32), td.Func("g"), td.Func("h"), td.Func("f")
    g[i, k] = a[k] * (i + 1)
    h[i] = td.max(g[i, k], axis=k)
    f[j] = h[j] + h[7 - j]
    f.with_shape(8)
    s = td.Schedule(f)
    s[f].bind(j, "threadIdx.x")
    s[h].compute_at(s[f], j).set_scope("shared")
    s[g].compute_at(s[h], i).set_scope("shared")
    if cooperates:
        s[g].cooperate()
    else:
        s[g].bind(k, "threadIdx.x")
    x = np.arange(8, dtype=np.int32) * 3 % 7
    (want,) = interpret(s.program, {"a": x})
    got = td.emulate(td.compile(s, target="cuda"))(x)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["u8", "i8", "u16", "i16", "f8e4m3", "f16"])
def test_padding_of_narrow_elements_compiles_to_wide_loads(dtype):
    y, x = td.vars("y x")
    a, f = td.Tensor("a", (64, 64), dtype), td.Func("f", shape=(64, 64))
    padded = td.pad(a)
    f[y, x] = td.maximum(padded[y - 1, x], padded[y + 1, x])
    compiled = td.compile(f, target="cuda")
    assert compiled.launch.kernels
    given = np.random.default_rng(0).integers(0, 9, (64, 64)).astype(a.dtype.numpy)
    wide = np.pad(given.astype(np.float64), ((1, 1), (0, 0)))
    np.testing.assert_array_equal(
        td.emulate(compiled)(given).astype(np.float64), np.maximum(wide[:-2], wide[2:])
    )


def test_sums_that_end_before_their_operands_are_not_made_in_whole_tiles(rng):
    # the default schedule took tensor cores, which would have added products of terms behind the end
    r = td.range("r", 0, 100)
    a, b, f = td.Tensor("a", (64, 128), td.f16), td.Tensor("b", (128, 64), td.f16), td.Func("f")
    f[i, j] = td.sum(td.cast(a[i, r], td.f32) * td.cast(b[r, j], td.f32), axis=r)
    x, y = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 128), (128, 64)))
    want = x[:, :100].astype(np.float32) @ y[:100].astype(np.float32)
    np.testing.assert_array_equal(td.emulate(td.compile(f, target="cuda"))(x, y), want)


def test_tiles_are_fetched_ahead_beside_memory_of_open_sizes(rng):
    # strides of memory between kernels, and of an argument, were those of its known extents alone
    a, b, f = td.Tensor("a", ("M", "K"), td.f16), td.Tensor("b", ("K", "N"), td.f16), td.Func("f")
    f[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    s = td.Schedule(f)
    parts = s[f].rfactor(s[f].split(k, 128)[0])
    td.recipes.tensor_core_matmul(parts, block=(64, 64, 32), warp=(32, 32))
    td.recipes.elements(s[f])
    emulated = td.emulate(td.compile(s, target="cuda", dynamic="M"))
    for rows in (64, 50):
        x, y = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((rows, 200), (200, 30)))
        want = x.astype(np.float32) @ y.astype(np.float32)
        np.testing.assert_array_equal(emulated(x, y), want)


def agrees_when_emulated(s, **arrays):
    (want,) = interpret(s.program, arrays)
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(**arrays), want)


def test_sums_of_threads_beside_threads_of_another_axis():
    # the other threads, which have no part of a sum, were said to read what nobody wrote
    a, g, f = td.Tensor("a", (12,), td.i32), td.Func("g"), td.Func("f", shape=(8,))
    g[i] = a[i] * 3
    f[i] = td.sum(g[i + m], axis=td.range("m", 0, 5))
    s = td.Schedule(f)
    s[g].compute_at(s[f], i).set_scope("shared").bind(i, "threadIdx.y")
    s[f].bind(i, "blockIdx.x").split("m", 8)
    s[f].bind("m_i", "threadIdx.x")
    agrees_when_emulated(s, a=np.arange(12, dtype=np.int32))


def test_threads_without_a_point_stay_in_the_boxes_of_what_they_make():
    # (i + 1) % 4 has wider bounds in one thread than in all, and read beyond what was made for all
    a, g, h, f = (
        td.Tensor("a", (9,), td.i32), td.Func("g"), td.Func("h"), td.Func("f", shape=(1,)),
    )  # fmt: skip
    g[i] = a[i] * 3
    h[i] = g[i] + g[i + 2]
    f[i] = h[(i + 1) % 4]
    s = td.Schedule(f)
    s[h].compute_at(s[f], i)
    s[g].compute_at(s[h], i).set_scope("shared")
    block, thread = s[f].split(i, 3)
    s[f].bind(block, "blockIdx.x")
    _, inner = s[f].split(thread, 2)
    s[f].bind(inner, "threadIdx.x")
    agrees_when_emulated(s, a=np.arange(9, dtype=np.int32))


def test_a_copy_of_packed_elements_has_no_more_of_them():
    # the largest remainder in a box was that of its last element over the first of the group of four
    a, f = td.Tensor("a", (7,), td.i32), td.Func("f")
    f[i] = td.sum(a[i] * a[m], axis=m)
    s = td.Schedule(f)
    s.cache_read("a", f, pack={0: 4}).compute_at(s[f], m).set_scope("shared")
    block, thread = s[f].split(i, 8)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s.cache_read("a_cache", f, at=m, scope="shared", filled=True)
    agrees_when_emulated(s, a=np.arange(7, dtype=np.int32))


def test_a_copy_of_a_shuffle_writes_memory_of_the_copy():
    # it wrote that of the statement which was copied
    one = Const(1.0, td.f32)
    code = Alloc("own", td.f32, (), REGISTER, Shuffle("own", one, 1, 32))
    assert FreshNames(Kernel("k", (), code)).copy(code) == Alloc(
        "own_1", td.f32, (), REGISTER, Shuffle("own_1", one, 1, 32)
    )


def test_tiles_that_a_mask_cuts_have_one_shape_for_all_threads_of_a_block():
    h, q, j, d, e = td.vars("h q j d e")
    a, b, v = (td.Tensor(n, (1, 40, 8), td.f32) for n in "abv")
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    dot = td.Func("dot")
    dot[h, q, j] = td.sum(a[h, q, d] * b[h, j, d], axis=d)
    score[h, q, j] = td.where(j <= q, dot[h, q, j], -np.inf)
    top[h, q] = td.max(score[h, q, j], axis=j)
    p[h, q, j] = td.exp(score[h, q, j] - top[h, q])
    total[h, q] = td.sum(p[h, q, j], axis=j)
    out[h, q, e] = td.sum(p[h, q, j] * v[h, j, e], axis=j) / total[h, q]
    s = td.Schedule(out, target="cuda")
    td.recipes.online_blocks(s["out_sum"], rows=8, terms=8, each=(1, 1), parts=2)
    given = {n: np.random.default_rng(0).standard_normal((1, 40, 8)).astype("f4") for n in "abv"}
    got = td.emulate(td.compile(s, target="cuda"))(**given)
    np.testing.assert_allclose(got, interpret(s.program, given)[0], rtol=1e-5, atol=1e-6)


def test_a_tile_may_be_copied_as_a_whole_of_what_followed_another_kernel():
    # a func that follows its producer was taken for one of the same kernel, wherever it is read
    t = td.f16
    x, w, u = (td.Tensor(n, (1 << 14, 64) if n == "x" else (64, 64), t) for n in "xwu")
    a, r, y = td.Func("a"), td.Func("r"), td.Func("y")
    a[i, k] = td.sum(td.cast(x[i, j], td.f32) * td.cast(w[j, k], td.f32), axis=j)
    r[i, k] = td.cast(td.maximum(a[i, k], 0), t)
    y[i, m] = td.sum(td.cast(r[i, k], td.f32) * td.cast(u[k, m], td.f32), axis=k)
    several = {c.label: c.schedule for c in candidates(td.Schedule(y).program, {}, Target("cuda"))}
    text = str(td.compile(several["cut after a"], target="cuda").loops())
    assert text.count("wgmma") == 2


def test_a_load_whose_mask_never_holds_is_zero_on_a_single_thread():
    a, first, f = td.Tensor("a", (7, 1), td.i32), td.Func("first"), td.Func("f")
    padded = td.pad(a, mode="constant")
    first[i, j] = padded[i, j - 3]
    f[i, j] = first[0, j]
    s = td.Schedule(f.with_shape(1, 1))
    s.cache_write(s[first], at="i")
    got = td.emulate(td.compile(s, target="cuda"))(np.full((7, 1), 4, np.int32))
    np.testing.assert_array_equal(got, [[0]])


def test_a_filled_copy_of_a_func_without_limits_ends_where_it_is_computed():
    # tiles of a copy are as large at the edges as elsewhere, and of the func only what is needed is computed
    x, g, f = td.Tensor("x", (7,), td.i32), td.Func("g"), td.Func("f", shape=(5,))
    g[i] = x[td.clip(i, 0, 6)] + i
    f[i] = g[i * 2 - 3] + g[i * 2 - 1]
    s = td.Schedule(f)
    s[g].compute_root()
    block, thread = s[f].split(i, 4)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s.cache_read("g", s[f], at=block, scope="shared", filled=True)
    given = {"x": np.arange(7, dtype=np.int32)}
    got = td.emulate(td.compile(s, target="cuda"))(**given)
    np.testing.assert_array_equal(got, interpret(s.program, given)[0])


@pytest.mark.parametrize("count", [1, 2, 3, 15, 17])
def test_few_updates_that_data_choose_read_no_more_than_there_are(count):
    # 16 neighbours at a time were copied to registers for fewer
    a, f = td.Tensor("a", (count,), td.u8), td.Func("f", shape=(4,))
    f[i] = 0
    f[td.clip(td.cast(a[k], td.i64), 0, 3)] += 1
    given = {"a": np.arange(count, dtype=np.uint8)}
    got = td.emulate(td.compile(f, target="cuda"))(**given)
    np.testing.assert_array_equal(got, np.bincount(np.minimum(given["a"], 3), minlength=4))


def test_an_update_of_points_and_of_independent_terms_has_loops_of_one_kind_on_threads():
    # a loop over points was fused with one that a reduction numbers
    x, f = td.Tensor("x", (9, 5), td.i32), td.Func("f", shape=(9, 5))
    f[i, j] = x[i, j] * 2
    r = td.range("r", 1, 4)
    f[r, j] = td.maximum(f[r, j], 7)
    given = {"x": np.arange(45, dtype=np.int32).reshape(9, 5)}
    got = td.emulate(td.compile(f, target="cuda"))(**given)
    np.testing.assert_array_equal(got, interpret(td.Schedule(f).program, given)[0])


def test_a_tile_of_an_array_without_dimensions_is_not_copied():
    a, f, r = td.Tensor("a", (), td.f32), td.Func("f", shape=(4,)), td.range("r", 1, 5)
    f[i] = td.max(a[()] * td.cast(td.random(0, i, r), td.f32), axis=r)
    given = {"a": np.float32(3)}
    got = td.emulate(td.compile(f, target="cuda"))(**given)
    np.testing.assert_array_equal(got, interpret(td.Schedule(f).program, given)[0])


def test_a_stage_whose_loops_another_one_shares_is_in_no_group_of_rows(rng):
    # the default schedule computed it inside of a reader
    x, top, other, y = td.Tensor("x", (6, 64), td.f32), td.Func("top"), td.Func("other"), td.Func("y")
    top[i] = td.max(x[i, k], axis=k)
    other[i] = td.sum(x[i, k], axis=k)
    y[i, j] = x[i, j] * top[i] + other[i]
    s = td.Schedule(y)
    s[other].compute_with(s[top], "i")
    given = {"x": rng.random((6, 64), np.float32)}
    got = td.emulate(td.compile(s, target="cuda"))(**given)
    np.testing.assert_allclose(got, interpret(s.program, given)[0], rtol=1e-5)


def test_memory_that_a_tile_copy_reads_stays_outside_of_kernels_that_stages_share():
    # memory that only a copy by TMA read was allocated inside of the kernel before
    x, a, b, f = td.Tensor("x", (64,), td.i32), td.Func("a"), td.Func("b"), td.Func("f")
    a[i] = x[i] * 3
    b[i] = a[td.clip(i * 2, 0, 63)] + 1
    f[i] = b[i] + 1
    s = td.Schedule(f.with_shape(64))
    s[a].compute_root().serial("i")
    s[b].compute_root().serial("i")
    outer, thread = s[f].split(i, 32)
    s[f].bind(thread, "threadIdx.x")
    block, tile = s[f].split(outer, 2)
    s[f].bind(block, "blockIdx.x")
    s.cache_read("b", s[f], at=tile, scope="shared").bulk_copy()
    s[f].pipeline(tile, 2)
    given = {"x": np.arange(64, dtype=np.int32)}
    got = td.emulate(td.compile(s, target="cuda"))(**given)
    np.testing.assert_array_equal(got, interpret(s.program, given)[0])


def test_only_the_first_thread_evaluates_conditions_of_what_it_runs_alone():
    # the others read memory of theirs that nobody had written
    x, a, b, f = td.Tensor("x", (16,), td.i32), td.Func("a"), td.Func("b"), td.Func("f")
    a[i] = x[i] * 3
    b[i] = a[i] + 2
    c = td.Func("c")
    c[i] = b[i] * 2
    r = td.range("r", 0, 16, where=lambda r: b[r] > 5)
    c[r] = c[td.maximum(r - 1, 0)] + 1
    f[i] = c[i] + a[i]
    s = td.Schedule(f.with_shape(16))
    block, _ = s[f].split(i, 2)
    s[f].bind(block, "blockIdx.x")
    s[a].compute_at(s[f], "i_i").bind("i", "threadIdx.x")
    s[a].set_scope("shared")
    s[b].compute_at(s[f], "i_i")
    s[c].compute_at(s[f], "i_i")
    given = {"x": np.arange(16, dtype=np.int32)}
    got = td.emulate(td.compile(s, target="cuda"))(**given)
    np.testing.assert_array_equal(got, interpret(s.program, given)[0])


def test_updates_at_places_that_a_func_clips_are_in_bounds_of_copies_in_registers():
    # a copy of the places forgot what is known of their values
    a, at, f = td.Tensor("a", (17,), td.i16), td.Func("at", shape=(17,)), td.Func("f", shape=(17, 17))
    at[i] = td.clip(td.cast(a[i], td.i64), 0, 16)
    f[i, j] = td.cast(i, td.i32)
    r = td.range("r", 0, 17)
    f[at[r], j] += td.cast(a[r] != 0, td.i32)
    f[i, j] = td.maximum(f[i, j], 0)
    given = {"a": np.arange(-3, 14, dtype=np.int16)}
    got = td.emulate(td.compile(f, target="cuda"))(**given)
    np.testing.assert_array_equal(got, interpret(td.Schedule(f).program, given)[0])


@pytest.mark.parametrize("rows, columns", [(0, 5), (5, 0), (0, 0)])
def test_products_with_computed_factors_of_no_elements(rows, columns):
    # factors of empty ranges were to become funcs; the search divided by an extent
    x, w, s = td.Tensor("x", (rows, 4), td.f64), td.Tensor("w", (4, columns), td.f64), td.Func("s")
    top, y = td.Func("top"), td.Func("y")
    top[i] = td.max(x[i, k], axis=k)
    y[i, j] = td.sum(td.exp(x[i, k] - top[i]) * w[k, j], axis=k)
    s[i] = td.sum(y[i, j] * top[i], axis=j)
    given = {"x": np.ones((rows, 4)), "w": np.ones((4, columns))}
    for result, want in zip(
        td.emulate(td.compile((s, y), target="cuda"))(**given),
        interpret(td.Schedule(s, y).program, given),
        strict=True,
    ):
        np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("points", [3, 8, 11])
def test_copies_in_registers_have_the_whole_tile_that_a_thread_computes(rng, points):
    # the copy ended where the program ends if that is before the end of the first tile
    a, g, f = td.Tensor("a", ("C", "N"), td.f32), td.Func("g"), td.Func("f")
    c, u = td.vars("c"), td.range("u", 0, 2)
    g[c, i] = a[c, i] * 2
    f[c, i] = td.max(g[c, 2 * i + u], axis=u)
    s = td.Schedule(f)
    s[f].split(c, 8)
    s[f].reorder("c_o", i, u, "c_i").bind("c_o", "threadIdx.y").bind(i, "threadIdx.x")
    s.cache_write(s[f], at=i, scope="register")
    shared = s.cache_read(g, s[f], at=i, scope="shared", filled=True)
    s.cache_read(shared, s[f], at=u, scope="register")
    x = rng.integers(-9, 9, (points, 14)).astype(np.float32)
    (want,) = interpret(s.program, {"a": x})
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda", N=14))(x), want)
