"""Default schedules that once failed or did not replay."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tests.fuzz.replayed import check_replays

i, j, k, m = td.vars("i j k m")


def test_an_update_at_an_inlined_index_replays() -> None:
    x, at = td.Tensor("x", (37,), td.f64), td.Tensor("at", (), td.i16)
    where, f = td.Func("where"), td.Func("f", shape=6)
    where[i] = td.saturating_cast(at[()], td.i64)
    f[i] = td.cast(0, td.f64)
    f[td.clip(where[m], 0, 5)] += x[m]
    check_replays(td.Schedule(f), {})
    given = {"x": np.arange(37.0), "at": np.array(3, np.int16)}
    (want,) = interpret(td.Schedule(f).program, given)
    np.testing.assert_array_equal(td.compile(f)(**given), want)


@pytest.mark.parametrize("dtype", [td.i16, td.f32, td.f64])
@pytest.mark.parametrize("columns", [4, 8, 100])
def test_a_reader_of_column_sums_whose_last_dimension_has_one_element_has_a_default(dtype, columns, rng):
    x, f, total = td.Tensor("x", (16, columns, 1), dtype), td.Func("f"), td.Func("total")
    total[j, k] = td.sum(x[i, j, k], axis=i)
    f[j, k] = td.sqrt(total[j, k]) / 3
    a = rng.integers(0, 9, (16, columns, 1)).astype(dtype.numpy)
    np.testing.assert_allclose(td.compile(f)(a), np.sqrt(a.sum(0)) / 3, rtol=1e-5)


@pytest.mark.in_part(4)
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
@pytest.mark.parametrize("kind", ["product", "tensor cores", "row", "long row", "column"])
def test_ring_buffers_have_a_default_schedule(rng, kind, arch):
    # recipes that keep results in registers raised ScheduleError where directives fold their memory
    half = td.f16 if kind == "tensor cores" else td.f32
    rows, terms = (3, 8192) if kind == "long row" else (32, 400)
    a, w = td.Tensor("a", (rows, terms), half), td.Tensor("w", (terms, 32), half)
    f, g = td.Func("f"), td.Func("g")
    if kind in ("row", "long row"):
        f[i] = td.sum(a[i, k], axis=k)
        g[i] = f[i] * 2 + 1
    elif kind == "column":
        f[i] = td.max(w[k, i], axis=k)
        g[i] = f[i] * 2 + 1
    else:
        f[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(w[k, j], td.f32), axis=k)
        g[i, j] = f[i, j] + f[i, 0]
    s = td.Schedule(g, target=td.Target("cuda", arch=arch))
    s[f].fold_storage("i", 32)
    arrays = {
        x.name: rng.integers(-2, 3, [e.value for e in x.shape]).astype(half.numpy) for x in s.program.inputs
    }
    (want,) = interpret(s.program, arrays)
    np.testing.assert_array_equal(td.emulate(td.compile(s))(**arrays), want)
