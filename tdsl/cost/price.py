"""The price of computing funcs inside the loops of another: how often each of their points is computed.

An iteration of these loops computes the box that it needs. Reads with gaps between them, such as a[i] and
a[j], or a[y] and a[H - 1 - y], need all that is between them; so may one that comes back at an edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, prod

from tdsl.cost.symbolic_boxes import SIZE, SymbolicBoxes, iteration_name, points_of, value
from tdsl.lang.expr import Expr
from tdsl.lang.regions import Box, Interval
from tdsl.schedule.properties import volume, work_per_point
from tdsl.schedule.sliding import sliding_axis
from tdsl.schedule.state import State

PLACES = (0.13, 0.37, 0.61, 0.83)  # of a loop, where iterations are looked at
SHIFT = 0.29  # between these places in one loop and in the next: they are on no diagonal
MOST_AGAIN = 2.5  # times each point may be computed: above, all of a func is better computed first


def too_expensive(
    state: State, owner: str, outer: Iterable[str], line: str, group: Iterable[str],
    boxes: dict[str, Box], height: int = 1,
) -> set[str]:  # fmt: skip
    """The funcs that are better computed first than in these loops, as `times_computed` takes them.

    Their points are computed too often, and that takes longer than the owner itself: so it does not for what
    is far smaller, such as the next level of a pyramid.
    """
    f = state.program.func(owner)
    owner_work = (volume(boxes[owner]) or 0) * work_per_point(f)
    dear = set()
    for name, n in times_computed(state, owner, outer, line, group, boxes, height).items():
        points, work = volume(boxes[name]), work_per_point(state.program.func(name))
        if n > MOST_AGAIN and (points is None or (n - 1) * points * work > owner_work):
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
    >>> from tdsl.schedule.properties import unplaced_at_root, root_boxes
    >>> i, j = td.vars("i j")
    >>> x, a, o = td.Tensor("x", (100,), td.f32), td.Func("a"), td.Func("o")
    >>> a[i] = td.exp(x[i])
    >>> o[i, j] = a[i] * a[j]
    >>> state = unplaced_at_root(td.Schedule(o).state)
    >>> times_computed(state, "o", (), "i", ["a"], boxes=root_boxes(state))
    {'a': 100.0}
    """
    around, f = (*outer, line), state.program.func(owner)
    runs = {v: boxes[owner][n] for n, v in enumerate(f.variables) if v in around}
    counts = {v: _count(runs[v]) for v in around}
    starts = {v: _first(runs[v][0]) for v in around}
    symbolic = SymbolicBoxes.of(state, owner, around, group, boxes)
    times: dict[str, float] = {}
    for name in group:
        if name not in symbolic.boxes or name not in boxes:
            continue
        several = height if sliding_axis(symbolic.boxes[name], iteration_name(line)) is not None else 1
        points = 0.0
        for weight, first in _iterations({**counts, line: counts[line] // several}):
            at = {v: starts[v] + n * (several if v == line else 1) for v, n in first.items()}
            last = {**at, line: at[line] + several - 1}
            points += weight * symbolic.points(name, at, last)
        points *= prod(counts[v] for v in around) / several
        once = points_of(boxes[name])
        times[name] = inf if inf in (points, once) else points / max(once, 1)
    return times


def _iterations(counts: Mapping[str, int]) -> list[tuple[float, dict[str, int]]]:
    """Iterations of some loops, each with the part of all that it stands for: ends of loops, and others."""
    interior = [
        {v: int((place + n * SHIFT) % 1 * count) for n, (v, count) in enumerate(counts.items())}
        for place in PLACES
    ]
    ends = [
        (1 / count, {**interior[n], v: end})
        for v, count in counts.items()
        if count > len(PLACES)
        for n, end in enumerate((0, count - 1))
    ]
    rest = max(1 - sum(weight for weight, _ in ends), 0.0) / len(interior)
    return [*((rest, first) for first in interior), *ends]


def _count(interval: Interval) -> int:
    n = points_of((interval,))
    return int(n) if 0 < n < inf else SIZE


def _first(lo: Expr | None) -> int:
    return 0 if lo is None else value(lo, {}) or 0
