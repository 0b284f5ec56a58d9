"""The boxes of other funcs that iterations of a func need, as expressions of the func's variables.

The region function finds the boxes of one iteration once. The box of a range of iterations goes from the
least first element to the greatest last element of their boxes. A search asks for hundreds of ranges (tiles).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from math import inf

from tdsl.core.node import Node, frozen, transform
from tdsl.errors import IndexBoundError
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.bounds import NO_FACTS, Facts, upper
from tdsl.lang.expr import Expr, Size, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, Interval
from tdsl.lang.simplify import simplify
from tdsl.schedule.needed_boxes import boxes_of_group, with_boxes_read
from tdsl.schedule.state import State

SIZE = 1 << 12  # elements; assumed for an extent that is not known
Values = Mapping[str, int]
Length = tuple[int, tuple[tuple[str, int, int], ...]]  # constant; (variable, coefficient of first, of last)


@frozen
class SymbolicBoxes:
    """The boxes of a group's funcs, and of all that they read, for one iteration of an owner func.

    An iteration fixes the variables `around` of the owner and runs over the whole ranges of its others; the
    `boxes` are expressions of `around`. `cache` has lengths by interval and range.

    >>> import tdsl as td
    >>> from tdsl.schedule.properties import unplaced_at_root, root_boxes
    >>> i, j = td.vars("i j")
    >>> x, f, g = td.Tensor("x", (100, 50), td.f32), td.Func("f"), td.Func("g", shape=(49, 50))
    >>> f[i, j] = td.exp(x[i, j])
    >>> g[i, j] = f[2 * i, j] + f[2 * i + 2, j]
    >>> state = unplaced_at_root(td.Schedule(g).state)
    >>> boxes = SymbolicBoxes.of(state, "g", ("i", "j"), ["f"], root_boxes(state))
    >>> boxes.extents("f", {"i": 4, "j": 0}, {"i": 7, "j": 15})
    (9, 16)
    """

    boxes: Mapping[str, Box]
    around: tuple[str, ...]
    facts: Facts
    lengths: Mapping[str, tuple[Length | None, ...]]  # None where an end is not affine
    cache: dict[object, int | None] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(
        state: State, owner: str, around: Iterable[str], group: Iterable[str],
        boxes: Mapping[str, Box],
    ) -> SymbolicBoxes:  # fmt: skip
        """The symbolic boxes of a group; `boxes` has what the whole program needs.

        An owner whose updates read what others of them write anywhere needs its whole range for each tile.
        """
        around, box, facts = tuple(around), list(boxes[owner]), NO_FACTS
        for axis, v in enumerate(state.program.func(owner).variables):
            lo, hi = box[axis]
            if v in around and lo is not None and hi is not None:
                facts = facts.with_range(iteration_name(v), lo, hi)
                box[axis] = (Var(iteration_name(v)), Var(iteration_name(v)))
        try:
            needed = boxes_of_group(state, owner, tuple(box), group, facts)
        except IndexBoundError:
            needed = boxes_of_group(state, owner, tuple(boxes[owner]), group, facts)
        return SymbolicBoxes(needed, around, facts, {n: _lengths(b, around) for n, b in needed.items()})

    def joined(self, f: FuncDef) -> SymbolicBoxes:
        """The boxes with one more func in the group, which reads none of it."""
        boxes = with_boxes_read((f,), self.boxes, self.facts)
        lengths = {
            n: self.lengths[n] if self.boxes.get(n) is b else _lengths(b, self.around)
            for n, b in boxes.items()
        }
        return replace(self, boxes=boxes, lengths=lengths)

    def extents(self, name: str, first: Values, last: Values) -> tuple[int | None, ...]:
        """The extents of the box that iterations `first` to `last` need; None where it is unbounded."""
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
        """The number of points of the box that iterations `first` to `last` need; inf if it is unbounded."""
        total = 1.0
        for n in self.extents(name, first, last):
            total *= inf if n is None else n
        return total

    def _by_corners(self, interval: Interval, first: Values, last: Values) -> int | None:
        """The length of an interval whose ends are not affine, from its ends at the corners of the range."""
        dependent = dependent_variables(interval, self.around)
        at = tuple((v, first[v], last[v]) for v in dependent)
        key = (interval, at)
        if key not in self.cache:
            lo, hi = interval
            corners = list(_corners(at))
            lows = [None if lo is None else value(lo, c) for c in corners]
            highs = lows if lo == hi else [None if hi is None else value(hi, c) for c in corners]
            bounded = None not in lows and None not in highs
            least, most = min(n or 0 for n in lows), max(n or 0 for n in highs)
            self.cache[key] = max(most - least + 1, 0) if bounded else None
        return self.cache[key]


def _lengths(box: Box, around: tuple[str, ...]) -> tuple[Length | None, ...]:
    return tuple(_length(i, around) for i in box)


def _length(interval: Interval, around: tuple[str, ...]) -> Length | None:
    """The length as an affine function of the first and last values of the variables.

    None if an end is not affine in variables and sizes.
    """
    lo, hi = interval
    if lo is None or hi is None:
        return None
    least, most = as_sum(lo), as_sum(hi)
    if not all(isinstance(x, Var | Size) for x in (*least.terms, *most.terms)):
        return None
    names: dict[Expr, str] = {Var(iteration_name(v)): v for v in around}
    n, terms = most.constant - least.constant + 1, dict[str, list[int]]()
    for sum_, sign in ((least, -1), (most, 1)):
        for x, k in sum_.terms.items():
            if x in names:  # a lower end is least at the first value if its coefficient is positive
                factors = terms.setdefault(names[x], [0, 0])
                factors[(k > 0) == (sign > 0)] += sign * k
            else:
                n += sign * k * SIZE
    return n, tuple((v, low, high) for v, (low, high) in terms.items() if low or high)


def dependent_variables(interval: Interval, around: Iterable[str]) -> tuple[str, ...]:
    """The variables of `around` on which an interval depends."""
    used = {v for e in interval if e is not None for v in variables(e)}
    return tuple(v for v in around if iteration_name(v) in used)


def points_of(box: Box) -> float:
    """The number of points of a box that depends on sizes only; inf if it is unbounded."""
    total = 1.0
    for lo, hi in box:
        ends = [None if e is None else value(e, {}) for e in (lo, hi)]
        total *= inf if None in ends else max((ends[1] or 0) - (ends[0] or 0) + 1, 0)
    return total


def _corners(at: tuple[tuple[str, int, int], ...]) -> Iterable[Values]:
    names = [iteration_name(v) for v, _, _ in at]
    ends = (dict.fromkeys((lo, hi)) for _, lo, hi in at)
    return (dict(zip(names, values, strict=True)) for values in itertools.product(*ends))


def iteration_name(variable: str) -> str:
    """The name that stands for the value of a variable in one iteration."""
    return f"one {variable}"  # no variable of a program has spaces


def value(e: Expr, values: Values) -> int | None:
    """An upper bound of an index for values of variables; other variables and sizes count as `SIZE`.

    >>> from tdsl.lang.expr import Binary
    >>> from tdsl.lang.simplify import add
    >>> value(add(Var("i"), Var("j")), {"i": 3, "j": 4})
    7
    >>> value(Binary("min", Binary("mod", add(Var("i"), const(1)), const(96)), Var("i")), {"i": 95})
    0
    """
    s = as_sum(e)
    if all(isinstance(x, Var | Size) for x in s.terms):
        terms = ((k, values.get(x.name, SIZE)) for x, k in s.terms.items() if isinstance(x, Var))
        sizes = sum(k * SIZE for x, k in s.terms.items() if isinstance(x, Size))
        return s.constant + sizes + sum(k * n for k, n in terms)

    def fixed(n: Node) -> Node:
        match n:
            case Var(name):
                return const(values.get(name, SIZE))
            case Size():
                return const(SIZE)
            case _:
                return n

    return upper(simplify(transform(e, fixed)))
