"""How many iterations loops have, as far as schedules know."""

import numpy as np
import pytest

import tdsl as td

i, j = td.vars("i j")


@pytest.mark.parametrize("tail", ["guard", "peel", "shift"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 8), (1, 13)], ids=str)
def test_a_loop_made_of_constant_ones_is_vectorized_whole(rng, shape, tail):
    x, f = td.Tensor("x", shape, td.i64), td.Func("f")
    f[i, j] = x[i, j] * 3
    s = td.Schedule(f)
    outer, inner = s[f].split(j, 4, tail=tail)
    s[f].reorder(inner, i, outer)
    s[f].vectorize(s[f].fuse(i, outer))
    a = rng.integers(-9, 9, shape)
    np.testing.assert_array_equal(td.compile(s)(a), a * 3)


def test_a_loop_of_unknown_length_needs_a_number_of_lanes():
    x, f = td.Tensor("x", ("N", 4), td.i64), td.Func("f")
    f[i, j] = x[i, j] * 3
    s = td.Schedule(f)
    with pytest.raises(td.ScheduleError, match="not a constant"):
        s[f].vectorize(s[f].fuse(i, j))
