"""A pass that accumulates in registers what a loop adds to elements of global or shared memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import prod

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    AUTO,
    BLOCKS,
    HEAP,
    SERIAL,
    SHARED,
    THREADS,
    UNROLLED,
    VECTORIZED,
    Alloc,
    Block,
    BufferParam,
    For,
    If,
    Kernel,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.statements import exprs_of, loads_of, map_exprs, map_parts, parts_of, rebuilt, walk
from tdsl.codegen.transforms.privatize import uses
from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, Facts, lower, upper
from tdsl.lang.expr import ZERO, Const, Expr, Load, Var, const, dtype_of
from tdsl.lang.simplify import simplify, substitute, subtract

_KINDS = (*THREADS, UNROLLED, VECTORIZED)
_MOST_BYTES = 512  # of an accumulator in the registers of one thread, as in `privatize`


def promote_accumulators(kernel: Kernel) -> Kernel:
    """Accumulate in registers: no serial loop of threads updates elements of other memory in each iteration.

    A loop whose iterations update the same elements updates an accumulator instead, if a statement before it
    in its block starts these elements by the same loops. The elements are stored once, after the loop.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Binary
    >>> from tdsl.lang.types import f32
    >>> def threads(value):
    ...     at = (Var("b"), Var("t"))
    ...     return For("t", ZERO, const(8), "threadIdx.x", Store("s", at, value))
    >>> term = Load("a", (Var("i"), Var("t")), f32)
    >>> added = threads(Binary("add", Load("s", (Var("b"), Var("t")), f32), term))
    >>> body = Block((threads(Const(0.0, f32)), For("i", ZERO, const(9), SERIAL, added)))
    >>> array = BufferParam("s", f32, (const(2), const(8)), (8, 1), True)
    >>> block = For("b", ZERO, const(2), "blockIdx.x", body)
    >>> print(show(promote_accumulators(Kernel("k", (array,), block)).body))
    for b in range(0, 2):  # blockIdx.x
      s_sum = alloc(f32, [1, 8])  # auto
      for t in range(0, 8):  # threadIdx.x
        s_sum[0, t] = 0.0
      for i in range(0, 9):
        for t in range(0, 8):  # threadIdx.x
          s_sum[0, t] = s_sum[0, t] + a[i, t]
      for t in range(0, 8):  # threadIdx.x
        s[b, t] = s_sum[0, t]
    """
    far = {p.name for p in kernel.params if isinstance(p, BufferParam)}
    fresh = FreshNames(kernel)
    return dataclasses.replace(kernel, body=_visit(kernel.body, far, NO_FACTS, fresh, in_block=False))


def _visit(s: Stmt, far: set[str], facts: Facts, fresh: FreshNames, *, in_block: bool) -> Stmt:
    if isinstance(s, Alloc) and (s.scope in (HEAP, SHARED) or not in_block):
        far = {*far, s.name}
    in_block = in_block or (isinstance(s, For) and s.kind in BLOCKS)
    s = map_parts(s, lambda part: _visit(part, far, facts_inside(facts, s), fresh, in_block=in_block))
    return _in_sequence(s, far, facts, fresh) if in_block and isinstance(s, Block) else s


def _in_sequence(s: Block, far: set[str], facts: Facts, fresh: FreshNames) -> Stmt:
    parts = list(s.body)
    for n, loop in enumerate(parts):
        if not isinstance(loop, For) or loop.kind != SERIAL:
            continue
        for name in sorted({x.buffer for x in walk(loop) if isinstance(x, Store)} & far):
            using = [m for m, x in enumerate(parts[: n + 1]) if uses(x, name)]
            if len(using) != 2:
                continue
            start, update = _only_store(parts[using[0]], name), _only_store(parts[n], name)
            if start is None or update is None:
                continue
            memory = _accumulator(start, update, loop, facts, fresh)
            if memory is not None:
                before, after = (memory.redirected(parts[m]) for m in (using[0], n))
                parts[using[0]], parts[n] = before, Block((after, memory.stored()))
                inner: Stmt = Block(tuple(_flat(parts)))
                extents = tuple(map(const, memory.extents))
                kept = Alloc(memory.name, dtype_of(update.store.value), extents, AUTO, inner)
                return _visit(kept, far, facts, fresh, in_block=True)
    return s


def _flat(parts: list[Stmt]) -> Iterator[Stmt]:
    for x in parts:
        yield from x.body if isinstance(x, Block) else (x,)


@frozen
class _Path:
    """A store and the statements around it, outermost first."""

    around: tuple[Stmt, ...]
    store: Store

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around it that its index varies along."""
        used = {v for e in self.store.index for v in variables(e)}
        return tuple(x for x in self.around if isinstance(x, For) and x.name in used)


