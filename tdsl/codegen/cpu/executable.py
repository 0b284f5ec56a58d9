"""`CpuExecutable`: a kernel compiled to machine code, which Python can call."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.allocate import alloc_bytes
from tdsl.codegen.cpu.runtime import Structure, runtime
from tdsl.codegen.ir.loops import Alloc, Argument, BufferParam, Check, Kernel, Print, SizeParam
from tdsl.codegen.ir.show import message_text
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.runtime.failure import (
    CHECK_SLOTS,
    RED_ZONE_OVERWRITTEN,
    check_error,
    red_zone_error,
)
from tdsl.core.debug import dump, log
from tdsl.core.node import frozen, post_order
from tdsl.core.text import in_bytes
from tdsl.errors import TargetError, TdslError
from tdsl.lang.expr import dtype_of
from tdsl.lang.types import DType
from tdsl.machine.cpu import CpuTarget, host

_METH_FASTCALL = 0x0080

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


class _PyMethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@frozen
class ObjectCode:
    """An object file with `@NAME`, and `@NAME_call` if `has_python_entry`; the kernel has `params`."""

    name: str
    params: tuple[Argument, ...]
    has_python_entry: bool
    file: bytes


class CpuExecutable:
    """A kernel compiled from the IR text of `@NAME`, and of the entry point `@NAME_call` if it has one.

    `params` are the parameters of `kernel`, `llvm` is the IR text. `fast` is a built-in function around
    `@NAME_call`, or None: it takes arrays and scalars in the order of `params`, without the sizes, and
    returns True if the kernel ran. After any other result the caller must use `run`.
    The code stays in memory while this object, or `fast`, is alive. `target` is this machine, or a
    level of it.
    """

    def __init__(self, kernel: Kernel, text: str, target: CpuTarget | None = None) -> None:
        target = target or host()
        file = jit.emit_object(text, target, kernel.name)
        code = ObjectCode(kernel.name, kernel.arguments, f"@{kernel.name}_call(" in text, file)
        self._load(code, _KernelSource(lambda: kernel, lambda _: text), target)

    @classmethod
    def from_object(cls, code: ObjectCode, make: Callable[[], Kernel], target: CpuTarget) -> CpuExecutable:
        """The executable of existing machine code; `make` builds its kernel again on demand."""
        self = cls.__new__(cls)
        self._load(code, _KernelSource(make, lambda kernel: text_of(kernel, target)), target)
        return self

    def _load(self, code: ObjectCode, source: _KernelSource, target: CpuTarget) -> None:
        self.params, self.target, self._source = code.params, target, source
        self._code = _Code(code, source)
        self._entry = _ENTRY(self._code.loaded.address(code.name))
        self._values = sum(map(_slots, code.params))
        self._frame = ctypes.c_int64 * (self._values + CHECK_SLOTS)
        self.fast = self._code.builtin_function()

    @property
    def kernel(self) -> Kernel:
        """The kernel that was compiled."""
        return self._source.kernel

    @property
    def llvm(self) -> str:
        """The IR text."""
        return self._source.text

    def __repr__(self) -> str:
        return f"<machine code of {self._code.name}>"

    def run(self, arguments: Sequence[Any]) -> None:
        """Run on arrays, numbers and sizes, one for each of `params`.

        Arrays have the dtype, rank and constant strides of their parameter and are aligned to their
        elements; the caller ensures that extents agree. Several threads may call this at once.
        RequireError or IndexBoundError if a check of the kernel fails, MemoryError if an allocation of the
        kernel fails.
        """
        assert len(arguments) == len(self.params)
        frame = self._frame()
        slot = 0
        for param, value in zip(self.params, arguments, strict=True):
            slot = _store_argument(frame, slot, param, value)
        status = self._entry(ctypes.addressof(frame), ctypes.addressof(self._code.structure))
        if status:
            raise self.failure(status, ctypes.addressof(frame) + 8 * self._values)

    def failure(self, status: int, values: int) -> Exception:
        """The exception for a status other than 0; `values` is the address of what a failed check shows."""
        if status <= RED_ZONE_OVERWRITTEN:
            return self._code.messages.overwritten(RED_ZONE_OVERWRITTEN - status)
        if status < 0:
            return MemoryError(f"no memory for {_largest(self.kernel)}, in {self._code.name}")
        return self._code.messages.error(status - 1, values)

    @property
    def addresses(self) -> tuple[int, int]:
        """The addresses of the machine code and of the structure that it is called with, after the frame."""
        return self._code.loaded.address(self._code.name), ctypes.addressof(self._code.structure)

    def asm(self) -> str:
        """The assembly of the machine code."""
        return jit.assembly(self.llvm, self.target, self._code.name)


def _largest(kernel: Kernel) -> str:
    """The largest memory that a kernel allocates, with its bytes if its size is constant."""
    allocs = [s for s in walk(kernel.body) if isinstance(s, Alloc)]
    known = {a.name: n for a in allocs if (n := alloc_bytes(a)) is not None}
    unknown = [f"{a.name!r}" for a in allocs if a.name not in known]
    largest = max(known, key=lambda name: known[name], default="")
    of_known = [f"{largest!r}, which takes {in_bytes(known[largest])}"] if largest else []
    return " or ".join([*of_known, *unknown]) or "what it computes"


class _KernelSource:
    """The kernel that was compiled, and its IR text, both built on first access."""

    def __init__(self, kernel: Callable[[], Kernel], text: Callable[[Kernel], str]) -> None:
        self._make, self._write = kernel, text

    @functools.cached_property
    def kernel(self) -> Kernel:
        return self._make()

    @functools.cached_property
    def text(self) -> str:
        return self._write(self.kernel)


class _Code:
    """Loaded machine code and the objects that it refers to, owned by the built-in function around it."""

    def __init__(self, code: ObjectCode, source: _KernelSource) -> None:
        self.name, self._has_python_entry = code.name, code.has_python_entry
        self.messages = _Messages(source)
        self._show = self.messages.show  # keeps it alive: the structure has its address only
        self.structure: Structure = runtime().structure(self._show)
        imports = {
            "tdsl_ndarray": id(np.ndarray),
            "tdsl_runtime": ctypes.addressof(self.structure),
            **runtime().memory,
        }
        symbols = [code.name, f"{code.name}_call"] if code.has_python_entry else [code.name]
        self.loaded = jit.load(code.file, symbols, imports, code.name)

    def builtin_function(self) -> Callable[..., Any] | None:
        """A new built-in function of Python around `@NAME_call`, or None without that symbol."""
        if not self._has_python_entry:
            return None
        method = _method(self.name, self.loaded.address(f"{self.name}_call"))
        # This object is `self` of the function and lives as long as it, and the caller of a running
        # function holds a reference to it, so code is not unmapped while it runs.
        function: Callable[..., Any] = _NEW(ctypes.addressof(method), self, None)
        return function


@functools.cache  # never freed: a function reads it when deallocated, in a cycle after all that it owned
def _method(name: str, address: int) -> _PyMethodDef:
    return _PyMethodDef(name.encode(), address, _METH_FASTCALL, None)


_NEW = ctypes.pythonapi.PyCFunction_NewEx
_NEW.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
_NEW.restype = ctypes.py_object


class _Messages:
    """Formats the messages of a kernel's checks and prints from the values that it stores."""

    def __init__(self, source: _KernelSource) -> None:
        self._source = source

    @functools.cached_property
    def _dtypes(self) -> dict[int, tuple[DType, ...]]:
        return {
            statement.site: tuple(map(dtype_of, statement.values))
            for statement in post_order(self._source.kernel.body)
            if isinstance(statement, Check | Print)
        }

    def error(self, site: int, address: int) -> TdslError:
        """The exception for the failed check of a site, with its values at `address`."""
        return check_error(self._source.kernel.messages[site], self._values(site, address))

    def overwritten(self, number: int) -> TargetError:
        """The exception for an overwritten red zone of the buffer `allocated_names(kernel)[number]`."""
        from tdsl.codegen.cpu.red_zones import allocated_names

        kernel = self._source.kernel
        return red_zone_error(kernel.name, allocated_names(kernel)[number])

    def _values(self, site: int, address: int) -> tuple[int | float | bool, ...]:
        """The values of a site: 8 bytes each, integers or the bits of doubles."""
        return tuple(_value(dtype, address + 8 * slot) for slot, dtype in enumerate(self._dtypes[site]))

    def show(self, site: int, address: int) -> None:
        """Print the message of a site; machine code calls this, on any thread."""
        text = message_text(self._source.kernel.messages[site], self._values(site, address))
        print(text)  # noqa: T201  # what td.debug_print asks for


