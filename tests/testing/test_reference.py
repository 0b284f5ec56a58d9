"""References and inputs for tests: the interpreter, derived tolerances, random inputs, strategies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import find, given, settings

import tdsl as td
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.testing.reference import compare

i, j, k = td.vars("i j k")
a, b = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.f32)
c = td.Func("c")
c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)


def _tiled(**sizes: int) -> td.Schedule:
    s = td.Schedule(c, sizes=sizes)
    s[c].tile((i, j), (4, 4))
    return s


@settings(max_examples=30, deadline=None)
@given(td.testing.inputs(_tiled(), max_size=9))
def test_a_tiled_product_matches_its_definition_for_all_sizes_and_layouts(values: dict) -> None:
    td.testing.assert_matches(_tiled(), **values)


def test_funcs_operators_schedules_and_compiled_programs_have_one_reference() -> None:
    operator = td.op(_doubled)
    x = np.float32([1, 2])
    for of in (operator, operator.schedule(), operator.compile(), operator.schedule(N=2)):
        assert td.testing.interpret(of, x).tolist() == [2, 4]
    d = td.Func("d")
    d[i, j] = c[i, j] + 1
    ones = np.ones((1, 1), np.float32)
    assert td.testing.interpret((c, d), ones, b=ones) == (1, 2)


def _doubled(x: td.f32[N]) -> td.Func:
    y = td.Func("y")
    y[i] = x[i] * 2
    return y


_doubled.__annotations__["x"] = td.f32["N"]


def test_random_inputs_fit_the_sizes_that_a_schedule_fixes() -> None:
    values = td.testing.random_inputs(_tiled(M=7, K=3, N=5))
    assert (values["a"].shape, values["b"].shape) == ((7, 3), (3, 5))
    td.testing.assert_matches(_tiled(M=7, K=3, N=5), **values)
    other = td.testing.random_inputs(_tiled(M=7, K=3, N=5), seed=1)
    assert not np.array_equal(values["a"], other["a"])


def test_the_tolerance_counts_products_and_sums() -> None:
    assert td.testing.tolerance(c, M=1, K=50, N=1) * 2**24 == 100
    assert td.testing.tolerance(td.op(_doubled), N=10) * 2**24 == 1


@pytest.mark.parametrize("layout", ["F", "every second", "backwards"])
def test_strategies_reach_each_layout(layout: str) -> None:
    def has_layout(values: dict) -> bool:
        x = values["a"]
        if min(x.shape) < 2:
            return False
        rows, columns = (s // x.itemsize for s in x.strides)
        found = {"F": rows == 1, "every second": columns == 2, "backwards": rows < 0}
        return found[layout]

    assert find(td.testing.inputs(c), has_layout, settings=settings(database=None))


def test_strategies_have_only_sizes_that_fit() -> None:
    y = td.Func("y")
    y[i] = td.Tensor("x", ("N",), td.i32)[i + 2] + td.Tensor("z", (4,), td.i32)[i]
    values = find(td.testing.inputs(y, max_size=6), lambda v: True, settings=settings(database=None))
    td.testing.assert_matches(y, **values)


@pytest.mark.parametrize(
    "result, message",
    [
        (np.float32([[1, 2], [3, 5]]), r"c\[1, 1\] is 5.0, its definition gives 4.0; 1 of 4 elements"),
        (np.float32([[1, np.nan], [3, 4]]), r"c\[0, 1\] is nan, its definition gives 2.0"),
        (np.float32([[1, 2]]), r"c is float32\[1, 2\], its definition has float32\[2, 2\]"),
        (np.float64([[1, 2], [3, 4]]), "c is float64"),
    ],
)
def test_a_difference_names_its_first_element(result: np.ndarray, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        compare(td.compile(c), result, (np.float32([[1, 2], [3, 4]]),), 1e-6)


def test_integers_that_no_float64_tells_apart_differ() -> None:
    y, large = td.Func("y"), 1 << 62
    y[i] = td.Tensor("x", ("N",), td.i64)[i]
    with pytest.raises(AssertionError, match=rf"y\[0\] is {large + 1}, its definition gives {large};"):
        compare(td.compile(y), np.array([large + 1]), (np.array([large]),), 0.0)


def test_what_cannot_be_tested_is_refused() -> None:
    with pytest.raises(TypeMismatch, match="tests take an operator, funcs, a schedule"):
        td.testing.interpret(td.Graph(_doubled), np.ones(1, np.float32))
    with pytest.raises(ShapeError, match="needs all sizes; not known: K, N"):
        td.testing.random_inputs(c, M=2)
    ranks, grid = td.Schedule(c), td.Grid(p=2)
    ranks.place(a, "ik -> i", grid).place(b, "kj -> *", grid).place(c, "ij -> i", grid)[c].distribute(i, grid)
    with pytest.raises(TypeMismatch, match="of ranks: compare simulate"):
        td.testing.random_inputs(ranks, M=2, K=2, N=2)
