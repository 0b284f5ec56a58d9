"""NumPy's concatenate, stack, split and pad on the arrays of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.graph.arguments import axis_of, name_of, refuse, symbol, trace_of
from tdsl.graph.elementwise import element_type, made_of, tensor_index
from tdsl.graph.symbol import Recorder, Symbol
from tdsl.lang.casts import cast
from tdsl.lang.functions import clip, where
from tdsl.lang.pad import pad as padded
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, from_numpy


def concatenate(
    arrays: Sequence[Any], axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = None,
    function: Callable[..., Any] = np.concatenate,
) -> Symbol:  # fmt: skip
    """`np.concatenate`, as a chain of `where` over the index along the axis; also the body of `stack`."""
    refuse(function, {"out": out, "casting": casting})
    parts = [p if isinstance(p, Symbol) else np.asarray(p) for p in arrays]
    if axis is None:
        parts, axis = [p.reshape(-1) for p in parts], 0
    try:
        whole = np.concatenate(
            [np.broadcast_to(np.empty((), p.dtype), p.shape) for p in parts], axis
        )
    except (ValueError, TypeError) as error:
        raise ShapeError(
            f"{name_of(function)}: {error}",
            loc=here(),
            label="this call",
            hint="the parts agree in all extents but that of the axis; reshape them for axis=None",
        ) from None
    axis = axis % whole.ndim
    element = from_numpy(whole.dtype) if dtype is None else element_type(dtype)
    index = tensor_index(whole.ndim)
    tensors = [Tensor(f"a{n}", p.shape, from_numpy(p.dtype)) for n, p in enumerate(parts)]
    out, start, value = Func("concatenate", shape=whole.shape), whole.shape[axis], cast(0, element)
    first = True
    for t, part in zip(reversed(tensors), reversed(parts), strict=True):
        extent = part.shape[axis]
        start -= extent
        if not extent:
            continue
        inside = clip(index[axis] - start, 0, extent - 1)
        mine = cast(t[(*index[:axis], inside, *index[axis + 1 :])], element)
        value = mine if first else where(index[axis] < start + extent, mine, value)
        first = False
    out[index] = value
    trace = trace_of(*parts)
    return made_of(trace, out, {t: p for t, p in zip(tensors, parts, strict=True) if p.shape[axis]})


def stack(
    arrays: Sequence[Any], axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = None
) -> Symbol:
    """`np.stack`: arrays of equal shape along a new axis."""
    parts = [p if isinstance(p, Symbol) else np.asarray(p) for p in arrays]
    if len({p.shape for p in parts}) > 1:
        raise ShapeError(
            "np.stack: all input arrays must have the same shape, "
            f"got {', '.join(str(p.shape) for p in parts)}",
            loc=here(),
            label="this call",
            hint="np.concatenate joins arrays along an axis that they have",
        )
    axis = axis_of(np.stack, axis, parts[0].ndim + 1)
    turned = [p[(slice(None),) * axis + (None,)] for p in parts]
    return concatenate(turned, axis, out, dtype=dtype, casting=casting, function=np.stack)


def hstack(tup: Sequence[Any], *, dtype: Any = None, casting: Any = None) -> Symbol:
    """`np.hstack`: concatenation along the second axis, or along the first for vectors."""
    parts = [_at_least(p, 1) for p in tup]
    axis = 0 if parts[0].ndim == 1 else 1
    return concatenate(parts, axis, dtype=dtype, casting=casting, function=np.hstack)


def vstack(tup: Sequence[Any], *, dtype: Any = None, casting: Any = None) -> Symbol:
    """`np.vstack`: concatenation along the first axis, with a vector as one row."""
    parts = [_at_least(p, 2) for p in tup]
    return concatenate(parts, 0, dtype=dtype, casting=casting, function=np.vstack)


def _at_least(part: Any, rank: int) -> Any:
    array = part if isinstance(part, Symbol) else np.asarray(part)
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def in_parts(function: Callable[..., Any], ary: Any, *args: Any, **options: Any) -> list[Symbol]:
    """`np.split`, `np.array_split`, `np.hsplit`, `np.vsplit` and `np.dsplit`: a list of views."""
    x = symbol(function, ary)
    memory = np.broadcast_to(np.empty((), x.dtype), x.shape)
    try:
        count = len(function(memory, *args, **options))
    except (ValueError, IndexError, TypeError) as error:
        raise ShapeError(
            f"{name_of(function)}: {error}",
            loc=here(),
            label="this call",
            hint=f"the array has shape {x.shape}; np.array_split makes parts of different extents",
        ) from None

    def part(n: int) -> Symbol:
        return x.changed(lambda array: function(array, *args, **options)[n])

    return [part(n) for n in range(count)]


def pad(array: Any, pad_width: Any, mode: Any = "constant", **options: Any) -> Symbol:
    """`np.pad` in the modes of `td.pad`: constant with a single value, edge, reflect, symmetric, wrap."""
    x = symbol(np.pad, array)
    value = options.pop("constant_values", 0)
    refuse(np.pad, options)
    if not np.isscalar(value):
        raise TypeMismatch(
            f"np.pad takes one number for constant_values= of an array of a graph, not {value!r}",
            loc=here(),
            label="this call",
            hint="put other arrays beside it by np.concatenate",
        )
    widths = _widths(pad_width, x)
    shape = tuple(before + n + after for n, (before, after) in zip(x.shape, widths, strict=True))
    element, out, index = from_numpy(x.dtype), Func("pad", shape=shape), tensor_index(x.ndim)
    value = np.asarray(value).astype(x.dtype).item()
    if not x.size:
        return _filled(x, mode, shape, value)
    a = Tensor("a", x.shape, element)
    around = padded(a, mode, value)
    out[index] = around[tuple(i - before for i, (before, _) in zip(index, widths, strict=True))]
    return made_of(x.trace, out, {a: x})


def _widths(given: Any, x: Symbol) -> list[tuple[int, int]]:
    """The numbers of elements added before and after each axis, from the forms that `np.pad` accepts."""
    if isinstance(given, dict):
        named = {axis_of(np.pad, axis, x.ndim): w for axis, w in given.items()}
        given = [np.broadcast_to(named.get(n, 0), 2) for n in range(x.ndim)]
    try:
        widths = np.broadcast_to(np.asarray(given), (x.ndim, 2))
        if widths.dtype.kind not in "iu" or (widths < 0).any():
            raise ValueError
    except ValueError:
        raise ShapeError(
            f"np.pad cannot pad shape {x.shape} by {given!r}",
            loc=here(),
            label="this call",
            hint="pad_width= is a number, a pair, or a pair for each axis, of numbers from 0 on",
        ) from None
    return [(int(before), int(after)) for before, after in widths]


def _filled(x: Symbol, mode: Any, shape: tuple[int, ...], value: Any) -> Symbol:
    """The padding of an array without elements; ShapeError if the mode needs elements along a padded axis."""
    for axis, (before, after) in enumerate(zip(x.shape, shape, strict=True)):
        if mode != "constant" and not before and after:
            raise ShapeError(
                f"np.pad: can't extend empty axis {axis} using modes other than 'constant'",
                loc=here(),
                label="this call",
                hint="the array has no elements along it: its extents are known",
            )
    return filled(x.trace, "pad", shape, value, from_numpy(x.dtype))


def filled(
    trace: Recorder, name: str, shape: tuple[int, ...], value: Any, element: DType
) -> Symbol:
    """An array of the given shape with all elements equal to `value`, computed by a kernel."""
    out = Func(name, shape=shape)
    out[tensor_index(len(shape))] = cast(value, element)
    return made_of(trace, out, {})
