"""Lowers parallel loops: outlines the body into a function that threads call for ranges of iterations.

    parallel_for(fn, ctx, n) -> fn(ctx, begin, end) -> body(captured values, begin, end)

The context is an array of 8-byte slots with the captured values. The body gets them as arguments, so that
buffers can be marked noalias. A failing thread writes its status to a cell that all threads test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tdsl.codegen.cpu.allocate import may_fail
from tdsl.codegen.cpu.context import LARGEST_INDEX, Buffer, Context
from tdsl.codegen.cpu.early_exit import return_if_failed
from tdsl.codegen.cpu.function import Argument, emit_thread_entry, finish_function, start_function
from tdsl.codegen.cpu.values import Value
from tdsl.codegen.ir.loops import Alloc, Check, For, Operand, Prefetch, Stmt, Store
from tdsl.core.node import post_order
from tdsl.lang.expr import Load, Param, Size, Var
from tdsl.lang.types import i64

Bind = Callable[[Context, str, Value, Stmt], None]


def parallel_loop(cx: Context, s: For, lo: str, hi: str, bind: Bind) -> None:
    """Write a parallel loop over lo <= s.name < hi; `bind` writes its body for one iteration."""
    b = cx.b
    names, buffers, atomic_buffers, can_fail = _captures(cx, s.body)
    cell = cx.status_cell
    if can_fail and not cell:
        cell = b.alloca("i64", 8)
        b.do(f"store i64 0, ptr {cell}")
    args = list(_arguments(names, buffers, atomic_buffers))
    args += [Argument("ptr", "%frame"), Argument("ptr", "%runtime"), Argument("i64", lo)]
    if can_fail:
        args.append(Argument("ptr", cell))
    entry = _outline(cx, s, names, buffers, args, can_fail, bind)
    slots = b.alloca(f"[{len(args)} x i64]", 8)
    for k, arg in enumerate(args):
        slot = b.v(f"getelementptr i64, ptr {slots}, i64 {k}")
        b.do(f"store {arg.type} {arg.name}, ptr {slot}, align 8")
    count = b.v(f"sub nsw i64 {hi}, {lo}")
    with b.when(b.v(f"icmp sgt i64 {count}, 0")):
        run = b.get("load ptr, ptr %runtime, align 8")
        b.do(f"call void {run}(ptr @{entry}, ptr {slots}, i64 {count})")
    if can_fail:
        return_if_failed(cx, cell)


def _outline(
    cx: Context,
    s: For,
    names: dict[str, Value],
    buffers: dict[str, Buffer],
    args: list[Argument],
    can_fail: bool,
    bind: Bind,
) -> str:
    """Write the function for a range of iterations, and the one that threads call; the latter's symbol."""
    module = cx.b.module
    entry = module.fresh(f"{cx.kernel.name}.parallel")
    module.declare(f"; @{entry}")  # reserves the symbol, before nested loops request theirs
    all_args = [*args, Argument("i64", "%begin"), Argument("i64", "%end")]
    b, renamed = start_function(module, f"{entry}.body", all_args)
    inner = Context(b, cx.kernel, _rename_values(names, renamed), _rename_buffers(buffers, renamed), cx.facts)
    lo = renamed[args[-2 if can_fail else -1].name]
    if can_fail:
        inner.status_cell = renamed[args[-1].name]
    first, end = (b.v(f"add nsw i64 {lo}, {slot}") for slot in ("%begin", "%end"))
    with b.loop(first, end) as i:
        if can_fail:
            return_if_failed(inner, inner.status_cell)
        bind(inner, s.name, Value(i, i64, limit=LARGEST_INDEX), s.body)
    finish_function(inner)
    emit_thread_entry(module, entry, args, inner.register_files)
    return entry


def _captures(cx: Context, body: Stmt) -> tuple[dict[str, Value], dict[str, Buffer], set[str], bool]:
    """The names and the buffers that a body captures, the buffers with atomic stores, and if it may fail."""
    names: dict[str, Value] = {}
    buffers: dict[str, Buffer] = {}
    atomic_buffers, can_fail = set(), False
    for n in post_order(body):
        match n:
            case Var(name) | Size(name) | Param(name) if name in cx.names:
                names[name] = cx.names[name]
            case Load(name) | Prefetch(name) | Operand(name) if name in cx.buffers:
                buffers[name] = cx.buffers[name]
            case Store(name) if name in cx.buffers:
                buffers[name] = cx.buffers[name]
                if n.atomic:
                    atomic_buffers.add(name)
            case Check():
                can_fail = True
            case Alloc():
                can_fail = can_fail or may_fail(n) or bool(cx.b.module.guarded)
            case _:
                pass
    return names, buffers, atomic_buffers, can_fail


def _arguments(
    names: dict[str, Value], buffers: dict[str, Buffer], atomic_buffers: set[str]
) -> Iterator[Argument]:
    """The arguments that pass names and buffers, each once; constants are not passed."""
    seen = set()
    for x in names.values():
        if x.name.startswith("%") and x.name not in seen:
            seen.add(x.name)
            yield Argument(x.type, x.name)
    for name, buffer in buffers.items():
        attributes = "" if name in atomic_buffers else "noalias " + "readonly " * (not buffer.written)
        yield Argument("ptr", buffer.pointer, attributes)
        for stride in buffer.strides:
            if isinstance(stride, str) and stride not in seen:
                seen.add(stride)
                yield Argument("i64", stride)


def _rename_values(names: dict[str, Value], to: dict[str, str]) -> dict[str, Value]:
    return {name: x._replace(name=to.get(x.name, x.name)) for name, x in names.items()}


def _rename_buffers(buffers: dict[str, Buffer], to: dict[str, str]) -> dict[str, Buffer]:
    return {
        name: replace(
            buffer,
            pointer=to[buffer.pointer],
            strides=tuple(to[s] if isinstance(s, str) else s for s in buffer.strides),
        )
        for name, buffer in buffers.items()
    }
