"""The DLPack C exchange API: a table of C functions that export arrays and tell a library's current stream.

An array type offers the table as the capsule `__dlpack_c_exchange_api__` (DLPack 1.3; PyTorch since 2.10).
Unlike `__dlpack__`, it allocates no Python object for an array and synchronises no stream.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from tdsl.codegen.runtime.dlpack import type_code
from tdsl.lang.types import DType

_NAME = b"dlpack_exchange_api"
_MAJOR = 1


class Table(ctypes.Structure):
    """The C struct DLPackExchangeAPI."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("managed_tensor_allocator", ctypes.c_void_p),
        ("managed_tensor_from_py_object", ctypes.c_void_p),
        ("managed_tensor_to_py_object", ctypes.c_void_p),
        ("tensor_from_py_object", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    )


class BorrowedTensor(ctypes.Structure):
    """The C struct DLTensor, with fields joined to words: `device`, and rank and element type as `kind`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device", ctypes.c_uint64),
        ("kind", ctypes.c_uint64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )

    def __init__(self) -> None:
        super().__init__()
        self.address = ctypes.addressof(self)


def device_word(kind: int, ordinal: int) -> int:
    """The word `device` of `BorrowedTensor`, from a DLDeviceType and a device number.

    >>> hex(device_word(2, 1))
    '0x100000002'
    """
    return ordinal << 32 | kind


def kind_word(rank: int, dtype: DType) -> int:
    """The word `kind` of `BorrowedTensor`, from a rank and an element type.

    >>> from tdsl.lang.types import f32
    >>> hex(kind_word(3, f32))
    '0x1200200000003'
    """
    return (1 << 16 | dtype.bits << 8 | type_code(dtype)) << 32 | rank


_CURRENT_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)
_EXPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Exchange:
    """The C functions of an array type; `export(array, address)` fills a DLTensor; it returns 0 or raises."""

    def __init__(self, table: Table) -> None:
        self.export: Callable[[Any, int], int] = _EXPORT(table.tensor_from_py_object)
        self._current_stream = _CURRENT_STREAM(table.current_work_stream)

    def stream(self, kind: int, device: int) -> int:
        """The current stream of the library on a device, as an address; 0 for the default stream."""
        stream_handle = ctypes.c_void_p()
        self._current_stream(kind, device, ctypes.addressof(stream_handle))
        return stream_handle.value or 0


@functools.lru_cache(maxsize=64)
def exchange(kind: type) -> Exchange | None:
    """The exchange functions of an array type; None if it has none, or of another version."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None or type(capsule).__name__ != "PyCapsule" or _get_name(capsule) != _NAME:
        return None
    table = Table.from_address(_get_pointer(capsule, _NAME))
    usable = table.major == _MAJOR and table.tensor_from_py_object and table.current_work_stream
    return Exchange(table) if usable else None
