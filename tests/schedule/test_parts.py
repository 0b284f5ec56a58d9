"""Reductions to few values run in parts on threads; what they give does not depend on how many."""

import numpy as np
import pytest

import tdsl as td
from tdsl.schedule.bind import bind_state
from tdsl.schedule.default import complete
from tdsl.schedule.machine import Machine

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
    assert any("partial" in name for name in funcs(f, *shape))
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


def test_a_float_update_keeps_its_order():
    f = td.Func("f")
    f[()] += x[i, j]
    assert funcs(f, 2000, 2000) == ["f"]


def test_nan_reaches_the_result(rng):
    a = rng.standard_normal((1500, 200), np.float32)
    a[1490, 199] = np.nan
    assert np.isnan(td.compile(reduction("whole"))(a))
    assert td.compile(reduction("most"))(a) == 1490 * 200 + 199
