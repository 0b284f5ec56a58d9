"""A pass that runs consecutive statements of one block each in one kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from math import prod

from tdsl.codegen.analysis.launch_axes import launch_extents
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    AUTO,
    BLOCKS,
    HEAP,
    THREADS,
    Alloc,
    Block,
    Check,
    CopyTile,
    For,
    If,
    Kernel,
    Let,
    Print,
    Stmt,
)  # fmt: skip
from tdsl.codegen.ir.statements import map_parts, rebuilt, sequence, stored_in, substituted, walk
from tdsl.codegen.transforms.privatize import uses
from tdsl.lang.expr import ONE, ZERO, Const

_MAX_BYTES = 1 << 12  # bytes of memory between statements that move into the kernel, all of it


def join_blocks(kernel: Kernel) -> Kernel:
    """Run consecutive statements that need one block each in one kernel.

    Small memory that only these statements use is allocated in the kernel. The threads of a statement with
    several must be as many as those of the others.

    >>> from tdsl.codegen.ir.loops import Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Load, Var, const
    >>> from tdsl.lang.types import i64
    >>> fill = For("t", ZERO, const(8), "threadIdx.x", Store("s", (Var("t"),), Var("t")))
    >>> last = Store("a", (), Load("s", (const(7),), i64))
    >>> body = Alloc("s", i64, (const(8),), "auto", Block((fill, last)))
    >>> print(show(join_blocks(Kernel("k", (), body)).body))
    for one_block in range(0, 1):  # blockIdx.x
      s = alloc(i64, [8])  # auto
      for t in range(0, 8):  # threadIdx.x
        s[t] = t
      a[()] = s[7]
    """
    memory: list[Alloc] = []
    groups = list(_groups(list(outermost_kernels(kernel.body, memory))))
    if all(len(group) == 1 for group in groups):
        return kernel
    fresh, parts = FreshNames(kernel), list[Stmt]()
    for n, group in enumerate(groups):
        body = sequence(group if len(group) == 1 else map(_without_blocks, group))
        if len(group) > 1:
            others = sequence([s for m, other in enumerate(groups) if m != n for s in other])
            local = [a for a in memory if _is_small(a) and not uses(others, a.name) and uses(body, a.name)]
            body = within(local, body)
            body = For(fresh.name("one_block"), ZERO, ONE, "blockIdx.x", body)
            memory = [a for a in memory if a not in local]
        parts.append(body)
    return dataclasses.replace(kernel, body=within(memory, sequence(parts)))


def outermost_kernels(s: Stmt, memory: list[Alloc]) -> Iterator[Stmt]:
    """The outermost statements; the allocations around them are added to `memory`."""
    match s:
        case Block(parts):
            for part in parts:
                yield from outermost_kernels(part, memory)
        case Alloc(scope=scope) if scope in (AUTO, HEAP):
            memory.append(s)
            yield from outermost_kernels(s.body, memory)
        case _:
            yield s


def _groups(statements: Sequence[Stmt]) -> Iterator[list[Stmt]]:
    """The statements in order, those that one block can run one after the other together."""
    group: list[Stmt] = []
    block: tuple[int, ...] | None = None
    for s in statements:
        threads = _threads(s)
        several = None if threads is None or prod(threads) == 1 else threads
        other = threads is None or block == () or (block and several and several != block)
        copied = {
            x.source for x in walk(s) if isinstance(x, CopyTile)
        }  # by TMA, after the kernel that writes it
        if group and (other or not copied.isdisjoint(stored_in(sequence(group)))):
            yield group
            group, block = [], None
        group.append(s)
        block = () if threads is None else several or block
    if group:
        yield group


def _threads(s: Stmt) -> tuple[int, ...] | None:
    """The threads along each axis of a statement of one block; None for others, and for what may print."""
    if isinstance(s, Let | If) or any(isinstance(x, Check | Print) for x in walk(s)):
        return None
    if any(isinstance(x, For) and x.kind in BLOCKS and x.extent != ONE for x in walk(s)):
        return None
    extents = launch_extents(s)
    return tuple(extents[axis] for axis in THREADS)


def _without_blocks(s: Stmt) -> Stmt:
    """A statement without its loops over one block."""
    s = map_parts(s, _without_blocks)
    return substituted(s.body, s.name, s.lo) if isinstance(s, For) and s.kind in BLOCKS else s


def _is_small(a: Alloc) -> bool:
    if not all(isinstance(e, Const) for e in a.extents):
        return False
    return a.dtype.bytes * prod(int(e.value) for e in a.extents if isinstance(e, Const)) <= _MAX_BYTES


def within(memory: list[Alloc], body: Stmt) -> Stmt:
    """`body` inside of the allocations `memory`, the first of which is outermost."""
    for a in reversed(memory):
        body = rebuilt(a, body=body)
    return body
