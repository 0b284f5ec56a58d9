"""A pass that removes allocations that nothing reads, and lets that nothing uses."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.ir.loops import (
    Alloc,
    BufferParam,
    CopyTile,
    Invoke,
    Kernel,
    Let,
    Prefetch,
    Stmt,
    Store,
)
from tdsl.codegen.ir.statements import EMPTY, exprs_of, is_empty, loads_of, map_parts, rebuilt, walk
from tdsl.core.node import post_order
from tdsl.lang.expr import Expr, Param, Var


def drop_unread(kernel: Kernel) -> Kernel:
    """Remove allocations whose values reach no argument, condition or bound, their stores, and unused lets.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, Load
    >>> from tdsl.lang.types import i64
    >>> both = Store("u", (), ZERO), Store("t", (), Load("u", (), i64)), Store("a", (), ZERO)
    >>> from tdsl.codegen.ir.loops import REGISTER, Block
    >>> body = Alloc("u", i64, (), REGISTER, Alloc("t", i64, (), REGISTER, Block(both)))
    >>> print(show(drop_unread(Kernel("k", (BufferParam("a", i64, (), (), True),), body)).body))
    a[()] = 0
    """
    used = _live_buffers(kernel)
    return dataclasses.replace(kernel, body=_DeadCode(used).statement(kernel.body))


def _live_buffers(kernel: Kernel) -> frozenset[str]:
    """The arguments, and the allocations whose values flow into them, into conditions or into bounds."""
    sources: dict[str, set[str]] = {}
    live = {p.name for p in kernel.params if isinstance(p, BufferParam)}
    for s in walk(kernel.body):
        match s:
            case Store(buffer):
                target = sources.setdefault(buffer, set())
            case CopyTile(buffer, source=source):
                target = sources.setdefault(buffer, set())
                target.add(source)
            case Invoke(_, operands):
                live |= {o.buffer for o in operands}
                target = live
            case Prefetch():
                continue
            case _:
                target = live
        for e in exprs_of(s):
            target |= loads_of(e)
    waiting = list(live)
    while waiting:
        for name in sources.get(waiting.pop(), ()):
            if name not in live:
                live.add(name)
                waiting.append(name)
    return frozenset(live)


class _DeadCode:
    """Removes dead memory and unused lets bottom-up, so that lets used only by removed lets are removed."""

    def __init__(self, live: frozenset[str]) -> None:
        self.live = live
        self.used: set[str] = set()
        self.seen: dict[int, Expr] = {}

    def statement(self, s: Stmt) -> Stmt:
        match s:
            case Store(buffer) | Prefetch(buffer) | CopyTile(buffer) if buffer not in self.live:
                return EMPTY
            case Alloc(name, body=body) if name not in self.live:
                return self.statement(body)
            case Let(name, _, body):
                inner = self.statement(body)
                if name not in self.used:
                    return inner
                self.add_used(s)
                return EMPTY if is_empty(inner) else rebuilt(s, body=inner)
            case _:
                self.add_used(s)
                return map_parts(s, self.statement)

    def add_used(self, s: Stmt) -> None:
        for e in exprs_of(s):
            if id(e) in self.seen:
                continue
            self.seen[id(e)] = e
            for n in post_order(e):
                if isinstance(n, Var | Param):
                    self.used.add(n.name)
