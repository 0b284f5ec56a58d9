"""A pass that keeps in registers what the stores of a loop do not change, and the element they change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tdsl.codegen.analysis.elements import is_in_bounds, is_other_element
from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    PARALLEL,
    REGISTER,
    SERIAL,
    Alloc,
    Block,
    BufferParam,
    For,
    If,
    Kernel,
    Let,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.statements import (
    loads_of,
    map_exprs,
    map_parts,
    parts_of,
    rebuilt,
    scalars_of,
    sequence,
    walk,
)  # fmt: skip
from tdsl.core.node import Node, children, map_children, post_order, transform
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, Facts, at_most
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Expr, Load, Param, Var, dtype_of
from tdsl.lang.types import i64


def keep_in_registers(kernel: Kernel) -> Kernel:
    """Evaluate what a loop does not change before it; accumulate an element in a register.

    An expression that loads the buffer to which the loop stores is hoisted if no store of the loop has the
    index of one of its loads, which the backend cannot prove. So is the element of a loop that is one
    store, f[i] = f[i] op e, with an index that is the same in all iterations.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Binary, const
    >>> from tdsl.lang.simplify import add
    >>> from tdsl.lang.types import f32
    >>> k, x = Var("k"), Var("x")
    >>> at, pivot = Load("a", (x,), f32), Load("a", (k,), f32)
    >>> loop = For("x", add(k, ONE), const(8), SERIAL, Store("a", (x,), Binary("sub", at, pivot)))
    >>> nest = Alloc("a", f32, (const(20),), "heap", For("k", ZERO, const(9), SERIAL, loop))
    >>> print(show(keep_in_registers(Kernel("f", (), nest)).body))
    a = alloc(f32, [20])  # heap
    for k in range(0, 9):
      same = a[k]
      for x in range(k + 1, k + 9):
        a[x] = a[x] - same
    """
    arrays = {p.name: p.extents for p in kernel.params if isinstance(p, BufferParam)}
    return dataclasses.replace(
        kernel, body=_Registers(FreshNames(kernel), arrays).visit(kernel.body, NO_FACTS)
    )


class _Registers:
    """The pass, with the extents of the arguments and of the memory allocated around a statement."""

    def __init__(self, fresh: FreshNames, arrays: dict[str, tuple[Expr, ...]]) -> None:
        self.fresh, self.arrays = fresh, arrays

    def visit(self, s: Stmt, facts: Facts) -> Stmt:
        """The statement with its loops changed, the innermost first."""
        if isinstance(s, Alloc):
            self.arrays[s.name] = s.extents
        s = map_parts(s, lambda part: self.visit(part, facts_inside(facts, s)))
        if isinstance(s, For) and s.kind in (SERIAL, PARALLEL):
            return self.loop(s, facts)
        return s

    def loop(self, s: For, facts: Facts) -> Stmt:
        stores = _plain_stores(s.body, facts_inside(facts, s))
        if stores is None:
            return s
        if not any(loads_of(x.value) & {y.buffer for y, _ in stores} for x, _ in stores):
            return s
        changes = _Changes(s, stores)
        values = dict.fromkeys(e for x, _ in stores for e in changes.unchanged(x.value))
        invariant = [e for e in values if self.is_valid(e, facts)]
        names = {e: self.fresh.name("same") for e in invariant}
        loop: Stmt = _with_values(s, names) if names else s
        assert isinstance(loop, For)
        loop = self.accumulated(loop, changes, facts)
        for e, name in names.items():
            loop = Let(name, e, loop)
        return loop

    def is_valid(self, e: Expr, facts: Facts) -> bool:
        """True if every load in an expression is in bounds, also where the loop has no iterations."""
        loads = (n for n in post_order(e) if isinstance(n, Load))
        return all(is_in_bounds(n.buffer, n.index, self.arrays, facts) for n in loads)

    def accumulated(self, s: For, changes: _Changes, facts: Facts) -> Stmt:
        """The loop with the element that its only store updates in a register.

        A loop without iterations neither reads nor writes the element, which may then be out of bounds.
        """
        store = s.body
        if s.kind != SERIAL or not isinstance(store, Store) or store.mask is not None or store.atomic:
            return s
        index, old = store.index, Load(store.buffer, store.index, dtype_of(store.value))
        others = [n for n in _loads(store.value, {store.buffer}) if n != old]
        if old not in post_order(store.value) or any(s.name in variables(i) or loads_of(i) for i in index):
            return s
        if not others or not all(changes.is_unchanged(n) for n in others):
            return s  # without other loads the backend does the same
        name = self.fresh.name(f"{store.buffer}_sum")
        kept = Load(name, (ZERO,), old.dtype)
        value = transform(store.value, lambda n: kept if n == old else n)
        step = Store(name, (ZERO,), value, fast=store.fast)
        last = rebuilt(store, value=kept)
        body = sequence((Store(name, (ZERO,), old), rebuilt(s, body=step), last))
        kept_in = Alloc(name, old.dtype, (ONE,), REGISTER, body, loc=s.loc)
        return kept_in if at_most(ONE, s.extent, facts) else If(Binary("lt", ZERO, s.extent), kept_in)


def _plain_stores(s: Stmt, facts: Facts) -> list[tuple[Store, Facts]] | None:
    """The stores of a loop's body, with what holds where each of them runs: the facts on the path to it.

    None if the body has anything but stores, conditions, lets and vectors.
    """
    match s:
        case Store():
            return [(s, facts)]
        case For(_, _, Const(), "vectorized" | "unrolled") | If() | Let() | Block():
            stores: list[tuple[Store, Facts]] = []
            for part in parts_of(s):
                inside = _plain_stores(part, facts_inside(facts, s))
                if inside is None:
                    return None
                stores += inside
            return stores
        case _:
            return None


def _loads(e: Expr, buffers: set[str]) -> list[Load]:
    return [n for n in post_order(e) if isinstance(n, Load) and n.buffer in buffers]


class _Changes:
    """What the stores of a loop, each with the facts on the path to it, may change."""

    def __init__(self, loop: For, stores: list[tuple[Store, Facts]]) -> None:
        self.stores: dict[str, list[tuple[Store, Facts]]] = {}
        for x, facts in stores:
            self.stores.setdefault(x.buffer, []).append((x, facts))
        self.bound = {loop.name, *(x.name for x in walk(loop.body) if isinstance(x, For | Let))}

    def unchanged(self, e: Expr) -> Iterator[Expr]:
        """The largest parts of an expression that load a stored buffer and that the loop does not change."""
        if not loads_of(e) & self.stores.keys():
            return
        loads = _loads(e, {*self.stores})
        if not scalars_of(e) & self.bound and all(map(self.is_unchanged, loads)):
            yield e
            return
        for child in children(e):
            yield from self.unchanged(child)  # type: ignore[arg-type]  # children of an Expr are Exprs

    def is_unchanged(self, load: Load) -> bool:
        """True if no store of the loop writes the element of a load."""
        return all(is_other_element(load, s, facts) for s, facts in self.stores.get(load.buffer, ()))


def _with_values(s: Stmt, names: dict[Expr, str]) -> Stmt:
    def replace(n: Node) -> Node:
        if n in names:
            t = dtype_of(n)  # type: ignore[arg-type]  # a key, so an Expr
            name = names[n]  # type: ignore[index]  # as above
            return Var(name) if t == i64 else Param(name, t)
        return map_children(n, replace)

    return map_parts(map_exprs(s, replace), lambda part: _with_values(part, names))  # type: ignore[arg-type]  # Exprs stay Exprs
