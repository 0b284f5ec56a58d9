"""Views, reductions, products and norms of torch on the symbols of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tdsl.graph.elementwise import index_variables
from tdsl.graph.softmax import softmax
from tdsl.lang import functions, reduction
from tdsl.lang.casts import cast
from tdsl.lang.tensor import Func
from tdsl.lang.types import f32, f64, from_numpy
from tdsl.lang.value import vars
from tdsl.torch.elements import arithmetic, cast_to, record_funcs, tensor_of
from tdsl.torch.indexing import along, with_axis

aten = torch.ops.aten
DT = np.dtype[Any]


def _view(_: DT, x: Any, shape: Sequence[int]) -> Any:
    return x.reshape(tuple(shape))


def _permute(_: DT, x: Any, axes: Sequence[int]) -> Any:
    return x.transpose(tuple(axes))


def _squeeze(_: DT, x: Any, axes: Sequence[int] | int) -> Any:
    listed = [axes] if isinstance(axes, int) else axes
    return np.squeeze(x, tuple(n % x.ndim for n in listed if x.shape[n] == 1)) if x.ndim else x


def _expand(_: DT, x: Any, shape: Sequence[int], *, implicit: bool = False) -> Any:
    missing = len(shape) - x.ndim
    target = [x.shape[n - missing] if extent == -1 else extent for n, extent in enumerate(shape)]
    return np.broadcast_to(x, tuple(target))


def _slice(_: DT, x: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return along(x, axis, slice(start, end, step))


def _as_strided(_: DT, x: Any, shape: Sequence[int], strides: Sequence[int], offset: Any = None) -> Any:
    """A view of an array of one dimension: `strided_views.py` gives the elements in the order of memory."""

    def view(array: Any) -> Any:
        step = array.strides[0]
        return np.lib.stride_tricks.as_strided(array[offset or 0 :], shape, [n * step for n in strides])

    return x.apply_view(view)


def _split(_: DT, x: Any, sizes: Sequence[int], axis: int = 0) -> Any:
    return np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=axis)


def _axes(x: Any, axes: Any) -> Any:
    """NumPy's axes for torch's: all of them for none."""
    listed = [axes] if isinstance(axes, int) else axes
    return tuple(n % x.ndim for n in listed) if listed else None


def _positions(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(_: DT, x: Any, axis: int | None = None, keepdim: bool = False) -> Any:
        if axis is None:
            return function(x.reshape(-1)).reshape([1] * x.ndim if keepdim else ())
        return function(x, axis=axis, keepdims=keepdim)

    return with_axis(apply)


def _extremum(function: Callable[..., Any], position: Callable[..., Any]) -> Callable[..., Any]:
    """The extrema along an axis, and their positions."""

    def apply(_: DT, x: Any, axis: int, keepdim: bool = False) -> Any:
        return function(x, axis=axis, keepdims=keepdim), position(x, axis=axis, keepdims=keepdim)

    return with_axis(apply)


def _product(dtype: DT, x: Any, /, axes: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return np.prod(cast_to(dtype, x), axis=_axes(x, axes), keepdims=keepdim)


def _cumulative(function: Callable[..., Any]) -> Callable[..., Any]:
    return with_axis(lambda dtype, x, axis, **_: function(cast_to(dtype, x), axis=axis) if x.size else x)


def _sum(dtype: DT, x: Any, /, axes: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return np.sum(cast_to(dtype, x), axis=_axes(x, axes), keepdims=keepdim)


def _mean(dtype: DT, x: Any, /, axes: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return np.mean(cast_to(dtype, x), axis=_axes(x, axes), keepdims=keepdim)


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(_: DT, x: Any, axes: Any = None, keepdim: bool = False) -> Any:
        return function(x, axis=_axes(x, axes), keepdims=keepdim)

    return apply


def _matmul(dtype: DT, a: Any, b: Any) -> Any:
    return np.matmul(cast_to(dtype, a), cast_to(dtype, b))


def _addmm(dtype: DT, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return arithmetic(lambda x, y: x * beta + y * alpha)(dtype, c, _matmul(dtype, a, b))


def _softmax(dtype: DT, x: Any, axis: int, half_to_float: bool = False) -> Any:
    return softmax(cast_to(dtype, x), axis)


def _layer_norm(dtype: DT, x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    """The normalised rows, their means, and the inverses of their standard deviations."""
    outer, size = x.shape[: x.ndim - len(shape)], math.prod(shape)
    rows = x.reshape((*outer, size))
    inputs = {tensor_of("a", rows): rows}
    (a,) = inputs
    *index, i = index_variables(rows.ndim)
    k, wide = vars("k"), f64 if rows.dtype == np.float64 else f32
    mean, centred, inverse, y = (Func(n) for n in ("mean", "centred", "inverse", "layer_norm"))
    mean[tuple(index)] = reduction.sum(cast(a[(*index, k)], wide), axis=k) / size
    centred[(*index, i)] = cast(a[(*index, i)], wide) - mean[tuple(index)]
    squares = reduction.sum(centred[(*index, k)] * centred[(*index, k)], axis=k)
    inverse[tuple(index)] = functions.rsqrt(squares / size + eps)
    value = centred[(*index, i)] * inverse[tuple(index)]
    for name, factor in (("w", weight), ("b", bias)):
        if factor is not None:
            flat = factor.reshape(size)
            t = tensor_of(name, flat)
            inputs[t] = flat
            value = value * t[i] if name == "w" else value + t[i]
    y[(*index, i)] = cast(value, from_numpy(dtype))
    results = record_funcs((y, mean, inverse), inputs)
    kept = (*outer, *(1 for _ in shape))
    return results[0].reshape(x.shape), results[1].reshape(kept), results[2].reshape(kept)


def _attention(
    dtype: DT, q: Any, key: Any, value: Any, dropout: float = 0.0, is_causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """The weighted values, as the first of the operator's results."""
    inputs = {tensor_of(name, x): x for name, x in (("q", q), ("key", key), ("value", value))}
    tq, tk, tv = inputs
    *outer, i, d = index_variables(q.ndim)
    j, m, n = vars("j m n")
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s, e, y = Func("s"), Func("e"), Func("attention")
    score = reduction.sum(tq[(*outer, i, n)] * tk[(*outer, j, n)], axis=n) * factor
    if is_causal:
        score = functions.where(j <= i, score, -math.inf)
    if attn_mask is not None:
        mask = np.broadcast_to(attn_mask, (*q.shape[:-1], key.shape[-2]))
        t = tensor_of("mask", mask)
        inputs[t] = mask
        at = t[(*outer, i, j)]
        score = functions.where(at, score, -math.inf) if mask.dtype == bool else score + at
    s[(*outer, i, j)] = score
    e[(*outer, i, j)] = functions.exp(s[(*outer, i, j)] - reduction.max(s[(*outer, i, m)], axis=m))
    total = reduction.sum(e[(*outer, i, m)], axis=m)
    y[(*outer, i, d)] = reduction.sum(e[(*outer, i, n)] * tv[(*outer, n, d)], axis=n) / total
    return (record_funcs(y, inputs),)


