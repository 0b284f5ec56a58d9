"""Privatisation: memory of which each thread of a block accesses a disjoint part becomes thread registers.

    for t in threads: s[8 * n + 4 * t + v] = ...      r[4 * n + v] = ...

The thread number is a digit of each index: index = high + step * t + low, where low is less than step
and high a multiple of step times the number of threads. Without this digit, it is the index of a register.

A single element that is computed outside of the loops over threads is computed by each thread, in a register.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from math import prod

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    REGISTER,
    SERIAL,
    THREADS,
    UNROLLED,
    Alloc,
    For,
    Invoke,
    Let,
    Prefetch,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.statements import (
    exprs_of,
    inputs_of,
    loads_of,
    map_exprs,
    map_parts,
    parts_of,
    rebuilt,
    stored_in,
    walk,
)  # fmt: skip
from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.lang.affine import AffineSum, as_expr, as_sum, variables
from tdsl.lang.bounds import Facts, lower, upper
from tdsl.lang.expr import ONE, ZERO, Const, Expr, Load, Ramp, Var, const, lanes_of
from tdsl.lang.simplify import simplify, substitute

Index = tuple[Expr, ...]

_MAX_BYTES = 512  # bytes of an allocation in the registers of one thread


class _NotPrivate(Exception):  # for control flow: the allocation is left as it is
    """Raised if several threads access one element, or a thread's part does not fit in registers."""


def privatize(
    s: Alloc, facts: Facts, extents: Mapping[str, int], arrays: frozenset[str], fresh: FreshNames
) -> Alloc | None:
    """The allocation `s` around loops over threads as registers of each thread; None if threads share it.

    `extents` is the number of blocks and threads on each axis, `arrays` other memory that one thread has.
    """
    s = _drop_unit_dimensions(s)
    axes = [x.kind for x in walk(s) if isinstance(x, For) and x.kind in THREADS and uses(x.body, s.name)]
    for change in (lambda s: s, _as_one_dimension):
        with contextlib.suppress(_NotPrivate):
            private = change(s)
            for axis in (x for x in THREADS if x in axes):
                each = _AxisPrivatizer(s.name, axis, extents[axis], arrays, fresh)
                private = each.privatize(private, facts)
            return _unroll_indices(rebuilt(private, scope=REGISTER))
    return None


def uses(body: Stmt, name: str) -> bool:
    """True if a statement reads or writes the buffer `name`."""
    return name in stored_in(body) or name in inputs_of(body)


@frozen
class _Context:
    """The facts and lets at a statement; `thread` is the variable of the enclosing loop on the axis, or "".

    `merges` is True if this loop combines partial results into the memory.
    """

    facts: Facts
    lets: dict[str, Expr] = field(default_factory=dict)
    thread: str = ""
    merges: bool = False


@frozen
class _Digit:
    """The thread number in an index: it is a term with factor `step` in dimension `dim`."""

    dim: int
    step: int


