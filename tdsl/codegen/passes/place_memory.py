"""A pass that chooses the memory of a GPU (heap, shared, registers) of each allocation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.analysis.launch_axes import launch_extents
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    AUTO,
    BLOCKS,
    FRAGMENT,
    GROUP,
    HEAP,
    LANES,
    REGISTER,
    SHARED,
    STACK,
    THREADS,
    Alloc,
    Block,
    For,
    If,
    Invoke,
    Kernel,
    Let,
    Stmt,
)  # fmt: skip
from tdsl.codegen.ir.statements import map_parts, parts_of, rebuilt, walk
from tdsl.codegen.transforms.buffer_slots import index_by_slot
from tdsl.codegen.transforms.privatize import privatize, uses
from tdsl.errors import ScheduleError
from tdsl.lang.bounds import NO_FACTS, Facts, upper
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Expr, Var, const
from tdsl.lang.simplify import add, simplify, subtract


def place_memory(kernel: Kernel) -> Kernel:
    """Choose the scope of each allocation: heap between kernels, shared memory of a block, or registers.

    An allocation around loops over threads is placed in registers if each thread accesses a disjoint part of
    it, or can compute all of it; otherwise it is placed in shared memory.

    >>> from tdsl.codegen.ir.loops import Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Binary, Load, Var
    >>> from tdsl.lang.types import i64
    >>> def passed_on(name, index):
    ...     fill = For("t", const(0), const(8), "threadIdx.x", Store(name, (Var("t"),), Var("t")))
    ...     value = Load(name, (index,), i64)
    ...     use = For("t", const(0), const(8), "threadIdx.x", Store("all", (Var("t"),), value))
    ...     return Alloc(name, i64, (const(8),), AUTO, Block((fill, use)))
    >>> other = passed_on("tile", Binary("sub", const(7), Var("t")))
    >>> block = For("b", const(0), const(2), "blockIdx.x", Block((passed_on("private", Var("t")), other)))
    >>> print(show(place_memory(Kernel("k", (), Alloc("all", i64, (const(8),), AUTO, block))).body))
    all = alloc(i64, [8])  # heap
    for b in range(0, 2):  # blockIdx.x
      private = alloc(i64, [1])  # register
      for t in range(0, 8):  # threadIdx.x
        private[0] = t
      for t in range(0, 8):  # threadIdx.x
        all[t] = private[0]
      tile = alloc(i64, [8])  # shared
      for t in range(0, 8):  # threadIdx.x
        tile[t] = t
      for t in range(0, 8):  # threadIdx.x
        all[t] = tile[7 - t]
    """
    return dataclasses.replace(kernel, body=_place_at_root(kernel.body, FreshNames(kernel)))


def _place_at_root(s: Stmt, fresh: FreshNames) -> Stmt:
    """`s` with heap memory outside of kernels, and with memory placed inside of each kernel."""
    match s:
        case Alloc():
            return rebuilt(s, scope=HEAP, body=_place_at_root(s.body, fresh))
        case Block() | Let() | If():
            return map_parts(s, lambda part: _place_at_root(part, fresh))
        case _:
            return _KernelMemory(launch_extents(s), fresh).place(s)


@dataclass(slots=True)
class _KernelMemory:
    """Places the memory of one kernel. `private` are the allocations that are already thread-private.

    `arrays` are the names of allocations in registers that have several elements.
    """

    extents: dict[str, int]
    fresh: FreshNames
    private: set[str] = field(default_factory=set)
    arrays: frozenset[str] = frozenset()

    def place(self, s: Stmt) -> Stmt:
        """Privatise allocations until a fixed point; then choose the scopes of the others.

        Memory that one thread computes and a value computed by all threads reads is computed by all, too.
        """
        self.arrays = frozenset(x.name for x in walk(s) if isinstance(x, Alloc) and _is_array(x))
        while True:
            count = len(self.private)
            s = self.visit(s, NO_FACTS, {}, final=False)
            if len(self.private) == count:
                return self.visit(s, NO_FACTS, {}, final=True)

    def visit(self, s: Stmt, facts: Facts, threads: Mapping[str, Expr], *, final: bool) -> Stmt:
        """`s` with memory placed; `threads`: the thread's number on each axis that an enclosing loop has."""
        if isinstance(s, Alloc) and s.name not in self.private:
            s = self.place_alloc(s, facts, threads, final=final)
        elif isinstance(s, For) and s.kind in THREADS:
            threads = {**threads, s.kind: subtract(Var(s.name), s.lo)}
        return map_parts(s, lambda part: self.visit(part, facts_inside(facts, s), threads, final=final))

    def place_alloc(self, s: Alloc, facts: Facts, threads: Mapping[str, Expr], *, final: bool) -> Alloc:
        if s.scope == HEAP:
            raise _error(s, "is in heap memory, but allocated in a kernel", "leave the scope open")
        if _crosses_blocks(s):
            raise _error(
                s, "is private to a block, but allocated outside of a loop over blocks that uses it",
                "compute it inside of all loops over blocks, or compute_root()",
            )  # fmt: skip
        s = _with_sizes(s, facts)
        if s.scope == FRAGMENT:
            return s
        if s.scope == GROUP:
            return self.group_memory(s, threads)
        loops = [x for x in walk(s.body) if isinstance(x, For) and x.kind in THREADS]
        axes = {x.kind for x in loops if uses(x.body, s.name)}
        axes |= {LANES for x in walk(s.body) if isinstance(x, Invoke) and uses(x, s.name)}
        if axes and s.scope != SHARED and axes.isdisjoint(threads.keys()):
            privatized = privatize(s, facts, self.extents, self.arrays - self.private, self.fresh)
            if privatized is not None:
                self.private.add(s.name)
                return privatized
        if not final:
            return s
        if axes and s.scope != SHARED and (threads or s.scope != AUTO):
            raise _error(s, "is private to a thread, but loops over threads use it", 'set_scope("shared")')
        if s.scope in (AUTO, STACK):
            return rebuilt(s, scope=SHARED if axes else REGISTER)
        return s

    def group_memory(self, s: Alloc, threads: Mapping[str, Expr]) -> Alloc:
        """Memory of a group of threads along threadIdx.x as shared memory with one slot for each group."""
        row: Expr = ZERO
        count = 1
        for axis in reversed(THREADS[1:]):
            if axis in threads:
                row = add(simplify(Binary("mul", row, const(self.extents[axis]))), threads[axis])
                count *= self.extents[axis]
        extents = (const(count), *s.extents)
        return rebuilt(s, scope=SHARED, extents=extents, body=index_by_slot(s.body, {s.name}, row))


