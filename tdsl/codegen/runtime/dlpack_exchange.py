"""The table of C functions by which libraries lend arrays quickly, and tell which stream they work on.

A type of arrays has it as the capsule `__dlpack_c_exchange_api__` (DLPack 1.3; PyTorch since 2.10). Unlike
`__dlpack__`, it makes no object for each array and lets nobody wait.
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
    """DLPackExchangeAPI."""

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


class Lent(ctypes.Structure):
    """DLTensor, with one number for each of what is compared together: where it is, and of what elements."""

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
    """The field `device` for a kind of devices and a number.

    >>> hex(device_word(2, 1))
    '0x100000002'
    """
    return ordinal << 32 | kind


def kind_word(rank: int, dtype: DType) -> int:
    """The field `kind` for a rank and an element type.

    >>> from tdsl.lang.types import f32
    >>> hex(kind_word(3, f32))
    '0x1200200000003'
    """
    return (1 << 16 | dtype.bits << 8 | type_code(dtype)) << 32 | rank


_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)
_LEND = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Exchange:
    """The functions of a type: `lend(array, address)` fills a DLTensor there, and returns 0 or raises."""

    def __init__(self, table: Table) -> None:
        self.lend: Callable[[Any, int], int] = _LEND(table.tensor_from_py_object)
        self._stream = _STREAM(table.current_work_stream)

    def stream(self, kind: int, device: int) -> int:
        """The stream on which the library works on a device."""
        found = ctypes.c_void_p()
        self._stream(kind, device, ctypes.addressof(found))
        return found.value or 0


@functools.lru_cache(maxsize=64)
def exchange(kind: type) -> Exchange | None:
    """The functions of a type of arrays, where it has them."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None or type(capsule).__name__ != "PyCapsule" or _get_name(capsule) != _NAME:
        return None
    table = Table.from_address(_get_pointer(capsule, _NAME))
    usable = table.major == _MAJOR and table.tensor_from_py_object and table.current_work_stream
    return Exchange(table) if usable else None
