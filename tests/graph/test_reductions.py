"""Reductions of NumPy in a graph: values, types and shapes are those of NumPy, and so is what is refused."""

import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tdsl as td
from tdsl.errors import DefinitionError, ShapeError, TypeMismatch

SHAPES = [(), (0,), (1,), (7,), (5, 3), (3, 0), (0, 3), (1, 7), (2, 3, 5), (13, 1, 2), (2, 0, 2)]
TYPES = ["f2", "f4", "f8", "i1", "u1", "i4", "u4", "i8", "u8", "?"]
OVER_ALL = [np.sum, np.prod, np.mean, np.var, np.std, np.any, np.all, np.count_nonzero]
EXTREMES = [np.max, np.min, np.amax, np.amin, np.ptp]
PLACES = [np.argmax, np.argmin]


def values(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    low = -4 if np.dtype(dtype).kind in "if" else 0
    x = np.asarray(rng.integers(low, 5, shape)).astype(dtype)
    if x.dtype.kind == "f" and x.size and seed % 3 == 0:
        x.flat[rng.integers(x.size)] = np.nan
    return x


def assert_same(function, x, **options):
    """As NumPy does: the same array, or an error as well."""
    graph = td.Graph(lambda x: function(x, **options), target="python")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # means of nothing
        try:
            expected = np.asarray(function(x, **options))
        except ValueError:
            with pytest.raises(ShapeError):
                graph(x)
            return
    result = np.asarray(graph(x))
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    close = 2e-3 if x.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(result, expected, rtol=close, atol=close)


@given(st.data())
def test_reductions_equal_those_of_numpy(data):
    function = data.draw(st.sampled_from([*OVER_ALL, *EXTREMES, *PLACES]))
    dtype, shape = data.draw(st.sampled_from(TYPES)), data.draw(st.sampled_from(SHAPES))
    assume(function is not np.ptp or dtype != "?")  # NumPy subtracts no bools
    rank = len(shape)
    axes = [None, *range(-rank, rank)]
    if function in OVER_ALL:
        axes += [(), tuple(range(rank)), (0, -1)] if rank > 1 else [()]
    options = {"axis": data.draw(st.sampled_from(axes))}
    if function is not np.ptp or data.draw(st.booleans()):
        options["keepdims"] = data.draw(st.booleans())
    if function in (np.var, np.std):
        options["ddof"] = data.draw(st.sampled_from([0, 1]))
    if function in (np.sum, np.prod, np.mean) and data.draw(st.booleans()):
        options["dtype"] = data.draw(st.sampled_from(["f4", "f8", np.float32]))
    assert_same(function, values(dtype, shape, data.draw(st.integers(0, 9))), **options)


@pytest.mark.in_part(36)
@pytest.mark.parametrize("shape", [(31,), (7, 257), (257, 7), (3, 17, 5)])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("function", [np.sum, np.max, np.mean, np.var, np.argmax, np.any])
def test_results_on_the_cpu_are_the_same(function, axis, shape):
    x = values("f4", shape, 1)
    result, expected = td.Graph(lambda x: function(x, axis=axis))(x), function(x, axis=axis)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [np.cumsum, np.cumprod])
@pytest.mark.parametrize("dtype", TYPES)
def test_running_sums_are_those_of_numpy(function, dtype):
    for shape, axis in (((), None), ((0, 3), 0), ((1,), 0), ((3, 5), None), ((3, 5), -1)):
        assert_same(function, values(dtype, shape, 1), axis=axis)


@pytest.mark.parametrize("dtype", ["f2", "f4", "i4", "u1", "?"])
@pytest.mark.parametrize("order", [None, 1, 2, np.inf, -np.inf])
def test_norms_are_those_of_numpy(dtype, order):
    norm = np.linalg.norm
    assert_same(norm, values(dtype, (3, 5), 1), ord=order, axis=1)
    assert_same(norm, values(dtype, (7,), 1), ord=order, keepdims=True)
    assert_same(norm, values(dtype, (2, 3, 5), 1), axis=(0, 2))
    assert_same(norm, values(dtype, (3, 5), 1), ord="fro")


