"""NumPy's functions on values are those of the index language."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.arithmetic import BINARY, FLOATS, UNARY
from tests.lang.meaning import counted, run

i = td.vars("i")
a, b = td.Tensor("a", (6,), td.f32), td.Tensor("b", (6,), td.i32)
X, Y = counted(6), np.array([1, -2, 3, 4, 5, 6], np.int32)

OF_FLOATS = [f for f in FLOATS.values() if isinstance(f, np.ufunc)]
OF_INTEGERS = [*BINARY.values(), *UNARY.values(), np.power, np.square, np.logical_and]


@pytest.mark.parametrize("ufunc", OF_FLOATS, ids=lambda f: f.__name__)
def test_a_ufunc_of_floats_gives_what_it_gives_on_arrays(ufunc: np.ufunc) -> None:
    x, y = np.abs(X) / 32, Y.astype(np.float32)
    f, other = td.Func("f"), td.Tensor("other", (6,), td.f32)
    f[i] = ufunc(a[i], other[i]) if ufunc.nin == 2 else ufunc(a[i])
    arguments = {"a": x, "other": y} if ufunc.nin == 2 else {"a": x}
    with np.errstate(all="ignore"):
        want = ufunc(*arguments.values())
    np.testing.assert_array_equal(run(f, **arguments), want, strict=True)


@pytest.mark.parametrize("ufunc", OF_INTEGERS, ids=lambda f: f.__name__)
def test_an_operator_of_numpy_gives_what_it_gives_on_arrays(ufunc: np.ufunc) -> None:
    f = td.Func("f")
    f[i] = ufunc(b[i], np.int32(3)) if ufunc.nin == 2 else ufunc(b[i])
    want = ufunc(Y, np.int32(3)) if ufunc.nin == 2 else ufunc(Y)
    np.testing.assert_array_equal(run(f, b=Y), want, strict=True)


def test_functions_that_are_no_ufuncs_work_too() -> None:
    f, g = td.Func("f"), td.Func("g")
    f[i] = np.where(a[i] > 0, np.clip(a[i], 1, 3), np.round(a[i]))
    g[()] = np.sum(np.maximum(a[i], 0), axis=i)
    np.testing.assert_array_equal(run(f, a=X), np.where(X > 0, np.clip(X, 1, 3), X))
    assert run(g, a=X) == np.maximum(X, 0).sum()


def test_a_number_of_numpy_on_the_left_keeps_its_type() -> None:
    assert (np.float64(2) * a[i]).dtype == td.f64
    assert (np.float32(2) - a[i]).dtype == td.f32
    assert (np.int32(2) < b[i]).dtype == td.bool_
