"""Inferred ranges: the largest for which every read is inside; bare variables agree exactly."""

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ShapeError
from tdsl.lang.show import show_expr

i, j, k = td.vars("i j k")


def domain(value: Any, *left: Any) -> list[tuple[str, str]]:
    """(first, extent) of each dimension of a func defined as `value`, as text."""
    f = td.Func("f")
    f[left or (i,)] = value
    return [(repr(lo), repr(n)) for lo, n in f.domain]


def one(name: str = "a", n: Any = 10) -> Any:
    return td.Tensor(name, (n,), td.f32)


@pytest.mark.parametrize(
    "read, expected",
    [
        (lambda a: a[i], (0, 10)),
        (lambda a: a[i + 3], (-3, 10)),
        (lambda a: a[i] + a[i + 1], (0, 9)),
        (lambda a: a[i - 1] + a[i + 1], (1, 8)),
        (lambda a: a[2 * i], (0, 5)),
        (lambda a: a[3 * i + 1], (0, 3)),
        (lambda a: a[9 - i], (0, 10)),
        (lambda a: a[i // 2], (0, 20)),
        (lambda a: a[(i + 1) // 3], (-1, 30)),
        (lambda a: a[2 * i] + a[2 * i + 1], (0, 5)),
        (lambda a: a[i] + a[0], (0, 10)),
        (lambda a: a[i] + a[td.clip(i * 5, 0, 9)], (0, 10)),
        (lambda a: td.pad(a, mode="edge")[i - 1] + td.pad(a, mode="edge")[i], (0, 10)),
        (lambda a: a[i] + td.pad(a)[i + 50], (0, 10)),
    ],
)
def test_the_range_of_a_variable_is_the_largest_that_stays_inside(
    read: Any, expected: tuple[int, int]
) -> None:
    assert domain(read(one())) == [tuple(map(repr, expected))]


def test_named_extents_stay_symbolic() -> None:
    a = td.Tensor("a", ("H", "W"), td.f32)
    assert domain(a[i, j] + a[i, j + 1], i, j) == [("0", "H"), ("0", "W - 1")]
    assert domain(a[i, 2 * j], i, j) == [("0", "H"), ("0", "(W + 1) // 2")]


def test_a_window_leaves_room_for_its_taps() -> None:
    a, w = td.Tensor("a", ("N",), td.f32), td.Tensor("w", ("K",), td.f32)
    assert domain(td.sum(a[i + k] * w[k], axis=k)) == [("0", "N - K + 1")]


def test_a_window_over_a_td_range() -> None:
    r = td.range("r", -2, 3)
    assert domain(td.sum(one()[i + r], axis=r)) == [("2", "6")]


def test_a_strided_window() -> None:
    r = td.range("r", 0, 3)
    assert domain(td.sum(one()[2 * i + r], axis=r)) == [("0", "4")]


def test_a_reduction_runs_as_far_as_every_read_allows() -> None:
    a, b, f = one("a"), one("b"), td.Func("f")
    f[()] = td.sum(a[k] * b[k + 1], axis=k)
    ((_, lo, hi),) = td.Schedule(f).program.func("f").definitions[0].ranges
    assert lo is not None
    assert hi is not None
    assert (show_expr(lo), show_expr(hi)) == ("0", "9")


def test_a_bare_variable_and_a_stride_on_it_narrow_each_other() -> None:
    a = td.Tensor("a", (8, 7), td.f32)
    assert domain(a[i, 3 * i + 1]) == [("0", "2")]


def test_names_that_must_be_equal_become_one() -> None:
    a, b = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("L", "N"), td.f32)
    f = td.Func("f")
    f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    assert len(td.Schedule(f).program.sizes) == 3


def test_a_name_that_must_be_a_number_becomes_it() -> None:
    assert domain(one("a", "N")[i] + one("b", 6)[i]) == [("0", "6")]


def test_a_range_follows_through_several_funcs() -> None:
    a, f, g = one("a", "N"), td.Func("f"), td.Func("g")
    f[i] = a[i] + a[i + 1]
    g[i] = f[i] + f[i + 2]
    assert [(repr(lo), repr(n)) for lo, n in g.domain] == [("0", "N - 3")]


def test_updates_limit_a_func_as_its_definition_does() -> None:
    a, f = td.Tensor("a", (6, 10), td.f32), td.Func("f")
    f[i, j] = td.cast(0, td.f32)
    f[i, j] += a[i, j + 2]
    assert f.domain == ((0, 6), (-2, 10))


def test_a_limit_does_not_depend_on_the_variable_that_it_limits() -> None:
    a, f = one(), td.Func("f")
    r = td.range("r", 2, 5, where=lambda r: r < j)
    f[j] = td.sum(a[j + r], axis=r)
    assert f.domain == ((-2, 8),)


def test_two_extents_of_one_variable_are_an_error() -> None:
    with pytest.raises(ShapeError, match="two extents: 10 as axis 0 of 'a', and 9 as axis 0 of 'b'"):
        domain(one("a")[i] + one("b", 9)[i])


def test_an_extent_cannot_be_part_of_itself() -> None:
    a = td.Tensor("a", ("N",), td.f32)
    f = td.Func("f")
    f[i] = a[i + 1] + a[i]
    g = td.Func("g")
    g[i] = f[i] + a[i]
    with pytest.raises(ShapeError, match="two extents"):
        td.Schedule(g)


def test_extents_that_no_name_makes_equal_are_compared_at_the_call() -> None:
    a, b, f, g = one("a", "N"), one("b", "M"), td.Func("f"), td.Func("g")
    f[i] = a[i + 0] + b[i + 0]
    g[i] = f[i] * b[i]
    call, x = td.compile(g), np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(call(x, x[:3]), (x[:3] + x[:3]) * x[:3])
    with pytest.raises(ShapeError, match="'i' has two extents: 3 as axis 0 of 'f', and 5 as axis 0"):
        call(x[:3], x)


@pytest.mark.parametrize(
    "value",
    [lambda: td.cast(i, td.f32), lambda: one()[td.clip(i, 0, 9)], lambda: one()[i % 10],
     lambda: one()[0]],
)  # fmt: skip
def test_an_unknown_range_is_an_error(value: Any) -> None:
    with pytest.raises(ShapeError, match=r"declare it: f.with_shape"):
        domain(value())


def test_paddings_of_different_extents_suggest_nothing() -> None:
    a, b = td.pad(one("a"), mode="edge"), td.pad(one("b", 9), mode="edge")
    with pytest.raises(ShapeError, match="declare it"):
        domain(a[i] + b[i])


def test_a_declared_shape_is_the_range() -> None:
    f = td.Func("f", shape=(3, "N"))
    f[i, j] = td.cast(i + j, td.f32)
    assert [repr(n) for _, n in f.domain] == ["3", "N"]