def _batch_norm(
    dtype: DT, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> Any:  # fmt: skip
    """The normalised channels, as the first of the operator's results."""
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    scale = arithmetic(lambda v: functions.rsqrt(v + eps))(variance.dtype, variance)
    scale = scale if weight is None else scale * weight
    centred = x - mean.reshape(shape)
    result = centred * scale.reshape(shape)
    return (cast_to(dtype, result if bias is None else result + bias.reshape(shape)),)


def _cat(dtype: DT, parts: Sequence[Any], axis: int = 0) -> Any:
    return np.concatenate([cast_to(dtype, part) for part in parts], axis=axis)


def _pad(dtype: DT, x: Any, widths: Sequence[int], value: Any = 0) -> Any:
    pairs = list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    return np.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, constant_values=value)


# Each takes the type of the (first) result, then the arguments of the torch operator.
ARRAYS: dict[Any, Callable[..., Any]] = {
    aten.view.default: _view,
    aten.reshape.default: _view,
    aten._unsafe_view.default: _view,
    aten.permute.default: _permute,
    aten.t.default: lambda _, x: x.T,
    aten.transpose.int: lambda _, x, one, other: x.swapaxes(one, other),
    aten.unsqueeze.default: lambda _, x, axis: np.expand_dims(x, axis % (x.ndim + 1)),
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: lambda _, x, axis, position: along(x, axis, position),
    aten.as_strided.default: _as_strided,
    aten.split_with_sizes.default: _split,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.amax.default: _reduction(np.max),
    aten.amin.default: _reduction(np.min),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _reduction(np.any)),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _reduction(np.all)),
    aten.prod.default: _product,
    aten.prod.dim_int: _product,
    aten.argmax.default: _positions(np.argmax),
    aten.argmin.default: _positions(np.argmin),
    aten.max.dim: _extremum(np.max, np.argmax),
    aten.min.dim: _extremum(np.min, np.argmin),
    aten.cumsum.default: _cumulative(np.cumsum),
    aten.cumprod.default: _cumulative(np.cumprod),
    aten.mm.default: _matmul,
    aten.bmm.default: _matmul,
    aten.addmm.default: _addmm,
    aten._softmax.default: with_axis(_softmax),
    aten.native_layer_norm.default: _layer_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten.cat.default: _cat,
    aten.constant_pad_nd.default: _pad,
}
# Operators whose first result only is computed.
FIRST_ONLY = {
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._native_batch_norm_legit_no_training.default,
}
