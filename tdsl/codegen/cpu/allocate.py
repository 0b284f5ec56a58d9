"""Lowers `Alloc`: memory that a kernel allocates on the stack or the heap, and frees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tdsl.codegen.cpu import red_zones
from tdsl.codegen.cpu.context import Buffer, Context, HeapBlock
from tdsl.codegen.cpu.early_exit import NO_MEMORY, emit_failure, free_innermost
from tdsl.codegen.cpu.emit_expr import scalar_index
from tdsl.codegen.cpu.ir_types import memory_type
from tdsl.codegen.cpu.values import Value
from tdsl.codegen.ir.loops import HEAP, LARGEST_FRAME, STACK, Alloc, row_major
from tdsl.codegen.runtime.signature import ALIGN
from tdsl.lang.expr import Const

_ALWAYS_ON_STACK = 1 << 14  # bytes that go on the stack whatever the size of the frame


def may_fail(a: Alloc) -> bool:
    """True if the memory may come from the heap, so that the allocation may emit_failure."""
    size = alloc_bytes(a)
    return a.scope == HEAP or size is None or size > _ALWAYS_ON_STACK


def alloc_bytes(a: Alloc) -> int | None:
    """The size in bytes of an allocation; None if it has an extent that is known only at run time."""
    sizes = [int(e.value) for e in a.extents if isinstance(e, Const)]
    return _bytes(a, sizes) if len(sizes) == len(a.extents) else None


def _bytes(a: Alloc, sizes: list[int]) -> int:
    """The size in bytes of an allocation with constant extents `sizes`."""
    if min(sizes, default=1) <= 0:
        return 0
    strides = a.strides or row_major(tuple(sizes))
    furthest = sum((e - 1) * abs(s) for e, s in zip(sizes, strides, strict=True))
    return (furthest + 1) * a.dtype.bytes


@contextmanager
def allocate_buffer(cx: Context, a: Alloc) -> Iterator[Buffer]:
    """Allocate the buffer of an `Alloc` before its body, written inside, and free it after.

    Memory of a size unknown at compile time, or too large for the stack, comes from the heap in any scope.
    """
    has_red_zones = bool(a.extents) and bool(cx.b.module.guarded)
    zone_bytes = 2 * red_zones.BYTES * has_red_zones
    extents = [scalar_index(cx, e) for e in a.extents]
    sizes = [max(e.constant, 0) for e in extents if e.constant is not None]
    elements, on_stack = None, False
    if len(sizes) < len(extents):
        strides, size = _dynamic_size(cx, a, extents)
        total_size = _checked(cx, "uadd", size, str(zone_bytes)) if zone_bytes else size
    else:
        strides, count = a.strides or row_major(tuple(sizes)), _bytes(a, sizes)
        elements, size, total_size = count // a.dtype.bytes, str(count), str(count + zone_bytes)
        fits = count <= _ALWAYS_ON_STACK or cx.stack_bytes + count <= LARGEST_FRAME
        on_stack = a.scope != HEAP and fits
    if on_stack:
        cx.stack_bytes += int(total_size)
        type_ = f"[{max(int(total_size) // a.dtype.bytes, 1)} x {memory_type(a.dtype)}]"
        pointer = cx.b.alloca(type_, ALIGN)
        if a.scope == STACK:
            _lifetime(cx, "start", pointer)
    else:
        pointer = _malloc(cx, total_size)
        cx.heap_blocks.append(HeapBlock(pointer, cx.b.labels("out")[0]))
    first = red_zones.fill(cx, pointer, size) if has_red_zones else pointer
    yield Buffer(first, a.dtype, strides, ALIGN, size=elements)
    if has_red_zones:
        red_zones.check(cx, a.name, first, size)
    if not on_stack:
        free_innermost(cx)
    elif a.scope == STACK:
        _lifetime(cx, "end", pointer)


def _dynamic_size(cx: Context, a: Alloc, extents: list[Value]) -> tuple[tuple[int | str, ...], str]:
    """The strides and the size in bytes of an allocation with an extent that is known only at run time."""
    b = cx.b
    if a.strides:
        total = str(a.dtype.bytes)
        for e, stride in zip(extents, a.strides, strict=True):
            part = _checked(cx, "umul", e.name, str(abs(stride) * a.dtype.bytes))
            total = _checked(cx, "uadd", total, part)
        return a.strides, total
    strides: list[int | str] = []
    step: int | str = a.dtype.bytes
    for e in reversed(extents):
        strides.append(step if isinstance(step, str) else step // a.dtype.bytes)
        if isinstance(step, int) and e.constant is not None:
            step *= e.constant
        else:
            step = _checked(cx, "umul", str(step), e.name)
    return tuple(reversed(strides)), b.v(f"add i64 {step}, 0")


def _checked(cx: Context, operation: str, x: str, y: str) -> str:
    """x + y or x * y; if it overflows the kernel fails as for an allocation that is too large."""
    b = cx.b
    pair = b.call("{ i64, i1 }", f"llvm.{operation}.with.overflow.i64", ("i64", x), ("i64", y))
    with b.exit_if(b.v(f"extractvalue {{ i64, i1 }} {pair}, 1")):
        emit_failure(cx, NO_MEMORY, [])
    return b.v(f"extractvalue {{ i64, i1 }} {pair}, 0")


def _malloc(cx: Context, size: str) -> str:
    b = cx.b
    b.declare("declare noalias ptr @tdsl_malloc(i64)")
    b.declare("declare void @tdsl_free(ptr)")
    pointer = b.get(f"call ptr @tdsl_malloc(i64 {size})")
    with b.exit_if(b.v(f"icmp eq ptr {pointer}, null")):
        emit_failure(cx, NO_MEMORY, [])
    return pointer


def _lifetime(cx: Context, end: str, pointer: str) -> None:
    cx.b.declare(f"declare void @llvm.lifetime.{end}.p0(ptr)")
    cx.b.do(f"call void @llvm.lifetime.{end}.p0(ptr {pointer})")
