"""Lowers a kernel of the loop IR to LLVM IR text.

    @NAME(frame, runtime)      loads the arguments from the frame and calls @NAME.body
    @NAME.body(...)            the statements; buffers without atomic updates are noalias arguments
    @NAME.parallel...          the bodies of parallel loops, see parallel.py

The frame is an array of 8-byte slots: for each parameter a data pointer and the strides, in bytes, that are
not constant; or the bytes of a scalar; or a size. 8 more slots receive the values of a failed check, integers
as i64, floats as f64. The runtime is {parallel_for, print, handle}. A kernel returns a status: 0 if it
succeeds, 1 + the site of a failed check, -1 if an allocation failed, less if it wrote out of the bounds of
memory that it allocated (`red_zones.py`). The text contains no absolute addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tdsl.codegen.cpu.builder import Builder, Module
from tdsl.codegen.cpu.context import LARGEST_INDEX, Buffer, Context
from tdsl.codegen.cpu.emit_stmt import statement
from tdsl.codegen.cpu.function import (
    Argument,
    finish_function,
    flush_subnormals,
    restore_mxcsr,
    start_function,
)  # fmt: skip
from tdsl.codegen.cpu.ir_types import memory_type
from tdsl.codegen.cpu.red_zones import allocated_names
from tdsl.codegen.cpu.register_file import configured_register_files
from tdsl.codegen.cpu.values import Value
from tdsl.codegen.ir.loops import BufferParam, Kernel, ScalarParam, SizeParam, Store
from tdsl.core.debug import is_enabled
from tdsl.core.node import post_order
from tdsl.lang.expr import Const
from tdsl.lang.types import DType, i64
from tdsl.machine.cpu import CpuTarget


def emit(kernel: Kernel, target: CpuTarget, lines: Mapping[int, int] | None = None) -> str:
    """The LLVM IR text of a kernel whose loops are all serial or parallel.

    With the `lines` of statements by their `id`, instructions have debug locations.

    >>> from tdsl.machine.cpu import level
    >>> from tdsl.lang.expr import Load, const
    >>> from tdsl.lang.types import f32
    >>> x = BufferParam("x", f32, (const(2),), (1,), written=True)
    >>> text = emit(Kernel("k", (x,), Store("x", (const(0),), Load("x", (const(1),), f32))), level("avx2"))
    >>> "load float, ptr" in text and "store float" in text
    True
    """
    guarded = allocated_names(kernel) if is_enabled("canaries") else ()
    module = Module(target, kernel.fast_math, guarded, lines=lines or {})
    entry = Builder(module, f"define i64 @{kernel.name}(ptr %frame, ptr %runtime) nounwind")
    module.declare(f"; @{kernel.name}")
    frame = _FrameReader(entry, kernel)
    b, renamed = start_function(module, f"{kernel.name}.body", frame.arguments)
    names = {n: x._replace(name=renamed[x.name]) for n, x in frame.names.items()}
    buffers = {
        name: replace(
            buffer,
            pointer=renamed[buffer.pointer],
            strides=tuple(renamed[s] if isinstance(s, str) else s for s in buffer.strides),
        )
        for name, buffer in frame.buffers.items()
    }
    cx = Context(b, kernel, names, buffers)
    statement(cx, kernel.body)
    finish_function(cx)
    state = flush_subnormals(entry)
    call_args = ", ".join(f"{a.type} {a.name}" for a in frame.arguments)
    with configured_register_files(entry, cx.register_files):
        status = entry.get(f"call i64 @{kernel.name}.body({call_args})")
    restore_mxcsr(entry, state)
    entry.do(f"ret i64 {status}")
    module.replace(kernel.name, entry.text())
    return module.text()


class _FrameReader:
    """The arguments of a kernel, loaded from its frame."""

    def __init__(self, b: Builder, kernel: Kernel) -> None:
        self.b, self.slot = b, 0
        self.names: dict[str, Value] = {}
        self.buffers: dict[str, Buffer] = {}
        self.arguments = [Argument("ptr", "%frame"), Argument("ptr", "%runtime")]
        atomic_buffers = {n.buffer for n in post_order(kernel.body) if isinstance(n, Store) and n.atomic}
        for p in kernel.params:
            match p:
                case BufferParam():
                    self._buffer(p, p.name in atomic_buffers)
                case ScalarParam(name, t):
                    self.names[name] = Value(self._scalar(t), t)
                case SizeParam(name):
                    self.names[name] = Value(self._next("i64"), i64, limit=LARGEST_INDEX)

    def _buffer(self, p: BufferParam, atomic_buffers: bool) -> None:
        attributes = "" if atomic_buffers else "noalias " + "readonly " * (not p.written)
        pointer = self._next("ptr", attributes)
        strides = tuple(self._next("i64") if s is None else s for s in p.strides)
        size, align = self._elements(p), max(p.align, p.dtype.bytes)
        self.buffers[p.name] = Buffer(pointer, p.dtype, strides, align, p.written, size)

    @staticmethod
    def _elements(p: BufferParam) -> int | None:
        """The number of elements from the pointer to the end of the buffer; None if it is not constant."""
        furthest = 0
        for e, stride in zip(p.extents, p.strides, strict=True):
            if not isinstance(e, Const) or stride is None or stride < 0:
                return None
            furthest += (int(e.value) - 1) * stride
        return furthest + 1

    def _scalar(self, t: DType) -> str:
        if t.kind != "b":
            return self._next(memory_type(t))
        byte = self._load("i8")
        name = self.b.v(f"icmp ne i8 {byte}, 0")
        self.arguments.append(Argument("i1", name))
        return name

    def _next(self, type_: str, attributes: str = "") -> str:
        name = self._load(type_)
        self.arguments.append(Argument(type_, name, attributes))
        return name

    def _load(self, type_: str) -> str:
        slot = self.b.v(f"getelementptr i64, ptr %frame, i64 {self.slot}")
        self.slot += 1
        return self.b.get(f"load {type_}, ptr {slot}, align 8")
