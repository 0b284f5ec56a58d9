"""Every kind of reduction against NumPy; combiners, tuples, predicates, empty ranges."""

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import DefinitionError, ShapeError, TypeMismatch
from tests.lang.meaning import counted, run

NAMED = ("sum", "prod", "min", "max", "any", "all", "mean", "argmin", "argmax")
TYPES = (np.float32, np.float64, np.uint8, np.int16, np.int64, np.bool_)


def reduced(kind: str, a: np.ndarray, axes: str) -> Any:
    i, j, k = td.vars("i j k")
    by = {"i": i, "j": j, "k": k}
    t, f = td.Tensor("a", a.shape, a.dtype), td.Func("f")
    axis = [by[x] for x in axes]
    left = tuple(v for n, v in by.items() if n not in axes)
    f[left] = getattr(td, kind)(t[i, j, k], axis=axis[0] if len(axis) == 1 else tuple(axis))
    return run(f, a=a)


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axes", ["k", "i", "jk", "ijk"])
def test_a_reduction_is_that_of_numpy(kind: str, dtype: Any, axes: str) -> None:
    a = counted(3, 4, 5, dtype=np.int64) % 3 if dtype == np.bool_ else counted(3, 4, 5)
    a = a.astype(dtype)
    got = reduced(kind, a, axes)
    axis = tuple("ijk".index(x) for x in axes)
    if kind.startswith("arg"):
        moved = np.moveaxis(a, axis, range(-len(axis), 0)).reshape(*got.shape, -1)
        expected = getattr(moved, kind)(-1)
    else:
        expected = getattr(np, kind)(a, axis=axis)
    assert got.dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_float_sums_add_in_the_order_of_the_range() -> None:
    a = np.array([[1e8, 1.0, -1e8, 1.0]], np.float32)
    total = np.float32(0)
    for x in a[0]:
        total = np.float32(total + x)
    i, k = td.vars("i k")
    f = td.Func("f")
    f[i] = td.sum(td.Tensor("a", (1, 4), td.f32)[i, k], axis=k)
    assert run(f, a=a)[0] == total


