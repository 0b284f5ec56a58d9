"""A pass that gives each vector lane a partial result of an update that accumulates into one element."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.analysis.elements import Arrays, is_in_bounds, is_other_element
from tdsl.codegen.analysis.facts import facts_inside, last_value, narrow_range
from tdsl.codegen.analysis.lane_dependence import lanes_are_independent
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    CONCURRENT,
    REGISTER,
    VECTORIZED,
    Alloc,
    BufferParam,
    For,
    If,
    Kernel,
    Stmt,
    Store,
)
from tdsl.codegen.ir.statements import conditional, loads_of, map_parts, rebuilt, scalars_of, sequence, walk
from tdsl.codegen.passes.bound_loops import nonpositive_sums
from tdsl.core.node import frozen, post_order
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, Facts, at_most
from tdsl.lang.expr import ONE, TRUE, ZERO, Binary, Const, Expr, Load, Var
from tdsl.lang.simplify import add, conjunction, conjuncts, multiply, simplify, substitute, subtract
from tdsl.lang.types import DType


def accumulate_lanes(kernel: Kernel) -> Kernel:
    """Accumulate in vector lanes what a vectorized loop adds to one element, and merge the lanes after it.

    If all that a serial loop does is run the vectorized loop, the lanes are merged after the serial loop. The
    operator is +, -, *, min or max; no other load of the loops may be of that element. The merge runs only
    where the loops update the element, or where that certainly makes no difference: it need not exist
    otherwise, and another thread may write it.

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
      s_lanes[i_1] = -0.0
    for o in range(0, 9):
      for i in range(0, 4):  # vectorized
        s_lanes[i] = s_lanes[i] - x[o * 4 + i]
    for i_2 in range(0, 4):  # vectorized
      s[y] = s[y] + s_lanes[i_2]
    """
    arrays = {p.name: p.extents for p in kernel.params if isinstance(p, BufferParam)}
    return dataclasses.replace(kernel, body=_Around(FreshNames(kernel), arrays).visit(kernel.body))


@frozen
class _Around:
    """The pass, with what is around a statement: extents of memory, facts, concurrent loops with theirs."""

    fresh: FreshNames
    arrays: Arrays
    facts: Facts = NO_FACTS
    concurrent: tuple[tuple[For, Facts], ...] = ()

    def visit(self, s: Stmt) -> Stmt:
        match s:
            case For(_, _, _, "serial", For(_, Const(0), Const(), "vectorized") as inner):
                new = self.in_lanes(s, inner)
            case For(_, Const(0), Const(), "vectorized"):
                new = self.in_lanes(None, s)
            case _:
                new = None
        return new or map_parts(s, self.inside(s).visit)

    def inside(self, s: Stmt) -> _Around:
        new = dataclasses.replace(self, facts=facts_inside(self.facts, s))
        match s:
            case For(kind=kind) if kind in CONCURRENT:
                return dataclasses.replace(new, concurrent=(*self.concurrent, (s, self.facts)))
            case Alloc(name, extents=extents):
                return dataclasses.replace(new, arrays={**self.arrays, name: extents})
            case _:
                return new

    def in_lanes(self, outer: For | None, inner: For) -> Stmt | None:
        """The loops with lanes for the element that they update; None if they do anything else."""
        cond, store = _guarded_store(inner.body)
        if store is None or store.mask is not None or store.atomic or inner.merges:
            return None
        loops = [x.name for x in (outer, inner) if x is not None]
        if any(loads_of(i) or not variables(i).isdisjoint(loops) for i in store.index):
            return None
        match store.value:
            case Binary("add" | "sub" | "mul" | "min" | "max" as op, Load() as old, term) if _is_of(
                old, store
            ):
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
        known = self.facts if outer is None else facts_inside(self.facts, outer)
        known = facts_inside(known, inner)
        if cond is not None:
            known = facts_inside(known, If(cond, store))
        tested = () if cond is None else (cond,)
        for n in post_order(term, *tested):
            if isinstance(n, Load) and n.buffer == store.buffer and not is_other_element(n, store, known):
                return None
        runs = _runs(outer, inner, cond, self.facts)
        if runs is None and not self.may_merge(store):
            return None
        name, lane = self.fresh.name(f"{store.buffer}_lanes"), Var(inner.name)
        first, last = (Var(self.fresh.name(inner.name)) for _ in range(2))
        step = Store(name, (lane,), Binary(op, Load(name, (lane,), t), term), fast=store.fast)
        loop: Stmt = rebuilt(inner, body=step if cond is None else conditional(cond, step))
        if outer is not None:
            loop = rebuilt(outer, body=loop)
        merged = rebuilt(store, value=Binary("add" if op == "sub" else op, old, Load(name, (last,), t)))
        merge = For(last.name, ZERO, inner.extent, VECTORIZED, merged)
        begin = For(first.name, ZERO, inner.extent, VECTORIZED, Store(name, (first,), start))
        body = sequence((begin, loop, merge))
        return conditional(runs or TRUE, Alloc(name, t, (inner.extent,), REGISTER, body, loc=inner.loc))

    def may_merge(self, s: Store) -> bool:
        """True if an element may be read and written back where the loops do not update it.

        It is in bounds, and no other thread writes it.
        """
        around = [x for x in self.concurrent if s.buffer not in _allocated_in(x[0])]
        return is_in_bounds(s.buffer, s.index, self.arrays, self.facts) and all(
            lanes_are_independent(loop, facts) for loop, facts in around
        )


def _runs(outer: For | None, inner: For, cond: Expr | None, facts: Facts) -> Expr | None:
    """Where the loops have any iteration in which the condition around their body holds; None if unknown."""
    loops = {inner.name} if outer is None else {outer.name, inner.name}
    point, lo, hi = inner.name, inner.lo, last_value(inner, facts)
    of_inner: Expr = Var(inner.name)
    if outer is not None:
        point = f"{outer.name} {inner.name}"
        of_inner = subtract(Var(point), multiply(Var(outer.name), inner.extent))
        lo = multiply(outer.lo, inner.extent)
        hi = subtract(multiply(add(last_value(outer, facts), ONE), inner.extent), ONE)
    tests = []
    for c in () if cond is None else conjuncts(cond):
        if loads_of(c):
            return None
        at = simplify(substitute(c, {inner.name: of_inner}))
        if not scalars_of(at) & {*loops, point}:
            tests.append(at)
            continue
        limits = nonpositive_sums(at, point)
        if not limits or any((loops - {point}) & scalars_of(e) for d in limits for e in d.terms):
            return None
        for limit in limits:
            lo, hi = narrow_range(limit, point, lo, hi, facts)
    if not at_most(lo, hi, facts):
        tests.append(Binary("le", lo, hi))
    return conjunction(tests)


def _allocated_in(s: Stmt) -> set[str]:
    return {x.name for x in walk(s) if isinstance(x, Alloc)}


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
    """The number that changes no other one: not even the sign of a zero."""
    values = {"add": -0.0 if t.is_float else 0, "mul": 1, "min": t.high, "max": t.low}
    if op not in values:
        return None
    return Const(float(values[op]) if t.is_float else values[op], t)
