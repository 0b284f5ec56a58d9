"""Views, reductions, products and norms of torch on the symbols of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tdsl.compile import compile
from tdsl.graph.arguments import trace_of
from tdsl.graph.convolution import convolution
from tdsl.graph.elementwise import index_variables
from tdsl.lang import functions, reduction
from tdsl.lang.casts import cast
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import f32, f64, from_numpy
from tdsl.lang.value import vars
from tdsl.torch.elements import arithmetic, cast_to

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
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _select(_: DT, x: Any, axis: int, position: int) -> Any:
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = position
    return x[tuple(index)]


def _split(_: DT, x: Any, sizes: Sequence[int], axis: int = 0) -> Any:
    return np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=axis)


def _axes(x: Any, axes: Any) -> Any:
    """NumPy's axes for torch's: all of them for none."""
    listed = [axes] if isinstance(axes, int) else axes
    return tuple(n % x.ndim for n in listed) if listed else None


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


def _record(outputs: Any, inputs: dict[Tensor, Any]) -> Any:
    """Records a call of the operator of some funcs; its results are symbols."""
    trace = trace_of(*inputs.values())
    return trace.call(compile(outputs), (), {t.name: x for t, x in inputs.items()})


def _tensor(name: str, x: Any) -> Tensor:
    return Tensor(name, x.shape, from_numpy(x.dtype))


def _softmax(dtype: DT, x: Any, axis: int, half_to_float: bool = False) -> Any:
    x = cast_to(dtype, x)
    a, e, y = _tensor("a", x), Func("e"), Func("softmax")
    index, k = index_variables(x.ndim), vars("k")
    row = tuple(k if n == axis % x.ndim else i for n, i in enumerate(index))
    e[index] = functions.exp(a[index] - reduction.max(a[row], axis=k))
    y[index] = e[index] / reduction.sum(e[row], axis=k)
    return _record(y, {a: x})


def _layer_norm(dtype: DT, x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    """The normalised rows, their means, and the inverses of their standard deviations."""
    outer, size = x.shape[: x.ndim - len(shape)], math.prod(shape)
    rows = x.reshape((*outer, size))
    inputs = {_tensor("a", rows): rows}
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
            t = _tensor(name, flat)
            inputs[t] = flat
            value = value * t[i] if name == "w" else value + t[i]
    y[(*index, i)] = cast(value, from_numpy(dtype))
    results = _record((y, mean, inverse), inputs)
    kept = (*outer, *(1 for _ in shape))
    return results[0].reshape(x.shape), results[1].reshape(kept), results[2].reshape(kept)


def _attention(
    dtype: DT, q: Any, key: Any, value: Any, dropout: float = 0.0, is_causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """The weighted values, as the first of the operator's results."""
    inputs = {_tensor(name, x): x for name, x in (("q", q), ("key", key), ("value", value))}
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
        t = _tensor("mask", mask)
        inputs[t] = mask
        at = t[(*outer, i, j)]
        score = functions.where(at, score, -math.inf) if mask.dtype == bool else score + at
    s[(*outer, i, j)] = score
    e[(*outer, i, j)] = functions.exp(s[(*outer, i, j)] - reduction.max(s[(*outer, i, m)], axis=m))
    total = reduction.sum(e[(*outer, i, m)], axis=m)
    y[(*outer, i, d)] = reduction.sum(e[(*outer, i, n)] * tv[(*outer, n, d)], axis=n) / total
    return (_record(y, inputs),)


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


def _convolution(
    dtype: DT, x: Any, weight: Any, bias: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], _transposed: bool, _output_padding: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    """A convolution of any number of axes; `groups` divide the channels."""
    return convolution(
        x, weight, bias, strides=stride, before=padding, after=padding, dilations=dilation, groups=groups
    )


def _embedding(dtype: DT, weight: Any, indices: Any, *_: Any, **__: Any) -> Any:
    return np.take(weight, indices, axis=0)


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
    aten.select.int: _select,
    aten.split_with_sizes.default: _split,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.amax.default: _reduction(np.max),
    aten.amin.default: _reduction(np.min),
    aten.any.dim: _reduction(np.any),
    aten.any.default: _reduction(np.any),
    aten.mm.default: _matmul,
    aten.bmm.default: _matmul,
    aten.addmm.default: _addmm,
    aten._softmax.default: _softmax,
    aten.native_layer_norm.default: _layer_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten.convolution.default: _convolution,
    aten.embedding.default: _embedding,
    aten.cat.default: _cat,
    aten.constant_pad_nd.default: _pad,
}
# Operators whose first result only is computed.
FIRST_ONLY = {
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._native_batch_norm_legit_no_training.default,
}
