"""The regions that definitions read and write, for the interpreter and the compiler alike.

    boxes = accessed_boxes(d, ranges)   the boxes that a definition reads for given ranges of its variables
    box = update_closure(f, box, ...)   a box of a func, extended by what its updates read and write of it
    boxes = propagate(funcs, boxes, ...)   from the boxes of consumers to those of producers

Conditions that read data are evaluated at the points where all conditions without reads hold; index and
values are evaluated where every condition holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tdsl.core.node import post_order
from tdsl.errors import IndexBoundError
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.definition import Definition
from tdsl.lang.expr import FALSE, TRUE, Const, Expr
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import (
    Box,
    Interval,
    Ranges,
    box_of,
    boxes_of,
    intersection_box,
    is_empty,
    reads_in,
    restrict_ranges,
    union_box,
)

RangesAt = Callable[[Definition, Box], dict[str, Interval]]


def accessed_boxes(
    d: Definition, ranges: Ranges, facts: Facts = NO_FACTS, writes: str = ""
) -> dict[str, Box]:
    """The boxes that a definition reads when its variables run over `ranges` and its conditions hold.

    If a name `writes` is given, the box that the definition writes is united with the box of that func.
    """
    if facts is not NO_FACTS or not all(isinstance(end, Const) for ends in ranges.values() for end in ends):
        return _accessed_boxes(d, ranges, facts, writes)
    key = writes, *ranges.items()
    known = d.known_boxes
    if key not in known:
        if len(known) >= _KNOWN:
            known.clear()
        known[key] = _accessed_boxes(d, ranges, facts, writes)
    return dict(known[key])


_KNOWN = 256  # boxes of a definition that are remembered


def _accessed_boxes(d: Definition, ranges: Ranges, facts: Facts, writes: str) -> dict[str, Box]:
    boxes: dict[str, Box] = {}
    if d.where == FALSE or any(is_empty(r, facts) for r in ranges.values()):
        return boxes
    if d.where != TRUE:
        if d.tested:
            where, indices = d.tested
            ranges = restrict_ranges(ranges, where, facts)
            if any(is_empty(r, facts) for r in ranges.values()):
                return boxes
            boxes = boxes_of(indices, ranges, facts, where)
        ranges = restrict_ranges(ranges, d.where, facts)
        if any(is_empty(r, facts) for r in ranges.values()):
            return boxes
    for name, box in boxes_of(d.indices, ranges, facts, d.where).items():
        boxes[name] = union_box(boxes.get(name), box, facts)
    if writes:
        boxes[writes] = union_box(boxes.get(writes), box_of(d.index, ranges, facts, d.where), facts)
    return boxes


def reads_of_func(f: FuncDef, box: Box, ranges_at: RangesAt, facts: Facts = NO_FACTS) -> dict[str, Box]:
    """The boxes of inputs and other funcs that all definitions of `f` read when it is computed on `box`."""
    boxes: dict[str, Box] = {}
    for d in f.definitions:
        for name, touched in accessed_boxes(d, ranges_at(d, box), facts).items():
            if name != f.name:
                boxes[name] = union_box(boxes.get(name), touched, facts)
    return boxes


def propagate(
    funcs: Iterable[FuncDef], boxes: Mapping[str, Box], reads: Callable[[FuncDef, Box], Mapping[str, Box]],
    computed: Callable[[FuncDef, Box], Box] | None = None, facts: Facts = NO_FACTS,
) -> dict[str, Box]:  # fmt: skip
    """The boxes, with those of all that `funcs`, consumers first, read: bounds inference over a program.

    `computed(f, box)` is the box on which a func is computed where `box` of it is needed, by default the
    same; `reads(f, box)` is what it then reads. Funcs without a box are not needed.
    """
    needed = dict(boxes)
    for f in funcs:
        if f.name in needed:
            box = needed[f.name] if computed is None else computed(f, needed[f.name])
            needed[f.name] = box
            for name, touched in reads(f, box).items():
                if name != f.name:
                    needed[name] = union_box(needed.get(name), touched, facts)
    return needed


def data_axes(index: tuple[Expr, ...]) -> tuple[int, ...]:
    """The dimensions whose index depends on data, and those whose index follows from the same variables.

    x[at[b, t], b, d]: 0 and 1
    """
    by_data = [n for n, e in enumerate(index) if any(True for _ in reads_in((e,)))]
    known = frozenset[str]().union(*(variables(index[n]) for n in by_data))
    if not by_data:
        return ()
    return tuple(n for n, e in enumerate(index) if n in by_data or (variables(e) and variables(e) <= known))


_MAX_NODES = 100  # nodes of a box's bounds beyond which the iteration of updates is taken not to converge


def update_closure(
    f: FuncDef, box: Box, ranges_at: RangesAt, facts: Facts = NO_FACTS, most: Box | None = None
) -> Box:
    """The smallest box around `box` with all elements that the func's updates read and write when run on it.

    It is a fixed point, computed with widening. `ranges_at` gives the ranges of a definition's variables on a
    box. `most` is such a box, though not the smallest: the result if the iteration does not converge;
    IndexBoundError if it does not and `most` is None.
    """
    if len(f.definitions) == 1:
        return box
    before = box
    for widened in (False, True, True):
        for _ in range(2 * len(box) + 2):
            before, box = box, _grow_box(f, box, ranges_at, facts)
            if box == before:
                return box
            if most is not None and _node_count(box) > _MAX_NODES:
                return most
        # widening: ends that still move are set to those on an unbounded box, then to the func's limits
        moving = zip(box, before, strict=True)
        over = tuple((a if a == c else None, b if b == d else None) for (a, b), (c, d) in moving)
        box = _replace_unbounded(over, f.limits) if widened else _grow_box(f, box, ranges_at, facts, over)
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


def _grow_box(f: FuncDef, box: Box, ranges_at: RangesAt, facts: Facts, over: Box | None = None) -> Box:
    """The union of a box and the boxes that a func's updates read and write of it when run on the box.

    If `over` is given, the updates run on `over`, which may be unbounded; ends that are then unbounded do not
    move.
    """
    for d in reversed(f.definitions[1:]):
        touched = accessed_boxes(d, ranges_at(d, over or box), facts, writes=f.name).get(f.name)
        if touched is None:
            continue
        if over is not None:
            touched = _replace_unbounded(touched, box)
        box = union_box(box, intersection_box(touched, f.limits, facts) if f.declared else touched, facts)
    return box


def _node_count(box: Box) -> int:
    """The number of distinct expression nodes in the ends of a box."""
    return sum(1 for _ in post_order(*(end for ends in box for end in ends if end is not None)))


def _replace_unbounded(box: Box, other: Box) -> Box:
    """The box with each unbounded end replaced by that of `other`."""
    both = zip(box, other, strict=True)
    return tuple((a if lo is None else lo, b if hi is None else hi) for (lo, hi), (a, b) in both)