def _only_store(s: Stmt, name: str) -> _Path | None:
    """The only store to a buffer in a statement that loads no other element of it; None without."""

    def stores(s: Stmt, around: tuple[Stmt, ...]) -> Iterator[_Path]:
        if isinstance(s, Store) and s.buffer == name:
            yield _Path(around, s)
        for part in parts_of(s):
            yield from stores(part, (*around, s))

    paths = list(stores(s, ()))
    if len(paths) != 1 or paths[0].store.atomic or paths[0].store.mask is not None:
        return None
    index = paths[0].store.index
    loads = (x for y in walk(s) for x in post_order(*exprs_of(y)) if isinstance(x, Load) and x.buffer == name)
    return paths[0] if all(x.index == index for x in loads) else None


@frozen
class _Accumulator:
    """Memory of a block for the elements of a buffer that the statement `start` stores."""

    name: str
    buffer: str
    start: _Path
    extents: tuple[int, ...]

    def redirected(self, s: Stmt) -> Stmt:
        """A statement that accesses the accumulator instead of the buffer."""

        def load(n: Node) -> Node:
            if isinstance(n, Load) and n.buffer == self.buffer:
                return dataclasses.replace(n, buffer=self.name, index=self.local(n.index, s))
            return n

        def visit(x: Stmt) -> Stmt:
            x = map_exprs(x, lambda e: transform(e, load) if self.buffer in loads_of(e) else e)
            if isinstance(x, Store) and x.buffer == self.buffer:
                x = rebuilt(x, buffer=self.name, index=self.local(x.index, s), streaming=False)
            return map_parts(x, visit)

        return visit(s)

    def local(self, index: tuple[Expr, ...], s: Stmt) -> tuple[Expr, ...]:
        """The place in the accumulator of an element that the statement accesses."""
        return _local(index, {x.name for x in walk(s) if isinstance(x, For)})

    def stored(self) -> Stmt:
        """The statement that stores the elements in the buffer, by the loops and tests that start them."""
        s, names = self.start.store, {x.name for x in self.start.around if isinstance(x, For)}
        load = Load(self.name, _local(s.index, names), dtype_of(s.value))
        out: Stmt = rebuilt(s, value=load)
        for x in reversed(self.start.around):
            if isinstance(x, For):
                out = rebuilt(x, body=out)
            elif isinstance(x, If):
                out = If(x.cond, out)
        return out


def _local(index: tuple[Expr, ...], inner: set[str]) -> tuple[Expr, ...]:
    first: dict[str, Expr] = {v: ZERO for e in index for v in variables(e) if v in inner}
    return tuple(simplify(subtract(e, substitute(e, first))) for e in index)


def _accumulator(
    start: _Path, update: _Path, loop: For, facts: Facts, fresh: FreshNames
) -> _Accumulator | None:
    """The accumulator of elements that a statement starts and a loop updates; None where they differ."""
    a, b = start.loops, update.loops
    if start.store.buffer in loads_of(start.store.value):
        return None
    if loop in b or [(x.kind, x.lo, x.extent) for x in a] != [(x.kind, x.lo, x.extent) for x in b]:
        return None
    if not all(isinstance(x.extent, Const) and x.lo == ZERO and x.kind in _KINDS for x in a):
        return None
    if not all(isinstance(x, For | If | Block | Alloc) for x in start.around):
        return None
    if any(x not in a for x in start.around if isinstance(x, For)):
        return None
    renamed: dict[str, Expr] = {y.name: Var(x.name) for x, y in zip(a, b, strict=True)}
    if tuple(simplify(substitute(e, renamed)) for e in update.store.index) != tuple(
        map(simplify, start.store.index)
    ):
        return None
    for x in a:
        facts = facts_inside(facts, x)
    index = _local(start.store.index, {x.name for x in a})
    ends = [(lower(e, facts), upper(e, facts)) for e in index]
    if any(lo is None or hi is None or lo < 0 for lo, hi in ends):
        return None
    if not all(variables(e) <= {x.name for x in a} for e in index):
        return None
    extents = tuple((hi or 0) + 1 for _, hi in ends)
    threads = prod(_count(x) for x in a if x.kind in THREADS)
    if prod(extents) * dtype_of(start.store.value).bytes > _MOST_BYTES * threads:
        return None
    name = fresh.name(f"{start.store.buffer}_sum")
    return _Accumulator(name, start.store.buffer, start, extents)


def _count(x: For) -> int:
    return int(x.extent.value) if isinstance(x.extent, Const) else 1
