"""Converts the arguments of a call to NumPy arrays and scalars; alignment, strides and overlap of arrays."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tdsl.codegen.ir.loops import row_major
from tdsl.codegen.runtime.dlpack import device_of, from_dlpack
from tdsl.codegen.runtime.signature import ALIGN, LARGE, ArrayArg, Layout, ScalarArg
from tdsl.core.source import here
from tdsl.errors import Related, ShapeError, TypeMismatch
from tdsl.lang.handle import Handle
from tdsl.lang.types import ML_DTYPES, AbstractDType, DType, TensorType
from tdsl.lang.value import Value

Array = np.ndarray[Any, Any]


def declaration_of(arg: ArrayArg | ScalarArg) -> tuple[Related, ...]:
    """The source location of an argument's declaration, as the `related` of an error."""
    return ((arg.loc, f"{arg.name} is declared here"),)


def placeholder(x: Any) -> Any:
    """A placeholder: a broadcast array for a tensor type, 1 for an element type, and any other `x` itself.

    ShapeError for a tensor type whose extents are not numbers.
    """
    if isinstance(x, DType):
        return x.numpy.type(1)
    if not isinstance(x, TensorType):
        return x
    if isinstance(x.dtype, AbstractDType) or not all(isinstance(e, int) for e in x.shape):
        raise ShapeError(
            f"a type that stands for an array has an element type and known extents, unlike {x}",
            loc=here(),
            label="this call",
            hint="give numbers: td.f32[64, 128]",
        )
    return placeholder_array(x.shape, x.dtype.numpy)


