"""The pieces of a range in which an update has one form, as updates of their own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

from tdsl.core.node import frozen, post_order
from tdsl.lang.affine import as_expr, variables
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, ZERO, Expr, Read, Var
from tdsl.lang.pieces import first_values, in_piece, is_point
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import nonpositive_sums
from tdsl.lang.simplify import maximum, minimum, subtract


@frozen
class Piece:
    """An update for first <= v < after; for all values of the range if these are None."""

    definition: Definition
    first: Expr | None = None
    after: Expr | None = None


def pieces_of(f: FuncDef, d: Definition, v: str, fixed: Collection[str]) -> list[Piece]:
    """The pieces, longer than a point, of a range of an update in loops over the `fixed` variables."""
    lo, hi = next((lo, hi) for name, lo, hi in d.ranges if name == v)
    if lo is None or hi is None:
        return [Piece(d)]
    facts = _facts_without(d, v)
    reads = [r.index for r in d.reads if r.name == f.name]

    def is_fixed(e: Expr) -> bool:
        return variables(e) <= {*fixed} and not any(isinstance(n, Read) for n in post_order(e))

    firsts = first_values(d.values, d.index, reads, v, facts, is_fixed)
    if not firsts:
        return [Piece(d)]
    ends = (lo, *firsts, hi)
    return [
        Piece(_in_piece(d, v, first, after, facts), first, after)
        for first, after in pairwise(ends)
        if not is_point(first, after)
    ]


def _facts_without(d: Definition, v: str) -> Facts:
    """The ranges of an update without `v`, each under those before it and the conditions on these."""
    facts, sums = NO_FACTS, list(nonpositive_sums(d.where))
    for name, lo, hi in d.ranges:
        if name == v or lo is None or hi is None or v in variables(lo) | variables(hi):
            continue
        last = subtract(hi, ONE)
        for s in sums:
            sign, rest = s.terms.get(Var(name), 0), as_expr(s.without(Var(name)))
            if variables(rest) <= facts.ranges.keys():
                lo = maximum(lo, rest) if sign == -1 else lo
                last = minimum(last, subtract(ZERO, rest)) if sign == 1 else last
        facts = facts.with_range(name, lo, last)
    return facts


def _in_piece(d: Definition, v: str, first: Expr, after: Expr, facts: Facts) -> Definition:
    def inside(e: Expr) -> Expr:
        return in_piece(e, v, first, after, facts)

    return replace(d, index=tuple(map(inside, d.index)), values=tuple(map(inside, d.values)))
