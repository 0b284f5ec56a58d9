"""Torch's reads and writes of elements at indices, and its sorting, on the symbols of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tdsl.graph.advanced_indexing import bounded_index
from tdsl.graph.elementwise import broadcast_read, index_variables
from tdsl.lang import functions
from tdsl.lang.casts import cast
from tdsl.lang.reduction import range as ordered
from tdsl.lang.tensor import Func
from tdsl.lang.types import i64
from tdsl.torch.elements import cast_to, record_funcs, tensor_of

aten = torch.ops.aten
DT = np.dtype[Any]
Combine = Callable[[Any, Any], Any]

COMBINES: dict[str, Combine] = {
    "sum": lambda old, new: old + new,
    "prod": lambda old, new: old * new,
    "amax": functions.maximum,
    "amin": functions.minimum,
}


def along(x: Any, axis: int, part: Any) -> Any:
    """An index of an array that chooses a part along one axis."""
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = part
    return x[tuple(index)]


def with_axis(body: Callable[..., Any]) -> Callable[..., Any]:
    """A body for arrays of at least one dimension: an array without any becomes one of a single element."""

    def apply(dtype: DT, x: Any, *args: Any, **named: Any) -> Any:
        if x.ndim:
            return body(dtype, x, *args, **named)
        results = body(dtype, x.reshape(1), *args, **named)
        shaped = [r.reshape(()) for r in (results if isinstance(results, tuple) else (results,))]
        return tuple(shaped) if isinstance(results, tuple) else shaped[0]

    return apply


def _index(_: DT, x: Any, indices: Sequence[Any]) -> Any:
    return x[tuple(slice(None) if at is None else at for at in indices)]


def _index_select(_: DT, x: Any, axis: int, at: Any) -> Any:
    if not x.ndim:
        return x.reshape(1)[at.reshape(-1)].reshape(())
    return np.take(x, at.reshape(-1), axis)


def _gather(_: DT, x: Any, axis: int, at: Any, **__: Any) -> Any:
    if not at.ndim:
        return _gather(_, x.reshape(-1), 0, at.reshape(1)).reshape(())
    if not at.size:  # of any shape
        return cast_to(x.dtype, at)
    x = x if x.ndim else x.reshape(1)
    axis %= x.ndim
    shortened = tuple(slice(None) if n == axis else slice(e) for n, e in enumerate(at.shape))
    return np.take_along_axis(x[shortened], at, axis)


def _store(x: Any, at: Sequence[Any], values: Any, combine: Combine | None) -> Any:
    """A copy of `x` with values stored at indices, one array of them for each axis, in their order."""
    shape = np.broadcast_shapes(*(np.shape(a) for a in at))
    values = np.broadcast_to(values, shape)
    if 0 in shape:
        return x
    y, index = Func("store", shape=x.shape), index_variables(x.ndim)
    inputs = {tensor_of("x", x): x, tensor_of("values", values): values}
    source, stored = inputs
    points = tuple(ordered(f"r{n}", 0, extent) for n, extent in enumerate(shape))
    places = []
    for n, (part, extent) in enumerate(zip(at, x.shape, strict=True)):
        array = np.asarray(part) if isinstance(part, int) else part
        t = tensor_of(f"at{n}", array)
        inputs[t] = array
        places.append(bounded_index(cast(broadcast_read(t, array.shape, shape, points), i64), n, extent))
    y[index] = source[index]
    new, where = stored[points], tuple(places)
    y[where] = new if combine is None else combine(y[where], new)
    return record_funcs(y, inputs)


def _positions(extent: int, axis: int, rank: int) -> Any:
    """The positions along an axis, as an array that broadcasts along the others."""
    return np.arange(extent).reshape([-1 if n == axis else 1 for n in range(rank)])


def _scatter(combine: Combine | None) -> Callable[..., Any]:
    def body(dtype: DT, x: Any, axis: int, at: Any, values: Any) -> Any:
        at = at if at.ndim else at.reshape(1)
        axis %= x.ndim
        places = [at if n == axis else _positions(e, n, at.ndim) for n, e in enumerate(at.shape)]
        if not isinstance(values, int | float):
            values = cast_to(dtype, values if values.ndim else values.reshape(1))
            values = values[tuple(slice(e) for e in at.shape)]
        return _store(
            x, places, values if not isinstance(values, int | float) else dtype.type(values), combine
        )

    return with_axis(body)


def _scatter_reduce(
    dtype: DT, x: Any, axis: int, at: Any, values: Any, reduce: str, *, include_self: bool = True
) -> Any:
    return _scatter(COMBINES[reduce])(dtype, x, axis, at, values)


def _index_put(dtype: DT, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    combine = COMBINES["sum"] if accumulate else None
    listed = [*indices, *[None] * (x.ndim - len(indices))]
    chosen = [n for n, at in enumerate(listed) if at is not None]
    shape = np.broadcast_shapes(*(listed[n].shape for n in chosen))
    first = chosen[0] if chosen == list(range(chosen[0], chosen[-1] + 1)) else 0
    others = [n for n in range(x.ndim) if n not in chosen]
    rank, places = len(others) + len(shape), []
    for n, at in enumerate(listed):
        if at is not None:
            trailing = len(others) - first
            places.append(at.reshape(*at.shape, *[1] * trailing))
        else:
            before = others.index(n)
            places.append(_positions(x.shape[n], before if before < first else before + len(shape), rank))
    return _store(x, places, cast_to(dtype, values), combine)


def _slice_scatter(
    dtype: DT, x: Any, values: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    return _replaced(dtype, x, values, axis % x.ndim, np.arange(x.shape[axis])[slice(start, end, step)])


def _select_scatter(dtype: DT, x: Any, values: Any, axis: int, position: int) -> Any:
    axis %= x.ndim
    return _replaced(dtype, x, np.expand_dims(values, axis), axis, np.asarray([position % x.shape[axis]]))


def _replaced(dtype: DT, x: Any, values: Any, axis: int, rows: Any) -> Any:
    """The array with its rows at some positions along an axis replaced."""
    if not rows.size:
        return x
    order, kept = np.zeros(x.shape[axis], np.int64), np.zeros(x.shape[axis], bool)
    order[rows], kept[rows] = np.arange(rows.size), True
    mask = kept.reshape([-1 if n == axis else 1 for n in range(x.ndim)])
    return np.where(mask, np.take(cast_to(dtype, values), order, axis), x)


def _sorted_positions(x: Any, axis: int, descending: bool) -> Any:
    """The positions of the elements in their order; equal ones keep theirs, NaNs are the largest."""
    if not descending:
        return np.argsort(x, axis)
    return np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis), axis)


def _sort(_: DT, x: Any, axis: int = -1, descending: bool = False, **named: Any) -> Any:
    descending = named.get("descending", descending)
    at = _sorted_positions(x, named.get("dim", axis), descending)
    return np.take_along_axis(x, at, named.get("dim", axis)), at


def _topk(_: DT, x: Any, k: int, axis: int = -1, largest: bool = True, *__: Any) -> Any:
    at = along(_sorted_positions(x, axis, largest), axis, slice(k))
    return np.take_along_axis(x, at, axis), at


INDEXING: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.index_select.default: _index_select,
    aten.embedding.default: lambda _, weight, at, *__: np.take(weight, at, axis=0),
    aten.gather.default: _gather,
    aten.scatter.src: _scatter(None),
    aten.scatter.value: _scatter(None),
    aten.scatter_add.default: _scatter(COMBINES["sum"]),
    aten.scatter_reduce.two: _scatter_reduce,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.sort.default: with_axis(_sort),
    aten.sort.stable: with_axis(_sort),
    aten.topk.default: with_axis(_topk),
    aten.flip.default: lambda _, x, axes: np.flip(x, tuple(axes)) if axes else x,
    aten.roll.default: lambda _, x, shifts, axes=(): (
        np.roll(x, tuple(shifts), tuple(axes) or None) if axes or len(shifts) == 1 else x
    ),
    aten.repeat.default: lambda _, x, counts: np.tile(x, tuple(counts)),
    aten.diagonal.default: lambda _, x, offset=0, one=0, other=1: np.diagonal(x, offset, one, other),
}


def reason_against_indexing(node: torch.fx.Node) -> str:
    """Why an operator at indices is torch's; "" if it is not."""
    name = str(node.target)
    if node.target in (aten.index.Tensor, aten.index_put.default, aten._unsafe_index_put.default):
        listed = [n for n in node.args[1] if n is not None]
        if not listed:
            return f"{name} without indices"
        masks = [n for n in listed if n.meta["val"].dtype == torch.bool]
        if any(n.op != "get_attr" for n in masks) or (masks and node.target is not aten.index.Tensor):
            return f"{name} of a mask"
    if node.target is not aten.scatter_reduce.two:
        return ""
    has_self, kind = node.kwargs.get("include_self", True), node.args[4]
    return "" if kind in COMBINES and has_self else f"{name}: {kind}"