def _value(dtype: DType, address: int) -> int | float | bool:
    if dtype.is_float:
        return ctypes.c_double.from_address(address).value
    if dtype.kind == "b":
        return bool(ctypes.c_int64.from_address(address).value)
    kind = ctypes.c_uint64 if dtype.kind == "u" else ctypes.c_int64
    return kind.from_address(address).value


def _slots(param: Argument) -> int:
    return 1 + (param.strides.count(None) if isinstance(param, BufferParam) else 0)


def _store_argument(frame: ctypes.Array[ctypes.c_int64], slot: int, param: Argument, value: Any) -> int:
    """Write an argument to its slots of the frame; the index of the next free slot."""
    match param:
        case BufferParam(_, _, _, strides):
            frame[slot] = value.__array_interface__["data"][0]
            for constant, stride in zip(strides, value.strides, strict=True):
                if constant is None:
                    slot += 1
                    frame[slot] = stride
        case SizeParam():
            frame[slot] = value
        case _:
            data = np.asarray(value, param.dtype.numpy).tobytes()
            frame[slot] = int.from_bytes(data, "little")
    return slot + 1


def text_of(kernel: Kernel, target: CpuTarget) -> str:
    """The IR text of a kernel and its entry point for Python."""
    # Imported here: a `CpuExecutable` of given text or cached machine code needs no code generator.
    from tdsl.codegen.cpu.emit import emit
    from tdsl.codegen.cpu.wrapper import wrapper

    text = emit(kernel, target) + wrapper(kernel)

    def assembly() -> str:
        return jit.assembly(text, target, kernel.name)

    log("llvm", text)
    log("asm", assembly)
    dump(f"{kernel.name}.ll", text)
    dump(f"{kernel.name}.s", assembly)
    return text


def build(kernel: Kernel, target: CpuTarget | None = None) -> CpuExecutable:
    """Compile a kernel for this machine or a level of it; TargetError if LLVM cannot compile it."""
    target = target or host()
    return CpuExecutable(kernel, text_of(kernel, target), target)