def test_arg_finds_the_first_of_equals_and_the_first_nan() -> None:
    a = np.array([[3, 1, 1, 5, 5], [1, np.nan, 0, np.nan, 2]])
    i, k = td.vars("i k")
    t = td.Tensor("a", a.shape, td.f64)
    low, high = td.Func("low"), td.Func("high")
    low[i] = td.argmin(t[i, k], axis=k)
    high[i] = td.argmax(t[i, k], axis=k)
    for got, expected in zip(run(low, high, a=a), (a.argmin(1), a.argmax(1)), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_arg_over_a_range_gives_the_value_of_the_variable() -> None:
    a = counted(9)
    f, r = td.Func("f"), td.range("r", 3, 8)
    t = td.Tensor("a", (9,), td.f32)
    f[()] = td.argmax(t[r], axis=r)
    assert run(f, a=a) == 3 + a[3:8].argmax()


@pytest.mark.parametrize(
    "kind, expected",
    [("sum", 0), ("prod", 1), ("min", 127), ("max", -128), ("any", False), ("all", True)],
)
def test_a_reduction_of_nothing_is_its_identity(kind: str, expected: int) -> None:
    i, k = td.vars("i k")
    f = td.Func("f")
    f[i] = getattr(td, kind)(td.Tensor("a", (2, 0), td.i8)[i, k], axis=k)
    np.testing.assert_array_equal(run(f, a=np.zeros((2, 0), np.int8)), [expected] * 2)


def test_narrow_integers_sum_in_64_bits_without_a_dtype() -> None:
    i, k = td.vars("i k")
    t = td.Tensor("a", (1, 300), td.u8)
    wide, same = td.Func("wide"), td.Func("same")
    wide[i] = td.sum(t[i, k], axis=k)
    same[i] = td.sum(t[i, k], axis=k, dtype=td.u8)
    a = np.full((1, 300), 255, np.uint8)
    got = run(wide, same, a=a)
    assert (got[0].dtype, int(got[0][0])) == (np.dtype(np.uint64), 300 * 255)
    assert (got[1].dtype, int(got[1][0])) == (np.dtype(np.uint8), 300 * 255 % 256)


def test_a_predicate_restricts_the_points() -> None:
    i, j = td.vars("i j")
    t, f = td.Tensor("a", (5, 5), td.f32), td.Func("f")
    k = td.range("k", 0, 5, where=lambda k: k <= i)
    f[i, j] = td.sum(t[i, k] * t[k, j], axis=k)
    a = counted(5, 5)
    np.testing.assert_array_equal(run(f, a=a), np.tril(a) @ a)


def test_the_predicate_of_a_nested_reduction_may_use_outer_variables() -> None:
    i = td.vars("i")
    t, f = td.Tensor("a", (6,), td.f32), td.Func("f")
    k = td.range("k", 0, 6, where=lambda k: k < i)
    f[i] = t[i] - td.sum(t[k], axis=k)
    a = counted(6)
    np.testing.assert_array_equal(run(f, a=a), a - (np.cumsum(a) - a))


def test_bounds_of_a_range_may_be_other_ranges() -> None:
    f = td.Func("f")
    t = td.Tensor("a", (5, 5), td.i64)
    r = td.range("r", 0, 5)
    s = td.range("s", r, 5)
    f[()] = td.sum(t[r, s], axis=(r, s))
    a = counted(5, 5, dtype=np.int64)
    assert run(f, a=a) == np.triu(a).sum()


def test_a_mean_counts_the_points_that_a_predicate_keeps() -> None:
    i, k = td.vars("i k")
    t, f = td.Tensor("a", (3, 6), td.f32), td.Func("f")
    even = td.range("k", 0, 6, where=lambda k: k % 2 == 0)
    f[i] = td.mean(t[i, k], axis=even)
    a = counted(3, 6)
    np.testing.assert_allclose(run(f, a=a), a[:, ::2].mean(1), rtol=1e-6)


def test_equal_reductions_in_an_expression_are_one_stage() -> None:
    i, k = td.vars("i k")
    t, f = td.Tensor("a", (3, 4), td.f32), td.Func("f")
    f[i] = td.sum(t[i, k], axis=k) * 2 + td.sum(t[i, k], axis=k)
    program = td.Schedule(f).program
    assert [g.name for g in program.funcs] == ["f_sum", "f"]


def test_reductions_of_different_combiners_are_not_merged() -> None:
    i, k = td.vars("i k")
    t, f = td.Tensor("a", (3, 4), td.f32), td.Func("f")
    high = td.reduce(td.maximum, -1e9, t[i, k], axis=k)
    low = td.reduce(td.minimum, -1e9 * -1, t[i, k], axis=k)
    f[i] = high - low
    a = counted(3, 4)
    np.testing.assert_array_equal(run(f, a=a), a.max(1) - a.min(1))


def test_a_combiner_of_several_values() -> None:
    """Welford's mean and sum of squares, which has three values."""
    i, k = td.vars("i k")
    t, f = td.Tensor("a", (3, 8), td.f64), td.Func("f")

    def merge(a: Any, b: Any) -> tuple[Any, ...]:
        n = a[0] + b[0]
        delta = b[1] - a[1]
        m = td.where(n > 0, a[1] + delta * b[0] / n, 0.0)
        return n, m, a[2] + b[2] + delta * delta * a[0] * b[0] / td.maximum(n, 1.0)

    values = (td.cast(1.0, td.f64), t[i, k], td.cast(0.0, td.f64))
    f[i] = td.reduce(merge, (0.0, 0.0, 0.0), values, axis=k)
    a = counted(3, 8, dtype=np.float64)
    n, mean, squares = run(f, a=a)
    np.testing.assert_array_equal(n, [8.0] * 3)
    np.testing.assert_allclose(mean, a.mean(1))
    np.testing.assert_allclose(squares / 8, a.var(1))


def test_a_tuple_may_mix_reductions_with_other_values() -> None:
    i, k = td.vars("i k")
    t, f = td.Tensor("a", (3, 4), td.f32), td.Func("f")
    f[i] = (td.sum(t[i, k], axis=k), td.cast(i, td.i32), td.max(t[i, k], axis=k))
    a = counted(3, 4)
    for got, expected in zip(run(f, a=a), (a.sum(1), np.arange(3), a.max(1)), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_reduction_of_several_values_may_hold_another() -> None:
    i, j, k = td.vars("i j k")
    t, f = td.Tensor("a", (3, 4, 5), td.f32), td.Func("f")
    row = td.sum(t[i, j, k], axis=k)
    both = td.reduce(lambda a, b: (td.maximum(a[0], b[0]), td.minimum(a[1], b[1])),
                     (-1e9, 1e9), (row, row), axis=j)  # fmt: skip
    f[i] = both
    a = counted(3, 4, 5)
    high, low = run(f, a=a)
    np.testing.assert_array_equal(high, a.sum(2).max(1))
    np.testing.assert_array_equal(low, a.sum(2).min(1))


def test_a_combiner_in_order_is_kept_in_order() -> None:
    i, k = td.vars("i k")
    t, f = td.Tensor("a", (2, 5), td.f64), td.Func("f")
    f[i] = td.reduce(lambda a, b: a * 0.5 + b, 0.0, t[i, k], axis=k, associative=False)
    a = counted(2, 5, dtype=np.float64)
    total = np.zeros(2)
    for n in range(5):
        total = total * 0.5 + a[:, n]
    np.testing.assert_array_equal(run(f, a=a), total)


i, k = td.vars("i k")
A = td.Tensor("a", (3, 4), td.f32)
WRONG = {
    "an axis that is no variable": (TypeMismatch, lambda: td.sum(A[i, k], axis=1)),
    "no axis": (DefinitionError, lambda: td.sum(A[i, k], axis=())),
    "an axis twice": (DefinitionError, lambda: td.sum(A[i, k], axis=(k, k))),
    "too few identities": (
        TypeMismatch,
        lambda: td.reduce(lambda a, b: a, (0.0,), (A[i, k], A[i, k]), axis=k),
    ),
    "too few results": (
        TypeMismatch,
        lambda: td.reduce(lambda a, b: (a[0],), (0.0, 0.0), (A[i, k], A[i, k]), axis=k),
    ),
    "an identity that is no number": (
        DefinitionError,
        lambda: td.reduce(lambda a, b: a + b, A[0, 0], A[i, k], axis=k),
    ),
    "a combiner that reads a tensor": (
        DefinitionError,
        lambda: td.reduce(lambda a, b: a + b * A[0, 0], 0.0, A[i, k], axis=k),
    ),
    "a combiner that uses a variable": (
        DefinitionError,
        lambda: td.reduce(lambda a, b: a + b * i, 0.0, A[i, k], axis=k),
    ),
    "a predicate that is no condition": (TypeMismatch, lambda: td.range("r", 0, 3, where=i + 1)),
    "a bound that is no integer": (TypeMismatch, lambda: td.range("r", 0, 1.5)),
    "a name that is none": (DefinitionError, lambda: td.range("r s", 0, 3)),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_reduction_is_refused(case: str) -> None:
    error, make = WRONG[case]
    with pytest.raises(error) as caught:
        make()
    assert caught.value.loc is not None


def test_a_reduction_whose_range_is_unknown_asks_for_it() -> None:
    f = td.Func("f")
    f[i] = td.sum(td.cast(k, td.f32) * A[i, 0], axis=k)
    with pytest.raises(ShapeError, match=r"td\.range"):
        td.Schedule(f)


def test_a_combiner_may_use_a_scalar() -> None:
    f, decay = td.Func("f"), td.Scalar("decay", td.f32)
    f[i] = td.reduce(lambda a, b: a * decay + b, 0.0, A[i, k], axis=k, associative=False)
    a = counted(3, 4)
    total = np.zeros(3, np.float32)
    for n in range(4):
        total = total * np.float32(0.5) + a[:, n]
    np.testing.assert_array_equal(run(f, a=a, decay=0.5), total)


def test_a_scalar_in_a_combiner_must_not_look_like_its_sides() -> None:
    with pytest.raises(DefinitionError, match="rename"):
        td.reduce(lambda a, b: a + b * td.Scalar("a0", td.f32), 0.0, A[i, k], axis=k)
