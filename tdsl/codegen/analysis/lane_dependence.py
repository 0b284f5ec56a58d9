"""Dependence analysis of a loop: may its iterations run in lockstep, statement by statement?"""

from __future__ import annotations

from collections.abc import Iterator

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.fresh_names import Renaming
from tdsl.codegen.ir.loops import Alloc, For, Let, Stmt, Store
from tdsl.codegen.ir.statements import exprs_of, loads_of, rebuilt, stored_in, walk
from tdsl.core.node import frozen, post_order
from tdsl.lang.affine import Sum, as_expr, as_sum, variables
from tdsl.lang.bounds import Facts, lower, upper
from tdsl.lang.expr import Binary, Const, Expr, Load, Var, const, dtype_of
from tdsl.lang.simplify import substitute
from tdsl.lang.types import i64

Index = tuple[Expr, ...]


def lanes_are_independent(loop: For, facts: Facts) -> bool:
    """True if it is proved that no iteration accesses an element that another one writes.

    Memory allocated in the loop is private to each iteration. The proof needs an axis of the indices on which
    the step of the loop's variable is larger than the variation of all other terms.

    >>> from tdsl.lang.bounds import NOTHING
    >>> from tdsl.lang.expr import ONE, ZERO, const
    >>> from tdsl.lang.types import i64
    >>> i = Var("i")
    >>> def alone(value):
    ...     loop = For("i", ZERO, const(8), "vectorized", Store("a", (i,), value))
    ...     return lanes_are_independent(loop, NOTHING)
    >>> alone(Load("a", (i,), i64)), alone(Load("a", (Binary("add", i, ONE),), i64))
    (True, False)
    """
    private = {s.name for s in walk(loop.body) if isinstance(s, Alloc)}
    written = stored_in(loop.body) - private
    if not written:
        return True
    pair = _IterationPair.create(loop, facts, written)
    stores: dict[str, dict[Index, None]] = {}
    touched: dict[str, dict[Index, None]] = {}
    for buffer, index, is_store in _accesses(loop.body, written):
        if any(loads_of(i) & written for i in index):
            return False
        touched.setdefault(buffer, {})[index] = None
        if is_store:
            stores.setdefault(buffer, {})[index] = None
    return all(
        pair.are_disjoint(store, other)
        for buffer, indices in stores.items()
        for store in indices
        for other in touched[buffer]
    )


def _accesses(s: Stmt, buffers: frozenset[str]) -> Iterator[tuple[str, Index, bool]]:
    """The buffer and index of each load and store of `buffers`, with True for a store."""
    for inner in walk(s):
        if isinstance(inner, Store) and inner.buffer in buffers:
            yield inner.buffer, inner.index, True
        for e in exprs_of(inner):
            if loads_of(e) & buffers:
                for n in post_order(e):
                    if isinstance(n, Load) and n.buffer in buffers:
                        yield n.buffer, n.index, False


@frozen
class _IterationPair:
    """Two iterations of a loop; the variables of the second one are renamed, and lets are expanded."""

    lane: str
    count: int
    facts: Facts
    second: Renaming
    lets: dict[str, Expr]

    @staticmethod
    def create(loop: For, facts: Facts, written: frozenset[str]) -> _IterationPair:
        assert isinstance(loop.extent, Const)
        bound = [loop, *(s for s in walk(loop.body) if isinstance(s, For | Let))]
        second = Renaming({s.name: Var(_primed(s.name)) for s in bound})
        lets: dict[str, Expr] = {}
        for s in bound:
            if isinstance(s, For):
                lo, extent = substitute(s.lo, lets), substitute(s.extent, lets)
                facts = facts_inside(facts, rebuilt(s, lo=lo, extent=extent))
                if s.name in facts.ranges:
                    lo, hi = facts.ranges[s.name]
                    facts = facts.knowing(_primed(s.name), second.expr(lo), second.expr(hi))
            elif dtype_of(s.value) == i64 and not loads_of(s.value) & written:
                lets[s.name] = substitute(s.value, lets)
        return _IterationPair(loop.name, int(loop.extent.value), facts, second, lets)

    def are_disjoint(self, a: Index, b: Index) -> bool:
        """True if two different iterations are proved never to have equal indices `a` and `b`."""
        first = [substitute(i, self.lets) for i in a]
        other = [self.second.expr(substitute(i, self.lets)) for i in b]
        axes = list(zip(first, other, strict=True))
        return any(self.indices_differ(x, y) for x, y in (*axes, *_fused_axes(axes)))

    def indices_differ(self, x: Expr, y: Expr) -> bool:
        match x, y:
            case Binary("mod", e, Const(k)), Binary("mod", f, Const(m)) if k == m > 0:
                return self.is_nonzero(as_sum(e).plus(as_sum(f), -1), int(k))
            case _:
                return self.is_nonzero(as_sum(x).plus(as_sum(y), -1), None)

    def is_nonzero(self, d: Sum, period: int | None) -> bool:
        """True if 0 < |d| < `period` (no limit for None) is proved for any two different lanes."""
        one, two = Var(self.lane), Var(_primed(self.lane))
        step = d.terms.get(one, 0)
        if step == 0 or d.terms.get(two, 0) != -step:
            return False
        rest = as_expr(d.without(one).without(two))
        unknown = [v for v in variables(rest) if v not in self.facts.ranges]
        if unknown:
            return False
        lo, hi = lower(rest, self.facts), upper(rest, self.facts)
        if lo is None or hi is None:
            return False
        largest_rest = max(abs(lo), abs(hi))
        span = abs(step) * (self.count - 1) + largest_rest
        return largest_rest < abs(step) and (period is None or span < period)


def _primed(name: str) -> str:
    return f"{name}'"


def _fused_axes(axes: list[tuple[Expr, Expr]]) -> Iterator[tuple[Expr, Expr]]:
    """For each two axes x // k and x % k, the x that they determine together."""
    for x, y in axes:
        match x, y:
            case Binary("mod", e, Const(k)), Binary("mod", f, Const(m)) if k == m > 0:
                if (Binary("floordiv", e, const(k)), Binary("floordiv", f, const(k))) in axes:
                    yield e, f