@frozen
class _AxisPrivatizer:
    """Privatises the memory `name` along one thread axis with `count` threads."""

    name: str
    axis: str
    count: int
    arrays: frozenset[str]
    fresh: FreshNames

    def privatize(self, s: Alloc, facts: Facts) -> Alloc:
        """The memory without the digit of the axis in its indices, or computed by all threads of the axis."""
        ctx = _Context(facts)
        digits = {self.thread_digit(index, place) for index, place in self.accesses(s.body, ctx)}
        if digits == {None}:
            if prod(_extents(s)) != 1:
                raise _NotPrivate
            return rebuilt(s, body=self.computed_by_all(s.body, ctx))
        if len(digits) > 1:
            raise _NotPrivate
        (digit,) = digits
        assert digit is not None
        shape = list(_extents(s))
        shape[digit.dim] = -(-shape[digit.dim] // (digit.step * self.count)) * digit.step
        return rebuilt(s, extents=tuple(map(const, shape)), body=self.rewrite(s.body, digit, ctx))

    def within(self, s: Stmt, ctx: _Context) -> _Context:
        """The place inside of a statement."""
        ctx = replace(ctx, facts=facts_inside(ctx.facts, s))
        match s:
            case Let(name, value) if not loads_of(value):
                return replace(ctx, lets={**ctx.lets, name: substitute(value, ctx.lets)})
            case For(name, lo, _, kind, _, merges) if kind == self.axis:
                if lo != ZERO:
                    raise _NotPrivate
                into = any(self.name == result for result, _ in merges)
                return replace(ctx, thread=name, merges=into)
            case _:
                return ctx

    def accesses(self, s: Stmt, ctx: _Context) -> Iterator[tuple[tuple[Expr, ...], _Context]]:
        """Every index at which the memory is accessed, with its place."""
        if isinstance(s, Invoke | Prefetch) and uses(s, self.name):
            raise _NotPrivate
        if isinstance(s, Store) and s.buffer == self.name:
            yield s.index, ctx
        for n in post_order(*exprs_of(s)):
            if isinstance(n, Load) and n.buffer == self.name:
                yield n.index, ctx
        for part in parts_of(s):
            yield from self.accesses(part, self.within(s, ctx))

    def thread_digit(self, index: tuple[Expr, ...], ctx: _Context) -> _Digit | None:
        """The term of the thread number in an index; None without one."""
        terms = []
        for dim, e in enumerate(index):
            for atom, step in _first_lane(e, ctx).terms.items():
                if ctx.thread in variables(atom):
                    if atom != Var(ctx.thread) or step <= 0:
                        raise _NotPrivate
                    terms.append(_Digit(dim, step))
        if len(terms) > 1:
            raise _NotPrivate
        return terms[0] if terms else None

    def private_index(self, index: tuple[Expr, ...], digit: _Digit, ctx: _Context) -> tuple[Expr, ...]:
        """The index of the same element in the private memory of its thread."""
        e, step = index[digit.dim], digit.step
        whole = step * self.count
        total = _first_lane(e, ctx).without(Var(ctx.thread))
        high = {atom: n for atom, n in total.terms.items() if n % whole == 0}
        low = AffineSum({a: n for a, n in total.terms.items() if n % whole}, total.constant % whole)
        least, most = lower(as_expr(low), ctx.facts), upper(as_expr(low), ctx.facts)
        beyond = e.stride * (e.lanes - 1) if isinstance(e, Ramp) else 0
        if least is None or most is None or least < 0 or not 0 <= beyond < step - most:
            raise _NotPrivate
        of_high = AffineSum(high, total.constant - total.constant % whole).divided(whole).times(step)
        private = as_expr(of_high.plus(low))
        if isinstance(e, Ramp):
            private = replace(e, base=private)
        return (*index[: digit.dim], private, *index[digit.dim + 1 :])

    def rewrite(self, s: Stmt, digit: _Digit, ctx: _Context) -> Stmt:
        """`s` with its accesses to the memory at the indices of the thread's private part."""
        rewritten = _map_indices(s, self.name, lambda index: self.private_index(index, digit, ctx))
        return map_parts(rewritten, lambda part: self.rewrite(part, digit, self.within(s, ctx)))

    def computed_by_all(self, s: Stmt, ctx: _Context) -> Stmt:
        """`s` with each store to the memory run by all threads, into a private copy of each."""
        if isinstance(s, Store) and s.buffer == self.name:
            if ctx.merges:
                return s
            if ctx.thread or s.atomic or any(loads_of(e) & self.arrays for e in exprs_of(s)):
                raise _NotPrivate
            thread = self.fresh.name(f"{self.name}_{self.axis[-1]}")
            return For(thread, ZERO, const(self.count), self.axis, s)
        inner = self.within(s, ctx)
        return map_parts(s, lambda part: self.computed_by_all(part, inner))


def _drop_unit_dimensions(s: Alloc) -> Alloc:
    """The allocation with index 0 in its dimensions of extent 1, in place of variables that can only be 0."""
    one = [e == ONE for e in s.extents]

    def zero_index(index: Index) -> Index:
        pairs = zip(index, one, strict=True)
        return tuple(ZERO if alone and lanes_of(e) == 1 else e for e, alone in pairs)

    def visited(x: Stmt) -> Stmt:
        return map_parts(_map_indices(x, s.name, zero_index), visited)

    return rebuilt(s, body=visited(s.body)) if any(one) else s


def _as_one_dimension(s: Alloc) -> Alloc:
    """The allocation with one dimension: a number that was divided among dimensions is whole again."""
    shape = _extents(s)
    if sum(n != 1 for n in shape) < 2 or any(isinstance(x, Invoke | Prefetch) for x in walk(s.body)):
        raise _NotPrivate

    def whole(index: Index) -> Index:
        last = index[-1]
        total = as_sum(last.base if isinstance(last, Ramp) else last)
        for n, e in enumerate(index[:-1]):
            if lanes_of(e) > 1:
                raise _NotPrivate
            total = total.plus(as_sum(e).times(prod(shape[n + 1 :])))
        folded = simplify(as_expr(total))
        return (replace(last, base=folded) if isinstance(last, Ramp) else folded,)

    def visited(x: Stmt) -> Stmt:
        return map_parts(_map_indices(x, s.name, whole), visited)

    return rebuilt(s, body=visited(s.body), extents=(const(prod(shape)),), strides=(), layout=None)


def _map_indices(s: Stmt, name: str, change: Callable[[Index], Index]) -> Stmt:
    """`s` with `change` applied to its indices of a buffer, but not to those of nested statements."""

    def moved(n: Node) -> Node:
        if isinstance(n, Load) and n.buffer == name:
            return replace(n, index=change(n.index))
        return n

    mapped = map_exprs(s, lambda e: transform(e, moved) if name in loads_of(e) else e)
    if isinstance(mapped, Store) and mapped.buffer == name:
        mapped = rebuilt(mapped, index=change(mapped.index))
    return mapped


def _extents(s: Alloc) -> tuple[int, ...]:
    return tuple(int(e.value) for e in s.extents if isinstance(e, Const))


def _first_lane(e: Expr, ctx: _Context) -> AffineSum:
    """An index as a sum, of the first lane if it is a vector."""
    base = e.base if isinstance(e, Ramp) else e
    if lanes_of(base) > 1:
        raise _NotPrivate
    return as_sum(substitute(base, ctx.lets))


def _unroll_indices(s: Alloc) -> Alloc:
    """The allocation with the loops over its indices unrolled, as registers need constant indices."""
    if prod(_extents(s)) * s.dtype.bytes > _MAX_BYTES:
        raise _NotPrivate
    loops = {x.name: x for x in walk(s.body) if isinstance(x, For)}
    used: set[str] = set()
    for inner in walk(s.body):
        indices = inner.index if isinstance(inner, Store) and inner.buffer == s.name else ()
        for n in post_order(*exprs_of(inner)):
            if isinstance(n, Load) and n.buffer == s.name:
                indices = (*indices, *n.index)
        used |= {v for e in indices for v in variables(e)}
    for name in used:
        x = loops.get(name)
        if x is None or x.kind not in (SERIAL, UNROLLED) or not isinstance(x.extent, Const):
            raise _NotPrivate

    def unrolled(x: Stmt) -> Stmt:
        x = map_parts(x, unrolled)
        return rebuilt(x, kind=UNROLLED) if isinstance(x, For) and x.name in used else x

    return rebuilt(s, body=unrolled(s.body)) if used else s
