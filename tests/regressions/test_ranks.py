"""Programs on ranks that once went wrong."""

import numpy as np

import tdsl as td

i = td.vars("i")


def test_what_known_sizes_leave_unread_may_be_communicated() -> None:
    a, f, grid = td.Tensor("a", (4,), td.i64), td.Func("f"), td.Grid(x=2)
    f[i] = a[i] - a[i] + i
    s = td.Schedule(f).place("a", "r -> r", grid).place("f", "r -> r", grid)
    s[f].communicate("a", at=s[f].distribute(i, grid)[0])
    np.testing.assert_array_equal(td.compile(s).simulate(np.ones(4, np.int64)), np.arange(4))


def test_a_scalar_result_is_written_where_it_lives() -> None:
    a, f, grid = td.Tensor("a", (5,), td.i64), td.Func("f"), td.Grid(x=2)
    f[()] = td.sum(a[i], axis=i)
    s = td.Schedule(f).place("a", "r -> *", grid).place("f", "-> 1", grid)
    s[f].distribute(i, grid)
    assert td.compile(s).simulate(np.arange(5)) == 10


def test_an_empty_result_has_its_shape() -> None:
    a, f, grid = td.Tensor("a", ("N",), td.i64), td.Func("f"), td.Grid(x=2)
    f[i] = a[i] * 2
    s = td.Schedule(f).place("a", "r -> r", grid).place("f", "r -> r", grid)
    s[f].distribute(i, grid)
    assert td.compile(s).simulate(np.zeros(0, np.int64)).shape == (0,)
