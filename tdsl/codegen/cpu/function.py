"""The LLVM functions of a kernel: headers, returns, and entry points that load the arguments from memory."""

from __future__ import annotations

from typing import NamedTuple

from tdsl.codegen.cpu.builder import Builder, Module
from tdsl.codegen.cpu.context import Context
from tdsl.codegen.cpu.early_exit import emit_return
from tdsl.codegen.cpu.register_file import configured_register_files
from tdsl.machine.instructions.instruction import RegisterFile

_FLUSH = 0x8040  # x86: flush subnormal results to zero, take subnormal operands as zero


class Argument(NamedTuple):
    """A value passed to a function; `attributes` end with a space if there are any."""

    type: str
    name: str
    attributes: str = ""


def start_function(module: Module, symbol: str, args: list[Argument]) -> tuple[Builder, dict[str, str]]:
    """Begin a function that returns a status: its builder, and the names of the arguments inside it.

    %frame, %runtime, %begin and %end keep their names.
    """
    renamed, declared = {}, []
    for k, arg in enumerate(args):
        inside = arg.name if arg.name in ("%frame", "%runtime", "%begin", "%end") else f"%a{k}"
        renamed[arg.name] = inside
        declared.append(f"{arg.type} {arg.attributes}{inside}")
    header = f"define internal i64 @{symbol}({', '.join(declared)}) {attributes(module)}"
    return Builder(module, header), renamed


def attributes(module: Module) -> str:
    """The function attributes: never inlined, no unwinding, the full vector width of the target."""
    width = 8 * module.target.vector_bytes
    return f'noinline nounwind mustprogress "prefer-vector-width"="{width}"'


def finish_function(cx: Context) -> None:
    """End the function of `cx` with status 0, and add it to the module."""
    if cx.has_streaming_stores:
        _fence(cx.b)
    emit_return(cx, "0")
    cx.b.module.declare(cx.b.text())


def emit_thread_entry(
    module: Module, symbol: str, args: list[Argument], register_files: dict[str, RegisterFile]
) -> None:
    """Add the function that threads call: it loads the arguments of `symbol`.body from slots, and calls it.

    `register_files` are the register files that `symbol`.body uses.
    """
    b = Builder(module, f"define internal void @{symbol}(ptr %ctx, i64 %begin, i64 %end) nounwind")
    arguments = []
    for k, arg in enumerate(args):
        slot = b.v(f"getelementptr i64, ptr %ctx, i64 {k}")
        arguments.append(f"{arg.type} {b.get(f'load {arg.type}, ptr {slot}, align 8')}")
    arguments += ["i64 %begin", "i64 %end"]
    state = flush_subnormals(b)
    with configured_register_files(b, register_files):
        b.do(f"%status = call i64 @{symbol}.body({', '.join(arguments)})")
    restore_mxcsr(b, state)
    b.do("ret void")
    module.replace(symbol, b.text())


def flush_subnormals(b: Builder) -> str:
    """With fast math on x86, flush subnormals until `restore_mxcsr`; a pointer to the old MXCSR, or ""."""
    if not b.module.fast or not b.target.architecture.startswith("x86"):
        return ""
    b.declare("declare void @llvm.x86.sse.stmxcsr(ptr)")
    b.declare("declare void @llvm.x86.sse.ldmxcsr(ptr)")
    before, now = b.alloca("i32", 4), b.alloca("i32", 4)
    b.do(f"call void @llvm.x86.sse.stmxcsr(ptr {before})")
    bits = b.get(f"load i32, ptr {before}, align 4")
    b.do(f"store i32 {b.v(f'or i32 {bits}, {_FLUSH}')}, ptr {now}, align 4")
    b.do(f"call void @llvm.x86.sse.ldmxcsr(ptr {now})")
    return before


def restore_mxcsr(b: Builder, state: str) -> None:
    """Restore the MXCSR that `flush_subnormals` saved: it belongs to the caller's thread."""
    if state:
        b.do(f"call void @llvm.x86.sse.ldmxcsr(ptr {state})")


def _fence(b: Builder) -> None:
    """Order streaming stores before all later memory accesses."""
    if b.target.architecture.startswith("x86"):
        b.declare("declare void @llvm.x86.sse.sfence()")
        b.do("call void @llvm.x86.sse.sfence()")
    else:
        b.do("fence seq_cst")
