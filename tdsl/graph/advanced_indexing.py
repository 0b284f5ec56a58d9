"""Advanced indexing by arrays of integers on the arrays of a graph: `x[at]`, `x[rows, columns]`, `np.take`.

A negative index counts from the end. Index arrays that are constants of the graph are bounds-checked while
it is traced; all others are checked by the kernel, as by `td.require`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import IndexBoundError, TypeMismatch, is_one_of
from tdsl.graph.arguments import axis_of, refuse, symbol
from tdsl.graph.concatenate import filled
from tdsl.graph.elementwise import joined, made_of, tensor_index, value_at
from tdsl.graph.symbol import Symbol
from tdsl.lang.casts import cast
from tdsl.lang.effects import require
from tdsl.lang.functions import clip, where
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import from_numpy, i64

MODES = ("raise", "wrap", "clip")


def indexed(x: Symbol, parts: Sequence[Any]) -> Symbol:
    """`x[parts]`, where at least one part is an array; the others are integers, slices, None and `...`."""
    known = [np.asarray(p) if isinstance(p, list) else p for p in parts]
    picks = [n for n, p in enumerate(known) if isinstance(p, Symbol | np.ndarray | int)]
    together = picks == list(range(picks[0], picks[-1] + 1))
    whole = _with_all_axes(x, known)
    arrays = {}
    for n, p in enumerate(whole):
        if isinstance(p, Symbol | np.ndarray | int):
            axis = sum(q is not None for q in whole[:n])
            arrays[n] = _integers(_without_mask(p, x, axis))
    view = x[tuple(slice(None) if n in arrays else p for n, p in enumerate(whole))]
    return _chosen(view, arrays, min(arrays) if together else 0, "raise")


def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Symbol:
    """`np.take`: elements along one axis, or of the flattened array."""
    refuse(np.take, {"out": out})
    if not is_one_of(mode, MODES):
        raise TypeMismatch(
            f"np.take has no mode {mode!r}",
            loc=here(),
            label="this call",
            hint=f"there are: {', '.join(MODES)}",
        )
    a, at = symbol(np.take, a), indices if isinstance(indices, Symbol) else np.asarray(indices)
    if axis is None:
        a, axis = a.reshape(-1), 0
    axis = axis_of(np.take, axis, a.ndim)
    return _chosen(a, {axis: _integers(at)}, axis, mode)


def _without_mask(part: Any, x: Symbol, axis: int) -> Any:
    """The indices selected by a constant one-dimensional boolean mask; any other part unchanged."""
    if not isinstance(part, np.ndarray) or part.dtype != bool or part.ndim != 1:
        return part
    if part.size != x.shape[axis]:
        raise IndexBoundError(
            f"boolean index did not match indexed array along axis {axis}; "
            f"size of axis is {x.shape[axis]} but size of corresponding boolean axis is {part.size}",
            loc=here(),
            label="this index",
            hint="a mask is as long as the axis that it chooses from",
        )
    return np.flatnonzero(part)


def _integers(at: Any) -> Any:
    if isinstance(at, int) or at.dtype.kind in "iu":
        return at
    if not at.size and isinstance(at, np.ndarray):
        return at.astype(np.intp)  # as NumPy takes []
    raise TypeMismatch(
        f"an index of type {at.dtype} chooses no elements of an array of a graph",
        loc=here(),
        label="this index",
        hint="choose by integers; where(x > 0, x, 0) is for conditions, whose result has a known shape",
    )


def _with_all_axes(x: Symbol, parts: list[Any]) -> list[Any]:
    """The parts of an index with the ellipsis, or missing last parts, replaced by full slices."""
    missing = x.ndim - sum(p is not None and p is not Ellipsis for p in parts)
    if missing < 0:
        raise IndexBoundError(
            f"too many indices for array: array is {x.ndim}-dimensional, "
            f"but {x.ndim - missing} were indexed",
            loc=here(),
            label="this index",
            hint=f"the array has shape {x.shape}",
        )
    at = next((n for n, p in enumerate(parts) if p is Ellipsis), len(parts))
    return [*parts[:at], *[slice(None)] * missing, *parts[at + 1 :]]


def _chosen(x: Symbol, arrays: dict[int, Any], first: int, mode: str) -> Symbol:
    """The elements of `x` at the indices in `arrays`, by axis; the index axes begin at axis `first`."""
    shape = joined(np.take, [np.shape(a) for a in arrays.values()], 0)
    rest = [n for axis, n in enumerate(x.shape) if axis not in arrays]
    wanted = (*rest[:first], *shape, *rest[first:])
    known = {n: _checked(at, n, x.shape[n]) for n, at in arrays.items() if mode == "raise"}
    if 0 in wanted:
        return filled(x.trace, "take", wanted, 0, from_numpy(x.dtype))
    index, last = tensor_index(len(wanted)), first + len(shape)
    mine, others = index[first:last], iter((*index[:first], *index[last:]))
    a, out, given = Tensor("a", x.shape, from_numpy(x.dtype)), Func("take", shape=wanted), {}
    place: list[Any] = []
    for axis, extent in enumerate(x.shape):
        at = known.get(axis, arrays.get(axis))
        if at is None:
            place.append(next(others))
        elif isinstance(at, int):
            place.append(at)
        else:
            t = Tensor(f"at{axis}", at.shape, from_numpy(at.dtype))
            given[t] = at
            n = cast(value_at(t, at.shape, shape, mine), i64)
            right = axis in known and not isinstance(at, Symbol)
            place.append(_inside(n, axis, extent, "clip" if right else mode))
    out[index] = a[tuple(place)]
    return made_of(x.trace, out, {a: x, **given})


def _checked(at: Any, axis: int, extent: int) -> Any:
    """Constant indices made non-negative, symbols unchanged; IndexBoundError for an index out of bounds."""
    if isinstance(at, Symbol):
        if at.size and not extent:
            raise _outside("cannot do a non-empty take from an empty axes.")
        return at
    given = np.asarray(at)
    wrong = given[(given < -extent) | (given >= extent)]
    if wrong.size:
        raise _outside(_OUTSIDE.format(axis=axis, extent=extent).format(wrong.flat[0]))
    if isinstance(at, int):
        return at % extent
    return np.where(at < 0, at + extent, at) if (at < 0).any() else at


_OUTSIDE = "index {{}} is out of bounds for axis {axis} with size {extent}"


def _outside(message: str) -> IndexBoundError:
    return IndexBoundError(
        message,
        loc=here(),
        label="this index",
        hint="indices count from 0, or from -1 at the end; np.take has mode='clip' and mode='wrap'",
    )


def _inside(n: Any, axis: int, extent: int, mode: str) -> Any:
    """An index within the axis: wrapped, clipped, or checked in the kernel with `require`, by the mode."""
    match mode:
        case "wrap":
            return n % extent
        case "clip":
            return clip(n, 0, extent - 1)
        case _:
            message = _OUTSIDE.format(axis=axis, extent=extent)
            inside = (n >= -extent) & (n < extent)
            return clip(require(inside, where(n < 0, n + extent, n), message, n), 0, extent - 1)
