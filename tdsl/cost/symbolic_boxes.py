"""How much of other funcs a range of iterations needs, whatever its size: boxes in terms of variables.

The boxes that one iteration needs are found once, by the region function; those of many iterations go from
the least of their first elements to the greatest of their last ones. A search asks for hundreds of tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from math import inf

from tdsl.core.node import Node, frozen, transform
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.bounds import NO_FACTS, Facts, upper
from tdsl.lang.expr import Expr, Size, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, Interval
from tdsl.lang.simplify import simplify
from tdsl.schedule.needed_boxes import boxes_of_group, with_boxes_read
from tdsl.schedule.state import State

SIZE = 1 << 12  # stands for a size that is not known
Values = Mapping[str, int]
Length = tuple[int, tuple[tuple[str, int, int], ...]]  # a number; factors of first and last values


@frozen
class SymbolicBoxes:
    """What one iteration of an owner's variables `around` needs of a group and of what this reads.

    Each point of its other variables is computed in an iteration. `boxes` are in terms of `around`.

    >>> import tdsl as td
    >>> from tdsl.schedule.properties import rest_at_root, root_boxes
    >>> i, j = td.vars("i j")
    >>> x, f, g = td.Tensor("x", (100, 50), td.f32), td.Func("f"), td.Func("g", shape=(49, 50))
    >>> f[i, j] = td.exp(x[i, j])
    >>> g[i, j] = f[2 * i, j] + f[2 * i + 2, j]
    >>> state = rest_at_root(td.Schedule(g).state)
    >>> boxes = SymbolicBoxes.of(state, "g", ("i", "j"), ["f"], root_boxes(state))
    >>> boxes.extents("f", {"i": 4, "j": 0}, {"i": 7, "j": 15})
    (9, 16)
    """

    boxes: Mapping[str, Box]
    around: tuple[str, ...]
    facts: Facts
    lengths: Mapping[str, tuple[Length | None, ...]]  # None where an end is not a sum of variables
    known: dict[object, int | None] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(
        state: State, owner: str, around: Iterable[str], group: Iterable[str],
        boxes: Mapping[str, Box],
    ) -> SymbolicBoxes:  # fmt: skip
        """The boxes of a group for an owner of which `boxes` are needed in all."""
        around, box, facts = tuple(around), list(boxes[owner]), NO_FACTS
        for axis, v in enumerate(state.program.func(owner).variables):
            lo, hi = box[axis]
            if v in around and lo is not None and hi is not None:
                facts = facts.with_range(point_of(v), lo, hi)
                box[axis] = (Var(point_of(v)), Var(point_of(v)))
        needed = boxes_of_group(state, owner, tuple(box), group, facts)
        return SymbolicBoxes(needed, around, facts, {n: _lengths(b, around) for n, b in needed.items()})

    def joined(self, f: FuncDef) -> SymbolicBoxes:
        """The boxes with one more func in the group, which no other one in it reads."""
        boxes = with_boxes_read((f,), self.boxes, self.facts)
        lengths = {
            n: self.lengths[n] if self.boxes.get(n) is b else _lengths(b, self.around)
            for n, b in boxes.items()
        }
        return replace(self, boxes=boxes, lengths=lengths)

    def extents(self, name: str, first: Values, last: Values) -> tuple[int | None, ...]:
        """The extents of what iterations from the first to the last need; None where there are no bounds."""
        extents: list[int | None] = []
        for axis, length in enumerate(self.lengths[name]):
            if length is None:
                extents.append(self._by_corners(self.boxes[name][axis], first, last))
                continue
            n, terms = length
            for v, low, high in terms:
                n += low * first[v] + high * last[v]
            extents.append(max(n, 0))
        return tuple(extents)

    def points(self, name: str, first: Values, last: Values) -> float:
        """As many points; infinitely many where there are no bounds."""
        total = 1.0
        for n in self.extents(name, first, last):
            total *= inf if n is None else n
        return total

    def _by_corners(self, interval: Interval, first: Values, last: Values) -> int | None:
        """The length of an interval whose ends are not sums of variables."""
        moving = moving_with(interval, self.around)
        at = tuple((v, first[v], last[v]) for v in moving)
        key = (interval, at)
        if key not in self.known:
            lo, hi = interval
            corners = list(_corners(at))
            lows = [None if lo is None else value(lo, c) for c in corners]
            highs = lows if lo == hi else [None if hi is None else value(hi, c) for c in corners]
            known = None not in lows and None not in highs
            least, most = min(n or 0 for n in lows), max(n or 0 for n in highs)
            self.known[key] = max(most - least + 1, 0) if known else None
        return self.known[key]


def _lengths(box: Box, around: tuple[str, ...]) -> tuple[Length | None, ...]:
    return tuple(_length(i, around) for i in box)


def _length(interval: Interval, around: tuple[str, ...]) -> Length | None:
    """That of an interval from its end for the first values of variables to that for the last, or back.

    None where an end is not a sum of variables.
    """
    lo, hi = interval
    if lo is None or hi is None:
        return None
    least, most = as_sum(lo), as_sum(hi)
    if not all(isinstance(x, Var | Size) for x in (*least.terms, *most.terms)):
        return None
    names: dict[Expr, str] = {Var(point_of(v)): v for v in around}
    n, terms = most.constant - least.constant + 1, dict[str, list[int]]()
    for sum_, sign in ((least, -1), (most, 1)):
        for x, k in sum_.terms.items():
            if x in names:  # the lower end is where what raises it has its first value
                factors = terms.setdefault(names[x], [0, 0])
                factors[(k > 0) == (sign > 0)] += sign * k
            else:
                n += sign * k * SIZE
    return n, tuple((v, low, high) for v, (low, high) in terms.items() if low or high)


def moving_with(interval: Interval, around: Iterable[str]) -> tuple[str, ...]:
    """The variables with which an interval moves."""
    used = {v for e in interval if e is not None for v in variables(e)}
    return tuple(v for v in around if point_of(v) in used)


def points_of(box: Box) -> float:
    """The points of a box that depends on sizes only; infinitely many where it has no bounds."""
    total = 1.0
    for lo, hi in box:
        ends = [None if e is None else value(e, {}) for e in (lo, hi)]
        total *= inf if None in ends else max((ends[1] or 0) - (ends[0] or 0) + 1, 0)
    return total


def _corners(at: tuple[tuple[str, int, int], ...]) -> Iterable[Values]:
    names = [point_of(v) for v, _, _ in at]
    ends = (dict.fromkeys((lo, hi)) for _, lo, hi in at)
    return (dict(zip(names, values, strict=True)) for values in itertools.product(*ends))


def point_of(variable: str) -> str:
    """The name of a variable's value in one iteration."""
    return f"one {variable}"  # no variable of a program has spaces


def value(e: Expr, values: Values) -> int | None:
    """An index with values for variables, and for sizes that are not known.

    >>> from tdsl.lang.expr import Binary
    >>> from tdsl.lang.simplify import add
    >>> value(add(Var("i"), Var("j")), {"i": 3, "j": 4})
    7
    >>> value(Binary("min", Binary("mod", add(Var("i"), const(1)), const(96)), Var("i")), {"i": 95})
    0
    """
    s = as_sum(e)
    if all(isinstance(x, Var | Size) for x in s.terms):
        known = ((k, values.get(x.name, SIZE)) for x, k in s.terms.items() if isinstance(x, Var))
        sizes = sum(k * SIZE for x, k in s.terms.items() if isinstance(x, Size))
        return s.constant + sizes + sum(k * n for k, n in known)

    def fixed(n: Node) -> Node:
        match n:
            case Var(name):
                return const(values.get(name, SIZE))
            case Size():
                return const(SIZE)
            case _:
                return n

    return upper(simplify(transform(e, fixed)))
