"""The price of computing funcs inside the loops of another: how often each of their points is computed.

An iteration of these loops computes the box that it needs. Reads at places that lie apart, such as a[i] and
a[j], or a[y] and a[H - 1 - y], need all that is between them; so may one that comes back at an edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, prod

from tdsl.lang.bounds import NOTHING, upper
from tdsl.lang.expr import ONE, Expr, Size, Var, const
from tdsl.lang.regions import Box, Interval
from tdsl.lang.simplify import add, subtract
from tdsl.node import Node, transform
from tdsl.schedule.facts import volume
from tdsl.schedule.groups import boxes_within
from tdsl.schedule.nest import State
from tdsl.schedule.sliding import sliding_axis
from tdsl.schedule.streaming import work_of_a_point

PLACES = (0.13, 0.37, 0.61, 0.83)  # of a loop, where iterations are looked at
BESIDE = 0.29  # between these places in one loop and in the next: they are on no diagonal
MOST_AGAIN = 2.5  # times each point may be computed: above, all of a func is better computed first
SIZE = 1 << 12  # stands for a size that is not known


def too_dear(
    state: State, owner: str, outer: Iterable[str], line: str, group: Iterable[str],
    boxes: dict[str, Box], height: int = 1,
) -> set[str]:  # fmt: skip
    """The funcs that are better computed first than in these loops, as `times_computed` takes them.

    Their points are computed too often, and that takes longer than the owner itself: so it does not for what
    is far smaller, such as the next level of a pyramid.
    """
    f = state.program.func(owner)
    own = (volume(boxes[owner]) or 0) * work_of_a_point(f)
    dear = set()
    for name, n in times_computed(state, owner, outer, line, group, boxes, height).items():
        points, work = volume(boxes[name]), work_of_a_point(state.program.func(name))
        if n > MOST_AGAIN and (points is None or (n - 1) * points * work > own):
            dear.add(name)
    return dear


def times_computed(
    state: State, owner: str, outer: Iterable[str], line: str, group: Iterable[str],
    boxes: dict[str, Box], height: int = 1,
) -> dict[str, float]:  # fmt: skip
    """How often each point of some funcs is computed in the loop of an owner over `line`, inside `outer`.

    Every iteration computes the box that it needs. Of `height` lines each computes only what is new, where
    that slides forward along them. `boxes` are what the outputs need in all. What has no bounds is computed
    infinitely often.

    >>> import tdsl as td
    >>> from tdsl.schedule.facts import rest_at_root, root_boxes
    >>> i, j = td.vars("i j")
    >>> x, a, o = td.Tensor("x", (100,), td.f32), td.Func("a"), td.Func("o")
    >>> a[i] = td.exp(x[i])
    >>> o[i, j] = a[i] * a[j]
    >>> state = rest_at_root(td.Schedule(o).state)
    >>> times_computed(state, "o", (), "i", ["a"], boxes=root_boxes(state))
    {'a': 100.0}
    """
    around, f = (*outer, line), state.program.func(owner)
    runs = {v: boxes[owner][n] for n, v in enumerate(f.variables) if v in around}
    counts = {v: _length(runs[v], {}, {}) or SIZE for v in around}
    starts = {v: _first(runs[v][0]) for v in around}
    found: dict[str, float] = {}
    for name, box in _of_an_iteration(state, owner, around, group, boxes).items():
        several = height if sliding_axis(box, _name(line)) is not None else 1
        free = {**counts, line: counts[line] - several}
        points = 0.0
        for place in PLACES:
            first = {
                _name(v): starts[v] + int((place + n * BESIDE) % 1 * free[v])
                for n, v in enumerate(around)
            }
            last = {**first, _name(line): first[_name(line)] + several - 1}
            points += _points(box, first, last) / len(PLACES)
        points *= prod(counts[v] for v in around) / several
        once = _points(boxes[name], {}, {})
        found[name] = inf if inf in (points, once) else points / max(once, 1)
    return found


def _of_an_iteration(
    state: State, owner: str, around: Iterable[str], group: Iterable[str], boxes: dict[str, Box]
) -> dict[str, Box]:
    """What an iteration needs of the group, in terms of the variables around."""
    names, box, facts = list(group), list(boxes[owner]), NOTHING
    for axis, v in enumerate(state.program.func(owner).variables):
        lo, hi = box[axis]
        if v in around and lo is not None and hi is not None:
            facts = facts.knowing(_name(v), lo, hi)
            box[axis] = (Var(_name(v)), Var(_name(v)))
    found = boxes_within(state, owner, tuple(box), names, facts)
    return {name: found[name] for name in names if name in found and name in boxes}


def _name(variable: str) -> str:
    return f"one {variable}"  # no variable of a program has spaces


def _first(lo: Expr | None) -> int:
    return 0 if lo is None else upper(_with(lo, {})) or 0


def _points(box: Box, first: Mapping[str, int], last: Mapping[str, int]) -> float:
    """The points from where a box begins at the first values of variables to where it ends at the last."""
    total = 1.0
    for interval in box:
        n = _length(interval, first, last)
        total *= inf if n is None else max(n, 0)
    return total


def _length(interval: Interval, first: Mapping[str, int], last: Mapping[str, int]) -> int | None:
    lo, hi = interval
    if lo is None or hi is None:
        return None
    return upper(add(subtract(_with(hi, last), _with(lo, first)), ONE))


def _with(e: Expr, values: Mapping[str, int]) -> Expr:
    """An expression with values for variables, and for sizes that are not known."""

    def fixed(n: Node) -> Node:
        match n:
            case Var(name):
                return const(values.get(name, SIZE))
            case Size():
                return const(SIZE)
            case _:
                return n

    return transform(e, fixed)
