"""Splits statements that compute a tile from global memory: loads to registers first, stores of tiles later.

What runs in between hides the latency of the loads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    REGISTER,
    SERIAL,
    THREADS,
    UNROLLED,
    Alloc,
    ArriveBarrier,
    Block,
    CopyTile,
    For,
    If,
    Let,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.statements import rebuilt, sequence, walk
from tdsl.core.node import Node, outermost, transform
from tdsl.lang.expr import ZERO, Const, Expr, Load, Ramp, Var, const, lanes_of
from tdsl.lang.simplify import subtract
from tdsl.lang.types import DType
from tdsl.schedule.pipelines import LOADED_AHEAD_BYTES


@dataclass(frozen=True, slots=True)
class SplitLoads:
    """Statements that load to registers, and those that store what is computed of the registers."""

    loads: Stmt
    stores: Stmt
    registers: tuple[tuple[str, DType, tuple[int, ...]], ...]

    def allocated(self, body: Stmt) -> Stmt:
        """A body with the memory of the registers."""
        for name, dtype, extents in reversed(self.registers):
            body = Alloc(name, dtype, tuple(map(const, extents)), REGISTER, body)
        return body


def split_loads(s: Stmt, sources: set[str], fresh: FreshNames) -> SplitLoads | None:
    """The statements of `s`, which may be split where it loads from buffers of `sources`; None if it is not.

    Asynchronous copies, also those of whole tiles, are among the loads. Loads beyond LOADED_AHEAD_BYTES stay
    with the stores.
    """
    splitter = _Splitter(sources, fresh)
    both = splitter.split(s, ())
    if both is None or not splitter.registers:
        return None
    loads, stores = both
    return SplitLoads(loads, fresh.copy(stores), tuple(splitter.registers))


@dataclass(slots=True)
class _Splitter:
    sources: set[str]
    fresh: FreshNames
    registers: list[tuple[str, DType, tuple[int, ...]]] = field(default_factory=list)
    bytes: int = 0

    def split(self, s: Stmt, loops: tuple[For, ...]) -> tuple[Stmt, Stmt] | None:
        """The loads and the stores of a statement in serial loops; None if it cannot be split."""
        match s:
            case Block(parts):
                halves = [x for x in (self.split(p, loops) for p in parts) if x is not None]
                if len(halves) < len(parts):
                    return None
                return sequence(x for x, _ in halves), sequence(x for _, x in halves)
            case Store(asynchronous=True) | ArriveBarrier() | CopyTile():
                return s, sequence([])
            case Store():
                return self.store(s, loops)
            case For(kind=kind, extent=Const()) if kind in (SERIAL, UNROLLED):
                unrolled = rebuilt(s, kind=UNROLLED)
                return _around(self.split(s.body, (*loops, s)), lambda x: rebuilt(unrolled, body=x))
            case For(kind=kind) if kind in THREADS:
                return _around(self.split(s.body, loops), lambda x: rebuilt(s, body=x))
            case Let():
                return _around(self.split(s.body, loops), lambda x: rebuilt(s, body=x))
            case If(orelse=None):
                return _around(self.split(s.then, loops), lambda x: rebuilt(s, then=x))
            case If() if not any(isinstance(x, Store) for x in walk(s)):  # a copy, or an arrival without one
                return s, sequence([])
            case _:
                return None

    def store(self, s: Store, loops: tuple[For, ...]) -> tuple[Stmt, Stmt] | None:
        """Loads of the values that a store is computed of, and the store of what is computed of registers."""
        values = [x for x in dict.fromkeys(outermost(s.value, _is_load)) if isinstance(x, Load)]
        if s.atomic or not values or any(x.buffer not in self.sources for x in values):
            return None
        loads: list[Stmt] = []
        loaded: dict[Node, Expr] = {}
        for x in sorted(values, key=lambda x: -lanes_of(x) * x.dtype.bytes):
            lanes = lanes_of(x)
            extents = tuple(int(loop.extent.value) for loop in loops if isinstance(loop.extent, Const))
            index: tuple[Expr, ...] = tuple(subtract(Var(loop.name), loop.lo) for loop in loops)
            if lanes > 1:
                extents, index = (*extents, lanes), (*index, Ramp(ZERO, 1, lanes))
            size = prod(extents) * x.dtype.bytes
            if self.bytes + size > LOADED_AHEAD_BYTES:
                continue
            self.bytes += size
            name = self.fresh.name(f"{x.buffer}_ahead")
            self.registers.append((name, x.dtype, extents))
            loads.append(Store(name, index, x))
            loaded[x] = Load(name, index, x.dtype)
        value = transform(s.value, lambda n: loaded.get(n, n))
        assert isinstance(value, Expr)
        return sequence(loads), rebuilt(s, value=value)


def _is_load(n: Node) -> bool:
    return isinstance(n, Load)


def _around(halves: tuple[Stmt, Stmt] | None, outer: Callable[[Stmt], Stmt]) -> tuple[Stmt, Stmt] | None:
    """Both halves inside of a statement each."""
    return None if halves is None else (outer(halves[0]), outer(halves[1]))
