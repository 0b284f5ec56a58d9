"""Convolutions and pooling of torch on the symbols of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch

from tdsl.graph.convolution import convolution
from tdsl.graph.elementwise import index_variables
from tdsl.lang import reduction
from tdsl.lang.casts import cast
from tdsl.lang.functions import where
from tdsl.lang.pad import pad
from tdsl.lang.tensor import Func
from tdsl.lang.types import i64
from tdsl.torch.elements import arithmetic, cast_to, record_funcs, tensor_of

aten = torch.ops.aten
DT = np.dtype[Any]


def _convolution(
    dtype: DT, x: Any, weight: Any, bias: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], _transposed: bool, _output_padding: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    """A convolution of any number of axes; `groups` divide the channels."""
    if weight.ndim > x.ndim:  # of one example
        args = weight, bias, stride, padding, dilation, _transposed, _output_padding, groups
        return _convolution(dtype, x[None], *args)[0]
    return convolution(
        x, weight, bias, strides=stride, before=padding, after=padding, dilations=dilation, groups=groups
    )


def _each(value: Any, count: int) -> list[int]:
    """A parameter for each axis: one number is for all of them."""
    listed = [value] if isinstance(value, int) else list(value)
    return listed * count if len(listed) == 1 else listed


def _extents(
    extents: Sequence[int], window: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool,
) -> list[int]:  # fmt: skip
    """The number of windows along each axis; the last one begins in the array or in its padding before it."""
    result = []
    for extent, k, s, p, d in zip(extents, window, stride, padding, dilation, strict=True):
        rest = extent + 2 * p - d * (k - 1) - 1
        count = (rest + s - 1 if ceil_mode else rest) // s + 1
        result.append(count - 1 if ceil_mode and (count - 1) * s >= extent + p else count)
    return result


def _max_pool(
    dtype: DT,
    x: Any,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """The largest element of each window, and its position among the elements of the pooled axes."""
    count = 1 if isinstance(window, int) else len(window)
    k, p, d = (_each(v, count) for v in (window, padding, dilation))
    s = _each(stride, count) if stride or isinstance(stride, int) else k
    outer, extents = x.shape[: x.ndim - count], x.shape[x.ndim - count :]
    shape = (*outer, *_extents(extents, k, s, p, d, ceil_mode))
    index, a = index_variables(x.ndim), tensor_of("a", x)
    before, points = index[: x.ndim - count], index[x.ndim - count :]
    lowest = -np.inf if dtype.kind == "f" or dtype.kind == "V" else np.iinfo(dtype).min

    def places(at: Sequence[Any]) -> list[Any]:
        return [points[n] * s[n] + at[n] * d[n] - p[n] for n in range(count)]

    sizes = [reduction.range(f"w{n}", 0, extent) for n, extent in enumerate(k)]
    source = pad(a, mode="constant", value=lowest)
    largest, y = Func("position", shape=shape), Func("max_pool", shape=shape)
    y[index] = reduction.max(source[(*before, *places(sizes))], axis=tuple(sizes))
    values = record_funcs(y, {a: x})
    flat = reduction.range("w", 0, int(np.prod(k)))
    read = source[(*before, *places(_digits(flat, k)))]
    best = Func("best", shape=shape)
    best[index] = reduction.argmax(
        where(read != read, np.inf, read) if dtype.kind == "f" else read, axis=flat
    )
    chosen = places(_digits(best[index], k))
    position = reduce(lambda total, pair: total * pair[1] + pair[0], zip(chosen, extents, strict=True), 0)
    largest[index] = cast(position, i64)
    return values, record_funcs(largest, {a: x})


def _digits(number: Any, extents: Sequence[int]) -> list[Any]:
    """The indices of the element of a number in an array of these extents."""
    digits = []
    for extent in reversed(extents):
        digits.append(number % extent)
        number = number // extent
    return digits[::-1]


def _average_pool(
    dtype: DT, x: Any, window: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """The mean of each window: its sum times the inverse of its number of elements, which is a constant."""
    count = 1 if isinstance(window, int) else len(window)
    k, p = _each(window, count), _each(padding, count)
    s = _each(stride, count) if stride or isinstance(stride, int) else k
    outer, extents = x.shape[: x.ndim - count], x.shape[x.ndim - count :]
    counts = _extents(extents, k, s, p, [1] * count, ceil_mode)
    elements = []
    for n, extent in enumerate(extents):
        start = np.arange(counts[n]) * s[n] - p[n]
        stop = np.minimum(start + k[n], extent + p[n])
        if not count_include_pad:
            start, stop = np.maximum(start, 0), np.minimum(stop, extent)
        elements.append(stop - start)
    divisors = reduce(np.multiply.outer, elements) if divisor_override is None else divisor_override
    index, a = index_variables(x.ndim), tensor_of("a", x)
    sizes = [reduction.range(f"w{n}", 0, extent) for n, extent in enumerate(k)]
    places = [index[len(outer) + n] * s[n] + sizes[n] - p[n] for n in range(count)]
    y = Func("sum", shape=(*outer, *counts))
    source = pad(a, mode="constant")
    y[index] = reduction.sum(source[(*index[: len(outer)], *places)], axis=tuple(sizes))
    return arithmetic(lambda v, f: v / f)(dtype, record_funcs(y, {a: x}), np.asarray(divisors, dtype))


def _adaptive_pool(dtype: DT, x: Any, shape: Sequence[int]) -> Any:
    """Means of windows of almost equal extents: products with a matrix of weights along each axis."""
    for n, extent in enumerate(shape):
        axis = x.ndim - len(shape) + n
        of_axis = x.shape[axis]
        start = np.arange(extent) * of_axis // extent
        stop = -(-(np.arange(extent) + 1) * of_axis // extent)
        place = np.arange(of_axis)
        inside = (place >= start[:, None]) & (place < stop[:, None])
        weights = (inside / (stop - start)[:, None]).astype(x.dtype)
        x = np.moveaxis(np.matmul(np.moveaxis(x, axis, -1), weights.T), -1, axis)
    return cast_to(dtype, x)


WINDOWS: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool3d_with_indices.default: _max_pool,
    aten.avg_pool1d.default: _average_pool,
    aten.avg_pool2d.default: _average_pool,
    aten.avg_pool3d.default: _average_pool,
    aten._adaptive_avg_pool2d.default: _adaptive_pool,
    aten._adaptive_avg_pool3d.default: _adaptive_pool,
}
