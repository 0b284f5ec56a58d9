"""A pass that pads the rows of allocated memory to whole vectors, so that accesses need no masks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from math import prod

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.loops import Alloc, Kernel, Stmt, Store
from tdsl.codegen.ir.statements import exprs_of, map_exprs, map_parts, rebuilt, walk
from tdsl.codegen.passes.bound_loops import nonpositive_sums
from tdsl.core.node import map_children, post_order
from tdsl.lang.affine import AffineSum, as_expr, as_sum
from tdsl.lang.bounds import NO_FACTS, Facts, at_most
from tdsl.lang.expr import (
    ZERO,
    Binary,
    Broadcast,
    Const,
    Expr,
    Load,
    Ramp,
    Unary,
    Var,
    const,
    lanes_of,
)  # fmt: skip
from tdsl.lang.simplify import add, conjuncts, multiply

_LANE = "lane of a vector"  # a variable; no name of a loop has spaces
_MAX_PADDED = 1 << 16  # elements up to which padded memory may be more than twice as large


def pad_rows(kernel: Kernel) -> Kernel:
    """Drop masks that only disable lanes beyond the rows of allocated memory, and pad these rows.

    The padding is never used, so its contents are arbitrary: accumulators of partial tiles fill registers.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.types import f32
    >>> five = Binary("lt", Ramp(ZERO, 1, 8), Broadcast(const(5), 8))
    >>> row = (Ramp(ZERO, 1, 8),)
    >>> nest = Alloc("t", f32, (const(5),), "auto", Store("t", row, Load("a", row, f32, five), five))
    >>> print(show(pad_rows(Kernel("k", (), nest)).body))
    t = alloc(f32, [8])  # auto
    t[0:8] = a[0:8] if ramp(8) < 5 else 0
    """
    lanes = _most_lanes(kernel.body)
    return dataclasses.replace(kernel, body=_RowPadder(lanes, {}, NO_FACTS).statement(kernel.body))


@dataclass(slots=True)
class _Row:
    """The last extent of an allocation, without and with padding, and whether the padding is needed."""

    extent: int
    padded: int
    needed: bool = False


@dataclass(slots=True)
class _RowPadder:
    """The rows of the enclosing allocations, and the facts at a statement; `lanes` is from `_most_lanes`."""

    lanes: dict[str, int]
    rows: dict[str, _Row]
    facts: Facts
    memo: dict[Expr, Expr] = field(default_factory=dict)

    def statement(self, s: Stmt) -> Stmt:
        if isinstance(s, Alloc):
            return self.alloc(s)
        if not self.rows:
            return map_parts(s, _RowPadder(self.lanes, {}, facts_inside(self.facts, s)).statement)
        s = map_exprs(s, self.expr)
        if isinstance(s, Store) and self.fits_padding(s.buffer, s.index, s.mask):
            s = rebuilt(s, mask=None)
        facts = facts_inside(self.facts, s)
        inner = self if facts is self.facts else _RowPadder(self.lanes, self.rows, facts)
        return map_parts(s, inner.statement)

    def alloc(self, s: Alloc) -> Stmt:
        row = _padded_row(s, self.lanes.get(s.name, 0))
        rows = {name: r for name, r in self.rows.items() if name != s.name}
        if row is not None:
            rows[s.name] = row
        body = _RowPadder(self.lanes, rows, self.facts).statement(s.body)
        if row is None or not row.needed:
            return rebuilt(s, body=body)
        return rebuilt(s, body=body, extents=(*s.extents[:-1], const(row.padded)))

    def expr(self, e: Expr) -> Expr:
        memo = self.memo
        for n in post_order(e):
            if n in memo:
                continue
            new = map_children(n, memo.__getitem__)  # type: ignore[arg-type]  # of expressions
            if isinstance(new, Load) and self.fits_padding(new.buffer, new.index, new.mask):
                new = dataclasses.replace(new, mask=None)
            memo[n] = new  # type: ignore[index, assignment]  # as above
        return memo[e]

    def fits_padding(self, buffer: str, index: tuple[Expr, ...], mask: Expr | None) -> bool:
        """True if the mask holds for each lane in the row, and the other lanes fit in its padding."""
        row = self.rows.get(buffer)
        if row is None or mask is None or any(lanes_of(i) > 1 for i in index[:-1]):
            return False
        match index[-1]:
            case Ramp(base, 1, lanes):
                start = as_sum(base)
            case _:
                return False
        if any(n % lanes for n in (start.constant, *start.terms.values())):
            return False  # an unaligned vector might begin in one row and end in the next
        if not at_most(ZERO, base, self.facts):
            return False
        if not at_most(base, const(row.padded - lanes), self.facts):
            return False
        last = AffineSum({}, row.extent - 1).plus(start, -1)
        if not all(self.holds(c, last) for c in conjuncts(mask)):
            return False
        row.needed = True
        return True

    def holds(self, c: Expr, last: AffineSum) -> bool:
        """True if a condition on vector lanes certainly holds for the lanes 0, 1, ..., last."""
        one = _lane_expr(c)
        needs = [] if one is None else nonpositive_sums(one, _LANE)
        for need in needs:
            lane = Var(_LANE)
            times = need.terms.get(lane, 0)
            most = need.without(lane).plus(last, max(times, 0))
            if not at_most(as_expr(most), ZERO, self.facts):
                return False
        return bool(needs)


def _padded_row(s: Alloc, lanes: int) -> _Row | None:
    """The row of an allocation, padded to a multiple of `lanes`; None if that is needless or too large."""
    sizes = [int(e.value) for e in s.extents if isinstance(e, Const)]
    if s.strides or not sizes or len(sizes) < len(s.extents) or not lanes:
        return None
    padded = -(-sizes[-1] // lanes) * lanes
    size = prod(sizes[:-1]) * padded
    return _Row(sizes[-1], padded) if size <= max(2 * prod(sizes), _MAX_PADDED) else None


def _most_lanes(s: Stmt) -> dict[str, int]:
    """For each buffer, the number of lanes of its longest masked load or store."""
    most: dict[str, int] = {}
    for part in walk(s):
        if isinstance(part, Store) and part.mask is not None and part.index:
            most[part.buffer] = max(most.get(part.buffer, 0), lanes_of(part.index[-1]))
        for n in post_order(*exprs_of(part)):
            if isinstance(n, Load) and n.mask is not None and n.index:
                most[n.buffer] = max(most.get(n.buffer, 0), lanes_of(n.index[-1]))
    return most


def _lane_expr(e: Expr) -> Expr | None:
    """The scalar expression of the lane `_LANE` of a vector expression; None if it is not affine in it."""
    if lanes_of(e) == 1:
        return e
    match e:
        case Ramp(base, stride):
            return add(base, multiply(const(stride), Var(_LANE)))
        case Broadcast(x):
            return x
        case Binary(op, a, b):
            left, right = _lane_expr(a), _lane_expr(b)
            return None if left is None or right is None else Binary(op, left, right)
        case Unary("neg", a):
            inner = _lane_expr(a)
            return None if inner is None else Unary("neg", inner)
        case _:
            return None
