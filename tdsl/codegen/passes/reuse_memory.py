"""A pass that lets allocations share memory: one may begin where the values of another are no longer read."""

from __future__ import annotations

import dataclasses
from collections import Counter

from tdsl.codegen.analysis.lane_dependence import has_distinct_elements
from tdsl.codegen.ir.fresh_names import Renaming, renamed
from tdsl.codegen.ir.loops import (
    AUTO,
    HEAP,
    Alloc,
    Block,
    CopyTile,
    For,
    Invoke,
    Kernel,
    Shuffle,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.statements import (
    EMPTY,
    exprs_of,
    inputs_of,
    loads_of,
    map_parts,
    stored_in,
    walk,
)  # fmt: skip
from tdsl.codegen.passes.hoist_allocs import is_large
from tdsl.core.node import post_order
from tdsl.lang.expr import Load


def reuse_memory(kernel: Kernel) -> Kernel:
    """Give large allocations of equal shapes the same memory if none of them is read while another is.

    Two may also share where the last loops that read one write the other, if each element that they read is
    the one that they write from it. A copy from one to the other is then no work, and is removed.

    >>> from tdsl.codegen.ir.loops import SERIAL, BufferParam
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ONE, ZERO, Binary, Var, const
    >>> from tdsl.lang.types import i64
    >>> i, n = Var("i"), const(10_000)
    >>> def loop(to, value): return For("i", ZERO, n, SERIAL, Store(to, (i,), value))
    >>> steps = [loop("a", i), loop("b", Binary("add", Load("a", (i,), i64), ONE)), loop("c", Load("b", (i,), i64))]
    >>> body = Alloc("a", i64, (n,), AUTO, Alloc("b", i64, (n,), AUTO, Block(tuple(steps))))
    >>> print(show(reuse_memory(Kernel("k", (BufferParam("c", i64, (n,), (1,), True),), body)).body))
    a = alloc(i64, [10000])  # auto
    for i in range(0, 10000):
      a[i] = i
    for i in range(0, 10000):
      a[i] = a[i] + 1
    for i in range(0, 10000):
      c[i] = a[i]
    """  # noqa: E501
    counts = Counter(s.name for s in walk(kernel.body) if isinstance(s, Alloc))
    body = _reuse(kernel.body, {name for name, count in counts.items() if count == 1})
    return kernel if body is kernel.body else dataclasses.replace(kernel, body=body)


def _reuse(s: Stmt, unique: set[str]) -> Stmt:
    if isinstance(s, Alloc):
        allocs, inner = [s], s.body
        while isinstance(inner, Alloc):
            allocs.append(inner)
            inner = inner.body
        shared = _shared(allocs, inner, unique) if len(allocs) > 1 else {}
        if shared:
            s = _renamed(s, shared)
    return map_parts(s, lambda part: _reuse(part, unique))


def _shared(allocs: list[Alloc], body: Stmt, unique: set[str]) -> dict[str, str]:
    """The allocations that use the memory of others, by their names."""
    candidates = {a.name: a for a in allocs if a.name in unique and a.scope in (AUTO, HEAP)}
    candidates = {name: a for name, a in candidates.items() if is_large(a)}
    statements = body.body if isinstance(body, Block) else (body,)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for n, part in enumerate(statements):
        for name in (inputs_of(part) | stored_in(part)) & candidates.keys():
            first.setdefault(name, n)
            last[name] = n
    memory: dict[str, str] = {}  # of each allocation so far, the one that it shares with
    latest: dict[str, str] = {}  # of each shared memory, the allocation that used it last
    for name in sorted(first, key=lambda name: (first[name], [*candidates].index(name))):
        begin, like = first[name], _shape(candidates[name])
        free = [x for x in latest.values() if last[x] <= begin and _shape(candidates[x]) == like]
        for old in sorted(free, key=lambda x: -last[x]):
            if last[old] < begin or _is_in_place(statements[begin], old, name):
                memory[name] = memory.get(old, old)
                break
        latest[memory.get(name, name)] = name
    return memory


def _shape(a: Alloc) -> object:
    return a.dtype, a.extents, a.strides, a.swizzle, a.layout


def _is_in_place(s: Stmt, old: str, new: str) -> bool:
    """True if a statement reads `old` only at the element of `new` that it writes from it, each once."""
    if not isinstance(s, For) or old in stored_in(s):
        return False
    moved = (x for x in walk(s) if isinstance(x, Invoke | CopyTile | Shuffle))
    if any({old, new} & (inputs_of(x) | stored_in(x)) for x in moved):
        return False  # they access more than one element
    stores = [x for x in walk(s) if isinstance(x, Store) and x.buffer == new]
    if len(stores) != 1 or any(
        old in loads_of(e) for x in walk(s) if x is not stores[0] for e in exprs_of(x)
    ):
        return False
    (store,) = stores
    if store.atomic:
        return False
    reads = (n for n in post_order(*exprs_of(store)) if isinstance(n, Load) and n.buffer == old)
    return all(r.index == store.index for r in reads) and has_distinct_elements(s, store)


def _renamed(s: Stmt, shared: dict[str, str]) -> Stmt:
    """The statement with the memory of some allocations replaced, without copies of memory to itself."""

    kept = {*shared.values()}

    def without(part: Stmt) -> Stmt:
        match part:
            case Alloc(name, body=body) if name in shared:
                return without(body)
            case Store(buffer, index, Load(source, at, mask=None)) if (buffer, index) == (source, at):
                return EMPTY if buffer in kept and not part.atomic else part
            case _:
                return map_parts(part, without)

    return without(renamed(s, Renaming(buffers=shared), {}))
