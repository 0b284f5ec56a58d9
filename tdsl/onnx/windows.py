"""ONNX operators of windows: convolutions and pooling, with their paddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tdsl.graph.convolution import convolution

Body = Callable[..., Any]


def paddings(
    auto_pad: str, pads: Any, extents: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """How many elements are added before and after each axis; `reach` are the extents of dilated windows."""
    rank = len(extents)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        total = [
            max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(extents, reach, strides, strict=True)
        ]
        small, large = [n // 2 for n in total], [n - n // 2 for n in total]
        return (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    if auto_pad == "VALID" or not pads:
        return [0] * rank, [0] * rank
    return [*pads[:rank]], [*pads[rank:]]


def _convolution(
    X: Any, W: Any, B: Any = None, *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1,
    kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    rank = X.ndim - 2
    dilations, strides = dilations or (1,) * rank, strides or (1,) * rank
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, W.shape[2:], strict=True)]
    before, after = paddings(auto_pad, pads, X.shape[2:], reach, strides)
    return convolution(
        X, W, B, strides=strides, before=before, after=after, dilations=dilations, groups=group
    )


def _transposed(
    X: Any, W: Any, B: Any = None, *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1,
    kernel_shape: Any = None, output_padding: Any = None, output_shape: Any = None, pads: Any = None,
    strides: Any = None,
) -> Any:  # fmt: skip
    """A convolution with the flipped window over the elements with zeros between them."""
    rank = X.ndim - 2
    dilations, strides = dilations or (1,) * rank, strides or (1,) * rank
    extra = output_padding or (0,) * rank
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, W.shape[2:], strict=True)]
    full = [s * (n - 1) + k + e for n, s, k, e in zip(X.shape[2:], strides, reach, extra, strict=True)]
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        target = output_shape or [n * s for n, s in zip(X.shape[2:], strides, strict=True)]
        extra = [e + max(m - n, 0) for n, m, e in zip(full, target[-rank:], extra, strict=True)]
        total = [max(n - m, 0) for n, m in zip(full, target[-rank:], strict=True)]
        small, large = [n // 2 for n in total], [n - n // 2 for n in total]
        before, after = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    else:
        before, after = paddings("NOTSET" if pads else "VALID", pads, full, reach, strides)
    spread = _with_zeros_between(X, strides)
    inner, outer = W.shape[0] // group, W.shape[1]
    kernel = W.reshape((group, inner, outer, *W.shape[2:])).swapaxes(1, 2)
    kernel = np.flip(kernel.reshape((group * outer, inner, *W.shape[2:])), tuple(range(2, 2 + rank)))
    first = [k - 1 - b for k, b in zip(reach, before, strict=True)]
    last = [k - 1 - a + e for k, a, e in zip(reach, after, extra, strict=True)]
    cut = tuple(
        slice(max(-f, 0), n - max(-t, 0)) for n, f, t in zip(spread.shape[2:], first, last, strict=True)
    )
    return convolution(
        spread[(slice(None), slice(None), *cut)], kernel, B, strides=(1,) * rank,
        before=[max(n, 0) for n in first], after=[max(n, 0) for n in last], dilations=dilations, groups=group,
    )  # fmt: skip


def _with_zeros_between(x: Any, strides: Sequence[int]) -> Any:
    """The array with `strides - 1` zeros after each element but the last; the first two axes have none."""
    for axis, stride in enumerate(strides, 2):
        if stride > 1:
            widths = [(0, 0)] * (x.ndim + 1)
            widths[axis + 1] = 0, stride - 1
            shape = (*x.shape[:axis], x.shape[axis] * stride, *x.shape[axis + 1 :])
            spread = np.pad(np.expand_dims(x, axis + 1), widths).reshape(shape)
            x = spread[(slice(None),) * axis + (slice(None, shape[axis] - stride + 1),)]
    return x


def _pooling(body: Body, fill: Callable[[np.dtype[Any]], Any]) -> Body:
    """The function of a pooling: `body` takes windows, in the last axes, and their numbers of elements."""

    def apply(
        X: Any, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
        pads: Any = None, strides: Any = None, storage_order: int = 0, count_include_pad: int = 0,
        p: Any = 2,
    ) -> Any:  # fmt: skip
        rank = len(kernel_shape)
        dilations, strides = dilations or (1,) * rank, strides or (1,) * rank
        reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel_shape, strict=True)]
        before, after = paddings(auto_pad, pads, X.shape[2:], reach, strides)
        padded = [*after]
        if ceil_mode and auto_pad in ("NOTSET", "VALID"):
            for n in range(rank):
                extent = X.shape[n + 2] + before[n] + after[n]
                count = -(-(extent - reach[n]) // strides[n]) + 1
                if (count - 1) * strides[n] >= X.shape[n + 2] + before[n]:
                    count -= 1  # a window begins inside of the array
                padded[n] += max((count - 1) * strides[n] + reach[n] - extent, 0)

        def windows(x: Any, widths: Any, value: Any) -> Any:
            pairs = [(0, 0)] * (x.ndim - rank) + widths
            x = np.pad(x, pairs, constant_values=value) if any(map(any, widths)) else x
            view = sliding_window_view(x, tuple(reach), tuple(range(x.ndim - rank, x.ndim)))
            steps = tuple(slice(None, None, n) for n in (*strides, *dilations))
            index: Any = (..., *steps)
            return view[index]

        inside = np.ones(X.shape[2:], np.bool_)
        if count_include_pad:
            inside = np.pad(inside, list(zip(before, after, strict=True)), constant_values=True)
            outside = [(0, p - a) for p, a in zip(padded, after, strict=True)]
        else:
            outside = list(zip(before, padded, strict=True))
        counts = windows(inside, outside, False)
        axes = tuple(range(-rank, 0))
        arrays = windows(X, list(zip(before, padded, strict=True)), fill(X.dtype))
        return body(arrays, counts.sum(axis=axes), axes, p)

    return apply


def _least(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind not in "iu" else np.iinfo(dtype).min


def _zero(dtype: np.dtype[Any]) -> Any:
    return 0


def _average(windows: Any, counts: Any, axes: tuple[int, ...], _: Any) -> Any:
    return np.sum(windows, axis=axes) / counts.astype(windows.dtype)


def _power_mean(windows: Any, _: Any, axes: tuple[int, ...], p: Any) -> Any:
    return _norm(windows, p, axes, False)


def _norm(x: Any, p: Any, axes: Any, keepdims: bool) -> Any:
    """The norm of order p of elements along axes."""
    if p == 1:
        return np.sum(np.absolute(x), axis=axes, keepdims=keepdims)
    if p == 2:
        return np.sqrt(np.sum(x * x, axis=axes, keepdims=keepdims))
    return np.sum(np.absolute(x) ** p, axis=axes, keepdims=keepdims) ** (1 / p)


def _global(body: Body) -> Body:
    return lambda X: body(X, axis=tuple(range(2, X.ndim)), keepdims=True)


def _lp_normalization(input: Any, *, axis: int = -1, p: int = 2) -> Any:
    norm = _norm(input, p, axis, True)
    return np.where(norm == 0, np.zeros((), input.dtype), input / norm)


OPERATORS: Mapping[str, Any] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MaxPool": _pooling(lambda windows, _, axes, __: np.max(windows, axis=axes), _least),
    "AveragePool": _pooling(_average, _zero),
    "LpPool": _pooling(_power_mean, _zero),
    "GlobalMaxPool": _global(np.max),
    "GlobalAveragePool": _global(np.mean),
    "GlobalLpPool": lambda X, *, p=2: _norm(X, p, tuple(range(2, X.ndim)), True),
    "LpNormalization": _lp_normalization,
}
