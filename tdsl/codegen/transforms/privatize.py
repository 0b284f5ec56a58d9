"""Privatisation: memory of which each thread of a block accesses a disjoint part becomes thread registers.

    for t in threads: s[8 * n + 4 * t + v] = ...      r[4 * n + v] = ...

The thread number is a digit of each index: index = high + step * t + low, where low is less than step
and high a multiple of step times the number of threads. Without this digit, it is the index of a register.

A single element that is computed outside of the loops over threads is computed by each thread, in a register.
"""

from __future__ import annotations

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
    loads_of,
    map_exprs,
    map_parts,
    parts_of,
    rebuilt,
    stored_in,
    walk,
)  # fmt: skip
from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.lang.affine import Sum, as_expr, as_sum, variables
from tdsl.lang.bounds import Facts, lower, upper
from tdsl.lang.expr import ONE, ZERO, Const, Expr, Load, Ramp, Var, const, lanes_of
from tdsl.lang.simplify import substitute

Index = tuple[Expr, ...]

_MOST_BYTES = 512  # of an allocation in the registers of one thread


class _Shared(Exception):  # for control flow: the allocation is left as it is
    """Raised if several threads access one element, or a thread's part does not fit in registers."""


def privatize(
    s: Alloc, facts: Facts, extents: Mapping[str, int], arrays: frozenset[str], fresh: FreshNames
) -> Alloc | None:
    """The allocation `s` around loops over threads as registers of each thread; None if threads share it.

    `extents` is the number of blocks and threads on each axis, `arrays` other memory that one thread has.
    """
    try:
        s = _without_ones(s)
        for axis in THREADS:
            if any(isinstance(x, For) and x.kind == axis and uses(x.body, s.name) for x in walk(s)):
                s = _Axis(s.name, axis, extents[axis], arrays, fresh).of(s, facts)
        return _unrolled(rebuilt(s, scope=REGISTER))
    except _Shared:
        return None


def uses(body: Stmt, name: str) -> bool:
    """True if a statement reads or writes the buffer `name`."""
    return name in stored_in(body) or any(
        name in loads_of(e) for s in walk(body) for e in exprs_of(s)
    )


