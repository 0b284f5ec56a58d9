"""Imports arrays of other libraries through DLPack without a copy.

NumPy's own importer has no bfloat16 and marks arrays of older exporters read-only, so this file reads the
capsule itself. The capsule is never consumed: the array keeps it alive, and its destructor frees the memory.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tdsl.lang.types import BY_NAME, DType


class Tensor(ctypes.Structure):
    """The C struct DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class VersionedTensor(ctypes.Structure):
    """The C struct DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_VERSION = 1  # major version of DLPack
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataTypeCode
_ML_DTYPES = {"bf16": 4, "f8e4m3": 10, "f8e5m2": 12}
_DEVICES = {
    1: "cpu", 2: "cuda", 3: "cuda_host", 4: "opencl", 7: "vulkan", 8: "metal", 9: "vpi", 10: "rocm",
    11: "rocm_host", 12: "ext_dev", 13: "cuda_managed", 14: "oneapi", 15: "webgpu", 16: "hexagon",
}  # fmt: skip
_HOST = (1, 3, 11)  # memory that the CPU can address: ordinary memory, and pinned memory of a GPU


def type_code(dtype: DType) -> int:
    """The DLDataTypeCode of an element type.

    >>> [type_code(BY_NAME[name]) for name in ("f16", "bf16", "f8e5m2")]
    [2, 4, 12]
    """
    return _ML_DTYPES.get(dtype.name) or _KINDS[dtype.kind]


def device_of(exporter: Any) -> str | None:
    """The device name of a DLPack exporter, such as "cuda:0"; None if the CPU can read its memory."""
    kind, index = (int(part) for part in exporter.__dlpack_device__())
    return None if kind in _HOST else f"{_DEVICES.get(kind, f'device type {kind}')}:{index}"


def from_dlpack(exporter: Any) -> np.ndarray[Any, Any]:
    """An array over the memory of `exporter`; BufferError if its element type is not supported."""
    try:
        capsule = exporter.__dlpack__(max_version=(_VERSION, 0))
    except TypeError:  # exporter older than DLPack 1.0
        try:
            capsule = exporter.__dlpack__()
        except TypeError as error:
            raise BufferError(str(error)) from error
    tensor, read_only = _read(capsule)
    dtype = _dtype(tensor)
    return np.asarray(_CapsuleArray(capsule, tensor, dtype, read_only)).view(dtype)


def array_info(
    exporter: Any, stream: int | None = None
) -> tuple[int, tuple[int, ...], tuple[int, ...] | None, np.dtype[Any]]:
    """Address, shape, strides in bytes and dtype of an array on any device; `exporter` owns the memory.

    The exporter synchronises `stream` with its own; with None it does not synchronise.
    """
    stream_argument = -1 if stream is None else stream
    try:
        capsule = exporter.__dlpack__(stream=stream_argument, max_version=(_VERSION, 0))
    except TypeError:  # exporter older than DLPack 1.0
        capsule = exporter.__dlpack__(stream=stream_argument)
    tensor, _ = _read(capsule)
    dtype = _dtype(tensor)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    return (tensor.data or 0) + tensor.byte_offset, shape, _strides(tensor, dtype.itemsize), dtype


class _CapsuleArray:
    """An object with `__array_interface__` for a capsule; NumPy's array has it as base and keeps it alive."""

    def __init__(self, capsule: object, tensor: Tensor, dtype: np.dtype[Any], read_only: bool) -> None:
        self.capsule = capsule
        shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
        # An empty tensor may have a null address; NumPy requires another one, and reads nothing there.
        address = tensor.data + tensor.byte_offset if 0 not in shape else id(self)
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{dtype.itemsize}",
            "shape": shape,
            "strides": _strides(tensor, dtype.itemsize),
            "data": (address, read_only),
        }


def _read(capsule: object) -> tuple[Tensor, bool]:
    name = _get_name(capsule)
    if name == b"dltensor":
        # The older protocol has no read-only flag; exporters refuse to export read-only memory instead.
        return Tensor.from_address(_get_pointer(capsule, name)), False
    if name != b"dltensor_versioned":
        raise BufferError(f"the DLPack capsule is named {name!r}")
    managed = VersionedTensor.from_address(_get_pointer(capsule, name))
    if managed.major != _VERSION:
        raise BufferError(f"DLPack version {managed.major} is not known")
    return managed.tensor, bool(managed.flags & _READ_ONLY)


# Separate function objects: the functions of ctypes.pythonapi are shared by all modules of the process.
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _strides(tensor: Tensor, itemsize: int) -> tuple[int, ...] | None:
    if not tensor.strides:
        return None
    return tuple(tensor.strides[axis] * itemsize for axis in range(tensor.ndim))


def _dtype(tensor: Tensor) -> np.dtype[Any]:
    for dtype in BY_NAME.values():
        if (type_code(dtype), dtype.bits, 1) == (tensor.code, tensor.bits, tensor.lanes):
            return dtype.numpy
    raise BufferError(
        f"DLPack element type {tensor.code} of {tensor.bits} bits x {tensor.lanes} is not known"
    )
