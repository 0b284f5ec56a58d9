"""How much of other funcs a range of iterations needs, whatever its size: boxes in terms of variables.

The boxes that one iteration needs are found once, by the region function; those of many iterations go from
the least of their first elements to the greatest of their last ones. A search asks for hundreds of tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from tdsl.lang.affine import as_sum, variables
from tdsl.lang.bounds import NOTHING, upper
from tdsl.lang.expr import Expr, Size, Var, const
from tdsl.lang.regions import Box, Interval
from tdsl.lang.simplify import simplify
from tdsl.node import Node, transform
from tdsl.schedule.nest import State
from tdsl.schedule.patterns.groups import boxes_within

SIZE = 1 << 12  # stands for a size that is not known
Values = Mapping[str, int]
Linear = tuple[int, tuple[tuple[str, int], ...]]  # a number, and factors of variables


@dataclass(frozen=True, slots=True)
class Reach:
    """What one iteration of an owner's variables `around` needs of a group and of what this reads.

    Each point of its other variables is computed in an iteration. `boxes` are in terms of `around`.

    >>> import tdsl as td
    >>> from tdsl.schedule.facts import rest_at_root, root_boxes
    >>> i, j = td.vars("i j")
    >>> x, f, g = td.Tensor("x", (100, 50), td.f32), td.Func("f"), td.Func("g", shape=(49, 50))
    >>> f[i, j] = td.exp(x[i, j])
    >>> g[i, j] = f[2 * i, j] + f[2 * i + 2, j]
    >>> state = rest_at_root(td.Schedule(g).state)
    >>> reach = Reach.of(state, "g", ("i", "j"), ["f"], root_boxes(state))
    >>> reach.extents("f", {"i": 4, "j": 0}, {"i": 7, "j": 15})
    (9, 16)
    """

    boxes: Mapping[str, Box]
    around: tuple[str, ...]
    moving: Mapping[
        str, tuple[tuple[str, ...], ...]
    ]  # the variables with which each dimension moves
    known: dict[object, int | None] = field(default_factory=dict, compare=False, repr=False)
    linear: dict[tuple[str, int], tuple[Linear, Linear] | None] = field(
        default_factory=dict, compare=False, repr=False
    )

    @staticmethod
    def of(
        state: State, owner: str, around: Iterable[str], group: Iterable[str],
        boxes: Mapping[str, Box],
    ) -> Reach:  # fmt: skip
        """The reach of an owner of which `boxes` are needed in all."""
        around, box, facts = tuple(around), list(boxes[owner]), NOTHING
        for axis, v in enumerate(state.program.func(owner).variables):
            lo, hi = box[axis]
            if v in around and lo is not None and hi is not None:
                facts = facts.knowing(point_of(v), lo, hi)
                box[axis] = (Var(point_of(v)), Var(point_of(v)))
        found = boxes_within(state, owner, tuple(box), group, facts)
        moving = {n: tuple(_moving(i, around) for i in b) for n, b in found.items()}
        return Reach(found, around, moving)

    def extents(self, name: str, first: Values, last: Values) -> tuple[int | None, ...]:
        """The extents of what iterations from the first to the last need; None where there are no bounds."""
        return tuple(self._length(name, axis, first, last) for axis in range(len(self.boxes[name])))

    def points(self, name: str, first: Values, last: Values) -> float:
        """As many points; infinitely many where there are no bounds."""
        total = 1.0
        for n in self.extents(name, first, last):
            total *= inf if n is None else n
        return total

    def _length(self, name: str, axis: int, first: Values, last: Values) -> int | None:
        ends = self._ends(name, axis)
        if ends is not None:
            (least, low), (most, high) = ends
            for v, k in low:
                least += k * (first[v] if k > 0 else last[v])
            for v, k in high:
                most += k * (last[v] if k > 0 else first[v])
            return max(most - least + 1, 0)
        at = tuple((v, first[v], last[v]) for v in self.moving[name][axis])
        key = (name, axis, at)
        if key not in self.known:
            lo, hi = self.boxes[name][axis]
            corners = list(_corners(at))
            lows = [None if lo is None else value(lo, c) for c in corners]
            highs = lows if lo == hi else [None if hi is None else value(hi, c) for c in corners]
            known = None not in lows and None not in highs
            least, most = min(n or 0 for n in lows), max(n or 0 for n in highs)
            self.known[key] = max(most - least + 1, 0) if known else None
        return self.known[key]

    def _ends(self, name: str, axis: int) -> tuple[Linear, Linear] | None:
        """Those of a box in one dimension, where both are sums of variables."""
        key = (name, axis)
        if key not in self.linear:
            lo, hi = (
                None if e is None else _linear(e, self.around) for e in self.boxes[name][axis]
            )
            self.linear[key] = None if lo is None or hi is None else (lo, hi)
        return self.linear[key]


def _linear(e: Expr, around: tuple[str, ...]) -> Linear | None:
    terms = as_sum(e).terms
    if not all(isinstance(x, Var | Size) for x in terms):
        return None
    own = [(v, Var(point_of(v))) for v in around]
    rest = value(e, {point_of(v): 0 for v in around})
    return rest or 0, tuple((v, terms[x]) for v, x in own if x in terms)


def _moving(interval: Interval, around: Iterable[str]) -> tuple[str, ...]:
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
