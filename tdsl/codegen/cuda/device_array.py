"""Arrays in the memory of a GPU: those of calls, and those that other libraries lend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tdsl.codegen.cuda.driver import DEFAULT_STREAM, Device, read
from tdsl.codegen.ir.loops import row_major
from tdsl.codegen.runtime.arrays import as_array, declared
from tdsl.codegen.runtime.dlpack import device_of, exported
from tdsl.codegen.runtime.dlpack_exchange import exchange
from tdsl.codegen.runtime.signature import ArrayArg
from tdsl.core.source import here
from tdsl.errors import TypeMismatch

ALIGNED = 16  # bytes, of the widest access
CUDA = 2  # kDLCUDA


class DeviceArray:
    """A row-major array on a GPU: what a call gives that was given such arrays.

    Other libraries take it without a copy (`torch.as_tensor(x, device="cuda")`, `cupy.asarray(x)`); `numpy()`
    waits for it and copies it. `owner` keeps the memory, `stream` is the one on which it is written; arrays
    whose `like` is equal can stand for each other.
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

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in memory."""
        return prod(self.shape) * int(self.dtype.itemsize)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values, when all has run that writes them."""
        made = np.empty(self.shape, self.dtype)
        read(self.device, self.pointer, made, self.stream)
        return made


def is_on_a_gpu(value: Any) -> bool:
    """True for an array that only a GPU can read."""
    if isinstance(value, DeviceArray):
        return True
    if isinstance(value, np.ndarray | np.generic | int | float):
        return False
    if hasattr(value, "__dlpack_device__"):
        return (device_of(value) or "").startswith("cuda")
    return hasattr(value, "__cuda_array_interface__")


def stream_of(value: Any, device: Device) -> int | None:
    """The stream on which an array on a GPU is made, where that is told."""
    if isinstance(value, DeviceArray):
        return value.stream
    table = exchange(value.__class__)
    if table is not None:
        return table.stream(CUDA, device.ordinal) or DEFAULT_STREAM
    if hasattr(value, "__dlpack__") or not hasattr(value, "__cuda_array_interface__"):
        return None  # `__dlpack__` is told of ours
    told: int | None = value.__cuda_array_interface__.get("stream")
    return told


@dataclass(frozen=True, slots=True)
class _Lent:
    """What is known of an array of another library; strides in bytes, None for a dense one."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    here: bool


def device_array(arg: ArrayArg, value: Any, device: Device, stream: int) -> DeviceArray:
    """`value` for what runs on a stream: as it is where it is on the GPU, or a copy of one on the CPU.

    Raises TypeMismatch for another element type or another GPU, and for memory that is not row-major and
    aligned.
    """
    if not is_on_a_gpu(value):
        array = np.ascontiguousarray(as_array(arg, value)).reshape(np.shape(value))
        memory = device.allocate(array.nbytes, stream)
        memory.fill(array)
        return DeviceArray(device, memory.pointer, array.shape, array.dtype, memory, stream)
    with _refusing(arg):
        lent = _lent(value, device, stream)
    if not lent.here:
        raise refused(
            arg, f"is on another GPU than {device.name} with number {device.ordinal}",
            "copy it there, or make its GPU the current one (torch.cuda.set_device)",
        )  # fmt: skip
    if lent.dtype != arg.dtype.numpy:
        raise refused(
            arg, f"has dtype {lent.dtype}, expected {arg.dtype.numpy}", "convert it on the GPU"
        )
    if not _is_dense(lent):
        hint = "pass a contiguous copy: x.contiguous(), or cupy.ascontiguousarray(x)"
        raise refused(arg, f"is not contiguous: strides {lent.strides} bytes", hint)
    if lent.pointer % ALIGNED:
        raise refused(arg, f"begins at no multiple of {ALIGNED} bytes", "pass a copy")
    return DeviceArray(device, lent.pointer, lent.shape, lent.dtype, value, stream)


@contextmanager
def _refusing(arg: ArrayArg) -> Iterator[None]:
    try:
        yield
    except BufferError as error:
        raise refused(arg, f"is not lent: {error}", "detach or convert it on the GPU") from None


def _lent(value: Any, device: Device, stream: int) -> _Lent:
    if isinstance(value, DeviceArray):
        here_ = value.device.ordinal == device.ordinal
        return _Lent(value.pointer, value.shape, None, value.dtype, here_)
    if hasattr(value, "__dlpack__"):
        where = device_of(value)
        if where not in (f"cuda:{device.ordinal}", f"cuda_managed:{device.ordinal}"):
            return _Lent(0, (), None, np.dtype(bool), here=False)
        waits = None if exchange(value.__class__) else stream
        return _Lent(*exported(value, waits), here=True)
    about = value.__cuda_array_interface__
    pointer, shape = about["data"][0], tuple(about["shape"])
    strides, dtype = about.get("strides"), np.dtype(about["typestr"])
    return _Lent(pointer, shape, strides, dtype, 0 in shape or device.has(pointer))


def _is_dense(lent: _Lent) -> bool:
    if lent.strides is None or 0 in lent.shape:
        return True
    own = (n * lent.dtype.itemsize for n in row_major(lent.shape))
    return all(n == 1 or s == o for n, s, o in zip(lent.shape, lent.strides, own, strict=True))


def refused(arg: ArrayArg, what: str, hint: str) -> TypeMismatch:
    """The error of an array that a call does not take."""
    return TypeMismatch(
        f"{arg.name} {what}", loc=here(), label="this call", related=declared(arg), hint=hint
    )
