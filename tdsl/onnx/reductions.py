"""ONNX operators that reduce or go along axes: sums, extrema, positions, scans, sorting, products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tdsl.graph.softmax import softmax
from tdsl.onnx.elements import cast_array
from tdsl.onnx.movement import numbers

Body = Callable[..., Any]


def _reduction(body: Body) -> Body:
    """The function of an operator that reduces axes, all of them by default, and keeps them."""

    def apply(data: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        listed = () if axes is None else tuple(numbers(axes))
        if not listed and noop_with_empty_axes:
            return body(data, axis=(), keepdims=True)
        return body(data, axis=listed or None, keepdims=bool(keepdims))

    return apply


def _sum(x: Any, **options: Any) -> Any:
    return np.sum(x, dtype=x.dtype, **options)


def _mean(x: Any, **options: Any) -> Any:
    return np.mean(x, **options) if x.dtype.kind == "f" else cast_array(np.mean(x, **options), x.dtype)


def _extremum(function: Body, sign: int) -> Body:
    """The greatest or least element; of none the least or greatest number of the type."""

    def apply(x: Any, axis: Any, keepdims: bool) -> Any:
        if axis == ():
            return x
        if x.size:
            return function(x, axis=axis, keepdims=keepdims)
        shape = np.empty(x.shape).sum(axis=axis, keepdims=keepdims).shape
        fill: Any = sign * np.inf
        if x.dtype.kind in "iu":
            fill = np.iinfo(x.dtype).max if sign > 0 else np.iinfo(x.dtype).min
        elif x.dtype == np.bool_:
            fill = sign > 0
        return np.full(shape, fill, x.dtype)

    return apply


def _l1(x: Any, **options: Any) -> Any:
    return _sum(np.absolute(x), **options)


def _sum_square(x: Any, **options: Any) -> Any:
    return _sum(x * x, **options)


def _l2(x: Any, **options: Any) -> Any:
    return cast_array(np.sqrt(_sum_square(x, **options)), x.dtype)


def _log_sum(x: Any, **options: Any) -> Any:
    return cast_array(np.log(_sum(x, **options)), x.dtype)


def _log_sum_exp(x: Any, axis: Any, keepdims: bool) -> Any:
    if not x.size:
        return np.log(_sum(x, axis=axis, keepdims=keepdims))
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, np.zeros((), x.dtype))
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else total.reshape(np.empty(x.shape).sum(axis=axis).shape)


def _position(function: Body) -> Body:
    def apply(data: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        if select_last_index:
            flipped = function(np.flip(data, axis), axis=axis, keepdims=bool(keepdims))
            return data.shape[axis] - 1 - flipped
        return function(data, axis=axis, keepdims=bool(keepdims))

    return apply


def _scan(function: Body, first: int) -> Body:
    """Running sums or products; `exclusive` ones begin with the neutral element."""

    def apply(x: Any, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Any:
        n = numbers(axis)[0] % x.ndim
        x = np.flip(x, n) if reverse else x
        if exclusive:
            start = np.full((*x.shape[:n], 1, *x.shape[n + 1 :]), first, x.dtype)
            x = np.concatenate([start, x[(slice(None),) * n + (slice(None, -1),)]], n)
        result = function(x, axis=n, dtype=x.dtype)
        return np.flip(result, n) if reverse else result

    return apply


def _top_k(X: Any, K: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1, k: Any = None) -> Any:
    count = numbers(K if k is None else k)[0]
    n = axis % X.ndim
    order = _descending(X, n) if largest else np.argsort(X, axis=n)
    chosen = order[(slice(None),) * n + (slice(count),)]
    return np.take_along_axis(X, chosen, n), chosen


def _descending(x: Any, axis: int) -> Any:
    """The places of the elements, the greatest first; of equal ones the first first."""
    order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(order, axis)


def _hardmax(input: Any, *, axis: Any = None, opset: int) -> Any:
    x, n = _as_rows(input, _softmax_axis(axis, opset), opset)
    first = np.argmax(x, axis=n, keepdims=True)
    places = np.arange(x.shape[n]).reshape([-1 if d == n else 1 for d in range(x.ndim)])
    return cast_array(first == places, input.dtype).reshape(input.shape)


def _as_rows(x: Any, axis: int, opset: int) -> tuple[Any, int]:
    """The array and the axis of a softmax; before version 13 all axes from this one on are one."""
    n = axis % x.ndim
    if opset >= 13:
        return x, n
    return x.reshape((int(np.prod(x.shape[:n], dtype=np.int64)), -1)), 1


def _softmax(input: Any, *, axis: Any = None, opset: int) -> Any:
    x, n = _as_rows(input, _softmax_axis(axis, opset), opset)
    return softmax(x, n).reshape(input.shape)


def log_softmax(input: Any, *, axis: Any = None, opset: int) -> Any:
    """The logarithm of the softmax along an axis."""
    x, n = _as_rows(input, _softmax_axis(axis, opset), opset)
    centred = x - np.max(x, axis=n, keepdims=True)
    total = np.log(np.sum(np.exp(centred), axis=n, keepdims=True))
    return (centred - total).reshape(input.shape)


def _softmax_axis(axis: Any, opset: int) -> int:
    return (-1 if opset >= 13 else 1) if axis is None else int(axis)


def _matmul(A: Any, B: Any) -> Any:
    return np.matmul(A, B)


def _gemm(
    A: Any, B: Any, C: Any = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Any:
    product = np.matmul(A.T if transA else A, B.T if transB else B)
    product = product if alpha == 1 else product * alpha
    if C is None:
        return product
    return product + (C if beta == 1 else C * beta)


def _einsum(*inputs: Any, equation: str) -> Any:
    return np.einsum(equation, *inputs)


OPERATORS: Mapping[str, Any] = {
    "ReduceSum": (_reduction(_sum), "axes"),
    "ReduceMean": (_reduction(_mean), "axes"),
    "ReduceProd": (_reduction(lambda x, **options: np.prod(x, dtype=x.dtype, **options)), "axes"),
    "ReduceMax": (_reduction(_extremum(np.max, -1)), "axes"),
    "ReduceMin": (_reduction(_extremum(np.min, 1)), "axes"),
    "ReduceL1": (_reduction(_l1), "axes"),
    "ReduceL2": (_reduction(_l2), "axes"),
    "ReduceSumSquare": (_reduction(_sum_square), "axes"),
    "ReduceLogSum": (_reduction(_log_sum), "axes"),
    "ReduceLogSumExp": (_reduction(_log_sum_exp), "axes"),
    "ArgMax": _position(np.argmax),
    "ArgMin": _position(np.argmin),
    "CumSum": (_scan(np.cumsum, 0), "axis"),
    "CumProd": (_scan(np.cumprod, 1), "axis"),
    "TopK": (_top_k, "K"),
    "Hardmax": _hardmax,
    "Softmax": _softmax,
    "LogSoftmax": log_softmax,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
}
