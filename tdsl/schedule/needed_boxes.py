"""The boxes of producers that a box of a consumer needs, when a group is computed inside the consumer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tdsl.lang.bounds import NOTHING, Facts
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, boxes_at, is_empty, union_box
from tdsl.schedule.bounds_inference import definition_ranges
from tdsl.schedule.state import State


def boxes_within(
    state: State, owner: str, box: Box, group: Iterable[str], facts: Facts = NOTHING
) -> dict[str, Box]:
    """What a box of `owner` needs of a group, consumers first, and of all that these read."""
    found: dict[str, Box] = {owner: box}
    for name in (owner, *group):
        found = with_reads_of(state.program.func(name), found, facts)
    return found


def with_reads_of(f: FuncDef, boxes: Mapping[str, Box], facts: Facts = NOTHING) -> dict[str, Box]:
    """Boxes, that of a func among them, together with what it reads for that; they where it is not needed.

    Terms that masks make nothing count: another box, as that of the last rows, may need them.
    """
    found = dict(boxes)
    if f.name not in found:
        return found
    found[f.name] = with_own_reads(f, found[f.name], facts)
    for d in f.definitions:
        ranges = definition_ranges(f, d, found[f.name], facts, every=True)
        if any(is_empty(r, facts) for r in ranges.values()):
            continue
        for source, touched in boxes_at(d.indices, ranges, facts, d.where).items():
            if source != f.name:
                found[source] = union_box(found.get(source), touched, facts)
    return found


def with_own_reads(f: FuncDef, box: Box, facts: Facts = NOTHING) -> Box:
    """A box of a func together with what its updates read of itself for it, as a scan does."""
    for d in f.definitions[1:]:
        ranges = definition_ranges(f, d, box, facts)
        if not any(is_empty(r, facts) for r in ranges.values()):
            own = boxes_at(d.indices, ranges, facts, d.where).get(f.name)
            box = box if own is None else union_box(box, own, facts)
    return box
