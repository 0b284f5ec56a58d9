"""NumPy's functions that graphs compose of others give what NumPy gives, in its types."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import IndexBoundError, ShapeError, TypeMismatch

CASES = {
    "roll": lambda x: np.roll(x, 1, axis=1),
    "roll of two axes": lambda x: np.roll(x, (1, -5), (0, 1)),
    "roll of all": lambda x: np.roll(x, -2),
    "repeat": lambda x: np.repeat(x, 3, axis=1),
    "repeat of all": lambda x: np.repeat(x, 2),
    "repeat by row": lambda x: np.repeat(x, [1, 0, 2], axis=0),
    "tile": lambda x: np.tile(x, (2, 3)),
    "tile of a new axis": lambda x: np.tile(x[0], (2, 1, 2)),
    "tril": lambda x: np.tril(x, -1),
    "triu": lambda x: np.triu(np.stack([x, x]), 1),
    "triangle of a vector": lambda x: np.tril(x[0]),
    "diag": lambda x: np.diag(x[0], -2),
    "diagonal": lambda x: np.diag(x, 1),
    "trace": lambda x: np.trace(x, 1) + np.linalg.trace(np.stack([x, x])),
    "diff": lambda x: np.diff(x, 2, axis=1),
    "append": lambda x: np.append(x, x[:1], axis=0),
    "column_stack": lambda x: np.column_stack([x[:, 0], x]),
    "dstack": lambda x: np.dstack([x, x]),
    "block": lambda x: np.block([[x, x], [x[:1, :2], x[:1, :2], x[:1]]]),
    "kron": lambda x: np.kron(x, x[:2]),
    "cross": lambda x: np.cross(x[:, :3], x[:, 1:]),
    "cross along": lambda x: np.cross(x, x[::-1], axis=0),
    "average": lambda x: np.average(x, axis=0, weights=np.array([1.0, 2.0, 3.0])),
    "select": lambda x: np.select([x > 1, x < -1], [x, x * 2], 0),
    "meshgrid": lambda x: np.meshgrid(x[0], x[:, 1])[1],
    "meshgrid by index": lambda x: np.meshgrid(x[0], x[:, 1], indexing="ij", sparse=True)[0],
    "convolve": lambda x: np.convolve(x[0], x[1, :3]),
    "convolve same": lambda x: np.convolve(x[0, :3], x[1], "same"),
    "convolve valid": lambda x: np.convolve(x[0], x[1, :2], "valid"),
    "matrix_power": lambda x: np.linalg.matrix_power(x[:, :3], 5),
    "multi_dot": lambda x: np.linalg.multi_dot([x, x.T, x]),
    "searchsorted": lambda x: np.searchsorted(np.array([-2, 0, 1]), x, side="right"),
    "sort": lambda x: np.sort(x),
    "sort along": lambda x: np.sort(x % 3, axis=0),
    "sort of all": lambda x: np.sort(x, axis=None),
    "argsort": lambda x: np.argsort(x % 3, axis=1, kind="stable"),
    "take_along_axis": lambda x: np.take_along_axis(x, np.argsort(x, axis=1), 1),
    "median": lambda x: np.median(x, axis=1),
    "median of all": lambda x: np.median(x, axis=(0, 1), keepdims=True),
    "mask of rows": lambda x: x[np.array([True, False, True])],
    "mask of elements": lambda x: x[np.arange(12).reshape(3, 4) % 5 > 1],
    "mask of columns": lambda x: x[:, [True, False, True, True]],
    "convolve with a list": lambda x: np.convolve(x[0], [1.0, 2.0, 3.0, 4.0], "same"),
    "kron with a list": lambda x: np.kron(x[0], [1, 2]),
    "isnan": lambda x: np.isnan(x) | ~np.isfinite(x),
    "select of numbers": lambda x: np.select([x > 1, x > 0], [x, 2]),
    "sign": lambda x: np.sign(x),
    "fmod": lambda x: np.fmod(x, 3),
    "fabs": lambda x: np.fabs(x),
    "positive": lambda x: +x,
    "cbrt": lambda x: np.cbrt(x),
    "heaviside": lambda x: np.heaviside(x, 0.5),
    "degrees": lambda x: np.degrees(x) + np.deg2rad(x),
    "logaddexp": lambda x: np.logaddexp(x, 2 * x),
    "signbit": lambda x: np.signbit(x),
    "isclose": lambda x: np.isclose(x, x + 1e-9 * x),
    "nan_to_num": lambda x: np.nan_to_num(x),
    "allclose": lambda x: np.allclose(x, x),
    "einsum by numbers": lambda x: np.einsum(x, [0, 1], x, [2, 1], [0, 2]),
    "einsum by numbers without a result": lambda x: np.einsum(x, [0, ...], x, [0, ...]),
}


@pytest.mark.in_part(90)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
@pytest.mark.parametrize("name", CASES)
def test_as_numpy(name, dtype):
    x = np.array([[3, -1, 0, 5], [-4, 2, 2, -3], [1, 0, -2, 4]], dtype)
    expected, result = np.asarray(CASES[name](x)), td.Graph(CASES[name])(x)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(
        result, expected, 1e-6 if dtype == "f4" else 1e-14, 1e-6 if dtype == "f4" else 0
    )


SPECIAL = np.array([[np.nan, np.inf, -np.inf, 0.0], [-0.0, 1.5, -1e300, np.nan]])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "name", ["sort", "argsort", "median", "sign", "nan_to_num", "isclose", "cbrt", "signbit", "fabs"]
)
def test_special_values(name):
    # The last digit of NumPy's cbrt depends on the processor.
    np.testing.assert_allclose(td.Graph(CASES[name])(SPECIAL), CASES[name](SPECIAL), rtol=3e-16)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.fmod(x, np.array([np.inf, 2.0, 3.0, -2.0])),
        lambda x: np.logaddexp(x, x[::-1]),
        lambda x: np.nan_to_num(x, nan=7.0, posinf=1.0, neginf=2.0),
        lambda x: np.isclose(x, x[::-1], equal_nan=True),
        lambda x: np.nansum(x, axis=0),
        lambda x: np.nanmean(x, axis=1),
        lambda x: np.nanprod(x[:, 3:], axis=0),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values_of_several_arguments(function):
    np.testing.assert_allclose(td.Graph(function)(SPECIAL), function(SPECIAL), 1e-15)


@pytest.mark.parametrize("name", ["roll", "repeat", "tile", "diff", "sort", "argsort", "sign", "tril"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 1), (1, 0)])
def test_small_extents(name, shape):
    x = np.ones(shape)
    np.testing.assert_array_equal(td.Graph(CASES[name])(x), CASES[name](x))


def test_values_of_the_index_language():
    i, x, f = td.vars("i"), td.Tensor("x", (4,), td.f64), td.Func("f")
    f[i] = np.sign(x[i]) * np.fmod(x[i], 2) + np.nan_to_num(x[i] / 0)
    v = np.array([3.0, -2.5, 1.0, -4.0])
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(td.compile(f)(v), np.sign(v) * np.fmod(v, 2) + np.nan_to_num(v / 0))


def test_letters_of_any_alphabet():
    a, b = td.Tensor("a", (2, 3), td.f64), td.Tensor("b", (3, 4), td.f64)
    x, y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(td.compile(td.einsum("αβ,βγ->αγ", a, b))(x, y), x @ y)


def test_the_gradient_of_sorted_rows():
    x = np.array([[3.0, 1.0, 2.0], [5.0, 4.0, 6.0]])
    weights = np.array([10.0, 20.0, 30.0])
    dx = td.grad(td.Graph(lambda x: np.sum(np.sort(x, axis=1) * weights)), "x")(x)
    np.testing.assert_allclose(dx, weights[np.argsort(np.argsort(x, axis=1), axis=1)])


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_has_nan_at_the_end(side):
    a, v = np.array([1.0, 2.0, np.nan]), np.array([np.nan, 2.0, 5.0, 0.0])
    result = td.Graph(lambda v: np.searchsorted(a, v, side))(v)
    np.testing.assert_array_equal(result, np.searchsorted(a, v, side))


def test_median_of_f16():
    x = np.array([[1, 5, 2], [3, 3, 8]], np.float16)
    result = td.Graph(lambda x: np.median(x, axis=1))(x)
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, np.median(x, axis=1))


def test_refused():
    x = np.ones((3, 400))
    with pytest.raises(ShapeError, match="400 elements are sorted along axis 1; graphs sort 256 at most"):
        td.Graph(lambda x: np.sort(x))(x)
    with pytest.raises(ShapeError, match=r"np\.repeat: operands could not be broadcast"):
        td.Graph(lambda x: np.repeat(x, [1, 2], axis=0))(x)
    with pytest.raises(ShapeError, match=r"np\.cross of vectors of 400 and 400 elements"):
        td.Graph(lambda x: np.cross(x, x))(x)
    with pytest.raises(TypeMismatch, match="needs an inverse"):
        td.Graph(lambda x: np.linalg.matrix_power(x[:, :3], -1))(x)
    with pytest.raises(IndexBoundError, match="axis is 3 but size of corresponding boolean axis is 2"):
        td.Graph(lambda x: x[np.ones((2, 400), bool)])(x)
    with pytest.raises(ShapeError, match="its elements are in another order"):
        td.Graph(lambda x: np.ravel(x, order="F"))(x)
    with pytest.raises(TypeMismatch, match="an index of type bool"):
        td.Graph(lambda x: x[x > 0])(x)
