"""Advanced indexing by arrays on the arrays of a graph: `x[at]`, `x[rows, columns]`, `x[mask]`, `np.take`.

A negative index counts from the end. Index arrays that are constants of the graph are bounds-checked while
it is traced; all others are checked by the kernel, as by `td.require`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import IndexBoundError, TypeMismatch, is_one_of
from tdsl.graph.arguments import as_symbol, axis_of, refuse_options
from tdsl.graph.concatenate import full
from tdsl.graph.elementwise import broadcast_read, broadcast_shape, index_variables, record_call
from tdsl.graph.selection import Selection
from tdsl.graph.symbol import Symbol
from tdsl.lang.casts import cast
from tdsl.lang.effects import require
from tdsl.lang.functions import clip, where
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import from_numpy, i64

MODES = ("raise", "wrap", "clip")


def index_by_arrays(x: Symbol, index: Sequence[Any]) -> Any:
    """`x[parts]`, where at least one part is an array; the others are integers, slices, None and `...`.

    The elements at a mask that is an array of the graph are a `Selection`.
    """
    index = [p.known if isinstance(p, Symbol) and p.known is not None else p for p in index]
    if len(index) == 1 and isinstance(index[0], Symbol) and index[0].dtype == bool:
        return Selection(x, index[0])
    if x.known is not None and not any(isinstance(p, Symbol) for p in index):
        chosen = x.known[tuple(index)]
        return Symbol.created(x.trace, chosen) if np.ndim(chosen) else chosen
    masks: dict[int, tuple[int, int]] = {}
    items = [part for p in index for part in _indices_of_mask(p, masks)]
    positions = [n for n, p in enumerate(items) if isinstance(p, Symbol | np.ndarray | int)]
    adjacent = positions == list(range(positions[0], positions[-1] + 1))
    full_items = _expand_ellipsis(x, items)
    arrays = {}
    for n, p in enumerate(full_items):
        if isinstance(p, Symbol | np.ndarray | int):
            _check_extent_of_mask(x, sum(q is not None for q in full_items[:n]), masks.get(id(p)))
            arrays[n] = _integer_indices(p)
    view = x[tuple(slice(None) if n in arrays else p for n, p in enumerate(full_items))]
    return _gather(view, arrays, min(arrays) if adjacent else 0, "raise")


def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Symbol:
    """`np.take`: elements along one axis, or of the flattened array."""
    refuse_options(np.take, {"out": out})
    if not is_one_of(mode, MODES):
        raise TypeMismatch(
            f"np.take has no mode {mode!r}",
            loc=here(),
            label="this call",
            hint=f"there are: {', '.join(MODES)}",
        )
    a, at = as_symbol(np.take, a), indices if isinstance(indices, Symbol) else np.asarray(indices)
    if axis is None:
        a, axis = a.reshape(-1), 0
    axis = axis_of(np.take, axis, a.ndim)
    return _gather(a, {axis: _integer_indices(at)}, axis, mode)


def _indices_of_mask(part: Any, masks: dict[int, tuple[int, int]]) -> tuple[Any, ...]:
    """The indices that a constant mask chooses, an array for each of its axes; any other part as it is.

    Adds to `masks` the extent and the number of the axis of the mask for each of these arrays, by `id`.
    """
    part = np.asarray(part) if isinstance(part, list) else part
    if not isinstance(part, np.ndarray) or part.dtype != bool or not part.ndim:
        return (part,)
    chosen = np.nonzero(part)
    masks |= {id(at): (extent, n) for n, (at, extent) in enumerate(zip(chosen, part.shape, strict=True))}
    return chosen


def _check_extent_of_mask(x: Symbol, axis: int, mask: tuple[int, int] | None) -> None:
    """Raises IndexBoundError if the axis of a mask is not as long as the axis of the array."""
    if mask is not None and mask[0] != x.shape[axis]:
        raise IndexBoundError(
            f"boolean index did not match indexed array along axis {axis}; "
            f"size of axis is {x.shape[axis]} but size of corresponding boolean axis is {mask[0]}",
            loc=here(),
            label="this index",
            hint="a mask is as long as the axes that it chooses from",
        )


def _integer_indices(indices: Any) -> Any:
    if isinstance(indices, int) or indices.dtype.kind in "iu":
        return indices
    if not indices.size and isinstance(indices, np.ndarray):
        return indices.astype(np.intp)  # as NumPy takes []
    raise TypeMismatch(
        f"an index of type {indices.dtype} chooses no elements of an array of a graph",
        loc=here(),
        label="this index",
        hint="choose by integers; where(x > 0, x, 0) is for conditions, whose result has a known shape",
    )


def _expand_ellipsis(x: Symbol, parts: list[Any]) -> list[Any]:
    """The parts of an index with the ellipsis, or missing last parts, replaced by full slices."""
    missing = x.ndim - sum(p is not None and p is not Ellipsis for p in parts)
    if missing < 0:
        raise IndexBoundError(
            f"too many indices for array: array is {x.ndim}-dimensional, but {x.ndim - missing} were indexed",
            loc=here(),
            label="this index",
            hint=f"the array has shape {x.shape}",
        )
    ellipsis = next((n for n, p in enumerate(parts) if p is Ellipsis), len(parts))
    return [*parts[:ellipsis], *[slice(None)] * missing, *parts[ellipsis + 1 :]]


def _gather(x: Symbol, arrays: dict[int, Any], first: int, mode: str) -> Symbol:
    """The elements of `x` at the indices in `arrays`, by axis; the index axes begin at axis `first`."""
    index_shape = broadcast_shape(np.take, [np.shape(a) for a in arrays.values()], 0)
    other_extents = [n for axis, n in enumerate(x.shape) if axis not in arrays]
    result_shape = (*other_extents[:first], *index_shape, *other_extents[first:])
    checked = {n: _checked_indices(at, n, x.shape[n]) for n, at in arrays.items() if mode == "raise"}
    if 0 in result_shape:
        return full(x.trace, "take", result_shape, 0, from_numpy(x.dtype))
    index, stop = index_variables(len(result_shape)), first + len(index_shape)
    gathered_index, other_variables = index[first:stop], iter((*index[:first], *index[stop:]))
    a, out, inputs = Tensor("a", x.shape, from_numpy(x.dtype)), Func("take", shape=result_shape), {}
    base_index: list[Any] = []
    for axis, extent in enumerate(x.shape):
        at = checked.get(axis, arrays.get(axis))
        if at is None:
            base_index.append(next(other_variables))
        elif isinstance(at, int):
            base_index.append(at)
        else:
            tensor = Tensor(f"at{axis}", at.shape, from_numpy(at.dtype))
            inputs[tensor] = at
            n = cast(broadcast_read(tensor, at.shape, index_shape, gathered_index), i64)
            in_bounds = axis in checked and not isinstance(at, Symbol)
            base_index.append(bounded_index(n, axis, extent, "clip" if in_bounds else mode))
    out[index] = a[tuple(base_index)]
    return record_call(x.trace, out, {a: x, **inputs})


def _checked_indices(indices: Any, axis: int, extent: int) -> Any:
    """Constant indices as non-negative ones, symbols unchanged; IndexBoundError for one out of bounds."""
    if isinstance(indices, Symbol):
        if indices.size and not extent:
            raise _out_of_bounds("cannot do a non-empty take from an empty axes.")
        return indices
    values = np.asarray(indices)
    outside = values[(values < -extent) | (values >= extent)]
    if outside.size:
        raise _out_of_bounds(_OUT_OF_BOUNDS.format(axis=axis, extent=extent).format(outside.flat[0]))
    if isinstance(indices, int):
        return indices % extent
    return np.where(indices < 0, indices + extent, indices) if (indices < 0).any() else indices


_OUT_OF_BOUNDS = "index {{}} is out of bounds for axis {axis} with size {extent}"


def _out_of_bounds(message: str) -> IndexBoundError:
    return IndexBoundError(
        message,
        loc=here(),
        label="this index",
        hint="indices count from 0, or from -1 at the end; np.take has mode='clip' and mode='wrap'",
    )


def bounded_index(n: Any, axis: int, extent: int, mode: str = "raise") -> Any:
    """An index within the axis: wrapped, clipped, or checked in the kernel with `require`, by the mode."""
    match mode:
        case "wrap":
            return n % extent
        case "clip":
            return clip(n, 0, extent - 1)
        case _:
            message = _OUT_OF_BOUNDS.format(axis=axis, extent=extent)
            inside = (n >= -extent) & (n < extent)
            return clip(require(inside, where(n < 0, n + extent, n), message, n), 0, extent - 1)
