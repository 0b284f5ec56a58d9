"""Values in the user's hands: operators and functions have NumPy's types, values and names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tests.lang.meaning import run

i = td.vars("i")
NUMPY = ("i8", "u8", "i16", "u32", "i64", "u64", "f32", "f64")
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
}
BITS: dict[str, Callable[[Any, Any], Any]] = {
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "<<": lambda x, y: x << y,
    ">>": lambda x, y: x >> y,
}


def tensor(name: str, t: str) -> Any:
    return td.Tensor(name, (6,), t)


def data(t: str, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).integers(-4, 5, 6)
    return (
        np.abs(x).astype(td.Tensor("a", (), t).dtype.numpy)
        if t[0] == "u"
        else x.astype(td.Tensor("a", (), t).dtype.numpy)
    )


def result(value: Any, **arguments: Any) -> np.ndarray:
    f = td.Func("f")
    f[i] = value
    return run(f, **arguments)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("a", NUMPY)
@pytest.mark.parametrize("b", ["u8", "i32", "f32", "u64"])
def test_an_operator_is_that_of_numpy(op: str, a: str, b: str) -> None:
    x, y = data(a, 1), data(b, 2)
    with np.errstate(all="ignore"):
        want = OPERATORS[op](x, y)
    got = result(OPERATORS[op](tensor("a", a)[i], tensor("b", b)[i]), a=x, b=y)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", BITS)
@pytest.mark.parametrize("a", ["u8", "i16", "i64"])
def test_a_bit_operator_is_that_of_numpy(op: str, a: str) -> None:
    x, y = data(a, 1), np.abs(data(a, 2))
    want = BITS[op](x, y)
    got = result(BITS[op](tensor("a", a)[i], tensor("b", a)[i]), a=x, b=y)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("number", [2, -3, 2.5])
@pytest.mark.parametrize("op", ["+", "-", "*", "/", "//", "%", "<", "=="])
@pytest.mark.parametrize("a", ["i8", "i64", "f32", "f64"])
def test_numbers_adapt_to_what_they_meet_on_both_sides(a: str, op: str, number: float) -> None:
    x, t = data(a, 3), tensor("a", a)[i]
    with np.errstate(all="ignore"):
        left, right = OPERATORS[op](x, number), OPERATORS[op](number, x)
    for got, want in (
        (result(OPERATORS[op](t, number), a=x), left),
        (result(OPERATORS[op](number, t), a=x), right),
    ):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_numpy_scalars_are_strong() -> None:
    t = tensor("a", "f32")[i]
    assert (t * np.float64(2)).dtype == td.f64
    assert (np.float64(2) * t).dtype == td.f64
    assert (t * np.float32(2)).dtype == td.f32


def test_loop_variables_and_extents_are_weak() -> None:
    a = td.Tensor("a", ("N",), td.u8)
    assert (a[i] + i).dtype == td.u8
    assert (a[i] * a.shape[0]).dtype == td.u8
    assert (i * 2).dtype == td.i64
    np.testing.assert_array_equal(
        result(tensor("a", "u8")[i] + i * 100, a=np.full(6, 7, np.uint8)),
        (7 + np.arange(6) * 100).astype(np.uint8),
    )


UNARY = (
    "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "arcsin",
    "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arctanh", "floor", "ceil", "trunc", "round",
    "square", "absolute",
)  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("t", ["f32", "f64", "i32"])
def test_a_function_has_the_name_and_the_values_of_numpy(name: str, t: str) -> None:
    x = np.array([0.125, 0.5, 0.75, 0.25, 0.9, 0.0625])
    x = (x * 10 % 2 if t == "i32" else x).astype(tensor("a", t).dtype.numpy)
    numpy = getattr(np, "rint" if name == "round" and t != "i32" else name)
    with np.errstate(all="ignore"):
        want = numpy(x)
    if name in ("floor", "ceil", "trunc", "round") and t == "i32":
        want = want.astype(np.int32)
    got = result(getattr(td, name)(tensor("a", t)[i]), a=x)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-6 if t == "f32" else 1e-14)


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_isnan_isinf_isfinite(name: str) -> None:
    x = np.array([0.0, np.nan, np.inf, -np.inf, 1e300, -0.0])
    value = getattr(td, name)
    np.testing.assert_array_equal(result(value(tensor("a", "f64")[i]), a=x), getattr(np, name)(x))
    assert repr(value(tensor("a", "i32")[i])) == str(name == "isfinite")


@pytest.mark.parametrize("name", ["maximum", "minimum", "hypot", "arctan2", "copysign", "power"])
def test_a_function_of_two_has_the_values_of_numpy(name: str) -> None:
    x = np.array([0.5, 1.5, 2.0, 0.25, 1.0, 3.0])
    y = np.array([1.0, -1.5, 0.5, 2.0, np.nan, 0.0])
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x, y)
    got = result(getattr(td, name)(tensor("a", "f64")[i], tensor("b", "f64")[i]), a=x, b=y)
    np.testing.assert_allclose(got, want, rtol=1e-14)


def test_a_choice_promotes_its_arms() -> None:
    a, b = tensor("a", "u8"), tensor("b", "f32")
    value = td.where(a[i] > 2, a[i], b[i])
    assert value.dtype == td.f32
    x, y = data("u8", 4), data("f32", 5)
    np.testing.assert_array_equal(result(value, a=x, b=y), np.where(x > 2, x, y))


@pytest.mark.parametrize(
    "make, want",
    [
        (lambda a: td.clip(a, 2, 5), [2, 2, 2, 3, 5, 5]),
        (lambda a: td.absdiff(a, 3), [3, 2, 1, 0, 6, 252]),
        (lambda a: td.cast(a, td.i8), [0, 1, 2, 3, 9, -1]),
        (lambda a: td.saturating_cast(a, td.i8), [0, 1, 2, 3, 9, 127]),
        (lambda a: td.popcount(a), [0, 1, 1, 2, 2, 8]),
        (lambda a: td.count_leading_zeros(a), [8, 7, 6, 6, 4, 0]),
        (lambda a: td.count_trailing_zeros(a), [8, 0, 1, 0, 0, 0]),
        (lambda a: ~a, [255, 254, 253, 252, 246, 0]),
        (lambda a: -a, [0, 255, 254, 253, 247, 1]),
        (lambda a: td.lerp(td.cast(a, td.f32), 10.0, 0.5), [5, 5.5, 6, 6.5, 9.5, 132.5]),
        (lambda a: td.logical_and(a, a > 2), [False, False, False, True, True, True]),
        (lambda a: td.logical_or(a > 5, a == 0), [True, False, False, False, True, True]),
        (lambda a: td.logical_not(a), [True, False, False, False, False, False]),
        (lambda a: a**2, [0, 1, 4, 9, 81, 1]),
        (lambda a: td.remainder(7, a), [0, 0, 1, 1, 7, 7]),
        (lambda a: td.floor_divide(7, a), [0, 7, 3, 2, 0, 0]),
    ],
)
def test_functions_of_integers(make: Callable[[Any], Any], want: list[float]) -> None:
    x = np.array([0, 1, 2, 3, 9, 255], np.uint8)
    np.testing.assert_array_equal(result(make(tensor("a", "u8")[i]), a=x), want)


def test_the_bits_of_a_number_are_reinterpreted() -> None:
    x = np.array([1.0, -2.0, 0.0, np.inf, 1e-40, 3.5], np.float32)
    got = result(td.reinterpret(tensor("a", "f32")[i], td.u32), a=x)
    np.testing.assert_array_equal(got, x.view(np.uint32))


def test_a_value_reads_as_it_was_written() -> None:
    a, s = td.Tensor("a", (4, 4), td.f32), td.Scalar("s", td.f32)
    j = td.vars("j")
    value = td.where((i < j) & (a[i, j] > 0), a[i, j] * (s + 1), -a[j, i])
    assert repr(value) == "where((i < j) & (a[i, j] > 0.0), a[i, j] * (s + 1.0), -a[j, i])"


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: a < a + 1,
        lambda a, b: a - b < 0,
        lambda a, b: a + 1 == b + 1,
        lambda a, b: (a * 4 + b * 4) // 4,
        lambda a, b: (a * 3 + 1) % 3,
        lambda a, b: (a + 1) // 2 - b // 2,
    ],
)
@pytest.mark.parametrize("target", ["meaning", "python"])
def test_nothing_is_concluded_from_an_order_that_wrapping_breaks(make: Any, target: str) -> None:
    x = np.array([2**62 + 5, 2**63 - 1, -(2**63)])
    y = np.array([-(2**62) - 9, -3, 2**63 - 1])
    a, b, f = td.Tensor("a", (3,), td.i64), td.Tensor("b", (3,), td.i64), td.Func("f")
    f[i] = td.where(b[i] == b[i], make(a[i], b[i]), make(a[i], b[i]))
    got = run(f, a=x, b=y) if target == "meaning" else td.compile(f, target=target)(b=y, a=x)
    np.testing.assert_array_equal(got, make(x, y))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_sums_that_wrap(name: str) -> None:
    x = np.array([2**63 - 1, 2**63 - 2, 5, -(2**63)])
    a, f = td.Tensor("a", (4,), td.i64), td.Func("f")
    f[i] = getattr(td, name)(a[i] + 1, a[i] + 2)
    np.testing.assert_array_equal(run(f, a=x), getattr(np, name)(x + 1, x + 2))


@pytest.mark.parametrize("cast", [td.cast, td.saturating_cast])
def test_a_cast_with_the_type_first_says_so(cast: Callable[..., Any]) -> None:
    with pytest.raises(td.TypeMismatch, match=r"the value comes first: td.cast\(value, td.u8\)"):
        cast(td.u8, i)
