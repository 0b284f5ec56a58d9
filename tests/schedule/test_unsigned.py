"""Signed integers read as unsigned ones: the sum is made of other numbers, its readers get the same."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret

i, j, k = td.vars("i j k")


def program(small=td.i8, wide=td.i32):
    a, b = td.Tensor("a", ("M", "K"), small), td.Tensor("b", ("K", "N"), small)
    c, out = td.Func("c"), td.Func("out")
    c[i, j] = td.sum(td.cast(a[i, k], wide) * td.cast(b[k, j], wide), axis=k, dtype=wide)
    out[i, j] = c[i, j] * 2 + td.where(c[i, j] > 0, 1, 0)
    return c, out


def ends(rng, t, *shape):
    low, high = int(t.low), int(t.high)
    return rng.choice(np.array([low, low + 1, -1, 0, 1, high], t.numpy), shape)


@pytest.mark.parametrize("source", ["a", "b"])
@pytest.mark.parametrize(
    "small, wide",
    [(td.i8, td.i32), (td.i8, td.i16), (td.i16, td.i32), (td.i32, td.i64), (td.i8, td.u32)],
)
@pytest.mark.parametrize("target", ["cpu", "python"])
def test_readers_of_the_sum_get_the_same(rng, source, small, wide, target):
    c, out = program(small, wide)
    s = td.Schedule(out)
    raised, excess = s[c].unsigned(source)
    assert (raised.func, excess.func) == (f"{source}_unsigned", "c_excess")
    f = td.compile(s, target=target)
    for m, n, terms in ((3, 5, 7), (1, 1, 1), (2, 3, 0)):
        x, y = ends(rng, small, m, terms), ends(rng, small, terms, n)
        (want,) = interpret(td.Schedule(out).program, {"a": x, "b": y})
        np.testing.assert_array_equal(f(x, y), want)


def test_the_excess_has_only_the_variables_of_the_other_factor():
    c, out = program()
    s = td.Schedule(out)
    s[c].unsigned("b")
    assert s.state.program.func("c_excess").variables == ("i",)
    assert "c[i, j] - c_excess[i]" in str(s.state.program)


def test_a_sum_over_all_elements_has_one_excess(rng):
    a, c, out = td.Tensor("a", ("N",), td.i8), td.Func("c"), td.Func("out")
    c[i] = td.sum(td.cast(a[k], td.i32) * td.cast(i + 1, td.i32), axis=k, dtype=td.i32)
    out[i] = c[i]
    s = td.Schedule(out.with_shape(4))
    s[c].unsigned(a)
    x = ends(rng, td.i8, 13)
    want = x.astype(np.int32).sum() * np.arange(1, 5)
    np.testing.assert_array_equal(td.compile(s)(x), want)
