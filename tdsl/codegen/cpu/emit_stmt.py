"""Lowers statements of the loop IR to LLVM IR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import assert_never

from tdsl.codegen.cpu import atomic, memory
from tdsl.codegen.cpu.allocate import allocate_buffer
from tdsl.codegen.cpu.context import LARGEST_INDEX, Context
from tdsl.codegen.cpu.early_exit import emit_failure, slot_values
from tdsl.codegen.cpu.emit_expr import access, scalar_index, value
from tdsl.codegen.cpu.instructions import invoke
from tdsl.codegen.cpu.parallel import parallel_loop
from tdsl.codegen.cpu.register_file import accumulators_in_registers, emit_invocations
from tdsl.codegen.cpu.transposed_stores import write_transposed
from tdsl.codegen.cpu.values import Value, broadcast, index
from tdsl.codegen.ir.loops import (
    PARALLEL,
    SERIAL,
    Alloc,
    ArriveBarrier,
    Barrier,
    Block,
    Check,
    Commit,
    CopyTile,
    For,
    If,
    InitBarriers,
    Invoke,
    Let,
    Prefetch,
    Print,
    Shuffle,
    Stmt,
    Store,
    Wait,
    WaitBarrier,
    WarpSpecialize,
)  # fmt: skip
from tdsl.lang.expr import Binary, Const, Expr, Load, const, dtype_of, lanes_of
from tdsl.lang.simplify import simplify
from tdsl.lang.types import i64

# vector registers; serial loops that store at most this many are unrolled, so accumulators stay in registers
_LARGEST_UNROLLED = 16


def statement(cx: Context, s: Stmt) -> None:
    """Write the LLVM IR of a statement."""
    outer, cx.b.location = cx.b.location, cx.b.location_of(s)
    _statement(cx, s)
    cx.b.location = outer


def _statement(cx: Context, s: Stmt) -> None:
    match s:
        case Block(body):
            done = 0
            while done < len(body):
                block = write_transposed(cx, body, done) or emit_invocations(cx, body, done)
                if not block:
                    statement(cx, body[done])
                done += block or 1
        case Let(name, x, body):
            _emit_with_binding(cx, name, value(cx, x), body)
        case Store():
            _store(cx, s)
        case _:
            cx.invalidate()
            _compound(cx, s)
            cx.invalidate()


def _compound(
    cx: Context,
    s: For
    | Alloc
    | If
    | Check
    | Print
    | Prefetch
    | Invoke
    | Barrier
    | Shuffle
    | Commit
    | Wait
    | InitBarriers
    | WarpSpecialize
    | ArriveBarrier
    | WaitBarrier
    | CopyTile,
) -> None:
    """Write a statement that needs basic blocks of its own, or whose effects on memory are not tracked."""
    b = cx.b
    match s:
        case For():
            _loop(cx, s)
        case Alloc(name, _, _, _, body):
            outer = cx.buffers
            with allocate_buffer(cx, s) as buffer:
                cx.buffers = {**outer, name: buffer}
                statement(cx, body)
            cx.buffers = outer
        case If(cond, then, orelse):
            test = value(cx, cond)
            if test.constant is not None:
                live_branch = then if test.constant else orelse
                if live_branch is not None:
                    statement(cx, live_branch)
            elif orelse is None:
                with b.when(test.name):
                    statement(cx, then)
            else:
                b.branch(test.name, lambda: _branch_arm(cx, then), lambda: _branch_arm(cx, orelse))
        case Check(cond, site, values):
            test = value(cx, cond)
            if test.constant is None or not test.constant:
                with b.exit_if(b.v(f"xor i1 {test.name}, true")):
                    emit_failure(cx, 1 + site, [value(cx, x) for x in values])
        case Print():
            _print(cx, s)
        case Prefetch(buffer, indices):
            at = access(cx, buffer, indices, certain=False)
            b.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
            b.do(f"call void @llvm.prefetch.p0(ptr {at.pointer}, i32 0, i32 3, i32 1)")
        case Invoke():
            if not emit_invocations(cx, (s,), 0):
                invoke(cx, s)
        case Barrier() | Shuffle() | Commit() | Wait():
            raise AssertionError("only kernels of a GPU synchronise threads")
        case InitBarriers() | WarpSpecialize() | ArriveBarrier() | WaitBarrier() | CopyTile():
            raise AssertionError("only kernels of a GPU synchronise threads")
        case _:
            assert_never(s)


def _branch_arm(cx: Context, s: Stmt) -> None:
    statement(cx, s)
    cx.invalidate()


def _loop(cx: Context, s: For) -> None:
    lo, extent = scalar_index(cx, s.lo), scalar_index(cx, s.extent)
    if extent.constant is not None and extent.constant <= 0:
        return
    is_unrolled = s.kind == SERIAL and _stored_registers(s, cx.b.target.vector_bytes) <= _LARGEST_UNROLLED
    if extent.constant is not None and (extent.constant == 1 or is_unrolled):
        for k in range(extent.constant):
            _emit_with_binding(cx, s.name, _nth_iteration(cx, lo, k), s.body)
        return
    hi = scalar_index(cx, _upper_bound(s)).name
    outside = cx.facts
    cx.facts = outside.with_range(s.name, s.lo, Binary("sub", _upper_bound(s), const(1)))
    if s.kind == PARALLEL:
        parallel_loop(cx, s, lo.name, hi, _emit_with_binding)
    else:
        assert s.kind == SERIAL, f"a {s.kind} loop in code generation"
        with accumulators_in_registers(cx, s), cx.b.loop(lo.name, hi) as i:
            _emit_with_binding(cx, s.name, Value(i, i64, limit=LARGEST_INDEX), s.body)
    cx.facts = outside


def _stored_registers(s: Stmt, vector_bytes: int) -> int:
    """The number of vector registers that a statement without branches stores; a large number for others."""
    match s:
        case Store(_, _, x):
            return -(-lanes_of(x) * dtype_of(x).bytes // vector_bytes)
        case Block(body):
            return sum(_stored_registers(part, vector_bytes) for part in body)
        case Let(_, _, body):
            return _stored_registers(body, vector_bytes)
        case For(_, _, Const(count), "serial", body):
            return max(int(count), 0) * _stored_registers(body, vector_bytes)
        case _:
            return _LARGEST_UNROLLED + 1


def _nth_iteration(cx: Context, lo: Value, k: int) -> Value:
    if lo.constant is not None:
        return index(lo.constant + k)
    return lo._replace(name=cx.b.v(f"add nsw i64 {lo.name}, {k}")) if k else lo


def _upper_bound(s: For) -> Expr:
    return simplify(Binary("add", s.lo, s.extent))


def _emit_with_binding(cx: Context, name: str, x: Value, body: Stmt) -> None:
    outer = cx.names
    cx.names = {**outer, name: x}
    cx.memo.clear()
    statement(cx, body)
    cx.memo.clear()
    cx.names = outer


def _store(cx: Context, s: Store) -> None:
    match s.value:
        case Binary("min" | "max" as op, Load(buffer, index) as old, x) if (buffer, index) == (
            s.buffer,
            s.index,
        ):
            # LLVM tests the first operand for NaN, here to store others under a mask, which is slow on AMD
            s = replace(s, value=Binary(op, x, old))
        case _:
            pass
    with _fast_math(cx, s.fast):
        _store_masked(cx, s)


@contextmanager
def _fast_math(cx: Context, fast: bool) -> Iterator[None]:
    """Add fast-math flags to float instructions written inside if `fast`; drops values memoised without."""
    module = cx.b.module
    before = module.fast
    if fast and not before:
        module.fast = True
        cx.memo.clear()
    yield
    if module.fast != before:
        module.fast = before
        cx.memo.clear()


def _store_masked(cx: Context, s: Store) -> None:
    if s.mask is not None:
        mask = value(cx, s.mask)
        if mask.constant == 0:
            return
        if mask.constant == 1:
            _store_lanes(cx, s, None)
        elif mask.uniform or mask.lanes == 1:
            with cx.b.when(mask.name):
                _store_lanes(cx, s, None)
            cx.invalidate()
        else:
            _store_lanes(cx, s, mask)
        return
    _store_lanes(cx, s, None)


def _store_lanes(cx: Context, s: Store, mask: Value | None) -> None:
    lanes = max(lanes_of(x) for x in (s.value, *s.index))
    x = broadcast(value(cx, s.value), lanes)
    at = access(cx, s.buffer, s.index, certain=mask is None)
    if s.atomic:
        atomic.update(cx, at, s.atomic, x, mask)
    else:
        memory.store(cx, at, x, mask, s.streaming)
    cx.invalidate(s.buffer)


def _print(cx: Context, s: Print) -> None:
    b = cx.b
    test = value(cx, s.cond)
    with b.when(test.name):
        values = slot_values(cx, [value(cx, x) for x in s.values])
        slots = b.alloca(f"[{max(len(values), 1)} x i64]", 8)
        for k, name in enumerate(values):
            b.do(f"store i64 {name}, ptr {b.v(f'getelementptr i64, ptr {slots}, i64 {k}')}")
        pointers = [
            b.get(f"load ptr, ptr {b.v(f'getelementptr ptr, ptr %runtime, i64 {k}')}") for k in (1, 2)
        ]
        b.do(f"call void {pointers[0]}(ptr {pointers[1]}, i64 {s.site}, ptr {slots})")