def placeholder_array(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array of unknown values, broadcast from one element, for checks of shape and dtype only."""
    return np.broadcast_to(np.empty((), dtype), shape)


def as_array(arg: ArrayArg, value: Any) -> Array:
    """An array over the memory of `value`, of the element type of `arg`.

    Takes NumPy arrays and scalars, and objects with DLPack, the buffer protocol or `__array_interface__`.
    TypeMismatch for anything else, for another dtype or byte order, and for memory that the CPU cannot
    read. The shape is not checked.
    """
    array = view_of(arg, value)
    expected = arg.dtype.numpy
    if array.dtype == expected:
        return array
    if array.dtype.newbyteorder("=") == expected:
        message = f"{arg.name} has a foreign byte order: dtype {array.dtype.str}"
        hint = f"{arg.name}.astype({_numpy_name(arg.dtype)})"
    else:
        message = f"{arg.name} has dtype {array.dtype}, expected {expected}"
        hint = f"convert it: {arg.name}.astype({_numpy_name(arg.dtype)})"
    raise _mismatch(arg, message, hint)


def view_of(arg: ArrayArg, value: Any) -> Array:
    """An array over the memory of `value`, of any element type; TypeMismatch if `value` is no array."""
    if "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray):  # else importing it takes long
        raise _mismatch(arg, f"{arg.name} is a masked array", f"pass {arg.name}.filled(...)")
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, Handle | Value):
        raise _mismatch(
            arg,
            f"{arg.name} is of type {type(value).__name__}, which has no values yet: "
            "what is compiled is called with arrays",
            "call one after the other in a function, and make a td.Graph of it; or have a Python function, "
            "without td.op, take the tensors and return a td.Func, and call it in both",
        )
    hint = f"np.asarray({arg.name}, dtype={_numpy_name(arg.dtype)})"
    if not isinstance(value, list | tuple | str | int | float):
        try:
            array = _foreign(arg, value)
        except (BufferError, ValueError, RuntimeError) as error:
            kind = type(value).__name__
            message = f"{arg.name}, a {kind}, cannot be read as an array: {error}"
            if getattr(value, "requires_grad", False):
                hint = (
                    f"pass {arg.name}.detach(), or call it under torch.no_grad(); "
                    "td.torch.op makes an operator that torch differentiates"
                )
            raise _mismatch(arg, message, hint) from error
        if array is not None:
            return array
    raise _mismatch(arg, f"{arg.name} is of type {type(value).__name__}, not an array", hint)


def _foreign(arg: ArrayArg, value: Any) -> Array | None:
    if hasattr(value, "__dlpack__"):
        _check_on_host(arg, value, device_of(value))
        return from_dlpack(without_gradient(value))
    if hasattr(value, "__cuda_array_interface__"):
        _check_on_host(arg, value, "cuda")
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        return np.asarray(value) if hasattr(value, "__array_interface__") else None


def without_gradient(value: Any) -> Any:
    """`value`, detached from autograd if it is a torch tensor that requires grad and torch records none."""
    if getattr(value, "requires_grad", False) and "torch" in sys.modules:
        return value if sys.modules["torch"].is_grad_enabled() else value.detach()
    return value


def _check_on_host(arg: ArrayArg, value: Any, device: str | None) -> None:
    if device is not None:
        message = f"{arg.name}, a {type(value).__name__}, is an array on device {device}, not the CPU"
        raise _mismatch(arg, message, "copy it to the host first")


def _numpy_name(dtype: DType) -> str:
    name = dtype.numpy.name
    return f"ml_dtypes.{name}" if dtype.kind == "e" else f"np.{name}"


def _mismatch(arg: ArrayArg | ScalarArg, message: str, hint: str) -> TypeMismatch:
    return TypeMismatch(message, loc=here(), label="this call", related=declaration_of(arg), hint=hint)


def as_scalar(arg: ScalarArg, value: Any) -> Any:
    """`value` as a NumPy scalar of the type of `arg`; TypeMismatch unless it converts safely.

    An integer parameter takes integers in its range, a float parameter integers and floats (rounded to
    nearest, but never a finite number to infinity), a bool parameter booleans.
    """
    number = _to_python_number(value[()] if isinstance(value, np.ndarray) else value)
    if not isinstance(number, _ACCEPTED[arg.dtype.kind]):
        raise _wrong_kind(arg, value)
    if arg.dtype.is_float:
        return _as_float(arg, number)
    if not arg.dtype.low <= number <= arg.dtype.high:
        message = f"{arg.name} = {number} does not fit {arg.dtype.numpy}"
        raise _mismatch(arg, message, f"it holds {arg.dtype.low} to {arg.dtype.high}")
    return arg.dtype.numpy.type(number)


_ACCEPTED: dict[str, Any] = {
    "b": (bool,), "i": (int,), "u": (int,), "f": (int, float), "e": (int, float),
}  # fmt: skip


def _to_python_number(number: Any) -> Any:
    """The Python bool, int or float equal to `number`; None if it is no such number."""
    if isinstance(number, bool | np.bool_):
        return bool(number)
    if isinstance(number, float | np.floating) or _is_ml_float(number):
        return float(number)
    try:
        return operator.index(number)
    except TypeError:
        return None


def _is_ml_float(number: Any) -> bool:
    return isinstance(number, np.generic) and number.dtype.name in ML_DTYPES


def _as_float(arg: ScalarArg, number: Any) -> Any:
    try:
        exact = float(number)
    except OverflowError:
        exact = math.inf
    with np.errstate(over="ignore"):
        rounded = arg.dtype.numpy.type(exact)
    if not math.isfinite(rounded) and number == number and number not in (math.inf, -math.inf):
        message = f"{arg.name} = {number} does not fit {arg.dtype.numpy}"
        raise _mismatch(arg, message, f"the largest is {arg.dtype.largest}")
    return rounded


def _wrong_kind(arg: ScalarArg, value: Any) -> TypeMismatch:
    expected = "a bool" if arg.dtype.kind == "b" else "a number" if arg.dtype.is_float else "an integer"
    received = f"{value!r} of type {type(value).__name__}" if np.isscalar(value) else type(value).__name__
    hint = "pass True or False" if arg.dtype.kind == "b" else "pass a Python number"
    return _mismatch(arg, f"{arg.name} needs {expected} ({arg.dtype.numpy}), got {received}", hint)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array that begins at a multiple of `ALIGN` bytes."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGN, np.uint8)
    start = -memory.ctypes.data % ALIGN
    return memory[start : start + size].view(dtype).reshape(shape)


def are_aligned(outputs: Iterable[Array]) -> bool:
    """True if all arrays of `LARGE` bytes and more begin at a multiple of `ALIGN` bytes."""
    return all(out.nbytes < LARGE or out.ctypes.data % ALIGN == 0 for out in outputs)


def layout_of(array: Array, fixed: bool) -> Layout:
    """The strides in elements that a variant is compiled with, or None; `fixed` if no extent is dynamic.

    >>> x = np.zeros((4, 6), np.float32)
    >>> layout_of(x, True), layout_of(x, False), layout_of(x.T, True), layout_of(x[:, ::2], True)
    ((6, 1), (None, 1), (1, None), (None, None))
    """
    if fixed and array.flags.c_contiguous:
        return row_major(array.shape)
    return tuple(1 if axis == _unit_axis(array) else None for axis in range(array.ndim))


def _unit_axis(array: Array) -> int | None:
    # The flag is tested first: it ignores the strides of extents 0 and 1, which are arbitrary.
    if array.flags.c_contiguous:
        return array.ndim - 1
    last_first = reversed(range(array.ndim))
    return next((axis for axis in last_first if array.strides[axis] == array.itemsize), None)


def overlaps_itself(array: Array) -> bool:
    """True if two elements may share memory; exact for all views by slicing and transposing.

    >>> overlaps_itself(np.broadcast_to(np.zeros(3), (2, 3))), overlaps_itself(np.zeros((2, 3)).T[::-1])
    (True, False)
    """
    extent_bytes = array.itemsize
    axes = zip(array.strides, array.shape, strict=True)
    for stride, extent in sorted((abs(stride), extent) for stride, extent in axes if extent > 1):
        if stride < extent_bytes:
            return array.size > 0
        extent_bytes += stride * (extent - 1)
    return False


_MAX_WORK = 10_000  # candidate solutions of the overlap equation, well under a millisecond


def share_memory(a: Array, b: Array) -> bool:
    """True if two arrays share a byte, or if that is too expensive to decide."""
    try:
        return np.shares_memory(a, b, max_work=_MAX_WORK)  # type: ignore[arg-type]  # NumPy's stub is too narrow
    except np.exceptions.TooHardError:
        return True


def copy_overlapping(inputs: Iterable[Any], outputs: Iterable[Array]) -> tuple[Any, ...]:
    """The inputs, with copies of arrays that share memory with an output or are not aligned."""
    output_arrays = tuple(outputs)

    def is_usable(value: Any) -> bool:
        return value.flags.aligned and not any(share_memory(value, out) for out in output_arrays)

    return tuple(
        value if not isinstance(value, np.ndarray) or is_usable(value) else value.copy() for value in inputs
    )
