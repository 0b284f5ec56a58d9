"""Writes to arrays of a graph, `x[index] = value`: a new value of the whole array, computed by an operator.

The values of a graph never change. A write to a part of an array records a call whose result has the elements
of the value in that part, and those of the array elsewhere; the array and all of its views then refer to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.graph.elementwise import broadcast_read, index_variables, record_call
from tdsl.graph.selection import Selection
from tdsl.graph.symbol import Symbol, has_arrays
from tdsl.graph.values import Spec, base_of
from tdsl.lang.casts import cast
from tdsl.lang.functions import clip, where
from tdsl.lang.tensor import Func, Scalar, Tensor
from tdsl.lang.types import from_numpy, i64


def write(x: Symbol, items: tuple[Any, ...], value: Any) -> None:
    """Writes a value, which broadcasts, to the elements of `x` at an index.

    The index consists of integers, slices, None and `...`, or is a mask of booleans, or has arrays of
    integers that are the same in every call.
    """
    known = [_known(p) for p in items]
    if len(items) == 1 and isinstance(known[0], Symbol) and known[0].dtype == bool:
        _write_mask(x, known[0], value)
    elif has_arrays(items):
        _write_at_arrays(x, tuple(known), value)
    else:
        _write_view(x.view_at(items), value)


def _known(x: Any) -> Any:
    """The values of a symbol if they are known, a list as an array, anything else unchanged."""
    if isinstance(x, Symbol) and x.known is not None:
        return x.known
    return np.asarray(x) if isinstance(x, list) else x


def _write_mask(x: Symbol, mask: Any, value: Any) -> None:
    """`x[mask] = value` for a number, an array of the rows after the mask, or elements at the same mask."""
    selection = Selection(x, mask)
    rows = x.shape[mask.ndim :]
    if isinstance(value, Selection):
        if not selection.is_at(value.mask):
            raise _mask_error()
        value = value.values
    elif len(np.shape(value)) > len(rows):
        raise _mask_error()
    condition = selection.mask.reshape(mask.shape + (1,) * len(rows))
    x[...] = np.where(condition, value, x).astype(x.dtype)


def _mask_error() -> ShapeError:
    return ShapeError(
        "elements at a mask are written as many as the mask has, which is not known",
        loc=here(),
        label="written here",
        hint="write a number, or elements at the same mask: x[mask] = y[mask] + 1",
    )


def _write_at_arrays(x: Symbol, items: tuple[Any, ...], value: Any) -> None:
    """`x[rows, columns] = value` for arrays of integers that are known while the function is traced."""
    if any(isinstance(p, Symbol) for p in items):
        raise TypeMismatch(
            "an array of a graph is written at indices that are the same in every call",
            loc=here(),
            label="this index",
            hint="write an operator with an update at data: f[at[i]] = x[i]",
        )
    numbers = np.arange(np.prod(x.base_shape, dtype=np.intp)).reshape(x.base_shape)
    _write_table(x, np.asarray(x.viewed(numbers)[items]), value)


def _write_view(target: Symbol, value: Any) -> None:
    value = _as_operand(value, target.shape)
    known = target.contents.known
    if known is not None and not isinstance(value, Symbol):
        target.viewed(known)[...] = value
        target.contents.changed()
    elif target.size and not (isinstance(value, Symbol) and _is_same_view(target, value)):
        box = _box_of(target)
        if box is None:
            numbers = np.arange(np.prod(target.base_shape, dtype=np.intp)).reshape(target.base_shape)
            _write_table(target, target.viewed(numbers), value)
        else:
            _write_box(target, box, value)


def _as_operand(value: Any, shape: tuple[int, ...]) -> Any:
    """A value as a symbol, an array of NumPy, or a number; ShapeError if it does not broadcast to a shape."""
    if isinstance(value, Symbol) and value.known is not None:
        value = value.known
    if isinstance(value, list | tuple):
        symbols = any(isinstance(part, Symbol) for part in value)
        value = np.stack(value) if symbols else np.asarray(value)
    if isinstance(value, Selection):
        raise _mask_error()
    extents = np.shape(value)
    extra = max(len(extents) - len(shape), 0)
    try:
        if extents[:extra] != (1,) * extra or np.broadcast_shapes(extents[extra:], shape) != shape:
            raise ValueError
    except ValueError:
        raise ShapeError(
            f"could not broadcast input array from shape {extents} into shape {shape}",
            loc=here(),
            label="written here",
            hint="the extents of the value agree with those of the part that is written, or are 1",
        ) from None
    return value.reshape(extents[extra:]) if extra else value


def _is_same_view(one: Symbol, other: Symbol) -> bool:
    """True if both are the same elements of the same array: `x[1:] += y` ends with such a write."""
    if one.contents is not other.contents or one.shape != other.shape:
        return False
    memory = np.empty(one.base_shape, one.dtype)
    a, b = one.viewed(memory), other.viewed(memory)
    return a.ctypes.data == b.ctypes.data and a.strides == b.strides


@frozen
class AxisPart:
    """The part of an axis of the base that a view covers: `count` elements from `start`, with stride `step`.

    `axis` is the axis of the view, None if the view has a single element along the axis of the base.
    """

    start: int
    step: int = 1
    count: int = 1
    axis: int | None = None


def _box_of(target: Symbol) -> tuple[AxisPart, ...] | None:
    """The part of each axis of the base that a view has; None if it is no such box, as a diagonal is none."""
    memory = np.empty(target.base_shape, target.dtype)  # only address and strides are used
    view = target.viewed(memory)
    offset = (view.ctypes.data - memory.ctypes.data) // memory.itemsize
    parts = [AxisPart(int(n)) for n in np.unravel_index(offset, memory.shape)] if memory.ndim else []
    for axis, (count, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        if count == 1:
            continue
        for n, along in enumerate(memory.strides):
            step, rest = divmod(stride, along)
            last = parts[n].start + step * (count - 1)
            if not rest and step and 0 <= last < memory.shape[n] and parts[n].axis is None:
                parts[n] = AxisPart(parts[n].start, step, count, axis)
                break
        else:
            return None
    return tuple(parts)


def _write_box(target: Symbol, box: Sequence[AxisPart], value: Any) -> None:
    """Records the call of a write to a box: a comparison for each axis that the box has in part."""
    base, element = target.base_shape, from_numpy(target.dtype)
    index, out, inputs = index_variables(len(base)), Func("write", shape=base), dict[Tensor, Any]()
    numbers, condition = dict[str, Any](), None
    position: list[Any] = [0] * target.ndim
    for n, part in enumerate(box):
        if part.count == 1:
            if base[n] == 1:
                continue
            numbers[f"at{n}"] = part.start  # so that writes of all rows are one kernel
            inside = index[n] == Scalar(f"at{n}", i64)
        else:
            assert part.axis is not None
            first, last = sorted((part.start, part.start + part.step * (part.count - 1)))
            step, whole = abs(part.step), part.count == base[n]
            number = (index[n] - first) // step if step > 1 else index[n] - first
            number = number if whole else clip(number, 0, part.count - 1)
            position[part.axis] = part.count - 1 - number if part.step < 0 else number
            if whole:
                continue
            inside = (index[n] >= first) & (index[n] <= last)
            inside = inside & ((index[n] - first) % step == 0) if step > 1 else inside
        condition = inside if condition is None else condition & inside
    written = _element(value, target.shape, tuple(position), inputs)
    new = cast(written, element)
    out[index] = new if condition is None else where(condition, new, _old_element(target, index, inputs))
    result = record_call(target.trace, out, inputs, numbers)
    target.contents.replace(base_of(result.source))


def _write_table(target: Symbol, numbers: Any, value: Any) -> None:
    """Records the call of a write to any elements, by a table of the element of the value for each element.

    `numbers` has the numbers of the elements of the base that are written.
    """
    value = _as_operand(value, numbers.shape)
    known = target.contents.known
    if known is not None and not isinstance(value, Symbol):
        known.reshape(-1)[numbers] = value
        target.contents.changed()
        return
    table = np.full(np.prod(target.base_shape, dtype=np.intp), -1)
    table[numbers.reshape(-1)] = np.arange(numbers.size)  # the last of equal indices, as in NumPy
    if numbers.size:
        flat = np.broadcast_to(value, numbers.shape).reshape(-1)
        taken = flat[np.clip(table, 0, numbers.size - 1).reshape(target.base_shape)]
        base = _whole(target)
        mask = (table >= 0).reshape(target.base_shape)
        base[...] = np.where(mask, taken, base).astype(target.dtype)


def _whole(x: Symbol) -> Symbol:
    """The array that `x` is a view of."""
    return Symbol(x.trace, x.contents, Spec(x.base_shape, x.dtype))


def _element(value: Any, shape: tuple[int, ...], position: tuple[Any, ...], inputs: dict[Tensor, Any]) -> Any:
    """The element of a value at a position of the part that is written; adds the tensor to `inputs`."""
    if not isinstance(value, Symbol | np.ndarray):
        return value
    tensor = Tensor("value", value.shape, from_numpy(value.dtype))
    inputs[tensor] = value
    return broadcast_read(tensor, value.shape, shape, position)


def _old_element(target: Symbol, index: tuple[Any, ...], inputs: dict[Tensor, Any]) -> Any:
    """The element of the array before the write: a number if all elements are known to be that number."""
    known, element = target.contents.known, from_numpy(target.dtype)
    if known is not None and known.tobytes() == known.reshape(-1)[0].tobytes() * known.size:
        return cast(known.reshape(-1)[0].item(), element)
    tensor = Tensor("a", target.base_shape, element)
    inputs[tensor] = _whole(target)
    return tensor[index]
