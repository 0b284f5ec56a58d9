"""Quantiles, interpolation, running extrema and reductions without NaN give what NumPy gives."""

import warnings

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ShapeError, TypeMismatch

X = np.array([[3, -1, 0, 5, 5], [-4, 2, 2, -3, 1], [1, 0, -2, 4, 7]])
NAN = np.where(X == 2, np.nan, X)
ALL_NAN = np.where(X[:, :1] < 0, np.nan, X)
CASES = {
    **{
        f"{name} of {label}": (function, x)
        for name in ("nanmax", "nanmin", "nansum", "nanprod", "nanmean", "nanvar", "nanstd")
        for label, function, x in (
            ("all", lambda x, name=name: getattr(np, name)(x), NAN),
            ("rows", lambda x, name=name: getattr(np, name)(x, axis=-1, keepdims=True), ALL_NAN),
            ("columns of f4", lambda x, name=name: getattr(np, name)(x, axis=0), NAN.astype("f4")),
            ("integers", lambda x, name=name: getattr(np, name)(x, axis=(0, 1)), X),
        )
    },
    "nanvar with ddof": (lambda x: np.nanvar(x, axis=1, ddof=1), NAN),
    "percentile": (lambda x: np.percentile(x, [0, 30, 100], axis=-1), X),
    "quantile": (lambda x: np.quantile(x, 0.37, axis=0, keepdims=True), NAN),
    "quantile of f4": (lambda x: np.quantile(x, 0.9), X.astype("f4")),
    "quantile of all": (lambda x: np.quantile(x, [[0.25], [0.75]], axis=(1, 0)), X * 1.5),
    "quantile lower": (lambda x: np.quantile(x, 0.4, axis=1, method="lower"), X),
    "quantile higher": (lambda x: np.quantile(x, 0.4, axis=1, method="higher"), X * 1.5),
    "quantile midpoint": (lambda x: np.quantile(x, [0.4, 0.5], axis=1, method="midpoint"), X),
    "quantile of one": (lambda x: np.quantile(x[:, :1], 0.4, axis=1), X),
    "interp": (lambda x: np.interp(x, [-2.0, 0.0, 4.0], [1.0, 2.0, -1.0]), NAN),
    "interp of points": (lambda x: np.interp([-5, 0.5, 3, 9], np.sort(x[0]), x[1], left=7, right=8), X * 1.1),
    "interp of one": (lambda x: np.interp(x, [1.0], [3.0], right=4), X),
    "diff": (lambda x: np.diff(x, axis=0, prepend=0, append=x[:1]), X),
    "diff of rows": (lambda x: np.diff(x, 2, prepend=x[:, :2]), X),
    "running maximum": (lambda x: np.maximum.accumulate(x, axis=-1), NAN),
    "running minimum": (lambda x: np.minimum.accumulate(x), X.astype("i4")),
    "running maximum of none": (lambda x: np.maximum.accumulate(x[:0]), X),
    "reduce": (lambda x: np.maximum.reduce(x, axis=1) - np.minimum.reduce(x, axis=None), X),
    "outer": (lambda x: np.subtract.outer(x[0], x), X),
    "outer with a list": (lambda x: np.maximum.outer([1, 2], x[1]), X),
    "cov": (lambda x: np.cov(x), X * 1.5),
    "cov of columns": (lambda x: np.cov(x, rowvar=False, bias=True), X),
    "cov of a vector": (lambda x: np.cov(x[0]), X),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_numpy(name):
    function, x = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows of NaN alone
        expected = function(x)
    result = td.Graph(function)(x)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(result, expected, rtol=1e-6 if expected.dtype == "f4" else 1e-12)


@pytest.mark.parametrize(
    "function, error, message",
    [
        (lambda x: np.quantile(x, 1.5), TypeMismatch, "quantile of 15 elements with q=1.5"),
        (lambda x: np.percentile(x[:0], 5), TypeMismatch, "percentile of 0 elements"),
        (lambda x: np.quantile(x, 0.5, method="nearest"), TypeMismatch, "method='nearest'"),
        (lambda x: np.interp(x, [1.0, 2.0], [1.0]), ShapeError, r"shapes \(2,\) and \(1,\)"),
        (lambda x: np.cov(x, x), TypeMismatch, "takes no y="),
    ],
)
def test_others_are_refused(function, error, message):
    with pytest.raises(error, match=message):
        td.Graph(function)(X)
