"""Sums of products, arrays put together, and elements chosen by integers, as NumPy has them."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import DefinitionError, IndexBoundError, RequireError, ShapeError, TypeMismatch

AT, TABLE = np.array([0, 2, -1, 1]), np.array([[0, 1], [2, -3]], np.int32)

PRODUCTS = {
    "dot": lambda x, y: np.dot(x, y.T) + x[0].dot(y[1]),
    "dot with a vector": lambda x, y: np.dot(x, y[0]) + np.dot(y[0], x.T),
    "dot of more": lambda x, y: np.dot(np.stack([x, x]), np.stack([y.T, y.T, y.T])),
    "dot of more with a vector": lambda x, y: np.dot(np.stack([x, x]), y[0]),
    "dot with a number": lambda x, y: np.dot(x[0, 0], y) + np.dot(x, 2),
    "matmul": lambda x, y: np.matmul(x, y.mT) + x @ y.T,
    "inner": lambda x, y: np.inner(x, y) + np.inner(x[0], y[0]),
    "inner of more": lambda x, y: np.inner(x[None], y[:2]),
    "outer": lambda x, y: np.outer(x, y[0]),
    "vecdot": lambda x, y: np.vecdot(x, y[:1]) + np.vecdot(x[:, None], y),
    "tensordot": lambda x, y: np.tensordot(x, y) + np.tensordot(x, y, axes=(-1, 1)),
    "tensordot of named axes": lambda x, y: np.tensordot(x, y, ([0, 1], [0, 1])),
    "tensordot of no axes": lambda x, y: np.tensordot(x, y, 0),
    "einsum": lambda x, y: np.einsum("ij,kj->ik", x, y) + np.einsum("ij,ij", x, y),
    "einsum of three": lambda x, y: np.einsum("ij,kj,lj->il", x, y, x),
    "einsum of one": lambda x, y: np.einsum("ij->j", x) + np.einsum("ii->i", x[:, :4]).sum(),
    "einsum with dots": lambda x, y: np.einsum("i...,j...->ij...", x[:, :1], y),
    "einsum that repeats": lambda x, y: np.einsum("ij,jk->ik", x[:, :1], y),
    "einsum of a number": lambda x, y: np.einsum(",ij->j", x[0, 0], y),
}  # fmt: skip

ARRANGEMENTS = {
    "stack": lambda x, y: np.stack([x, y, x], axis=-1),
    "stack of numbers": lambda x, y: np.stack((x[0, 0], y[0, 0])),
    "side by side": lambda x, y: np.hstack([x, y]) + np.hstack([x[0], y[0]]),
    "below each other": lambda x, y: np.vstack([x, y[0]]),
    "all elements": lambda x, y: np.concatenate([x, y[:2]], axis=None),
    "in another type": lambda x, y: np.concatenate([x, y], dtype="f8"),
    "halves": lambda x, y: np.split(x, 2)[1] * np.split(y, [1, 3])[1],
    "parts": lambda x, y: np.concatenate(np.array_split(x, 3, axis=1)[::-1], axis=1),
    "pad": lambda x, y: np.pad(x, 1) + np.pad(y, 1, mode="edge"),
    "pad by axes": lambda x, y: np.pad(x, ((0, 2), (1, 0)), constant_values=3),
    "pad by names": lambda x, y: np.pad(x, {-1: (1, 2)}),
    "reflect": lambda x, y: np.pad(x, 9, mode="reflect") + np.pad(y, 9, mode="wrap"),
    "symmetric": lambda x, y: np.pad(x, (2, 3), mode="symmetric"),
    "one row": lambda x, y: np.pad(x[:1], 2, mode="reflect"),
    "nothing": lambda x, y: np.pad(x[:0], ((1, 2), (0, 0))),
    "clip": lambda x, y: np.clip(x, 0, None) + y.clip(max=2) + x.clip(-1, 2),
    "views": lambda x, y: np.diagonal(x) + np.rot90(x)[0, :4] + x.T.flatten()[:4],
    "filled": lambda x, y: (np.full_like(x, 2) + np.zeros_like(y), x + np.ones_like(x)),
    "shapes": lambda x, y: x * (np.shape(y)[0] + np.ndim(x) + np.size(x)),
    "lists": lambda x, y: np.where(x[:, :2] > 0, x[:, :2] + [1, 2], [[1]]),
}

INDEXINGS = {
    "rows": lambda x, y: x[AT] + y[[1, 0, 1, 0]],
    "columns": lambda x, y: x[:, TABLE],
    "pairs": lambda x, y: x[AT, AT[::-1]],
    "new axes": lambda x, y: x[None, AT, 1:] + y[AT, None].swapaxes(0, 1)[..., 1:],
    "table": lambda x, y: x[TABLE, None],
    "apart": lambda x, y: np.stack([x, y])[AT % 2, :, AT],
    "numbers apart": lambda x, y: np.stack([x, y])[0, :, AT] + np.stack([x, y])[:, [0], AT][:1].T,
    "dots": lambda x, y: x[0, ..., AT],
    "mask": lambda x, y: x[:, np.arange(5) % 2 == 0],
    "none": lambda x, y: x[[]],
    "an integer of NumPy": lambda x, y: x[np.int64(1)],
    "take": lambda x, y: np.take(x, [0, 2, 1], axis=1) + y.take([3, -1, 0]),
    "take around": lambda x, y: np.take(x, AT * 5, axis=0, mode="wrap"),
    "take inside": lambda x, y: np.take(x, AT * 5, axis=-1, mode="clip"),
    "found": lambda x, y: x[np.arange(4), np.argmax(x, axis=1)] + y[np.argmin(x[:, 0]), :4],
    "found around": lambda x, y: np.take(x, x.argmax(axis=0) * 3, axis=0, mode="wrap"),
    "from the end": lambda x, y: x[-1 - np.argmax(x, axis=0)],
}


FUNCTIONS = PRODUCTS | ARRANGEMENTS | INDEXINGS


@pytest.mark.parametrize("dtype", ["f4", "i1"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_functions_return_the_same_as_for_arrays(rng, name, dtype):
    x, y = (rng.integers(-4, 5, (4, 5)).astype(dtype) for _ in range(2))
    graph = td.Graph(lambda x, y: _as_tuple(FUNCTIONS[name](x, y)), target="python")
    for result, expected in zip(graph(x, y), _as_tuple(FUNCTIONS[name](x, y)), strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


def _as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", ["dot of more", "einsum of three"])
def test_results_on_the_cpu_are_the_same(rng, name):
    x, y = (rng.integers(-4, 5, (31, 17)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(td.Graph(PRODUCTS[name])(x, y), PRODUCTS[name](x, y))


@pytest.mark.skipif(not hasattr(np, "matvec"), reason="this NumPy has no matvec")
def test_matrices_with_vectors(rng):
    x, y = (rng.integers(-4, 5, (3, 4, 5)).astype(np.float32) for _ in range(2))
    for f in (lambda x, y: np.matvec(x, y[:, 0]), lambda x, y: np.vecmat(y[:, 0], x.mT)):
        np.testing.assert_array_equal(td.Graph(f, target="python")(x, y), f(x, y))


def test_a_captured_array_may_be_a_result():
    kept = np.arange(3)
    _, same = td.Graph(lambda x: (x + 1, kept))(np.ones(3))
    np.testing.assert_array_equal(same, kept)
    assert not np.shares_memory(same, kept)


def test_indices_that_are_data_are_checked_in_the_call():
    x = np.arange(12.0).reshape(3, 4)
    graph = td.Graph(lambda x, at: x[at])
    np.testing.assert_array_equal(graph(x, np.array([2, -3])), x[[2, -3]])
    with pytest.raises(RequireError, match="index 3 is out of bounds for axis 0") as caught:
        graph(x, np.array([0, 3]))
    assert "steps of a graph" not in str(caught.value)


REFUSED = [
    (lambda x: np.dot(x, x), ShapeError, "np.matmul of arrays"),
    (lambda x: np.tensordot(x, x, 1), ShapeError, r"np.tensordot of arrays of shapes \(5, 7\)"),
    (lambda x: np.tensordot(x, x, ([0, 1], [0])), ShapeError, "2 axes with 1"),
    (lambda x: np.einsum("ij,jk", x, x), ShapeError, "(?s)np.einsum.*one extent"),
    (lambda x: np.einsum(x, [0, 99]), TypeMismatch, "np.einsum takes lists of numbers of axes"),
    (lambda x: np.vecdot(x, x[:, :1]), ShapeError, "np.vecdot of arrays"),
    (lambda x: np.stack([x, x[0]]), ShapeError, "same shape"),
    (lambda x: np.stack([x, x], axis=4), ShapeError, "axis 4 is out of bounds"),
    (lambda x: np.split(x, 2), ShapeError, "equal division"),
    (lambda x: np.pad(x, -1), ShapeError, "cannot pad"),
    (lambda x: np.pad(x, 1, mode="mean"), DefinitionError, "no padding mode 'mean'"),
    (lambda x: np.pad(x, 1, constant_values=(1, 2)), TypeMismatch, "one number"),
    (lambda x: np.pad(x[:0], 1, mode="edge"), ShapeError, "can't extend empty axis 0"),
    (lambda x: x[[5]], IndexBoundError, "index 5 is out of bounds for axis 0 with size 5"),
    (lambda x: x[AT, 7], IndexBoundError, "index 7 is out of bounds for axis 1 with size 7"),
    (lambda x: x[AT, 1, 1], IndexBoundError, "too many indices"),
    (lambda x: x[np.arange(3) > 1], IndexBoundError, "boolean index did not match"),
    (lambda x: x[np.array([0.5])], TypeMismatch, "index of type float64"),
    (lambda x: x[True], TypeMismatch, "not True"),
    (lambda x: x["a"], TypeMismatch, "not 'a'"),
    (lambda x: np.take(x, [1], mode="ring"), TypeMismatch, "no mode 'ring'"),
    (lambda x: np.where(x > 0), TypeMismatch, "missing a required argument"),
    (lambda x: AT[x.argmax(0)], DefinitionError, "(?s)no values.*an argument of the graph"),
    (lambda x: np.take(AT, x.argmax(0)), DefinitionError, "(?s)no values.*an argument of the graph"),
]  # fmt: skip


@pytest.mark.parametrize("function, error, message", REFUSED)
def test_invalid_calls_are_refused(function, error, message):
    with pytest.raises(error, match=message) as caught:
        td.Graph(function)(np.ones((5, 7), np.float32))
    assert "test_products.py" in str(caught.value)
