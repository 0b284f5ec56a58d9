"""Arrays in GPU memory: `DeviceArray`, and arrays of other libraries imported without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from tdsl.codegen.cuda.driver import DEFAULT_STREAM, Device, read
from tdsl.codegen.ir.loops import row_major
from tdsl.codegen.runtime.arrays import as_array, declaration_of, without_gradient
from tdsl.codegen.runtime.dlpack import array_info, device_of
from tdsl.codegen.runtime.dlpack_exchange import exchange
from tdsl.codegen.runtime.dlpack_export import to_dlpack
from tdsl.codegen.runtime.signature import ArrayArg
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang.types import from_numpy

ALIGNED = 16  # bytes, of the widest access
CUDA = 2  # kDLCUDA


class DeviceArray:
    """A row-major array in GPU memory: the type of the results of calls with arrays in GPU memory.

    Other libraries take it without a copy (`torch.from_dlpack(x)`, `cupy.from_dlpack(x)`); `numpy()` waits
    for its values and copies them. `owner` keeps the memory alive, `stream` is the stream that writes
    the array. Arrays with equal `like` (shape, dtype, device) can be passed to the same variant.
    """

    __slots__ = ("device", "dtype", "like", "owner", "pointer", "shape", "stream")

    def __init__(
        self, device: Device, pointer: int, shape: tuple[int, ...], dtype: Any, owner: object,
        stream: int = DEFAULT_STREAM,
    ) -> None:  # fmt: skip
        self.device, self.pointer, self.owner, self.stream = device, pointer, owner, stream
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.like = (shape, self.dtype, device)

    def __repr__(self) -> str:
        return f"<DeviceArray of {self.dtype}, shape {self.shape}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3, "shape": self.shape, "typestr": self.dtype.str, "strides": None,
            "data": (self.pointer, False), "stream": self.stream,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """The DLPack type and number of the GPU."""
        return CUDA, self.device.ordinal

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """A DLPack capsule of the array, without a copy; work on `stream` waits for that on its own stream.

        BufferError for another device or a copy.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("a DeviceArray is exported as it is: on its GPU, without a copy")
        if stream != -1 and (stream or DEFAULT_STREAM) != self.stream:
            self.device.wait_for_stream(stream or DEFAULT_STREAM, self.stream)
        is_versioned = max_version is not None and max_version[0] >= 1
        about = (self.pointer, self.__dlpack_device__(), self.shape, from_numpy(self.dtype))
        return to_dlpack(*about, self, is_versioned)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return prod(self.shape) * int(self.dtype.itemsize)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the values in CPU memory; waits for the work on `stream`."""
        array = np.empty(self.shape, self.dtype)
        read(self.device, self.pointer, array, self.stream)
        return array


def is_on_a_gpu(value: Any) -> bool:
    """True for an array in GPU memory, which the CPU cannot read."""
    if isinstance(value, DeviceArray):
        return True
    if isinstance(value, np.ndarray | np.generic | int | float):
        return False
    if hasattr(value, "__dlpack_device__"):
        return (device_of(value) or "").startswith("cuda")
    return hasattr(value, "__cuda_array_interface__")


def stream_of(value: Any, device: Device) -> int | None:
    """The stream on which a GPU array is written; None if its library does not tell."""
    if isinstance(value, DeviceArray):
        return value.stream
    table = exchange(value.__class__)
    if table is not None:
        return table.stream(CUDA, device.ordinal) or DEFAULT_STREAM
    if hasattr(value, "__dlpack__") or not hasattr(value, "__cuda_array_interface__"):
        return None  # `__dlpack__` gets the stream of the call instead
    stream: int | None = value.__cuda_array_interface__.get("stream")
    return stream


def shape_and_type(value: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and element type of an array in GPU memory."""
    if isinstance(value, DeviceArray):
        return value.shape, value.dtype
    if hasattr(value, "__dlpack__"):
        _, shape, _, dtype = array_info(value)
        return shape, dtype
    about = value.__cuda_array_interface__
    return tuple(about["shape"]), np.dtype(about["typestr"])


@frozen
class _ForeignArray:
    """An array of another library: `strides` in bytes, None if row-major; `here` if on the call's GPU."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    here: bool


def device_array(arg: ArrayArg, value: Any, device: Device, stream: int) -> DeviceArray:
    """`value` as an array that work on `stream` may use: without a copy if it is in GPU memory, else copied.

    Raises TypeMismatch for another element type or another GPU, and for memory that is not row-major or
    not aligned to 16 bytes.
    """
    if not is_on_a_gpu(value):
        array = np.ascontiguousarray(as_array(arg, value)).reshape(np.shape(value))
        memory = device.allocate(array.nbytes, stream)
        memory.fill(array)
        return DeviceArray(device, memory.pointer, array.shape, array.dtype, memory, stream)
    with _convert_errors(arg):
        foreign = _import_array(value, device, stream)
    if not foreign.here:
        raise array_error(
            arg, f"is on another GPU than {device.name} with number {device.ordinal}",
            "copy it there, or make its GPU the current one (torch.cuda.set_device)",
        )  # fmt: skip
    if foreign.dtype != arg.dtype.numpy:
        raise array_error(
            arg, f"has dtype {foreign.dtype}, expected {arg.dtype.numpy}", "convert it on the GPU"
        )
    if not _is_dense(foreign):
        hint = "pass a contiguous copy: x.contiguous(), or cupy.ascontiguousarray(x)"
        raise array_error(arg, f"is not contiguous: strides {foreign.strides} bytes", hint)
    if foreign.pointer % ALIGNED:
        raise array_error(arg, f"begins at no multiple of {ALIGNED} bytes", "pass a copy")
    return DeviceArray(device, foreign.pointer, foreign.shape, foreign.dtype, value, stream)


@contextmanager
def _convert_errors(arg: ArrayArg) -> Iterator[None]:
    try:
        yield
    except BufferError as error:
        raise array_error(arg, f"is not lent: {error}", "detach or convert it on the GPU") from None


def _import_array(value: Any, device: Device, stream: int) -> _ForeignArray:
    if isinstance(value, DeviceArray):
        here_ = value.device.ordinal == device.ordinal
        return _ForeignArray(value.pointer, value.shape, None, value.dtype, here_)
    if hasattr(value, "__dlpack__"):
        where = device_of(value)
        if where not in (f"cuda:{device.ordinal}", f"cuda_managed:{device.ordinal}"):
            return _ForeignArray(0, (), None, np.dtype(bool), here=False)
        waits = None if exchange(value.__class__) else stream
        return _ForeignArray(*array_info(without_gradient(value), waits), here=True)
    about = value.__cuda_array_interface__
    pointer, shape = about["data"][0], tuple(about["shape"])
    strides, dtype = about.get("strides"), np.dtype(about["typestr"])
    return _ForeignArray(pointer, shape, strides, dtype, 0 in shape or device.has_address(pointer))


def _is_dense(array: _ForeignArray) -> bool:
    if array.strides is None or 0 in array.shape:
        return True
    dense = (n * array.dtype.itemsize for n in row_major(array.shape))
    return all(n == 1 or s == o for n, s, o in zip(array.shape, array.strides, dense, strict=True))


def array_error(arg: ArrayArg, what: str, hint: str) -> TypeMismatch:
    """The TypeMismatch for an array argument that a call does not accept."""
    return TypeMismatch(
        f"{arg.name} {what}", loc=here(), label="this call", related=declaration_of(arg), hint=hint
    )
