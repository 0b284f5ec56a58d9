"""A pass that gives each vector lane a partial result of an update that accumulates into one element."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.analysis.disjoint_indices import DisjointIndices
from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import REGISTER, VECTORIZED, Alloc, For, If, Kernel, Stmt, Store
from tdsl.codegen.ir.statements import conditional, loads_of, map_parts, rebuilt, sequence
from tdsl.core.node import post_order
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.expr import ZERO, Binary, Const, Expr, Load, Var
from tdsl.lang.simplify import conjunction
from tdsl.lang.types import DType


def accumulate_lanes(kernel: Kernel) -> Kernel:
    """Accumulate in vector lanes what a vectorized loop adds to one element, and merge the lanes after it.

    If all that a serial loop does is run the vectorized loop, the lanes are merged after the serial loop. The
    operator is +, -, *, min or max; no other load of the loops may be of that element.

    >>> from tdsl.codegen.ir.loops import SERIAL
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import const
    >>> from tdsl.lang.types import f32
    >>> k = Binary("add", Binary("mul", Var("o"), const(4)), Var("i"))
    >>> s, x = Load("s", (Var("y"),), f32), Load("x", (k,), f32)
    >>> inner = For("i", ZERO, const(4), VECTORIZED, Store("s", (Var("y"),), Binary("sub", s, x)))
    >>> print(show(accumulate_lanes(Kernel("f", (), For("o", ZERO, const(9), SERIAL, inner))).body))
    s_lanes = alloc(f32, [4])  # register
    for i_1 in range(0, 4):  # vectorized
      s_lanes[i_1] = 0.0
    for o in range(0, 9):
      for i in range(0, 4):  # vectorized
        s_lanes[i] = s_lanes[i] - x[o * 4 + i]
    for i_2 in range(0, 4):  # vectorized
      s[y] = s[y] + s_lanes[i_2]
    """
    return dataclasses.replace(kernel, body=_accumulate(kernel.body, NO_FACTS, FreshNames(kernel)))


def _accumulate(s: Stmt, facts: Facts, fresh: FreshNames) -> Stmt:
    match s:
        case For(_, _, _, "serial", For(_, Const(0), Const(), "vectorized") as inner):
            new = _in_lanes(s, inner, facts, fresh)
        case For(_, Const(0), Const(), "vectorized"):
            new = _in_lanes(None, s, facts, fresh)
        case _:
            new = None
    return new or map_parts(s, lambda part: _accumulate(part, facts_inside(facts, s), fresh))


def _in_lanes(outer: For | None, inner: For, facts: Facts, fresh: FreshNames) -> Stmt | None:
    """The loops with lanes for the element that they update; None if they do anything else."""
    cond, store = _guarded_store(inner.body)
    if store is None or store.mask is not None or store.atomic or inner.merges:
        return None
    loops = [x.name for x in (outer, inner) if x is not None]
    if any(loads_of(i) or not variables(i).isdisjoint(loops) for i in store.index):
        return None
    match store.value:
        case Binary("add" | "sub" | "mul" | "min" | "max" as op, Load() as old, term) if _is_of(old, store):
            pass
        case Binary("add" | "mul" | "min" | "max" as op, term, Load() as old) if _is_of(old, store):
            pass
        case _:
            return None
    t = old.dtype
    if outer is None and isinstance(term, Load):
        return None  # `reduce_lanes` merges them
    start = _identity("add" if op == "sub" else op, t)
    if start is None or old.mask is not None:
        return None
    known = facts if outer is None else facts_inside(facts, outer)
    known = facts_inside(known, inner)
    if cond is not None:
        known = facts_inside(known, If(cond, store))
    tested = () if cond is None else (cond,)
    for n in post_order(term, *tested):
        if isinstance(n, Load) and n.buffer == store.buffer and not _is_other(n, store, known):
            return None
    name, lane = fresh.name(f"{store.buffer}_lanes"), Var(inner.name)
    first, last = (Var(fresh.name(inner.name)) for _ in range(2))
    step = Store(name, (lane,), Binary(op, Load(name, (lane,), t), term), fast=store.fast)
    loop: Stmt = rebuilt(inner, body=step if cond is None else conditional(cond, step))
    if outer is not None:
        loop = rebuilt(outer, body=loop)
    merged = rebuilt(store, value=Binary("add" if op == "sub" else op, old, Load(name, (last,), t)))
    merge = For(last.name, ZERO, inner.extent, VECTORIZED, merged)
    begin = For(first.name, ZERO, inner.extent, VECTORIZED, Store(name, (first,), start))
    return Alloc(name, t, (inner.extent,), REGISTER, sequence((begin, loop, merge)), loc=inner.loc)


def _guarded_store(s: Stmt) -> tuple[Expr | None, Store | None]:
    """The condition around a store, and the store; None for it if the statement is anything else."""
    match s:
        case Store():
            return None, s
        case If(cond, then, None):
            inner, store = _guarded_store(then)
            return cond if inner is None else conjunction((cond, inner)), store
        case _:
            return None, None


def _is_of(load: Load, s: Store) -> bool:
    """True if a load is of the element that is stored."""
    return (load.buffer, load.index) == (s.buffer, s.index)


def _identity(op: str, t: DType) -> Expr | None:
    values = {"add": 0, "mul": 1, "min": t.high, "max": t.low}
    if op not in values:
        return None
    return Const(float(values[op]) if t.is_float else values[op], t)


def _is_other(load: Load, s: Store, facts: Facts) -> bool:
    """True if a load is never of the element that is stored."""
    pairs = zip(load.index, s.index, strict=True)
    return DisjointIndices([as_sum(a).plus(as_sum(b), -1) for a, b in pairs], facts, {}, {""}).is_proved()
