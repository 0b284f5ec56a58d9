"""The boxes of producers that a box of a consumer needs, when a group is computed inside the consumer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, boxes_of, is_empty, union_box
from tdsl.schedule.bounds_inference import definition_ranges
from tdsl.schedule.state import State


def boxes_of_group(
    state: State, owner: str, box: Box, group: Iterable[str], facts: Facts = NO_FACTS
) -> dict[str, Box]:
    """What a box of `owner` needs of a group, consumers first, and of all that these read."""
    boxes: dict[str, Box] = {owner: box}
    for name in (owner, *group):
        boxes = with_boxes_read(state.program.func(name), boxes, facts)
    return boxes


def with_boxes_read(
    f: FuncDef, boxes: Mapping[str, Box], facts: Facts = NO_FACTS
) -> dict[str, Box]:
    """Boxes, that of a func among them, together with what it reads for that; they where it is not needed.

    Terms that masks make nothing count: another box, as that of the last rows, may need them.
    """
    needed = dict(boxes)
    if f.name not in needed:
        return needed
    needed[f.name] = with_self_reads(f, needed[f.name], facts)
    for d in f.definitions:
        ranges = definition_ranges(f, d, needed[f.name], facts, every=True)
        if any(is_empty(r, facts) for r in ranges.values()):
            continue
        for source, touched in boxes_of(d.indices, ranges, facts, d.where).items():
            if source != f.name:
                needed[source] = union_box(needed.get(source), touched, facts)
    return needed


def with_self_reads(f: FuncDef, box: Box, facts: Facts = NO_FACTS) -> Box:
    """A box of a func together with what its updates read of itself for it, as a scan does."""
    for d in f.definitions[1:]:
        ranges = definition_ranges(f, d, box, facts)
        if not any(is_empty(r, facts) for r in ranges.values()):
            self_read = boxes_of(d.indices, ranges, facts, d.where).get(f.name)
            box = box if self_read is None else union_box(box, self_read, facts)
    return box
