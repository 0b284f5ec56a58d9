"""Lowers `Alloc`: memory that a kernel allocates on the stack or the heap, and frees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tdsl.codegen.cpu import canaries
from tdsl.codegen.cpu.context import Buffer, Context, Held
from tdsl.codegen.cpu.early_exit import NO_MEMORY, fail, release
from tdsl.codegen.cpu.emit_expr import scalar_index
from tdsl.codegen.cpu.ir_types import memory
from tdsl.codegen.cpu.values import Value
from tdsl.codegen.ir.loops import HEAP, STACK, Alloc, row_major
from tdsl.codegen.runtime.signature import ALIGN
from tdsl.lang.expr import Const

_LARGEST_FRAME = 1 << 20  # bytes of allocations on the stack of a function; threads have few MiB
_SMALL = 1 << 14  # bytes that go on the stack whatever the size of the frame


def may_fail(a: Alloc) -> bool:
    """True if the memory may come from the heap, so that the allocation may fail."""
    sizes = [int(e.value) for e in a.extents if isinstance(e, Const)]
    if a.scope == HEAP or len(sizes) < len(a.extents):
        return True
    return _bytes(a, sizes) > _SMALL


def _bytes(a: Alloc, sizes: list[int]) -> int:
    """The size in bytes of an allocation with constant extents `sizes`."""
    if min(sizes, default=1) <= 0:
        return 0
    strides = a.strides or row_major(tuple(sizes))
    furthest = sum((e - 1) * abs(s) for e, s in zip(sizes, strides, strict=True))
    return (furthest + 1) * a.dtype.bytes


@contextmanager
def allocated(cx: Context, a: Alloc) -> Iterator[Buffer]:
    """Allocate the buffer of an `Alloc` before its body, written inside, and free it after.

    Memory of a size unknown at compile time, or too large for the stack, comes from the heap in any scope.
    """
    guarded = bool(a.extents) and bool(cx.b.module.guarded)
    zones = 2 * canaries.BYTES * guarded
    extents = [scalar_index(cx, e) for e in a.extents]
    sizes = [max(e.constant, 0) for e in extents if e.constant is not None]
    elements, on_stack = None, False
    if len(sizes) < len(extents):
        strides, size = _dynamic(cx, a, extents)
        whole = _checked(cx, "uadd", size, str(zones)) if zones else size
    else:
        strides, count = a.strides or row_major(tuple(sizes)), _bytes(a, sizes)
        elements, size, whole = count // a.dtype.bytes, str(count), str(count + zones)
        fits = count <= _SMALL or cx.stacked + count <= _LARGEST_FRAME
        on_stack = a.scope != HEAP and fits
    if on_stack:
        cx.stacked += int(whole)
        type_ = f"[{max(int(whole) // a.dtype.bytes, 1)} x {memory(a.dtype)}]"
        pointer = cx.b.alloca(type_, ALIGN)
        if a.scope == STACK:
            _lifetime(cx, "start", pointer)
    else:
        pointer = _from_heap(cx, whole)
        cx.owned.append(Held(pointer, cx.b.labels("out")[0]))
    first = canaries.begin(cx, pointer, size) if guarded else pointer
    yield Buffer(first, a.dtype, strides, ALIGN, size=elements)
    if guarded:
        canaries.end(cx, a.name, first, size)
    if not on_stack:
        release(cx)
    elif a.scope == STACK:
        _lifetime(cx, "end", pointer)


def _dynamic(cx: Context, a: Alloc, extents: list[Value]) -> tuple[tuple[int | str, ...], str]:
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
    with b.escape(b.v(f"extractvalue {{ i64, i1 }} {pair}, 1")):
        fail(cx, NO_MEMORY, [])
    return b.v(f"extractvalue {{ i64, i1 }} {pair}, 0")


def _from_heap(cx: Context, size: str) -> str:
    b = cx.b
    b.declare("declare noalias ptr @tdsl_malloc(i64)")
    b.declare("declare void @tdsl_free(ptr)")
    pointer = b.get(f"call ptr @tdsl_malloc(i64 {size})")
    with b.escape(b.v(f"icmp eq ptr {pointer}, null")):
        fail(cx, NO_MEMORY, [])
    return pointer


def _lifetime(cx: Context, end: str, pointer: str) -> None:
    cx.b.declare(f"declare void @llvm.lifetime.{end}.p0(ptr)")
    cx.b.do(f"call void @llvm.lifetime.{end}.p0(ptr {pointer})")
