"""The memory of a GPU for what the schedule left open."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.loops import (
    AUTO,
    HEAP,
    REGISTER,
    SHARED,
    STACK,
    THREADS,
    Alloc,
    For,
    Kernel,
    Stmt,
)  # fmt: skip
from tdsl.codegen.passes.scope import inside
from tdsl.codegen.passes.statements import exprs_of, loads_of, map_parts, rebuilt, stored_in, walk
from tdsl.errors import ScheduleError
from tdsl.lang.bounds import NOTHING, Facts, upper
from tdsl.lang.expr import Const, const


def place_memory(kernel: Kernel) -> Kernel:
    """Give each memory one of a GPU: the heap between kernels, shared by a block, or a thread's registers.

    What threads pass to each other is shared by their block: memory with loops over threads inside.

    >>> from tdsl.codegen.loops import Store
    >>> from tdsl.codegen.show import show
    >>> from tdsl.lang.expr import Load, Var
    >>> from tdsl.lang.types import i64
    >>> t, own = Var("t"), Alloc("own", i64, (), AUTO, Store("own", (), const(1)))
    >>> loop = For("t", const(0), const(8), "threadIdx.x", own)
    >>> from tdsl.codegen.loops import Block
    >>> use = For("t", const(0), const(8), "threadIdx.x", Store("tile", (t,), t))
    >>> tile = Alloc("tile", i64, (const(8),), AUTO, Block((loop, use)))
    >>> block = For("b", const(0), const(2), "blockIdx.x", tile)
    >>> print(show(place_memory(Kernel("k", (), Alloc("all", i64, (const(8),), AUTO, block))).body))
    all = alloc(i64, [8])  # heap
    for b in range(0, 2):  # blockIdx.x
      tile = alloc(i64, [8])  # shared
      for t in range(0, 8):  # threadIdx.x
        own = alloc(i64, [])  # register
        own[()] = 1
      for t in range(0, 8):  # threadIdx.x
        tile[t] = t
    """
    return dataclasses.replace(kernel, body=_placed(kernel.body, NOTHING, (False, False)))


def _placed(s: Stmt, facts: Facts, around: tuple[bool, bool]) -> Stmt:
    """`around` tells whether a loop stands around, and one over threads."""
    if isinstance(s, Alloc):
        s = _with_scope(s, facts, *around)
    elif isinstance(s, For):
        around = True, around[1] or s.kind in THREADS
    return map_parts(s, lambda part: _placed(part, inside(facts, s), around))


def _with_scope(s: Alloc, facts: Facts, in_loop: bool, in_thread: bool) -> Alloc:
    if not in_loop:
        return rebuilt(s, scope=HEAP)
    if s.scope == HEAP:
        raise _error(s, "is in heap memory, but made inside of a kernel", "leave the scope open")
    loops = (x for x in walk(s.body) if isinstance(x, For) and x.kind in THREADS)
    shared = any(_uses(x.body, s.name) for x in loops)
    if shared and s.scope != SHARED and (in_thread or s.scope != AUTO):
        raise _error(s, "is a thread's own, but loops over threads use it", 'set_scope("shared")')
    extents = []
    for e in s.extents:
        most = upper(e, facts)
        if most is None:
            raise _error(
                s, "has a size that is not known", "split the loops by constants around it"
            )
        extents.append(e if isinstance(e, Const) else const(max(most, 0)))
    scope = s.scope if s.scope not in (AUTO, STACK) else SHARED if shared else REGISTER
    return rebuilt(s, scope=scope, extents=tuple(extents))


def _uses(body: Stmt, name: str) -> bool:
    used = (name in loads_of(e) for s in walk(body) for e in exprs_of(s))
    return name in stored_in(body) or any(used)


def _error(s: Alloc, what: str, hint: str) -> ScheduleError:
    return ScheduleError(f"memory {s.name!r} {what}", loc=s.loc, label="stored here", hint=hint)
