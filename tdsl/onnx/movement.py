"""ONNX operators that move elements, and those of shapes and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import DefinitionError
from tdsl.onnx.model import MOST_BYTES, numpy_type


def numbers(x: Any) -> list[int]:
    """Integers of an attribute or a known input as a list."""
    return [int(n) for n in np.ravel(x)]


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape as a tuple; DefinitionError for one whose bytes are absurdly many."""
    if np.prod([max(int(n), 1) for n in shape], dtype=object) > MOST_BYTES:
        raise DefinitionError(
            f"an array of shape {tuple(shape)} is computed",
            loc=here(),
            label="this model",
            hint=f"{MOST_BYTES:,} bytes are the most",
        )
    return tuple(int(n) for n in shape)


def _reshape(data: Any, shape: Any, *, allowzero: int = 0) -> Any:
    target = numbers(shape)
    if not allowzero:
        target = [data.shape[n] if extent == 0 else extent for n, extent in enumerate(target)]
    return data.reshape(tuple(target))


def _transpose(data: Any, *, perm: Any = None) -> Any:
    return data.transpose(*(perm or reversed(range(data.ndim))))


def _squeeze(data: Any, axes: Any = None) -> Any:
    return np.squeeze(data, None if axes is None else tuple(numbers(axes)))


def _unsqueeze(data: Any, axes: Any) -> Any:
    return np.expand_dims(data, tuple(numbers(axes)))


def _flatten(input: Any, *, axis: int = 1) -> Any:
    n = axis + input.ndim if axis < 0 else axis
    rows = int(np.prod(input.shape[:n], dtype=np.int64))
    return input.reshape((rows, int(np.prod(input.shape[n:], dtype=np.int64))))


def _concat(*inputs: Any, axis: int = 1) -> Any:
    return inputs[0] if len(inputs) == 1 else np.concatenate(inputs, axis)


