"""Vectors that threads load and store: as wide as memory allows, also across the ends of rows."""

import numpy as np
import pytest

import tdsl as td
from tests.codegen.cuda.shim import text_of

c, y, x, f = td.vars("c y x f")


@pytest.mark.parametrize("height, width, lines, widest", [(18, 18, 4, 16), (20, 22, 2, 16), (17, 17, 3, 4)])
def test_vectors_of_copies_go_across_the_ends_of_whole_rows(rng, height, width, lines, widest):
    channels = 8
    a, w = td.Tensor("a", (channels, height, width), td.f32), td.Tensor("w", (8, channels, 3, 3), td.f32)
    o, ch, r, q = td.Func("o"), *(td.range(v, 0, n) for v, n in (("c", channels), ("r", 3), ("s", 3)))
    o[f, y, x] = td.sum(a[ch, y + r, x + q] * w[f, ch, r, q], axis=(ch, r, q))
    s = td.Schedule(o.with_shape(8, height - 2, width - 2), target="cuda:sm_80")
    stage = s[o]
    blocks, threads = stage.split("y", lines)
    steps, terms = stage.split("c", 4)
    stage.reorder("f", blocks, threads, "x", steps, terms, "r", "s")
    stage.bind("f", "blockIdx.y").bind(blocks, "blockIdx.x").bind(threads, "threadIdx.y")
    stage.bind("x", "threadIdx.x")
    s.cache_read(a, o, at=steps, scope="shared").cooperate(4, rows=2)
    s.cache_read(w, o, at=steps, scope="shared").cooperate(4, rows=3)
    compiled = td.compile(s)
    image = rng.integers(-3, 4, (channels, height, width)).astype(np.float32)
    filters = rng.integers(-3, 4, (8, channels, 3, 3)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (1, 2))
    want = np.einsum("cyxrs,fcrs->fyx", windows, filters)
    np.testing.assert_array_equal(td.emulate(compiled)(image, filters), want)
    loads = [a for a in td.count_memory(compiled, image, filters).accesses if a.site.kind == "load"]
    assert {a.site.width for a in loads if a.site.array == "a"} == {widest}
    assert widest < 16 or {a.site.width for a in loads if a.site.array == "w"} == {16}


def test_rows_beyond_the_loops_of_a_copy_are_refused():
    a, o = td.Tensor("a", (64,), td.f32), td.Func("o")
    o[x] = a[x] * 2
    s = td.Schedule(o, target="cuda:sm_80")
    outer, inner = s[o].split("x", 32)
    s[o].bind(outer, "blockIdx.x").bind(inner, "threadIdx.x")
    with pytest.raises(td.ScheduleError, match="has 1 loops, not 2"):
        s.cache_read(a, o, at=inner, scope="shared").cooperate(4, rows=2)


@pytest.mark.parametrize("dtype, lanes", [(td.f32, 4), (td.f16, 8), (td.i8, 16)])
@pytest.mark.parametrize("columns, before", [(131, 1), (129, 0), (67, 3), (32, 1)])
def test_vectors_that_begin_anywhere_are_loaded_as_two_aligned_ones(rng, dtype, lanes, columns, before):
    width = columns // 32 * 32 - (32 if columns % 32 < before else 0) or 16
    a, o = td.Tensor("a", (5, columns), dtype), td.Func("o").with_shape(5, width)
    o[y, x] = a[y, x + before]
    s = td.Schedule(o, target="cuda:sm_80")
    outer, inner = s[o].split("x", lanes)
    s[o].vectorize(inner).bind(outer, "threadIdx.x").bind("y", "blockIdx.x")
    compiled = td.compile(s)
    values = rng.integers(-99, 99, (5, columns)).astype(dtype.numpy)
    want = values[:, before : before + width]
    np.testing.assert_array_equal(td.emulate(compiled)(values), want)
    np.testing.assert_array_equal(text_of(compiled)(values), want)
    loads = [n for n in td.count_memory(compiled, values).accesses if n.site.array == "a"]
    assert sum(n.useful for n in loads if n.site.width == 16) > 0.9 * sum(n.useful for n in loads)


@pytest.mark.parametrize("columns", [31, 33, 50])
def test_masked_vectors_that_begin_anywhere_are_zero_beyond_the_edges(rng, columns):
    a, w, o = td.Tensor("a", (7, columns), td.f32), td.Tensor("w", (columns,), td.f32), td.Func("o")
    k = td.range("k", 0, columns)
    o[y] = td.sum(a[y, k] * w[k], axis=k)
    s = td.Schedule(o, target="cuda:sm_80")
    steps, terms = s[o].split("k", 16)
    blocks, threads = s[o].split("y", 4)
    s[o].reorder(blocks, threads, steps, terms)
    s[o].bind(blocks, "blockIdx.x").bind(threads, "threadIdx.x")
    s.cache_read(a, o, at=steps, scope="shared", filled=True).cooperate(4)
    compiled = td.compile(s)
    values, weights = rng.integers(-9, 9, (7, columns)), rng.integers(-9, 9, columns)
    values, weights = values.astype(np.float32), weights.astype(np.float32)
    np.testing.assert_array_equal(td.emulate(compiled)(values, weights), values @ weights)
    np.testing.assert_array_equal(text_of(compiled)(values, weights), values @ weights)


@pytest.mark.parametrize(
    "dtype, lanes, shape, vectors",
    [(td.f32, 4, (3, 48), True), (td.f32, 4, (26,), False), (td.f16, 8, (24,), True)],
)
def test_lanes_that_are_masked_one_by_one_are_loaded_as_vectors_in_the_array(
    rng, dtype, lanes, shape, vectors
):
    a, o, last = td.Tensor("a", shape, dtype), td.Func("o"), td.Scalar("last", td.i32)
    rows = (y,) * (len(shape) - 1)
    o[(*rows, x)] = td.where(x <= last, a[(*rows, x)], 0)
    s = td.Schedule(o, target="cuda:sm_80")
    outer, inner = s[o].split("x", lanes)
    s[o].vectorize(inner).bind(outer, "threadIdx.x")
    compiled = td.compile(s)
    values = rng.integers(-99, 99, shape).astype(dtype.numpy)
    for most in (-1, 0, 13, 60):
        want = np.where(np.arange(shape[-1]) <= most, values, 0)
        np.testing.assert_array_equal(td.emulate(compiled)(values, most), want)
        np.testing.assert_array_equal(text_of(compiled)(values, most), want)
    loads = [n for n in td.count_memory(compiled, values, 13).accesses if n.site.kind == "load"]
    widths = {n.site.width for n in loads if n.useful}
    assert widths <= {16} if vectors else 16 not in widths
