"""What a func needs of itself and of others, for the interpreter and the compiler alike.

    boxes = read_at(d, ranges)          what a definition reads where its variables run over ranges
    box = with_updates(f, box, ...)     a box of a func with all that its updates read and write of it

A condition is tested at the points at which those without reads hold; all else is read where every one does.
"""

from __future__ import annotations

from collections.abc import Callable

from tdsl.core.node import post_order
from tdsl.errors import IndexBoundError
from tdsl.lang.bounds import NOTHING, Facts
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import (
    Box,
    Interval,
    Ranges,
    box_of,
    boxes_at,
    common_box,
    is_empty,
    tighten,
    union_box,
)

RangesAt = Callable[[Definition, Box], dict[str, Interval]]


def read_at(
    d: Definition, ranges: Ranges, facts: Facts = NOTHING, writes: str = ""
) -> dict[str, Box]:
    """The boxes that a definition reads where its variables run over `ranges` and its conditions are true.

    The box that it writes is added to that of the func `writes`, if a name is given.
    """
    boxes: dict[str, Box] = {}
    if any(is_empty(r, facts) for r in ranges.values()):
        return boxes
    if d.where != TRUE:
        if d.tested:
            where, indices = d.tested
            ranges = tighten(ranges, where, facts)
            if any(is_empty(r, facts) for r in ranges.values()):
                return boxes
            boxes = boxes_at(indices, ranges, facts, where)
        ranges = tighten(ranges, d.where, facts)
        if any(is_empty(r, facts) for r in ranges.values()):
            return boxes
    for name, box in boxes_at(d.indices, ranges, facts, d.where).items():
        boxes[name] = union_box(boxes.get(name), box, facts)
    if writes:
        boxes[writes] = union_box(boxes.get(writes), box_of(d.index, ranges, facts, d.where), facts)
    return boxes


_MOST_NODES = (
    100  # ends of a box with more, of updates run on it time and again, hardly come to rest
)


def with_updates(
    f: FuncDef, box: Box, ranges_at: RangesAt, facts: Facts = NOTHING, most: Box | None = None
) -> Box:
    """The smallest box around `box` that contains what the updates of a func read and write of it, run on it.

    `ranges_at` gives the ranges of the variables of a definition on a box. `most` is such a box, though not
    the smallest: the result where the ends of smaller ones keep moving. IndexBoundError if there is none.
    """
    if len(f.definitions) == 1:
        return box
    before = box
    for widened in (False, True, True):
        for _ in range(2 * len(box) + 2):
            before, box = box, _grown(f, box, ranges_at, facts)
            if box == before:
                return box
            if most is not None and _nodes(box) > _MOST_NODES:
                return most
        # ends that still move are set to those of the indices on an unbounded box, then of the func
        moving = zip(box, before, strict=True)
        over = tuple((a if a == c else None, b if b == d else None) for (a, b), (c, d) in moving)
        box = _with_ends(over, f.limits) if widened else _grown(f, box, ranges_at, facts, over)
        if any(None in ends for ends in box):
            break
    if most is not None:
        return most
    raise IndexBoundError(
        f"the updates of {f.name!r} need an ever larger range of it",
        loc=f.loc,
        label="this definition",
        hint=f"declare its shape: {f.name}.with_shape(...)",
    )


def _grown(f: FuncDef, box: Box, ranges_at: RangesAt, facts: Facts, over: Box | None = None) -> Box:
    """The union of a box and what the updates of a func read and write of it when they run on the box.

    Or when they run on the box `over`, which may be unbounded: ends that are unbounded then are not moved.
    """
    for d in reversed(f.definitions[1:]):
        touched = read_at(d, ranges_at(d, over or box), facts, writes=f.name).get(f.name)
        if touched is None:
            continue
        if over is not None:
            touched = _with_ends(touched, box)
        box = union_box(box, common_box(touched, f.limits, facts) if f.declared else touched, facts)
    return box


def _nodes(box: Box) -> int:
    """The number of different nodes of the ends of a box."""
    return sum(1 for _ in post_order(*(end for ends in box for end in ends if end is not None)))


def _with_ends(box: Box, other: Box) -> Box:
    """The box with the ends of another in the place of those that are unbounded."""
    both = zip(box, other, strict=True)
    return tuple((a if lo is None else lo, b if hi is None else hi) for (lo, hi), (a, b) in both)
