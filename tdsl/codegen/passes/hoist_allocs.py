"""A pass that hoists allocations out of loops and chooses register, stack or heap for each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from math import prod

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.loops import (
    AUTO,
    HEAP,
    REGISTER,
    SERIAL,
    STACK,
    Alloc,
    For,
    Invoke,
    Kernel,
    Let,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.statements import (
    EMPTY,
    exprs_of,
    is_empty,
    loads_of,
    map_parts,
    rebuilt,
    scalars_of,
    walk,
)  # fmt: skip
from tdsl.core.node import post_order
from tdsl.lang.bounds import NO_FACTS, Facts, upper
from tdsl.lang.expr import ZERO, Broadcast, Const, Expr, Load, Ramp, const
from tdsl.lang.simplify import maximum

_MAX_REGISTERS = 2 << 10  # bytes; no CPU has more
_MAX_STACK = 16 << 10  # bytes; larger allocations go on the heap
_MAX_BOUNDED = 1 << 20  # bytes up to which an upper bound replaces an extent


def hoist_allocs(kernel: Kernel) -> Kernel:
    """Hoist heap allocations out of the serial loops around them, and choose the scope where it is AUTO.

    A small allocation of constant size is placed in registers if all its indices are constant, otherwise on
    the stack; any other on the heap. An extent that changes in a loop is replaced by a constant upper bound
    if there is one. No iteration reads contents left by another one, so hoisting keeps the meaning.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, Var
    >>> from tdsl.lang.types import f32
    >>> i = Var("i")
    >>> use = Store("a", (i,), Load("t", (i,), f32))
    >>> nest = For("i", ZERO, const(9), SERIAL, Alloc("t", f32, (const(10_000),), AUTO, use))
    >>> print(show(hoist_allocs(Kernel("k", (), nest)).body))
    t = alloc(f32, [10000])  # heap
    for i in range(0, 9):
      a[i] = t[i]
    """
    return dataclasses.replace(
        kernel,
        body=_AllocHoister(_dynamically_indexed(kernel.body)).statement(kernel.body, NO_FACTS),
    )


@dataclass(slots=True)
class _AllocHoister:
    """`pending` are the allocations to be hoisted out of the `depth` serial loops around a statement."""

    dynamically_indexed: frozenset[str]
    depth: int = 0
    pending: list[Alloc] = field(default_factory=list)

    def statement(self, s: Stmt, facts: Facts) -> Stmt:
        match s:
            case For():
                return self.loop(s, facts)
            case Let():
                outer, self.pending = self.pending, []
                body = self.body_with_allocs(s, facts_inside(facts, s))
                self.pending = _merge_allocs(outer, self.pending)
                return rebuilt(s, body=body)
            case Alloc():
                return self.alloc(s, facts)
            case _:
                return map_parts(s, lambda part: self.statement(part, facts_inside(facts, s)))

    def loop(self, s: For, facts: Facts) -> Stmt:
        depth, outer = self.depth, self.pending
        self.depth, self.pending = (depth + 1 if s.kind == SERIAL else 0), []
        body = self.body_with_allocs(s, facts_inside(facts, s))
        loop: Stmt = rebuilt(s, body=body)
        self.depth = depth
        if depth:
            self.pending = _merge_allocs(outer, self.pending)
            return loop
        loop = _wrap(self.pending, loop, facts)
        self.pending = outer
        return loop

    def body_with_allocs(self, s: For | Let, facts: Facts) -> Stmt:
        """The body of `s`, inside the pending allocations whose extents depend on the name that `s` binds."""
        body = self.statement(s.body, facts)
        dependent = [a for a in self.pending if any(s.name in scalars_of(e) for e in a.extents)]
        self.pending = [a for a in self.pending if a not in dependent]
        return _wrap(dependent, body, facts)

    def alloc(self, s: Alloc, facts: Facts) -> Stmt:
        extents = _bounded_extents(s, facts)
        size = _byte_size(s, extents)
        scope = s.scope
        if scope == AUTO:
            scope = self.scope(s.name, size)
        elif scope != HEAP and size is None:
            scope = HEAP
        s = rebuilt(s, extents=extents, scope=scope)
        body = self.statement(s.body, facts)
        if scope != HEAP or not self.depth or any(loads_of(e) for e in extents):
            return EMPTY if is_empty(body) else rebuilt(s, body=body)
        self.pending = _merge_allocs(self.pending, [rebuilt(s, body=EMPTY)])
        return body

    def scope(self, name: str, size: int | None) -> str:
        if size is None or size > _MAX_STACK:
            return HEAP
        return STACK if size > _MAX_REGISTERS or name in self.dynamically_indexed else REGISTER


def _merge_allocs(first: list[Alloc], second: list[Alloc]) -> list[Alloc]:
    """The allocations of both lists; two with the same name become one with the larger extents."""
    allocs = {a.name: a for a in first}
    for a in second:
        old = allocs.get(a.name, a)
        extents = tuple(map(maximum, old.extents, a.extents))
        allocs[a.name] = rebuilt(old, extents=extents)
    return list(allocs.values())


def _wrap(allocs: list[Alloc], body: Stmt, facts: Facts) -> Stmt:
    """`body` inside `allocs`, their extents clamped at 0, as the guards around the old place may not hold."""
    for a in reversed(allocs):
        extents = tuple(maximum(e, ZERO, facts) for e in a.extents)
        body = rebuilt(a, extents=extents, body=body)
    return body


def _bounded_extents(s: Alloc, facts: Facts) -> tuple[Expr, ...]:
    """Constant upper bounds of the extents if they need at most `_MAX_BOUNDED` bytes; else the extents."""
    if s.strides or all(isinstance(e, Const) for e in s.extents):
        return s.extents
    limits = [upper(e, facts) for e in s.extents]
    known = tuple(const(max(limit, 0)) for limit in limits if limit is not None)
    if len(known) < len(limits) or (_byte_size(s, known) or 0) > _MAX_BOUNDED:
        return s.extents
    return known


def is_large(a: Alloc) -> bool:
    """True for an allocation that goes on the heap, unless its scope says otherwise."""
    size = _byte_size(a, a.extents)
    return size is None or size > _MAX_STACK


def _byte_size(s: Alloc, extents: tuple[Expr, ...]) -> int | None:
    sizes = [int(e.value) for e in extents if isinstance(e, Const)]
    if len(sizes) < len(extents):
        return None
    if s.strides and all(sizes):
        span = sum((n - 1) * step for n, step in zip(sizes, s.strides, strict=True))
        return (span + 1) * s.dtype.bytes
    return prod(sizes) * s.dtype.bytes


def _dynamically_indexed(body: Stmt) -> frozenset[str]:
    """The buffers that are accessed at an index that is not constant, or by an instruction."""
    buffers = set()
    seen: set[int] = set()
    for s in walk(body):
        match s:
            case Store(buffer, index) if not all(map(_is_constant, index)):
                buffers.add(buffer)
            case Invoke(_, operands):
                buffers |= {o.buffer for o in operands}
            case _:
                pass
        for e in exprs_of(s):
            if not loads_of(e) or id(e) in seen:
                continue
            seen.add(id(e))
            for n in post_order(e):
                if isinstance(n, Load) and not all(map(_is_constant, n.index)):
                    buffers.add(n.buffer)
    return frozenset(buffers)


def _is_constant(i: Expr) -> bool:
    match i:
        case Const() | Ramp(Const()) | Broadcast(Const()):
            return True
        case _:
            return False
