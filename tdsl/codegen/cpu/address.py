"""Address computation: an index tuple as pointer + lane * step, or as a pointer and an offset for each lane.

The terms of the sum index * stride are added in the order of the loops that they depend on, so that every
partial address is invariant in the loops inside; constants come last, where the addressing mode adds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.context import Buffer, Context
from tdsl.codegen.cpu.ir_types import memory_type
from tdsl.codegen.cpu.values import Value, full, splat
from tdsl.core.node import frozen
from tdsl.lang.affine import AffineSum, as_expr, as_sum
from tdsl.lang.bounds import lower, upper, value_range
from tdsl.lang.expr import Binary, Broadcast, Const, Expr, Ramp, Unary, lanes_of

Evaluate = Callable[[Context, Expr], Value]


@dataclass
class LaneSum:
    """A vector index: scalar + lane * step + sum of factor * vector."""

    scalar: AffineSum = field(default_factory=AffineSum)
    step: int = 0
    vectors: list[tuple[Expr, int]] = field(default_factory=list)

    def add(self, e: Expr, times: int) -> None:
        """Add times * e to this sum."""
        match e:
            case Ramp(base, stride):
                self.scalar = self.scalar.plus(as_sum(base), times)
                self.step += times * stride
            case Broadcast(x):
                self.scalar = self.scalar.plus(as_sum(x), times)
            case Binary("add" | "sub" as op, x, y) if lanes_of(e) > 1:
                self.add(x, times)
                self.add(y, times if op == "add" else -times)
            case Binary("mul", x, Broadcast(Const(value))):
                self.add(x, times * int(value))
            case Binary("mul", Broadcast(Const(value)), x):
                self.add(x, times * int(value))
            case Unary("neg", x) if lanes_of(e) > 1:
                self.add(x, -times)
            case _ if lanes_of(e) > 1:
                self.vectors.append((e, times))
            case _:
                self.scalar = self.scalar.plus(as_sum(e), times)


def lane_sum(e: Expr, minus: Expr | None = None) -> LaneSum:
    """`e - minus` as a `LaneSum`."""
    total = LaneSum()
    total.add(e, 1)
    if minus is not None:
        total.add(minus, -1)
    return total


@frozen
class Address:
    """The addresses of the lanes of an access.

    Lane k is at `pointer` + k * `step` elements, or at `pointer` + the k-th of `offsets`, in units of type
    `unit`. `align` is the known alignment of `pointer` in bytes. `offset_range` is the range of the offsets
    in elements if it is known to be inside the buffer, else None.
    """

    buffer: str
    pointer: str
    element: str
    align: int
    lanes: int = 1
    step: int = 0
    offsets: str = ""
    unit: str = ""
    offset_range: tuple[int, int] | None = None


def address(cx: Context, evaluate: Evaluate, name: str, index: tuple[Expr, ...], in_bounds: bool) -> Address:
    """The address of name[index]; `in_bounds` promises that every lane is in bounds."""
    buffer = cx.buffers[name]
    lanes = max((lanes_of(i) for i in index), default=1)
    sums = [lane_sum(i) for i in index]
    element, size = memory_type(buffer.dtype), buffer.dtype.bytes
    in_bytes = any(isinstance(s, str) for s in buffer.strides)
    unit, scale = ("i8", size) if in_bytes else (element, 1)
    terms = _AddressSum(cx, evaluate, in_bounds)
    step, lane_offsets, align = 0, [], buffer.align
    for total, stride in zip(sums, buffer.strides, strict=True):
        factor = stride * scale if isinstance(stride, int) else stride
        terms.add(total.scalar, factor)
        if isinstance(stride, int):
            step += total.step * stride
            for number in (*total.scalar.terms.values(), total.scalar.constant):
                align = gcd(align, number * stride * size)
        else:
            align = gcd(align, size)
            if total.step:
                lane_offsets.append(_lane_steps(cx.b, total.step, stride, lanes))
        lane_offsets += [_scale(cx, evaluate, e, times, factor) for e, times in total.vectors]
    pointer = terms.pointer(buffer.pointer, unit)
    align = gcd(align, 1 << 12)
    if not lane_offsets:
        return Address(name, pointer, element, align, lanes, step)
    if step:
        lane_offsets.append(_lane_steps(cx.b, step * scale, "1", lanes))
    offsets = lane_offsets[0]
    for other in lane_offsets[1:]:
        offsets = cx.b.v(f"add <{lanes} x i64> {offsets}, {other}")
    offset_range = _offset_range(cx, buffer, sums, lanes)
    return Address(name, pointer, element, align, lanes, 0, offsets, unit, offset_range)


def _offset_range(cx: Context, buffer: Buffer, sums: list[LaneSum], lanes: int) -> tuple[int, int] | None:
    """The range of the offsets of lanes, in elements, if it is known to be inside the buffer, else None."""
    if buffer.size is None:
        return None
    scalar, lo, hi = AffineSum(), 0, 0
    for total, stride in zip(sums, buffer.strides, strict=True):
        if isinstance(stride, str):
            return None
        scalar = scalar.plus(total.scalar, stride)
        ranges = [(value_range(e, cx.facts), times * stride) for e, times in total.vectors]
        for (least, most), factor in (*ranges, ((0, lanes - 1), total.step * stride)):
            if least is None or most is None:
                return None
            ends = least * factor, most * factor
            lo, hi = lo + min(ends), hi + max(ends)
    base = as_expr(scalar)
    first, last = lower(base, cx.facts), upper(base, cx.facts)
    if first is None or last is None or first + lo < 0 or last + hi >= buffer.size:
        return None
    return lo, hi


def scalar_sum(cx: Context, evaluate: Evaluate, total: AffineSum) -> str:
    """The i64 value of a sum of scalars, whose terms must not overflow."""
    terms = _AddressSum(cx, evaluate, in_bounds=True)
    terms.add(total, 1)
    return terms.value()


class _AddressSum:
    """Collects the terms of an address, and adds them in the order of the loops that they depend on."""

    def __init__(self, cx: Context, evaluate: Evaluate, in_bounds: bool) -> None:
        self.cx, self.evaluate = cx, evaluate
        self.nsw = " nsw" if in_bounds else ""
        self.inbounds = " inbounds" if in_bounds else ""
        self.constant = 0
        self.terms: list[tuple[int, str]] = []

    def add(self, total: AffineSum, factor: int | str) -> None:
        """Add total * factor; a factor may be the name of a stride."""
        for atom, times in total.terms.items():
            name = self.evaluate(self.cx, atom).name
            self._add_term(name, times, factor)
        self._add_term("1", total.constant, factor)

    def _add_term(self, name: str, times: int, factor: int | str) -> None:
        b = self.cx.b
        if isinstance(factor, int):
            if not name.startswith("%"):
                self.constant += int(name) * times * factor
                return
            term = self._mul(name, times * factor)
        else:
            if not name.startswith("%"):
                name, times = "", int(name) * times
            term = self._mul(factor, times)
            if name and term != "0":
                term = b.v(f"mul{self.nsw} i64 {name}, {term}")
        if term != "0":
            self.terms.append((b.level(term), term))

    def _mul(self, name: str, times: int) -> str:
        if times == 1 or times == 0:
            return name if times else "0"
        return self.cx.b.v(f"mul{self.nsw} i64 {name}, {times}")

    def pointer(self, base: str, unit: str) -> str:
        """`base` plus the sum: one getelementptr for each loop that a term depends on, outermost first."""
        b = self.cx.b
        for level in sorted({level for level, _ in self.terms}):
            term = self._add_all([a for at, a in self.terms if at == level])
            base = b.v(f"getelementptr{self.inbounds} {unit}, ptr {base}, i64 {term}")
        if self.constant:
            base = b.v(f"getelementptr{self.inbounds} {unit}, ptr {base}, i64 {self.constant}")
        return base

    def value(self) -> str:
        """The value of the sum."""
        ordered = [term for _, term in sorted(self.terms, key=lambda term: term[0])]
        if not ordered:
            return str(self.constant)
        return self._add_all(ordered + ([str(self.constant)] if self.constant else []))

    def _add_all(self, amounts: list[str]) -> str:
        total = amounts[0]
        for term in amounts[1:]:
            total = self.cx.b.v(f"add{self.nsw} i64 {total}, {term}")
        return total


def _lane_steps(b: Builder, step: int, factor: str, lanes: int) -> str:
    """lane * step * factor as an i64 vector."""
    lane = "<" + ", ".join(f"i64 {k * step}" for k in range(lanes)) + ">"
    if factor == "1":
        return lane
    return b.v(f"mul <{lanes} x i64> {lane}, {splat(b, 'i64', factor, lanes)}")


def _scale(cx: Context, evaluate: Evaluate, e: Expr, times: int, factor: int | str) -> str:
    b, lanes = cx.b, lanes_of(e)
    name = full(b, evaluate(cx, e))
    if isinstance(factor, int):
        times, factor = times * factor, "1"
    if times != 1:
        name = b.v(f"mul <{lanes} x i64> {name}, {splat(b, 'i64', str(times), lanes)}")
    if factor == "1":
        return name
    return b.v(f"mul <{lanes} x i64> {name}, {splat(b, 'i64', factor, lanes)}")
