"""Atomic updates of memory: an `atomicrmw` instruction, or a compare-and-swap loop."""

from __future__ import annotations

from tdsl.codegen.cpu import arith
from tdsl.codegen.cpu.address import Address
from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.context import Context
from tdsl.codegen.cpu.int_arith import BOOL
from tdsl.codegen.cpu.ir_types import scalar_type
from tdsl.codegen.cpu.memory import lane_pointers
from tdsl.codegen.cpu.values import Value, full


def update(cx: Context, at: Address, op: str, x: Value, mask: Value | None) -> None:
    """Update element op= lane atomically for each lane of `x` where `mask` is true, in the order of lanes."""
    if x.lanes == 1:
        if mask is None:
            _update_one(cx.b, at.pointer, op, x)
        else:
            with cx.b.when(mask.name):
                _update_one(cx.b, at.pointer, op, x)
        return
    b, pointers, name = cx.b, lane_pointers(cx.b, at), full(cx.b, x)
    for k in range(x.lanes):
        pointer = b.v(f"extractelement <{x.lanes} x ptr> {pointers}, i64 {k}")
        lane = Value(b.v(f"extractelement {x.type} {name}, i64 {k}"), x.dtype)
        if mask is None:
            _update_one(b, pointer, op, lane)
        else:
            with b.when(b.v(f"extractelement {mask.type} {full(b, mask)}, i64 {k}")):
                _update_one(b, pointer, op, lane)


def _update_one(b: Builder, pointer: str, op: str, x: Value) -> None:
    t = x.dtype
    if t.kind == "b":
        byte = b.v(f"zext i1 {x.name} to i8")
        b.do(f"atomicrmw {BOOL[op]} ptr {pointer}, i8 {byte} monotonic, align 1")
    elif t.is_integer and op != "mul":
        if op in ("min", "max") and t.kind == "u":
            op = f"u{op}"
        b.do(f"atomicrmw {op} ptr {pointer}, {scalar_type(t)} {x.name} monotonic, align {t.bytes}")
    else:
        _exchange(b, pointer, op, x)


def _exchange(b: Builder, pointer: str, op: str, x: Value) -> None:
    t, word = x.dtype, f"i{x.dtype.bits}"
    first = b.get(f"load atomic {word}, ptr {pointer} monotonic, align {t.bytes}")
    retry, done = b.labels("again", "done")
    with b.scope():
        before = b.block
        b.do(f"br label %{retry}")
        b.label(retry)
        expected, define_expected = b.phi()
        old = Value(_as(b, word, expected, scalar_type(t)), t)
        new = arith.binary(b, op, old, x)
        pair = b.get(
            f"cmpxchg weak ptr {pointer}, {word} {expected}, {word} "
            f"{_as(b, scalar_type(t), new.name, word)} monotonic monotonic, align {t.bytes}"
        )
        loaded = b.v(f"extractvalue {{ {word}, i1 }} {pair}, 0")
        stored = b.v(f"extractvalue {{ {word}, i1 }} {pair}, 1")
        define_expected(f"phi {word} [{first}, %{before}], [{loaded}, %{b.block}]")
        b.do(f"br i1 {stored}, label %{done}, label %{retry}")
    b.label(done)


def _as(b: Builder, from_: str, x: str, to: str) -> str:
    return x if from_ == to else b.v(f"bitcast {from_} {x} to {to}")
