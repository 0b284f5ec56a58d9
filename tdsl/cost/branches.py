"""How often a read is done that conditions on indices choose, as where arrays are concatenated.

Each iteration of some loops makes its reads in the part of them in which these may hold. What a condition on
data chooses is read always.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tdsl.core.node import Node, children, frozen, post_order, pre_order, transform
from tdsl.lang.bounds import lower, upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, Binary, Const, Expr, Read, Select, const
from tdsl.lang.program import map_expressions
from tdsl.lang.regions import Box, Interval, Ranges, box_of, reads_in, restrict_ranges
from tdsl.lang.simplify import add, conjuncts, subtract

_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_MOST = 5000  # parts, each under its conditions; beyond them, conditions on shared parts are not followed
Branches = dict[str, tuple["Branch", ...]]


@frozen
class Subrange:
    """So many values of a variable, from a first one on, of so many."""

    first: int
    count: int
    whole: int


@frozen
class Branch:
    """A read at an index that is done in `subranges` of some variables only."""

    index: tuple[Expr, ...]
    subranges: Mapping[str, Subrange]

    def part(self, ranges: Ranges) -> float:
        """In which part of the iterations over such ranges of the variables it is done.

        >>> branch = Branch((), {"c": Subrange(0, 16, 64)})
        >>> [branch.part({"c": (const(0), const(n - 1))}) for n in (1, 16, 32)]
        [0.25, 0.25, 0.5]
        """
        fraction = 1.0
        for v, h in self.subranges.items():
            fraction *= min(max(_count(ranges[v]) or h.whole, h.count) / h.whole, 1.0)
        return fraction

    def box(self, ranges: Ranges) -> Box:
        """What is read in an iteration that makes the read, where others have such ranges."""
        inside = dict(ranges)
        for v, h in self.subranges.items():
            n = min(_count(ranges[v]) or h.count, h.count)
            inside[v] = const(h.first), const(h.first + max(n, 1) - 1)
        return box_of(self.index, inside)


def branches_of(d: Definition, ranges: Ranges) -> Branches:
    """The reads of what a definition reads in branches alone, whose variables run over ranges.

    >>> import tdsl as td
    >>> from tdsl.lang.expr import ZERO, const
    >>> i, f = td.vars("i"), td.Func("f", shape=(12,))
    >>> a, b, c = (td.Tensor(n, (12,), td.f32) for n in "abc")
    >>> f[i] = td.where(i < 4, a[i], b[i]) * c[i]
    >>> (d,) = td.Schedule(f).program.func("f").definitions
    >>> for name, (branch,) in branches_of(d, {"i": (ZERO, const(11))}).items():
    ...     print(name, branch.subranges["i"])
    a Subrange(first=0, count=4, whole=12)
    b Subrange(first=4, count=8, whole=12)
    """
    branches: dict[str, list[Branch]] = {}
    always = {r.name for r in reads_in((*d.index, d.where))}
    for value in d.values:
        for read, where in _chosen(value, (), set()):
            subranges = _subranges(where, ranges)
            if subranges:
                branches.setdefault(read.name, []).append(Branch(read.index, subranges))
            else:
                always.add(read.name)
    return {name: tuple(several) for name, several in branches.items() if name not in always}


def _chosen(
    e: Expr, where: tuple[Expr, ...], seen: set[tuple[int, tuple[Expr, ...]]]
) -> Iterator[tuple[Read, tuple[Expr, ...]]]:
    """The reads of an expression, each with the conditions under which it is done."""
    if (id(e), where) in seen:
        return
    seen.add((id(e), where))
    if isinstance(e, Read):
        yield e, where
    if isinstance(e, Select) and len(seen) < _MOST and not any(reads_in((e.cond,))):
        yield from _chosen(e.yes, (*where, *conjuncts(e.cond)), seen)
        yield from _chosen(e.no, (*where, _not(e.cond)), seen)
        return
    for child in children(e):
        yield from _chosen(child, where, seen)  # type: ignore[arg-type]  # children of an Expr are Exprs


def _not(cond: Expr) -> Expr:
    if isinstance(cond, Binary) and cond.op in _OPPOSITE:
        return Binary(_OPPOSITE[cond.op], cond.left, cond.right)
    return TRUE


def _subranges(where: tuple[Expr, ...], ranges: Ranges) -> dict[str, Subrange]:
    """The values of the variables that some conditions limit."""
    inside = dict(ranges)
    for cond in where:
        inside = restrict_ranges(inside, cond)
    subranges = {}
    for v, all_ in ranges.items():
        count, most, (lo, _) = _count(inside[v]), _count(all_), inside[v]
        first = None if lo is None else lower(lo)
        if count is not None and most and count < most and first is not None:
            subranges[v] = Subrange(first, max(count, 0), most)
    return subranges


def _count(interval: Interval) -> int | None:
    lo, hi = interval
    return None if lo is None or hi is None else upper(add(subtract(hi, lo), ONE))


@functools.lru_cache(1 << 12)
def without_tests_of_indices(d: Definition) -> Definition:
    """A definition in which a select by a condition on indices is replaced by the longer of its two values.

    Loops are split where such conditions change, so that few vectors evaluate them. If the second value is
    a constant, as beyond edges, the select remains, with a true condition.
    """

    if not any(isinstance(n, Select) for n in pre_order(*d.values)):
        return d

    def chosen(n: Node) -> Node:
        if not isinstance(n, Select) or any(True for _ in reads_in((n.cond,))):
            return n
        if isinstance(n.no, Const):
            return replace(n, cond=TRUE)
        return max(n.yes, n.no, key=_length)

    return map_expressions(d, lambda e: transform(e, chosen))


def _length(e: Expr) -> int:
    return sum(1 for _ in post_order(e))
