"""NumPy's concatenate, stack, split and pad on the arrays of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.graph.arguments import as_symbol, axis_of, name_of, refuse_options, trace_of
from tdsl.graph.elementwise import element_type, index_variables, record_call
from tdsl.graph.symbol import Recorder, Symbol
from tdsl.lang.casts import cast
from tdsl.lang.functions import clip, where
from tdsl.lang.pad import pad as pad_tensor
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, from_numpy


def concatenate(
    arrays: Sequence[Any], axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = None,
    function: Callable[..., Any] = np.concatenate,
) -> Symbol:  # fmt: skip
    """`np.concatenate`, as a chain of `where` over the index along the axis; also the body of `stack`."""
    refuse_options(function, {"out": out, "casting": casting})
    parts = [p if isinstance(p, Symbol) else np.asarray(p) for p in arrays]
    if axis is None:
        parts, axis = [p.reshape(-1) for p in parts], 0
    try:
        example = np.concatenate([np.broadcast_to(np.empty((), p.dtype), p.shape) for p in parts], axis)
    except (ValueError, TypeError) as error:
        raise ShapeError(
            f"{name_of(function)}: {error}",
            loc=here(),
            label="this call",
            hint="the parts agree in all extents but that of the axis; reshape them for axis=None",
        ) from None
    axis = axis % example.ndim
    element_dtype = from_numpy(example.dtype) if dtype is None else element_type(dtype)
    index = index_variables(example.ndim)
    tensors = [Tensor(f"a{n}", p.shape, from_numpy(p.dtype)) for n, p in enumerate(parts)]
    out, start, value = (
        Func("concatenate", shape=example.shape),
        example.shape[axis],
        cast(0, element_dtype),
    )
    first = True
    for tensor, part in zip(reversed(tensors), reversed(parts), strict=True):
        extent = part.shape[axis]
        start -= extent
        if not extent:
            continue
        position = clip(index[axis] - start, 0, extent - 1)
        part_value = cast(tensor[(*index[:axis], position, *index[axis + 1 :])], element_dtype)
        value = part_value if first else where(index[axis] < start + extent, part_value, value)
        first = False
    out[index] = value
    trace = trace_of(*parts)
    return record_call(
        trace, out, {tensor: p for tensor, p in zip(tensors, parts, strict=True) if p.shape[axis]}
    )


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
    expanded = [p[(slice(None),) * axis + (None,)] for p in parts]
    return concatenate(expanded, axis, out, dtype=dtype, casting=casting, function=np.stack)


def hstack(tup: Sequence[Any], *, dtype: Any = None, casting: Any = None) -> Symbol:
    """`np.hstack`: concatenation along the second axis, or along the first for vectors."""
    parts = [_with_rank(p, 1) for p in tup]
    axis = 0 if parts[0].ndim == 1 else 1
    return concatenate(parts, axis, dtype=dtype, casting=casting, function=np.hstack)


def vstack(tup: Sequence[Any], *, dtype: Any = None, casting: Any = None) -> Symbol:
    """`np.vstack`: concatenation along the first axis, with a vector as one row."""
    parts = [_with_rank(p, 2) for p in tup]
    return concatenate(parts, 0, dtype=dtype, casting=casting, function=np.vstack)


def _with_rank(part: Any, rank: int) -> Any:
    array = part if isinstance(part, Symbol) else np.asarray(part)
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def split(function: Callable[..., Any], ary: Any, *args: Any, **options: Any) -> list[Symbol]:
    """`np.split`, `np.array_split`, `np.hsplit`, `np.vsplit` and `np.dsplit`: a list of views."""
    x = as_symbol(function, ary)
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
        return x.apply_view(lambda array: function(array, *args, **options)[n])

    return [part(n) for n in range(count)]


def pad(array: Any, pad_width: Any, mode: Any = "constant", **options: Any) -> Symbol:
    """`np.pad` in the modes of `td.pad`: constant with a single value, edge, reflect, symmetric, wrap."""
    x = as_symbol(np.pad, array)
    value = options.pop("constant_values", 0)
    refuse_options(np.pad, options)
    if not np.isscalar(value):
        raise TypeMismatch(
            f"np.pad takes one number for constant_values= of an array of a graph, not {value!r}",
            loc=here(),
            label="this call",
            hint="join other arrays by np.concatenate",
        )
    widths = _pad_widths(pad_width, x)
    shape = tuple(before + n + after for n, (before, after) in zip(x.shape, widths, strict=True))
    element, out, index = from_numpy(x.dtype), Func("pad", shape=shape), index_variables(x.ndim)
    value = np.asarray(value).astype(x.dtype).item()
    if not x.size:
        return _pad_empty(x, mode, shape, value)
    a = Tensor("a", x.shape, element)
    extended = pad_tensor(a, mode, value)
    out[index] = extended[tuple(i - before for i, (before, _) in zip(index, widths, strict=True))]
    return record_call(x.trace, out, {a: x})


def _pad_widths(pad_width: Any, x: Symbol) -> list[tuple[int, int]]:
    """The numbers of elements added before and after each axis, from the forms that `np.pad` accepts."""
    if isinstance(pad_width, dict):
        named = {axis_of(np.pad, axis, x.ndim): w for axis, w in pad_width.items()}
        pad_width = [np.broadcast_to(named.get(n, 0), 2) for n in range(x.ndim)]
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2))
        if widths.dtype.kind not in "iu" or (widths < 0).any():
            raise ValueError
    except ValueError:
        raise ShapeError(
            f"np.pad cannot pad shape {x.shape} by {pad_width!r}",
            loc=here(),
            label="this call",
            hint="pad_width= is a number, a pair, or a pair for each axis, of numbers from 0 on",
        ) from None
    return [(int(before), int(after)) for before, after in widths]


def _pad_empty(x: Symbol, mode: Any, shape: tuple[int, ...], value: Any) -> Symbol:
    """The padding of an array without elements; ShapeError if the mode needs elements along a padded axis."""
    for axis, (before, after) in enumerate(zip(x.shape, shape, strict=True)):
        if mode != "constant" and not before and after:
            raise ShapeError(
                f"np.pad: can't extend empty axis {axis} using modes other than 'constant'",
                loc=here(),
                label="this call",
                hint="the array has no elements along it: its extents are known",
            )
    return full(x.trace, "pad", shape, value, from_numpy(x.dtype))


def full(trace: Recorder, name: str, shape: tuple[int, ...], value: Any, element: DType) -> Symbol:
    """An array of the given shape with all elements equal to `value`, computed by a kernel."""
    out = Func(name, shape=shape)
    out[index_variables(len(shape))] = cast(value, element)
    return record_call(trace, out, {})
