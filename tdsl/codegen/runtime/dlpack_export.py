"""Exports memory to other libraries as DLPack capsules."""

from __future__ import annotations

import ctypes
from typing import Any

from tdsl.codegen.runtime.dlpack import Tensor, VersionedTensor, type_code
from tdsl.lang.types import DType


class _ManagedTensor(ctypes.Structure):
    """The C struct DLManagedTensor, of DLPack before 1.0."""

    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_exported: dict[int, tuple[Any, ...]] = {}  # address of a struct -> the struct, its arrays, its owner


def to_dlpack(
    pointer: int, device: tuple[int, int], shape: tuple[int, ...], dtype: DType, owner: object,
    is_versioned: bool,
) -> Any:  # fmt: skip
    """A capsule of row-major memory at `pointer`; `owner` lives until the consumer releases it."""
    extents = (ctypes.c_int64 * len(shape))(*shape)
    strides = (ctypes.c_int64 * len(shape))()
    stride = 1
    for axis in reversed(range(len(shape))):
        strides[axis] = stride
        stride *= shape[axis]
    pointers = (ctypes.cast(x, ctypes.POINTER(ctypes.c_int64)) for x in (extents, strides))
    code = type_code(dtype)
    tensor = Tensor(pointer, *device, len(shape), code, dtype.bits, 1, *pointers, 0)
    deleter = ctypes.cast(_delete, ctypes.c_void_p)
    struct: Any = (
        VersionedTensor(1, 0, None, deleter, 0, tensor)
        if is_versioned
        else _ManagedTensor(tensor, None, deleter)
    )
    address = ctypes.addressof(struct)
    _exported[address] = (struct, extents, strides, owner)
    name = _VERSIONED if is_versioned else _UNVERSIONED
    return _new_capsule(address, name, ctypes.cast(_delete_unconsumed, ctypes.c_void_p))


_VERSIONED, _UNVERSIONED = b"dltensor_versioned", b"dltensor"  # capsules keep their addresses


def _release(address: int) -> None:
    """Release a struct and its owner; called by its consumer, on any thread."""
    _exported.pop(address, None)


def _release_unconsumed(capsule: int) -> None:
    """Release the struct of a capsule unless a consumer has renamed the capsule."""
    for name in (_VERSIONED, _UNVERSIONED):
        if _is_valid(capsule, name):
            _exported.pop(_get_pointer(capsule, name), None)


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_release)
# The destructor of a capsule gets an object without references: its address, which ctypes must not count.
_delete_unconsumed = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_release_unconsumed)


_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
