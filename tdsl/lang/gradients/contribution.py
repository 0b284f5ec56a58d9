"""`Contribution`: what one read of a tensor or func adds to the adjoint of the element that is read.

Of f[i, j] = sum(a[i, k] * b[k, j], axis=k), the read a[i, k] adds, for all i, j and k,

    adjoint of a[i, k]  +=  adjoint of f[i, j] * b[k, j]

`value_at` gives the same as a value of the adjoint at an element: sum(adjoint of f[i, j] * b[k, j], axis=j);
`scatter` as an update, where the index cannot be solved for the loop variables (`gather`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.core.source import Loc
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, Facts, at_most
from tdsl.lang.definition import Definition
from tdsl.lang.expr import (
    ONE,
    TRUE,
    ZERO,
    Binary,
    Call,
    Const,
    Expr,
    Param,
    Range,
    Read,
    Reduce,
    Select,
    Var,
    dtype_of,
)  # fmt: skip
from tdsl.lang.gradients.inverse import Inverse
from tdsl.lang.periodic import PADDINGS
from tdsl.lang.reduction import builtin_combiner
from tdsl.lang.regions import Box, Interval, interval_where, reads_in
from tdsl.lang.simplify import add, conjunction, conjuncts, simplify, substitute, subtract
from tdsl.lang.types import i64


class Boxes(dict[str, Box]):
    """The box of each tensor and func of which elements are needed, by name.

    `limits` has the range in which a func of the user may be read, if this is another one.
    """

    def __init__(self, boxes: Mapping[str, Box], limits: Mapping[str, Box]) -> None:
        dict.__init__(self, boxes)
        self.limits = {**limits}


@frozen
class Contribution:
    """adjoint of `target` += `value`, for all points of `ranges` where `where` and `cond` hold.

    `ranges` are inclusive. The conditions in `where` protect the reads of `value`; `cond` only selects.
    """

    target: Read | Param
    ranges: dict[str, Interval]
    where: Expr
    cond: Expr
    value: Expr

    def renamed(self, names: Mapping[str, str]) -> Contribution:
        """The contribution with other names of its loop variables."""
        to: dict[str, Expr] = {n: Var(m) for n, m in names.items()}
        return Contribution(
            substitute(self.target, to),  # type: ignore[arg-type]  # a read stays one
            {names[n]: i for n, i in self.ranges.items()},
            *(substitute(e, to) for e in (self.where, self.cond, self.value)),
        )

    @property
    def index(self) -> tuple[Expr, ...]:
        """The index of the target; a padded index is plain if `cond` implies that it is inside."""
        if isinstance(self.target, Param):
            return ()
        inside = {*conjuncts(self.cond)}
        return tuple(simplify(transform(e, lambda n: _unpadded(n, inside))) for e in self.target.index)


def _unpadded(n: Node, inside: set[Expr]) -> Node:
    match n:
        case Call("pad_edge", (e, extent)) if (
            Binary("le", ZERO, e) in inside and Binary("lt", e, extent) in inside
        ):
            return e
        case _:
            return n


def value_at(c: Contribution, inverse: Inverse, elements: Mapping[str, Interval], boxes: Boxes) -> Expr:
    """The value of a contribution at the points of an inverse, summed over the variables left.

    Reads are clamped to `boxes`, the boxes of all tensors and funcs, where a condition fails.
    """
    names = _plain_names(inverse.ranges, elements)
    to: dict[str, Expr] = {n: Var(m) for n, m in names.items()}
    ranges = {names[n]: i for n, i in inverse.ranges.items()}
    values = {n: substitute(v, to) for n, v in inverse.values.items()} | to
    facts = facts_of({**elements, **ranges})

    def at_element(e: Expr) -> Expr:
        return simplify(substitute(e, values), facts)

    where, cond = at_element(c.where), at_element(c.cond)
    guard = conjunction(substitute(g, to) for g in inverse.guards)
    if not ranges:
        where, cond = TRUE, conjunction((where, cond))
    safe = _SafeReads(elements, ranges, where, boxes)
    value, guard = safe.clamped(at_element(c.value)), safe.clamped(conjunction((guard, cond)))
    guard = conjunction((*safe.extents, guard))
    value = value if guard == TRUE else Select(guard, value, zero_of(value))
    return summed(value, ranges, where)


def zero_of(e: Expr) -> Const:
    """The zero of the type of an expression of floats."""
    return Const(0.0, dtype_of(e))


def summed(value: Expr, ranges: Mapping[str, Interval], where: Expr = TRUE) -> Expr:
    """The sum of a value over inclusive ranges, at the points where a condition holds."""
    if not ranges:
        return value
    axes = [as_range(n, i) for n, i in ranges.items()]
    axes[-1] = replace(axes[-1], where=None if where == TRUE else where)
    t = dtype_of(value)
    combine = builtin_combiner("sum", (t,))
    return Reduce("sum", tuple(axes), (value,), combine.exprs, combine.init, 0, t)


def as_range(name: str, interval: Interval) -> Range:
    """A variable with an inclusive range."""
    lo, hi = interval
    assert lo is not None
    assert hi is not None
    return Range(name, lo, add(hi, ONE))


def facts_of(ranges: Mapping[str, Interval]) -> Facts:
    """The ranges of variables as facts."""
    facts = NO_FACTS
    for name, (lo, hi) in ranges.items():
        if lo is not None and hi is not None:
            facts = facts.with_range(name, lo, hi)
    return facts


def _plain_names(ranges: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """The user's names of variables, numbered where they are taken."""
    names: dict[str, str] = {}
    for n in ranges:
        plain = n.partition(" ")[0].rstrip("'")
        names[n] = unused_name(plain, {*taken, *names.values()})
    return names