def _crosses_blocks(s: Alloc) -> bool:
    """True if the memory is used both inside and outside of loops over blocks."""
    loops = [x for x in walk(s.body) if isinstance(x, For) and x.kind in BLOCKS]
    return any(uses(x.body, s.name) for x in loops) and _used_outside_blocks(s.body, s.name)


def _used_outside_blocks(s: Stmt, name: str) -> bool:
    if isinstance(s, For) and s.kind in BLOCKS:
        return False
    parts = list(parts_of(s))
    return any(_used_outside_blocks(part, name) for part in parts) if parts else uses(s, name)


def _is_array(s: Alloc) -> bool:
    """True for memory in registers or on the stack that has several elements."""
    return s.scope in (REGISTER, STACK) and any(e != ONE for e in s.extents)


def _with_sizes(s: Alloc, facts: Facts) -> Alloc:
    """The allocation with constant extents: the upper bounds of its extents."""
    extents = []
    for e in s.extents:
        most = upper(e, facts)
        if most is None:
            raise _error(s, "has a size that is not known", "split the loops by constants around it")
        extents.append(e if isinstance(e, Const) else const(max(most, 0)))
    return rebuilt(s, extents=tuple(extents))


def _error(s: Alloc, what: str, hint: str) -> ScheduleError:
    return ScheduleError(f"memory {s.name!r} {what}", loc=s.loc, label="stored here", hint=hint)