METHODS = {
    "all axes": lambda x: x.sum() + x.mean() + x.max() - x.min(),
    "kept": lambda x: x / x.sum(-1, keepdims=True) + x.prod(0, keepdims=True),
    "places": lambda x: x.argmax(0) - x.argmin(axis=0),
    "bools": lambda x: (x > 0).any(axis=1) & (x < 3).all(axis=1),
    "moments": lambda x: x.var(axis=0, ddof=1) + x.std(0) ** 2,
    "correction": lambda x: np.var(x, axis=0, correction=1),
    "running": lambda x: x.cumsum(axis=1) - x.cumprod(axis=0),
    "of ufuncs": lambda x: np.add.reduce(x) + np.maximum.reduce(x, axis=0) - np.multiply.reduce(x),
    "of ufuncs, kept": lambda x: np.minimum.reduce(x, axis=1, keepdims=True) + x,
    "of bools": lambda x: np.logical_and.reduce(x > -9, axis=None),
    "accumulated": lambda x: np.add.accumulate(x) + np.multiply.accumulate(x, axis=1),
    "of a view": lambda x: x.T[::2].sum(axis=0) + x[:, 1].max(),
    "of a broadcast array": lambda x: np.broadcast_to(x[0], (3, 7)).sum(axis=0),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_and_ufuncs_reduce_as_well(name):
    x, function = values("f4", (5, 7), 1), METHODS[name]
    result, expected = td.Graph(function, target="python")(x), function(x)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_argmax_returns_the_first_of_equal_values_and_the_first_nan():
    x = np.float32([[1, 3, 3], [np.nan, 5, np.nan], [-np.inf, -np.inf, -np.inf]])
    for function in PLACES:
        np.testing.assert_array_equal(td.Graph(lambda x, f=function: f(x, axis=1))(x), function(x, axis=1))


def test_narrow_floats_are_summed_in_f32():
    x = np.full((3, 5000), 1.0, np.float16)
    for target in ("cpu", "python"):
        result = td.Graph(lambda x: (x.sum(axis=1), x.mean(axis=1), x @ x[0]), target=target)(x)
        assert [m.dtype for m in result] == [np.float16] * 3
        assert [m[0] for m in result] == [5000, 1, 5000]


def test_a_type_by_name_is_the_one_that_numpy_means():
    """The i8 of NumPy has 8 bytes; that of the language, td.i8, 8 bits."""
    x = np.arange(300, dtype=np.int32)
    result = td.Graph(lambda x: (x.astype("i8"), x.astype(td.i8), x.sum(dtype="u8")))(x)
    assert [m.dtype for m in result] == [np.int64, np.int8, np.uint64]
    with pytest.raises(TypeMismatch, match="float128"):
        td.Graph(lambda x: x.astype("f16"))(x)


def test_equal_reductions_have_one_kernel():
    x = values("f4", (5, 7), 1)
    graph = td.Graph(lambda x: (x.sum(axis=0), np.sum(x * 2, 0), np.amax(x), x.max()))
    kernels = {id(step.kernel) for step in graph.plan(x).steps if "multiply" not in step.program.name}
    assert len(kernels) == 2


REFUSED = [
    (lambda x: x.sum(axis=2), ShapeError, "axis 2 is out of bounds for array of dimension 2"),
    (lambda x: np.max(x, axis=(0, -2)), ShapeError, "repeated axis"),
    (lambda x: x.argmax(axis=(0, 1)), TypeMismatch, "goes along one axis"),
    (lambda x: x[:0].max(), ShapeError, "operation maximum which has no identity"),
    (lambda x: x[:, :0].argmin(axis=1), ShapeError, "argmin of an empty sequence"),
    (lambda x: np.sum(x, where=x > 0), TypeMismatch, "(?s)takes no where=.*np.where"),
    (lambda x: np.max(x, initial=0), TypeMismatch, "(?s)takes no initial=.*np.maximum"),
    (lambda x: np.var(x, mean=0), TypeMismatch, "takes no mean="),
    (lambda x: np.var(x, dtype=np.int32), TypeMismatch, "no fractions"),
    (lambda x: np.ptp(x > 0), TypeMismatch, "np.ptp of bool"),
    (lambda x: np.sum([x, x]), DefinitionError, "(?s)no values.*np.stack"),
    (lambda x: x.sum(out=x), ShapeError, "is not written to an array of shape"),
    (lambda x: x.sum(axes=1), TypeMismatch, "unexpected keyword argument 'axes'"),
    (lambda x: np.nancumsum(x), TypeMismatch, "(?s)np.nancumsum.*did you mean np.nansum"),
    (lambda x: np.linalg.norm(x, 2), TypeMismatch, "ord=2 along 2 axes"),
    (lambda x: np.subtract.reduce(x), TypeMismatch, "(?s)np.subtract.reduce.*np.add, np.multiply"),
    (lambda x: np.add.at(x, 0, 1), TypeMismatch, "np.add.at"),
]  # fmt: skip


@pytest.mark.parametrize("function, error, message", REFUSED)
def test_unsupported_reductions_are_refused(function, error, message):
    with pytest.raises(error, match=message) as caught:
        td.Graph(function)(np.ones((5, 7), np.float32))
    assert "test_reductions.py" in str(caught.value)
