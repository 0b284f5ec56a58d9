"""What a func needs of itself and of others, for the interpreter and the compiler alike.

    boxes = read_at(d, ranges)          what a definition reads where its variables run over ranges
    box = with_updates(f, box, ...)     a box of a func with all that its updates read and write of it

A condition is tested at the points at which those without reads hold; all else is read where every one does.
"""

from __future__ import annotations

from collections.abc import Callable

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
    """The boxes that a definition reads where its variables run over `ranges`, no condition applied to these.

    With what it writes, of the func `writes`, where there is such a name.
    """
    found: dict[str, Box] = {}
    if any(is_empty(r, facts) for r in ranges.values()):
        return found
    if d.where != TRUE:
        if d.tested:
            where, indices = d.tested
            ranges = tighten(ranges, where, facts)
            if any(is_empty(r, facts) for r in ranges.values()):
                return found
            found = boxes_at(indices, ranges, facts, where)
        ranges = tighten(ranges, d.where, facts)
        if any(is_empty(r, facts) for r in ranges.values()):
            return found
    for name, box in boxes_at(d.indices, ranges, facts, d.where).items():
        found[name] = union_box(found.get(name), box, facts)
    if writes:
        found[writes] = union_box(found.get(writes), box_of(d.index, ranges, facts, d.where), facts)
    return found


def with_updates(f: FuncDef, box: Box, ranges_at: RangesAt, facts: Facts = NOTHING) -> Box:
    """A box of a func with all that its updates read and write of it when they run over the whole.

    `ranges_at` gives the ranges of the variables of a definition on a box. IndexBoundError where the updates
    need ever more of a func.
    """
    if len(f.definitions) == 1:
        return box
    before = box
    for widened in (False, True, True):
        for _ in range(2 * len(box) + 2):
            before, box = box, _grown(f, box, ranges_at, facts)
            if box == before:
                return box
        # ends that still move lie as far as indices reach from anywhere, or as there are elements
        moving = zip(box, before, strict=True)
        over = tuple((a if a == c else None, b if b == d else None) for (a, b), (c, d) in moving)
        box = _with_ends(over, f.limits) if widened else _grown(f, box, ranges_at, facts, over)
        if any(None in ends for ends in box):
            break
    raise IndexBoundError(
        f"the updates of {f.name!r} need an ever larger range of it",
        loc=f.loc,
        label="this definition",
        hint=f"declare its shape: {f.name}.with_shape(...)",
    )


def _grown(f: FuncDef, box: Box, ranges_at: RangesAt, facts: Facts, over: Box | None = None) -> Box:
    """A box with what the updates of a func read and write of it when they run over that.

    Or when they run `over` another, which may be unbounded: what has no bounds then adds nothing.
    """
    for d in reversed(f.definitions[1:]):
        own = read_at(d, ranges_at(d, over or box), facts, writes=f.name).get(f.name)
        if own is None:
            continue
        if over is not None:
            own = _with_ends(own, box)
        box = union_box(box, common_box(own, f.limits, facts) if f.declared else own, facts)
    return box


def _with_ends(box: Box, other: Box) -> Box:
    """A box in which the ends of another stand for those that are not known."""
    both = zip(box, other, strict=True)
    return tuple((a if lo is None else lo, b if hi is None else hi) for (lo, hi), (a, b) in both)