def _split(input: Any, split: Any = None, *, axis: int = 0, num_outputs: Any = None, outputs: int) -> Any:
    extent, parts = input.shape[axis], num_outputs or outputs
    each = -(-extent // parts)
    sizes = numbers(split) if split is not None else [each] * (parts - 1)
    ends = np.minimum(np.cumsum(sizes), extent)
    return tuple(np.split(input, ends[: parts - 1].tolist(), axis=axis))


def _slice(data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    first, last = numbers(starts), numbers(ends)
    along = numbers(axes) if axes is not None else list(range(len(first)))
    by = numbers(steps) if steps is not None else [1] * len(first)
    index = [slice(None)] * data.ndim
    for start, stop, axis, step in zip(first, last, along, by, strict=True):
        extent = data.shape[axis]
        if start < 0:
            start = max(start + extent, 0 if step > 0 else -1)
        if stop < 0:
            stop = max(stop + extent, -1)
        if step < 0:
            start = min(start, extent - 1)
            index[axis] = slice(start, None if stop < 0 else stop, step) if start >= 0 else slice(0, 0)
        else:
            index[axis] = slice(start, max(stop, 0), step)
    return data[tuple(index)]


def _gather(data: Any, indices: Any, *, axis: int = 0) -> Any:
    return np.take(data, indices, axis=axis)


def _gather_elements(data: Any, indices: Any, *, axis: int = 0) -> Any:
    index: list[Any] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    index[axis % data.ndim] = indices
    return data[tuple(index)]


def _gather_nd(data: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    depth = indices.shape[-1]
    batch = np.ogrid[tuple(slice(n) for n in indices.shape[:batch_dims])] if batch_dims else ()
    places = [b.reshape(b.shape + (1,) * (indices.ndim - 1 - batch_dims)) for b in batch]
    return data[(*places, *(indices[..., n] for n in range(depth)))]


def _expand(input: Any, shape: Any) -> Any:
    target = np.broadcast_shapes(input.shape, checked_shape(numbers(shape)))
    return np.broadcast_to(input, target)


def _tile(input: Any, repeats: Any) -> Any:
    counts = numbers(repeats)
    checked_shape([n * c for n, c in zip(input.shape, counts, strict=True)])
    return np.tile(input, counts)


def _pad(
    data: Any, pads: Any, constant_value: Any = None, axes: Any = None, *, mode: str = "constant",
    value: float = 0.0,
) -> Any:  # fmt: skip
    widths = numbers(pads)
    along = numbers(axes) if axes is not None else list(range(data.ndim))
    pairs = [(0, 0)] * data.ndim
    for n, axis in enumerate(along):
        pairs[axis] = widths[n], widths[n + len(along)]
    cut = tuple(
        slice(max(-before, 0), n - max(-after, 0))
        for n, (before, after) in zip(data.shape, pairs, strict=True)
    )
    data = data[cut] if any(n < 0 for n in widths) else data
    pairs = [(max(before, 0), max(after, 0)) for before, after in pairs]
    checked_shape([n + before + after for n, (before, after) in zip(data.shape, pairs, strict=True)])
    if mode != "constant":
        return np.pad(data, pairs, mode=mode)  # type: ignore[call-overload]
    fill = np.asarray(value if constant_value is None else constant_value).reshape(()).item()
    return np.pad(data, pairs, constant_values=fill)


def _shape(data: Any, *, start: int = 0, end: Any = None) -> Any:
    return np.asarray(data.shape[start:end], np.int64)


def _constant(
    *, value: Any = None, value_float: Any = None, value_floats: Any = None, value_int: Any = None,
    value_ints: Any = None,
) -> Any:  # fmt: skip
    if value is not None:
        return value
    for x, dtype in ((value_float, np.float32), (value_floats, np.float32)):
        if x is not None:
            return np.asarray(x, dtype)
    return np.asarray(value_int if value_int is not None else value_ints, np.int64)


def _constant_of_shape(input: Any, *, value: Any = None) -> Any:
    fill = np.zeros(1, np.float32) if value is None else value
    return np.full(checked_shape(numbers(input)), fill.reshape(-1)[0], fill.dtype)


def _range(start: Any, limit: Any, delta: Any) -> Any:
    first, last, step = (x.reshape(()).item() for x in (start, limit, delta))
    count = max(int(np.ceil((last - first) / step)), 0) if step else 0
    checked_shape([count])
    return (first + np.arange(count) * step).astype(start.dtype)


def _one_hot(indices: Any, depth: Any, values: Any, *, axis: int = -1) -> Any:
    count = numbers(depth)[0]
    at = axis % (indices.ndim + 1)
    chosen = np.expand_dims(indices, at)
    classes = np.arange(count).reshape([-1 if n == at else 1 for n in range(indices.ndim + 1)])
    wrapped = np.where(chosen < 0, chosen + count, chosen)
    return np.where(wrapped == classes, values[1], values[0])


def _eye_like(input: Any, *, dtype: Any = None, k: int = 0) -> Any:
    element: Any = input.dtype if dtype is None else numpy_type(dtype)
    return np.eye(input.shape[0], input.shape[1], k, element)


def _trilu(input: Any, k: Any = None, *, upper: int = 1) -> Any:
    offset = 0 if k is None else numbers(k)[0]
    if not input.size:
        return input
    return (np.triu if upper else np.tril)(input, offset)


def _space_to_depth(input: Any, *, blocksize: int) -> Any:
    b, c, h, w = input.shape
    blocks = input.reshape((b, c, h // blocksize, blocksize, w // blocksize, blocksize))
    return blocks.transpose(0, 3, 5, 1, 2, 4).reshape((b, -1, h // blocksize, w // blocksize))


def _depth_to_space(input: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    b, c, h, w = input.shape
    inner = c // blocksize**2
    if mode == "DCR":
        parts = input.reshape((b, blocksize, blocksize, inner, h, w)).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = input.reshape((b, inner, blocksize, blocksize, h, w)).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape((b, inner, h * blocksize, w * blocksize))


def _reverse_sequence(input: Any, sequence_lens: Any, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    shape = [1] * input.ndim
    shape[batch_axis] = input.shape[batch_axis]
    lengths = sequence_lens.reshape(tuple(shape))
    times = np.arange(input.shape[time_axis]).reshape(
        [-1 if n == time_axis else 1 for n in range(input.ndim)]
    )
    at = np.where(times < lengths, lengths - 1 - times, times)
    return _gather_elements(input, np.broadcast_to(at, input.shape), axis=time_axis)


def _center_crop_pad(input_data: Any, shape: Any, *, axes: Any = None) -> Any:
    along = numbers(axes) if axes is not None else list(range(input_data.ndim))
    index, pairs = [slice(None)] * input_data.ndim, [(0, 0)] * input_data.ndim
    for axis, extent in zip(along, numbers(shape), strict=True):
        given = input_data.shape[axis]
        if extent < given:
            start = (given - extent) // 2
            index[axis] = slice(start, start + extent)
        else:
            before = (extent - given) // 2
            pairs[axis] = before, extent - given - before
    checked_shape([n + sum(pair) for n, pair in zip(input_data.shape, pairs, strict=True)])
    return np.pad(input_data[tuple(index)], pairs)


def _compress(input: Any, condition: Any, *, axis: Any = None) -> Any:
    return np.take(input if axis is not None else input.reshape(-1), np.nonzero(condition)[0], axis=axis or 0)


def _scatter_elements(
    data: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none"
) -> Any:
    """Elements replaced, or combined, at known places."""
    places = list(np.broadcast_arrays(*np.ogrid[tuple(slice(n) for n in indices.shape)]))
    places[axis % data.ndim] = np.where(indices < 0, indices + data.shape[axis], indices)
    flat = np.ravel_multi_index(tuple(places), data.shape).reshape(-1)
    return _scattered(data, flat, updates.reshape(-1), reduction)


def _scatter_nd(data: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    """Slices replaced, or combined, at known places."""
    depth = indices.shape[-1]
    columns = [
        np.where(indices[..., n] < 0, indices[..., n] + data.shape[n], indices[..., n]) for n in range(depth)
    ]
    rows = np.arange(data.size).reshape(data.shape)[tuple(columns)].reshape(-1)
    return _scattered(data, rows, updates.reshape(-1), reduction)


_COMBINATIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scattered(data: Any, places: Any, updates: Any, reduction: str) -> Any:
    """The array with updates at flat places: in rounds, each of which has no place twice."""
    if reduction != "none" and reduction not in _COMBINATIONS:
        raise DefinitionError(
            f"a scatter with the reduction {reduction!r}",
            loc=here(),
            label="this model",
            hint="there are none, add, mul, max and min",
        )
    result, counts = data.reshape(-1), np.zeros(len(places), np.int64)
    seen = dict[int, int]()
    for n, place in enumerate(places.tolist()):
        counts[n] = seen.get(place, 0)
        seen[place] = counts[n] + 1
    rounds = range(int(counts.max()) + 1) if len(counts) else range(0)
    for number in rounds:
        chosen = np.nonzero(counts == number)[0]
        source = np.zeros(data.size, np.int64)
        source[places[chosen]] = chosen
        is_updated = np.zeros(data.size, np.bool_)
        is_updated[places[chosen]] = True
        update = np.take(updates, source)
        combined = update if reduction == "none" else _COMBINATIONS[reduction](result, update)
        result = np.where(is_updated, combined, result)
    return result.reshape(data.shape)


def _tensor_scatter(
    past_cache: Any, update: Any, write_indices: Any = None, *, axis: int = -2, mode: str = "linear"
) -> Any:
    """The cache with the update written along an axis from an index for each batch."""
    at, extent, count = axis % past_cache.ndim, past_cache.shape[axis], update.shape[axis]
    shape = [1] * past_cache.ndim
    shape[0] = past_cache.shape[0]
    first = np.zeros(shape[0], np.int64) if write_indices is None else write_indices
    position = np.arange(extent).reshape([-1 if n == at else 1 for n in range(past_cache.ndim)])
    offset = position - first.reshape(tuple(shape))
    if mode == "circular":
        offset = np.remainder(offset, extent)
    is_new = (offset >= 0) & (offset < count)
    inside = np.broadcast_to(np.clip(offset, 0, count - 1), past_cache.shape)
    return np.where(is_new, _gather_elements(update, inside, axis=at), past_cache)


OPERATORS: Mapping[str, Any] = {
    "Reshape": (_reshape, "shape"),
    "Transpose": _transpose,
    "Squeeze": (_squeeze, "axes"),
    "Unsqueeze": (_unsqueeze, "axes"),
    "Flatten": _flatten,
    "Concat": _concat,
    "Split": (_split, "split"),
    "Slice": (_slice, "starts ends axes steps"),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Expand": (_expand, "shape"),
    "Tile": (_tile, "repeats"),
    "Pad": (_pad, "pads constant_value axes"),
    "Shape": _shape,
    "Size": lambda data: np.asarray(data.size, np.int64),
    "Constant": _constant,
    "ConstantOfShape": (_constant_of_shape, "input"),
    "Range": (_range, "start limit delta"),
    "OneHot": (_one_hot, "depth"),
    "EyeLike": _eye_like,
    "Trilu": (_trilu, "k"),
    "SpaceToDepth": _space_to_depth,
    "DepthToSpace": _depth_to_space,
    "ReverseSequence": _reverse_sequence,
    "CenterCropPad": (_center_crop_pad, "shape"),
    "Compress": (_compress, "condition"),
    "ScatterElements": (_scatter_elements, "indices"),
    "Scatter": (_scatter_elements, "indices"),
    "ScatterND": (_scatter_nd, "indices"),
    "TensorScatter": _tensor_scatter,
    "NonZero": (lambda X: np.asarray(np.nonzero(X), np.int64), "X"),
}
