"""The recipe for rows: what NumPy gives, at any size, with threads, streaming, and rows in groups."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.patterns.sibling_reductions import SiblingReductions, reduce_siblings
from tdsl.autoschedule.recipes.choices import if_suited
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.properties import root_boxes

i, j = td.vars("i j")
WIDE = Machine(vector_bytes=64, threads=2)
SHAPES = [(0, 5), (1, 1), (3, 7), (5, 64), (2, 67), (13, 131), (7, 1000)]


def softmax(dtype=td.f32):
    x = td.Tensor("x", ("R", "C"), dtype)
    top, e, total, y = (td.Func(n) for n in ("top", "e", "total", "y"))
    top[i] = td.max(x[i, j], axis=j)
    e[i, j] = td.exp(x[i, j] - top[i])
    total[i] = td.sum(e[i, j], axis=j)
    y[i, j] = e[i, j] / total[i]
    return y


def centred(dtype=td.f32):
    """Rows less their mean, over their root mean square; the mean is one of two reductions."""
    x = td.Tensor("x", ("R", "C"), dtype)
    n = td.cast(x.shape[1], dtype)
    mean, square, y = td.Func("mean"), td.Func("square"), td.Func("y")
    mean[i] = td.sum(x[i, j], axis=j) / n
    square[i] = td.sum((x[i, j] - mean[i]) ** 2, axis=j) / n
    y[i, j] = (x[i, j] - mean[i]) / td.sqrt(square[i] + 1e-3)
    return y


def numpy_softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def numpy_centred(x):
    d = x - x.mean(1, keepdims=True)
    return d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [td.f32, td.f64], ids=str)
def test_default_schedule_at_any_size(rng, shape, dtype):
    x = rng.standard_normal(shape).astype(dtype.numpy)
    tolerance = 50 * float(np.finfo(dtype.numpy).eps)
    for program, expected in ((softmax, numpy_softmax), (centred, numpy_centred)):
        got = td.compile(program(dtype))(x)
        np.testing.assert_allclose(got, expected(x.astype(np.float64)), tolerance, tolerance)


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_results_past_the_caches_at_any_alignment(rng, offset):
    s = td.Schedule(softmax(), sizes={"R": 9, "C": 131})
    assert td.recipes.rows(s["y"], machine=WIDE, stream=True).stream
    x = rng.standard_normal((9, 131), dtype=np.float32)
    memory = np.full(9 * 131 + 32, np.nan, np.float32)
    start = -(memory.ctypes.data // 4) % 16 + offset
    out = memory[start : start + 9 * 131].reshape(9, 131)
    td.compile(s)(x, out=out)
    np.testing.assert_allclose(out, numpy_softmax(x), 1e-5)
    assert np.isnan(memory[:start]).all()
    assert np.isnan(memory[start + 9 * 131 :]).all()


@pytest.mark.parametrize("together", [1, 4, 16])
def test_rows_together(rng, together):
    s = td.Schedule(softmax(), sizes={"R": 21, "C": 50})
    td.recipes.rows(s["y"], machine=WIDE, together=together)
    x = rng.standard_normal((21, 50), dtype=np.float32)
    np.testing.assert_allclose(td.compile(s)(x), numpy_softmax(x), 1e-5)


def test_nan_and_infinities_stay_in_their_rows(rng):
    x = rng.standard_normal((6, 100), dtype=np.float32)
    x[0, 70], x[1, 3], x[2, 99] = np.nan, np.inf, -np.inf
    x[3] = -np.inf
    with np.errstate(all="ignore"):
        expected = numpy_softmax(x)
    np.testing.assert_allclose(td.compile(softmax())(x), expected, 1e-5)


def test_sums_do_not_depend_on_threads(rng, monkeypatch):
    x = rng.standard_normal((300, 517), dtype=np.float32)
    results = []
    for threads in ("1", "2"):
        monkeypatch.setenv("TDSL_NUM_THREADS", threads)
        results.append(td.compile(centred(), R=300, C=517)(x))
    np.testing.assert_array_equal(*results)


def test_columns_are_summed_in_vectors_of_them():
    x = td.Tensor("x", ("R", "C"), td.f32)
    mean = td.Func("mean")
    mean[j] = td.sum(x[i, j], axis=i) / td.cast(x.shape[0], td.f32)
    s = td.Schedule(mean, sizes={"R": 100, "C": 100})
    assert td.recipes.rows(s[mean], machine=WIDE).together == 16


def test_a_stage_without_rows_is_left_as_it_is():
    x = td.Tensor("x", ("R", "C"), td.f32)
    y = td.Func("y")
    y[i, j] = x[i, j] + 1
    s = td.Schedule(y)
    with pytest.raises(td.ScheduleError, match="rows is not for"):
        td.recipes.rows(s[y])
    assert not s.directives


def gradients(dtype=td.f32):
    """What a layer norm passes back: to its input by rows, to its gain and shift by columns."""
    dy, x = (td.Tensor(n, ("R", "C"), dtype) for n in ("dy", "x"))
    gain = td.Tensor("gain", ("C",), dtype)
    mean, dx, dgain, dshift = (td.Func(n) for n in ("mean", "dx", "dgain", "dshift"))
    mean[i] = td.sum(dy[i, j] * gain[j], axis=j) / td.cast(x.shape[1], dtype)
    dx[i, j] = dy[i, j] * gain[j] - mean[i] * x[i, j]
    dgain[j] = td.sum(dy[i, j] * x[i, j], axis=i)
    dshift[j] = td.sum(dy[i, j], axis=i)
    return dx, dgain, dshift


def numpy_gradients(dy, x, gain):
    scaled = dy * gain
    return scaled - scaled.mean(1, keepdims=True) * x, (dy * x).sum(0), dy.sum(0)


def gradient_inputs(rng, rows, columns):
    shapes = {"dy": (rows, columns), "x": (rows, columns), "gain": (columns,)}
    return {name: rng.standard_normal(s, dtype=np.float32) for name, s in shapes.items()}


def check_gradients(compiled, arrays):
    exact = numpy_gradients(**{name: a.astype(np.float64) for name, a in arrays.items()})
    for got, expected in zip(compiled(**arrays), exact, strict=True):
        np.testing.assert_allclose(got, expected, 1e-5, 1e-5 * len(arrays["x"]))


@pytest.mark.parametrize("shape", [(1, 1), (5, 64), (13, 131), (16, 32)], ids=str)
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_column_sums_are_reduced_in_the_loops_of_rows(rng, shape, columns, stream):
    rows, width = shape
    s = td.Schedule(*gradients(), sizes={"R": rows, "C": width})
    siblings = SiblingReductions(("dgain", "dshift"), 4, ("dy",), columns and width > 1)
    plan = if_suited(td.recipes.rows, s["dx"], machine=WIDE, beside=siblings, stream=stream)
    assert (plan is None) == (shape == (1, 1))
    check_gradients(td.compile(s), gradient_inputs(rng, rows, width))


def rows_with_columns():
    """Gradients of many rows, whose sums are found beside them."""
    s = td.Schedule(*gradients(), sizes={"R": 1031, "C": 517})
    plan = td.recipes.rows(s["dx"], machine=WIDE)
    assert set(plan.beside.names) == {"dgain", "dshift"}
    assert plan.beside.columns
    return td.compile(s)


def test_column_sums_are_siblings_of_rows_that_read_the_same(rng):
    check_gradients(rows_with_columns(), gradient_inputs(rng, 1031, 517))


def test_the_default_schedule_of_gradients_is_right(rng):
    check_gradients(td.compile(td.Schedule(*gradients())), gradient_inputs(rng, 1031, 517))


def test_sibling_sums_do_not_depend_on_threads(rng, monkeypatch):
    arrays = gradient_inputs(rng, 1031, 517)
    results = []
    for threads in ("1", "2"):
        monkeypatch.setenv("TDSL_NUM_THREADS", threads)
        results.append(rows_with_columns()(**arrays))
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_nan_and_infinities_spread_over_rows_and_columns_only(rng):
    arrays = gradient_inputs(rng, 1031, 517)
    dy, x = arrays["dy"], arrays["x"]
    dy[3, 5], dy[700, 516], x[9, 0] = np.nan, np.inf, -np.inf
    got = rows_with_columns()(**arrays)
    with np.errstate(all="ignore"):
        exact = numpy_gradients(**arrays)
    for a, b in zip(got, exact, strict=True):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))


def test_sums_run_together_only_in_the_parts_that_each_has_alone():
    x = td.Tensor("x", (4097, 517), td.f32)
    row, y, whole, too, few = (td.Func(n) for n in ("row", "y", "whole", "too", "few"))
    row[i] = td.sum(x[i, j], axis=j)
    y[i, j] = x[i, j] / row[i]
    whole[j] = td.sum(x[i, j], axis=i)
    too[j] = td.max(x[i, j], axis=i)
    few[j] = td.sum(x[i, j] ** 2, axis=i)
    few.with_shape(100)
    s = td.Schedule(y, whole, few, too)
    assert td.recipes.rows(s[y], machine=WIDE).beside.names == ("whole", "too")
    state = td.Schedule(whole, few, too).state
    schedule = BaseSchedule.of_state(state)
    assert reduce_siblings(schedule["few"], root_boxes(state), WIDE) == ()
    assert reduce_siblings(schedule["whole"], root_boxes(state), WIDE) == ("too",)


def test_a_sum_that_a_row_needs_is_computed_before_the_rows():
    x = td.Tensor("x", ("R", "C"), td.f32)
    total, row, y = td.Func("total"), td.Func("row"), td.Func("y")
    total[j] = td.sum(x[i, j], axis=i)
    row[i] = td.sum(x[i, j], axis=j)
    y[i, j] = x[i, j] / row[i] - total[j]
    s = td.Schedule(y, total, sizes={"R": 4096, "C": 1024})
    assert td.recipes.rows(s[y], machine=WIDE).beside is None


@pytest.mark.parametrize("shape", [(2, 5), (7, 33), (9, 130), (16, 64)], ids=str)
def test_scans_of_rows_run_side_by_side(rng, shape):
    x = td.Tensor("x", ("R", "C"), td.i64)
    scan, y = td.Func("scan"), td.Func("y")
    r = td.range("r", 1, x.shape[1])
    scan[i, j] = x[i, j]
    scan[i, r] += scan[i, r - 1]
    y[i, j] = scan[i, j] * 2
    rows, columns = shape
    s = td.Schedule(y, sizes={"R": rows, "C": columns})
    assert td.recipes.rows(s[y], machine=WIDE).together == (4 if rows >= 8 else 1)
    a = rng.integers(-9, 9, shape)
    np.testing.assert_array_equal(td.compile(s)(a), 2 * a.cumsum(1))


def test_sums_of_rows_that_read_values_of_the_row_stay_in_the_chain():
    x, w = td.Tensor("x", ("R", "C"), td.f32), td.Tensor("w", ("R",), td.f32)
    total, y = td.Func("total"), td.Func("y")
    total[i] = td.sum((x[i, j] - w[i]) * w[i], axis=j)
    y[i, j] = x[i, j] - total[i]
    explained = td.compile(y, R=4096, C=1024).explain()
    assert "y: rows, with total inside" in explained


def doubled(x):
    y = td.Func("y")
    y[i, j] = x[i, j] * 2
    return y


@pytest.mark.parametrize("shape", [(1031, 517), (700, 1000)], ids=str)
@pytest.mark.parametrize("host", [True, False])
def test_results_of_columns_share_one_pass_over_the_rows(rng, shape, host):
    x = td.Tensor("x", ("R", "C"), td.f32)
    total, most, squares = td.Func("total"), td.Func("most"), td.Func("squares")
    total[j] = td.sum(x[i, j], axis=i)
    most[j] = td.max(x[i, j], axis=i)
    squares[j] = td.sum(x[i, j] * x[i, j], axis=i)
    s = td.Schedule(total, most, squares, *([doubled(x)] if host else []))
    compiled = td.compile(s, R=shape[0], C=shape[1])
    a = rng.standard_normal(shape, dtype=np.float32)
    got = compiled(a)
    exact = a.astype(np.float64)
    np.testing.assert_allclose(got[0], exact.sum(0), 1e-5, 1e-3)
    np.testing.assert_array_equal(got[1], a.max(0))
    np.testing.assert_allclose(got[2], (exact * exact).sum(0), 1e-5)
    if host:
        np.testing.assert_array_equal(got[3], a * 2)


@pytest.mark.parametrize("rows", [64, 4096, 32768])
def test_explain_says_how_rows_are_stored(rows):
    compiled = td.compile(centred(), R=rows, C=1024)
    assert ("non-temporal stores" in compiled.explain()) == ("streaming" in str(compiled.loops()))


def test_sums_in_rows_read_columns_of_narrow_matrices_as_vectors():
    """Forces of points on each other: positions are rows of 3, and each row sums all points by component."""
    j, c = td.vars("j c")
    pos, mass = td.Tensor("pos", ("N", 3), td.f64), td.Tensor("mass", ("N",), td.f64)
    weight, force, moved = td.Func("weight"), td.Func("force"), td.Func("moved")
    weight[i, j] = mass[j] / (1.0 + sum((pos[j, m] - pos[i, m]) ** 2 for m in range(3)))
    force[i, c] = td.sum((pos[j, c] - pos[i, c]) * weight[i, j], axis=j)
    moved[i, c] = pos[i, c] + 0.1 * force[i, c]
    compiled = td.compile(moved)
    rng = np.random.default_rng(0)
    p, m = rng.random((70, 3)), rng.random(70)
    d = p[None] - p[:, None]
    weights = m / (1 + (d**2).sum(axis=2))
    np.testing.assert_allclose(compiled(p, m), p + 0.1 * (d * weights[:, :, None]).sum(axis=1))
    assert "force_lanes" in str(compiled.loops("final"))
