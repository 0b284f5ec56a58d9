"""Early returns from the functions of a kernel after a failed check or allocation, which free its memory."""

from __future__ import annotations

from tdsl.codegen.cpu.context import Context
from tdsl.codegen.cpu.convert import cast
from tdsl.codegen.cpu.values import Value
from tdsl.codegen.ir.loops import BufferParam, Kernel
from tdsl.codegen.runtime.failure import CHECK_SLOTS
from tdsl.lang.types import f64, i64

NO_MEMORY = -1


def frame_slots(kernel: Kernel) -> int:
    """The number of 8-byte slots that arguments take in the frame of a kernel."""
    slots = 0
    for p in kernel.params:
        slots += 1
        if isinstance(p, BufferParam):
            slots += sum(stride is None for stride in p.strides)
    return slots


def slot_values(cx: Context, values: list[Value]) -> list[str]:
    """Scalars bit-cast to i64 for the call frame: integers from i64, floats from f64."""
    names = []
    for x in values:
        wide = cast(cx.b, x, f64 if x.dtype.is_float else i64).name
        names.append(cx.b.v(f"bitcast double {wide} to i64") if x.dtype.is_float else wide)
    return names


def emit_failure(cx: Context, status: int, values: list[Value]) -> None:
    """Return from the function with a status, and store the values of the first thread that fails."""
    b = cx.b
    if not cx.status_cell:  # not in a parallel loop
        _store_check_values(cx, values)
        emit_return(cx, str(status))
        return
    order = "monotonic monotonic, align 8"
    pair = b.get(f"cmpxchg ptr {cx.status_cell}, i64 0, i64 {status} {order}")
    first = b.v(f"extractvalue {{ i64, i1 }} {pair}, 1")
    with b.when(first):
        _store_check_values(cx, values)
    emit_return(cx, str(status))


def emit_return(cx: Context, status: str) -> None:
    """Free the memory that the function owns, and return a status."""
    if not cx.heap_blocks:
        cx.b.do(f"ret i64 {status}")
        return
    if not cx.return_slot:
        cx.return_slot = cx.b.alloca("i64", 8)
    cx.b.do(f"store i64 {status}, ptr {cx.return_slot}")
    _branch_to_cleanup(cx)


def free_innermost(cx: Context) -> None:
    """Free the innermost owned memory, at the end of its use and on the early returns from there."""
    b, block = cx.b, cx.heap_blocks.pop()
    b.do(f"call void @tdsl_free(ptr {block.pointer})")
    if not block.has_branch:
        return
    (after,) = b.labels("after")
    b.do(f"br label %{after}")
    b.label(block.label)
    b.do(f"call void @tdsl_free(ptr {block.pointer})")
    if cx.heap_blocks:
        _branch_to_cleanup(cx)
    else:
        b.do(f"ret i64 {b.get(f'load i64, ptr {cx.return_slot}')}")
    b.label(after)


def _branch_to_cleanup(cx: Context) -> None:
    cx.heap_blocks[-1].has_branch = True
    cx.b.do(f"br label %{cx.heap_blocks[-1].label}")


def return_if_failed(cx: Context, cell: str) -> None:
    """Return early if `cell` contains the status of a thread that has failed."""
    status = cx.b.get(f"load atomic i64, ptr {cell} monotonic, align 8")
    with cx.b.exit_if(cx.b.v(f"icmp ne i64 {status}, 0")):
        emit_return(cx, status)


def _store_check_values(cx: Context, values: list[Value]) -> None:
    first = frame_slots(cx.kernel)
    for k, name in enumerate(slot_values(cx, values[:CHECK_SLOTS])):
        slot = cx.b.v(f"getelementptr i64, ptr %frame, i64 {first + k}")
        cx.b.do(f"store i64 {name}, ptr {slot}")
