"""Default schedules that once failed or did not replay."""

import numpy as np

import tdsl as td
from tdsl.lang.interp import interpret
from tests.fuzz.replayed import check_replays

i, m = td.vars("i m")


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