def unused_name(name: str, taken: Iterable[str]) -> str:
    """The name, with a number if it is taken."""
    count, result, taken = 0, name, {*taken}
    while result in taken:
        count += 1
        result = f"{name}_{count}"
    return result


def safe_reads(
    e: Expr, elements: Mapping[str, Interval], ranges: Mapping[str, Interval], where: Expr, boxes: Boxes
) -> Expr:
    """The expression with reads clamped to the boxes of their sources, unless they are proved inside."""
    return _SafeReads(elements, ranges, where, boxes).clamped(e)


class _SafeReads:
    """Clamps reads to the boxes of their sources, unless their indices are proved to be inside."""

    def __init__(
        self, elements: Mapping[str, Interval], ranges: Mapping[str, Interval], where: Expr,
        boxes: Boxes,
    ) -> None:  # fmt: skip
        self.elements, self.ranges = {*elements}, {**elements, **ranges}
        self.where, self.boxes, self.facts = where, boxes, facts_of(self.ranges)
        self.extents: dict[Expr, None] = {}  # conditions: that extents which are not known are not 0

    def clamped(self, e: Expr) -> Expr:
        """The expression with safe reads, also inside indices."""
        return transform(e, lambda n: self._read(n) if isinstance(n, Read) else n)

    def _read(self, n: Read) -> Read:
        box = self.boxes[n.name]
        limits = self.boxes.limits.get(n.name, box)
        axes = zip(n.index, box, limits, strict=True)
        return replace(n, index=tuple(self._index(e, i, most) for e, i, most in axes))

    def _index(self, e: Expr, interval: Interval, limits: Interval) -> Expr:
        lo, hi = interval
        if lo is None or hi is None:
            return e
        # the ranges of elements are inferred from reads as they are, without the condition
        where = TRUE if variables(e) & self.elements else self.where
        first, last = interval_where(e, self.ranges, where, self.facts)
        inside = first is not None and last is not None and at_most(lo, first) and at_most(last, hi)
        # a bare variable would have to agree with the extent of the source
        agrees = not isinstance(e, Var) or self.ranges.get(e.name) == limits
        if inside and agrees:
            return e
        extent = add(subtract(hi, lo), ONE)
        if not isinstance(extent, Const):
            self.extents[Binary("gt", extent, ZERO)] = None
        index = Call("pad_edge", (subtract(e, lo), extent), i64)
        return index if lo == ZERO else Binary("add", index, lo)


def scatter(c: Contribution, box: Box, boxes: Boxes, loc: Loc | None) -> Definition:
    """The update `adjoint[index] += value` that performs a contribution.

    A variable that is by itself an index and runs over whole axes, of `box` and of all that it indexes, is
    free; others are ranges.
    """
    c = c.renamed(_plain_names(c.ranges, ()))
    index = c.target.index if isinstance(c.target, Read) else ()
    written = [(e.name, i) for e, i in zip(index, box, strict=True) if isinstance(e, Var)]
    axes = [*written]
    for read in reads_in((c.value, c.where, c.cond, *index)):
        limits = boxes.limits.get(read.name, boxes[read.name])
        axes += [(e.name, i) for e, i in zip(read.index, limits, strict=True) if isinstance(e, Var)]
    free = [n for n in c.ranges if any(n == m for m, _ in written)]
    free = [n for n in free if all(i == c.ranges[n] for m, i in axes if m == n)]
    ranges = tuple(
        (r.name, r.lo, r.hi) for r in (as_range(n, i) for n, i in c.ranges.items() if n not in free)
    )
    value = c.value if c.cond == TRUE else Select(c.cond, c.value, zero_of(c.value))
    # a padding may be needed beyond an axis of which nothing is there
    extents = dict.fromkeys(n.args[1] for n in post_order(*index) if isinstance(n, Call) and n.fn in PADDINGS)
    some = (Binary("gt", n, ZERO) for n in extents if not isinstance(n, Const))
    where = conjunction((*some, c.where))
    combine = builtin_combiner("sum", (dtype_of(value),))
    return Definition(index, tuple(free), ranges, where, (value,), combine, None, loc)
