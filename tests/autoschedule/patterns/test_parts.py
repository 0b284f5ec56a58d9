"""Reductions to few values run in parts on threads; what they give does not depend on how many."""

import numpy as np
import pytest

import tdsl as td
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.tilegraph.default import complete

WIDE = Machine(vector_bytes=64, threads=2)
i, j, v = td.vars("i j v")
x = td.Tensor("x", ("R", "C"), td.f32)
bins = td.Tensor("bins", ("R", "C"), td.u8)


def reduction(kind):
    f = td.Func(kind)
    match kind:
        case "columns":
            f[j] = td.sum(x[i, j], axis=i)
        case "whole":
            f[()] = td.sum(x[i, j], axis=(i, j))
        case "most":
            f[()] = td.argmax(x[i, j], axis=(i, j))
        case "counts":
            f = td.Func(kind, shape=256)
            f[v] = td.cast(0, td.i32)
            f[bins[i, j]] += 1
    return f


def by_numpy(kind, a):
    match kind:
        case "columns":
            return a.sum(0, dtype=np.float64)
        case "whole":
            return a.sum(dtype=np.float64)
        case "most":
            return a.argmax()
    return np.bincount(a.ravel(), minlength=256)


def funcs(f, rows, columns):
    sizes = {"R": rows, "C": columns}
    return [g.name for g in complete(bind_state(td.Schedule(f).state, sizes), WIDE).program.funcs]


@pytest.mark.parametrize("kind", ["columns", "whole", "most", "counts"])
@pytest.mark.parametrize("shape", [(1021, 307), (2000, 160)], ids=str)
def test_parts_give_the_whole(rng, monkeypatch, kind, shape):
    f = reduction(kind)
    shared = "best" if kind == "most" else "partial"  # places are looked for in blocks
    assert any(shared in name for name in funcs(f, *shape))
    a = rng.integers(0, 256, shape, np.uint8)
    a = a if kind == "counts" else rng.standard_normal(shape, np.float32)
    results = []
    for threads in ("1", "2"):
        monkeypatch.setenv("TDSL_NUM_THREADS", threads)
        results.append(td.compile(f, R=shape[0], C=shape[1])(a))
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], by_numpy(kind, a), 1e-4, 1e-3)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (1, 1), (2, 7), (70, 3)], ids=str)
def test_few_terms_stay_whole(rng, shape):
    a = rng.standard_normal(shape, np.float32)
    for kind in ("columns", "whole"):
        f = reduction(kind)
        assert not any("partial" in name for name in funcs(f, *shape))
        np.testing.assert_allclose(td.compile(f)(a), by_numpy(kind, a), 1e-5, 1e-5)


def test_an_update_that_accumulates_is_split_like_a_reduction():
    f = td.Func("f")
    f[()] += x[i, j]
    assert "f_partial" in funcs(f, 2000, 2000)


def test_nan_reaches_the_result(rng):
    a = rng.standard_normal((1500, 200), np.float32)
    a[1490, 199] = np.nan
    assert np.isnan(td.compile(reduction("whole"))(a))
    assert td.compile(reduction("most"))(a) == 1490 * 200 + 199


@pytest.mark.parametrize("order", ["in", "against"])
@pytest.mark.parametrize("shape", [(50021, 3), (50021, 1), (3, 50021), (1021, 307)], ids=str)
def test_reductions_do_not_depend_on_the_order_of_axes(rng, shape, order):
    a = rng.standard_normal(shape, np.float32)
    a[shape[0] // 2, shape[1] // 2] = 9
    axes = (i, j) if order == "in" else (j, i)
    for reduce, expected in ((td.sum, a.sum(dtype=np.float64)), (td.max, 9)):
        f = td.Func("f")
        f[()] = reduce(x[i, j], axis=axes)
        program = td.compile(f, R=shape[0], C=shape[1])
        assert "vectorized" in program.loops()
        np.testing.assert_allclose(program(a), expected, 1e-4, 1e-2)


def test_the_order_of_loops_follows_memory():
    f = td.Func("f")
    f[()] = td.sum(x[i, j], axis=(j, i))
    with_rows = complete(bind_state(td.Schedule(f).state, {"R": 1000, "C": 4000}), WIDE)
    partial = with_rows.plan("f_partial").nests[0]
    assert [loop.name for loop in partial.loops][:1] == ["i_o"]


@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("transposed", [False, True])
def test_few_long_products(rng, rows, transposed):
    """Of a matrix of few rows and one of few columns: parts of the terms, vectors along them."""
    k, n = td.vars("k"), 3
    left = td.Tensor("left", (rows, "K"), td.f32)
    right = td.Tensor("right", (n, "K") if transposed else ("K", n), td.f32)
    f = td.Func("f")
    f[i, j] = td.sum(left[i, k] * (right[j, k] if transposed else right[k, j]), axis=k)
    size = 60013
    assert "f_partial" in [
        g.name for g in complete(bind_state(td.Schedule(f).state, {"K": size}), WIDE).program.funcs
    ]
    a, b = (rng.standard_normal(s, np.float32) for s in ((rows, size), (size, n)))
    right_array = np.ascontiguousarray(b.T) if transposed else b
    np.testing.assert_allclose(td.compile(f, K=size)(a, right_array), a @ b, 1e-3, 0.1)


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (1021, 333), (5, 60013)], ids=str)
def test_a_column_is_a_vector(rng, shape):
    """A dimension of extent 1 changes nothing: the terms of each row are vectors."""
    k, (m, n) = td.vars("k"), shape
    left, right = td.Tensor("left", (m, n), td.f32), td.Tensor("right", (n, 1), td.f32)
    f = td.Func("f")
    f[i, j] = td.sum(left[i, k] * right[k, j], axis=k)
    program = td.compile(f)
    assert ("vectorized" in program.loops()) == (max(shape) >= 4)
    a, b = rng.standard_normal((m, n), np.float32), rng.standard_normal((n, 1), np.float32)
    np.testing.assert_allclose(program(a, b), a @ b, 1e-3, 1e-2)


@pytest.mark.parametrize("columns", [1, 2, 3, 5])
def test_positions_in_narrow_rows(rng, columns):
    a = rng.integers(0, 50, (70001, columns)).astype(np.float32)
    best, last = td.Func("best"), td.Func("last")
    best[j], last[j] = td.argmax(x[i, j], axis=i), td.min(x[i, j], axis=i)
    most = td.compile(best, R=70001, C=columns)
    np.testing.assert_array_equal(most(a), a.argmax(0))
    a[60000, 0] = np.nan
    np.testing.assert_array_equal(most(a), a.argmax(0))
    np.testing.assert_array_equal(td.compile(last, R=70001, C=columns)(a), a.min(0))
