"""A pass that replaces vectorized loops by vector code."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.analysis.facts import facts_inside, facts_where
from tdsl.codegen.analysis.lane_dependence import lanes_are_independent
from tdsl.codegen.ir.fresh_names import FreshNames, bind_loaded_bounds
from tdsl.codegen.ir.loops import (
    REGISTER,
    SERIAL,
    VECTORIZED,
    Alloc,
    ArriveBarrier,
    Barrier,
    Block,
    BufferParam,
    Check,
    Commit,
    CopyTile,
    For,
    If,
    InitBarriers,
    Invoke,
    Kernel,
    Let,
    Prefetch,
    Print,
    Shuffle,
    Stmt,
    Store,
    Wait,
    WaitBarrier,
    WarpSpecialize,
)  # fmt: skip
from tdsl.codegen.ir.statements import (
    conditional,
    is_empty,
    loads_of,
    map_parts,
    rebuilt,
    sequence,
    stored_in,
    walk,
)  # fmt: skip
from tdsl.codegen.transforms.widen import VectorLanes
from tdsl.lang.bounds import NO_FACTS, Facts, upper
from tdsl.lang.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Param,
    Ramp,
    Unary,
    Var,
    const,
    dtype_of,
    lanes_of,
)  # fmt: skip
from tdsl.lang.simplify import conjunction, conjuncts, simplify, substitute, subtract
from tdsl.lang.types import bool_, i64

_MAX_LANES = 256  # iterations of a vectorized loop, at most


def vectorize(kernel: Kernel) -> Kernel:
    """Replace each vectorized loop by vector code over all of its iterations.

    Conditions that differ by lane become masks; memory allocated in the loop gets a last axis for lanes. The
    loop becomes serial if its lanes may depend on each other, or if it contains a statement without a vector
    form: checks, prints, instructions, loops whose extent differs by lane, vector code.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO
    >>> from tdsl.lang.types import f32
    >>> y, x = Var("y"), Var("x")
    >>> value = Binary("mul", Load("a", (Binary("mul", const(2), x),), f32), Load("b", (y,), f32))
    >>> loop = For("x", ZERO, const(8), VECTORIZED, Store("out", (y, x), value))
    >>> print(show(vectorize(Kernel("k", (), loop)).body))
    out[y, 0:8] = a[0:16:2] * b[y]
    >>> tail = rebuilt(loop, body=If(Binary("lt", Var("x"), const(5)), loop.body))
    >>> print(show(vectorize(Kernel("k", (), tail)).body))
    if ramp(8) < 5:
      out[y, 0:8] = (a[0:16:2] if ramp(8) < 5 else 0) * b[y]
    """
    extents = {p.name: p.extents for p in kernel.params if isinstance(p, BufferParam)}
    return dataclasses.replace(
        kernel, body=_Vectorizer(extents, FreshNames(kernel)).statement(kernel.body, NO_FACTS)
    )


class _NotVectorizable(Exception):
    """Raised for a statement that has no vector form."""


class _Vectorizer:
    def __init__(self, extents: dict[str, tuple[Expr, ...]], fresh: FreshNames) -> None:
        self.extents, self.fresh = extents, fresh

    def statement(self, s: Stmt, facts: Facts) -> Stmt:
        match s:
            case For():
                loop = rebuilt(s, body=self.statement(s.body, facts_inside(facts, s)))
                if s.kind != VECTORIZED:
                    return loop
                inner = any(isinstance(x, For) and x.kind == VECTORIZED for x in walk(s.body))
                return rebuilt(loop, kind=SERIAL) if inner else self.loop(loop, facts)
            case Alloc(name, _, extents):
                self.extents[name] = extents
            case _:
                pass
        return map_parts(s, lambda part: self.statement(part, facts_inside(facts, s)))

    def loop(self, s: For, facts: Facts) -> Stmt:
        serial = rebuilt(s, kind=SERIAL)
        count = upper(s.extent, facts)
        if count is None or not 1 < count <= _MAX_LANES:
            return serial
        if not lanes_are_independent(rebuilt(s, extent=const(count)), facts):
            return serial
        try:
            return bind_loaded_bounds(s, self.fresh, lambda x: self.vectorize_loop(x, count, facts))
        except _NotVectorizable:
            return serial

    def vectorize_loop(self, s: For, count: int, facts: Facts) -> Stmt:
        body = s.body
        if not isinstance(s.extent, Const):
            place = subtract(Var(s.name), s.lo)
            body = If(Binary("lt", place, s.extent), body)
        whole = rebuilt(s, extent=const(count), body=body)
        known = facts_inside(facts, whole)
        vectors: dict[str, Expr] = {s.name: Ramp(s.lo, 1, count)}
        lanes = VectorLanes(s.name, s.lo, count, known, vectors, self.extents)
        return _VectorBody(lanes, self.fresh).statement(body)


class _VectorBody:
    """Replaces statements by vector code over all lanes."""

    def __init__(self, lanes: VectorLanes, fresh: FreshNames) -> None:
        self.lanes, self.fresh = lanes, fresh

    def statement(self, s: Stmt) -> Stmt:
        match s:
            case Store():
                return self.store(s)
            case Block(body):
                return sequence(map(self.statement, body))
            case If():
                return self.branch(s)
            case For(_, lo, extent):
                loop = rebuilt(s, lo=self.scalar(lo), extent=self.scalar(extent))
                inner = self.within(facts=facts_inside(self.lanes.facts, s)).statement(s.body)
                return inner if is_empty(inner) else rebuilt(loop, body=inner)
            case Alloc():
                return self.alloc(s)
            case Let():
                return self.let(s)
            case Prefetch(_, index):
                first = {self.lanes.name: self.lanes.lo}
                return rebuilt(s, index=tuple(self.scalar(substitute(i, first)) for i in index))
            case Check() | Print() | Invoke() | Barrier() | Shuffle() | Commit() | Wait():
                raise _NotVectorizable
            case InitBarriers() | WarpSpecialize() | ArriveBarrier() | WaitBarrier() | CopyTile():
                raise _NotVectorizable

    def within(self, **changes: object) -> _VectorBody:
        """The same with some fields of `lanes` changed, for a statement nested deeper in the loop."""
        lanes = dataclasses.replace(self.lanes, memo={}, **changes)  # type: ignore[arg-type]  # by name
        return _VectorBody(lanes, self.fresh)

    def scalar(self, e: Expr) -> Expr:
        wide = self.lanes.widen(e)
        if lanes_of(wide) > 1:
            raise _NotVectorizable
        return wide

    def store(self, s: Store) -> Stmt:
        lanes = self.lanes
        index = lanes.index(s.buffer, s.index)
        if all(lanes_of(i) == 1 for i in index):
            raise _NotVectorizable
        mask = lanes.mask
        if s.mask is not None:
            store_mask = lanes.widen_full(s.mask)
            mask = store_mask if mask is None else Binary("and", mask, store_mask)
        return rebuilt(s, index=index, value=lanes.widen_full(s.value), mask=mask)

    def branch(self, s: If) -> Stmt:
        lanes = self.lanes
        if loads_of(s.cond) & stored_in(s):
            # The branches must not change the memory that the condition reads.
            name = self.fresh.name("holds")
            return self.let(Let(name, s.cond, rebuilt(s, cond=Param(name, bool_))))
        tests = [(c, lanes.widen(c)) for c in conjuncts(s.cond)]
        same = [wide for _, wide in tests if lanes_of(wide) == 1]
        if s.orelse is not None and len(same) < len(tests):
            negated = simplify(Unary("not", s.cond))
            return sequence((self.branch(If(s.cond, s.then)), self.branch(If(negated, s.orelse))))
        inner = self
        if same:
            inner = self.within(facts=facts_where(lanes.facts, conjunction(same)))
        masks = [(c, wide) for c, wide in tests if lanes_of(wide) > 1]
        if masks:
            mask = inner.lanes.mask
            for _, wide in masks:
                mask = wide if mask is None else Binary("and", mask, wide)
            conditions = (*lanes.conditions, *(c for c, _ in masks))
            inner = inner.within(mask=mask, conditions=conditions)
        then = inner.statement(s.then)
        if not same:
            return then
        orelse = None if s.orelse is None else self.statement(s.orelse)
        return conditional(conjunction(same), then, orelse)

    def alloc(self, s: Alloc) -> Stmt:
        lanes = self.lanes
        extents = (*map(self.scalar, s.extents), const(lanes.count))
        strides = (*(step * lanes.count for step in s.strides), 1) if s.strides else ()
        inner = self.within(private=lanes.private | {s.name})
        body = inner.statement(s.body)
        return body if is_empty(body) else rebuilt(s, extents=extents, strides=strides, body=body)

    def let(self, s: Let) -> Stmt:
        """A let as vector code: an index that differs by lane is substituted, other values are stored."""
        lanes, t = self.lanes, dtype_of(s.value)
        wide = lanes.widen(s.value)
        if lanes_of(wide) == 1:
            body = self.within(facts=facts_inside(lanes.facts, s)).statement(s.body)
            return body if is_empty(body) else rebuilt(s, value=wide, body=body)
        if t == i64 and not loads_of(s.value):
            vectors = {**lanes.vectors, s.name: wide}
            return self.within(vectors=vectors, facts=facts_inside(lanes.facts, s)).statement(s.body)
        lane = (Ramp(const(0), 1, lanes.count),)
        vectors = {**lanes.vectors, s.name: Load(s.name, lane, t)}
        body = self.within(vectors=vectors).statement(s.body)
        kept = sequence((Store(s.name, lane, wide), body))
        return Alloc(s.name, t, (const(lanes.count),), REGISTER, kept, loc=s.loc)