@frozen
class _Place:
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
class _Axis:
    """Privatises the memory `name` along one thread axis with `count` threads."""

    name: str
    axis: str
    count: int
    arrays: frozenset[str]
    fresh: FreshNames

    def of(self, s: Alloc, facts: Facts) -> Alloc:
        """The memory without the digit of the axis in its indices, or computed by all threads of the axis."""
        at = _Place(facts)
        digits = {self.digit(index, place) for index, place in self.touched(s.body, at)}
        if digits == {None}:
            if prod(_extents(s)) != 1:
                raise _Shared
            return rebuilt(s, body=self.made_by_all(s.body, at))
        if len(digits) > 1:
            raise _Shared
        (digit,) = digits
        assert digit is not None
        shape = list(_extents(s))
        shape[digit.dim] = -(-shape[digit.dim] // (digit.step * self.count)) * digit.step
        return rebuilt(s, extents=tuple(map(const, shape)), body=self.rewritten(s.body, digit, at))

    def within(self, s: Stmt, at: _Place) -> _Place:
        """The place inside of a statement."""
        at = replace(at, facts=facts_inside(at.facts, s))
        match s:
            case Let(name, value) if not loads_of(value):
                return replace(at, lets={**at.lets, name: substitute(value, at.lets)})
            case For(name, lo, _, kind, _, merges) if kind == self.axis:
                if lo != ZERO:
                    raise _Shared
                into = any(self.name == result for result, _ in merges)
                return replace(at, thread=name, merges=into)
            case _:
                return at

    def touched(self, s: Stmt, at: _Place) -> Iterator[tuple[tuple[Expr, ...], _Place]]:
        """Every index at which the memory is accessed, with its place."""
        if isinstance(s, Invoke | Prefetch) and uses(s, self.name):
            raise _Shared
        if isinstance(s, Store) and s.buffer == self.name:
            yield s.index, at
        for n in post_order(*exprs_of(s)):
            if isinstance(n, Load) and n.buffer == self.name:
                yield n.index, at
        for part in parts_of(s):
            yield from self.touched(part, self.within(s, at))

    def digit(self, index: tuple[Expr, ...], at: _Place) -> _Digit | None:
        """The term of the thread number in an index; None without one."""
        found = []
        for dim, e in enumerate(index):
            for atom, step in _first(e, at).terms.items():
                if at.thread in variables(atom):
                    if atom != Var(at.thread) or step <= 0:
                        raise _Shared
                    found.append(_Digit(dim, step))
        if len(found) > 1:
            raise _Shared
        return found[0] if found else None

    def private(self, index: tuple[Expr, ...], digit: _Digit, at: _Place) -> tuple[Expr, ...]:
        """The index of the same element in the private memory of its thread."""
        e, step = index[digit.dim], digit.step
        whole = step * self.count
        total = _first(e, at).without(Var(at.thread))
        high = {atom: n for atom, n in total.terms.items() if n % whole == 0}
        low = Sum({a: n for a, n in total.terms.items() if n % whole}, total.constant % whole)
        least, most = lower(as_expr(low), at.facts), upper(as_expr(low), at.facts)
        beyond = e.stride * (e.lanes - 1) if isinstance(e, Ramp) else 0
        if least is None or most is None or least < 0 or not 0 <= beyond < step - most:
            raise _Shared
        of_high = Sum(high, total.constant - total.constant % whole).divided(whole).times(step)
        made = as_expr(of_high.plus(low))
        if isinstance(e, Ramp):
            made = replace(e, base=made)
        return (*index[: digit.dim], made, *index[digit.dim + 1 :])

    def rewritten(self, s: Stmt, digit: _Digit, at: _Place) -> Stmt:
        """`s` with its accesses to the memory at the indices of the thread's private part."""
        made = _indexed(s, self.name, lambda index: self.private(index, digit, at))
        return map_parts(made, lambda part: self.rewritten(part, digit, self.within(s, at)))

    def made_by_all(self, s: Stmt, at: _Place) -> Stmt:
        """`s` with each store to the memory run by all threads, into a private copy of each."""
        if isinstance(s, Store) and s.buffer == self.name:
            if at.merges:
                return s
            if at.thread or s.atomic or any(loads_of(e) & self.arrays for e in exprs_of(s)):
                raise _Shared
            thread = self.fresh.name(f"{self.name}_{self.axis[-1]}")
            return For(thread, ZERO, const(self.count), self.axis, s)
        inner = self.within(s, at)
        return map_parts(s, lambda part: self.made_by_all(part, inner))


def _without_ones(s: Alloc) -> Alloc:
    """The allocation with index 0 in its dimensions of extent 1, in place of variables that can only be 0."""
    one = [e == ONE for e in s.extents]

    def at(index: Index) -> Index:
        pairs = zip(index, one, strict=True)
        return tuple(ZERO if alone and lanes_of(e) == 1 else e for e, alone in pairs)

    def visited(x: Stmt) -> Stmt:
        return map_parts(_indexed(x, s.name, at), visited)

    return rebuilt(s, body=visited(s.body)) if any(one) else s


def _indexed(s: Stmt, name: str, change: Callable[[Index], Index]) -> Stmt:
    """`s` with `change` applied to its own indices of a buffer, and not to those of nested statements."""

    def moved(n: Node) -> Node:
        if isinstance(n, Load) and n.buffer == name:
            return replace(n, index=change(n.index))
        return n

    made = map_exprs(s, lambda e: transform(e, moved) if name in loads_of(e) else e)
    if isinstance(made, Store) and made.buffer == name:
        made = rebuilt(made, index=change(made.index))
    return made


def _extents(s: Alloc) -> tuple[int, ...]:
    return tuple(int(e.value) for e in s.extents if isinstance(e, Const))


def _first(e: Expr, at: _Place) -> Sum:
    """An index as a sum, of the first lane if it is a vector."""
    base = e.base if isinstance(e, Ramp) else e
    if lanes_of(base) > 1:
        raise _Shared
    return as_sum(substitute(base, at.lets))


def _unrolled(s: Alloc) -> Alloc:
    """The allocation with the loops over its indices unrolled, as registers need constant indices."""
    if prod(_extents(s)) * s.dtype.bytes > _MOST_BYTES:
        raise _Shared
    loops = {x.name: x for x in walk(s.body) if isinstance(x, For)}
    used: set[str] = set()
    for inner in walk(s.body):
        own = inner.index if isinstance(inner, Store) and inner.buffer == s.name else ()
        for n in post_order(*exprs_of(inner)):
            if isinstance(n, Load) and n.buffer == s.name:
                own = (*own, *n.index)
        used |= {v for e in own for v in variables(e)}
    for name in used:
        x = loops.get(name)
        if x is None or x.kind not in (SERIAL, UNROLLED) or not isinstance(x.extent, Const):
            raise _Shared

    def unrolled(x: Stmt) -> Stmt:
        x = map_parts(x, unrolled)
        return rebuilt(x, kind=UNROLLED) if isinstance(x, For) and x.name in used else x

    return rebuilt(s, body=unrolled(s.body)) if used else s
