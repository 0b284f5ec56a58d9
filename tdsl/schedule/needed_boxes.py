"""The boxes of producers that a box of a consumer needs, when a group is computed inside the consumer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tdsl.lang.access_boxes import propagate, reads_of_func
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.definition import Definition
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, Interval
from tdsl.schedule.bounds_inference import box_with_updates, variable_ranges
from tdsl.schedule.state import State


def boxes_of_group(
    state: State, owner: str, box: Box, group: Iterable[str], facts: Facts = NO_FACTS
) -> dict[str, Box]:
    """What a box of `owner` needs of a group, consumers first, and of all that these read.

    All terms count, also those that masks exclude: another box, as that of the last rows, may need them.
    """
    funcs = (state.program.func(name) for name in (owner, *group))
    return with_boxes_read(funcs, {owner: box}, facts)


def with_boxes_read(
    funcs: Iterable[FuncDef], boxes: Mapping[str, Box], facts: Facts = NO_FACTS
) -> dict[str, Box]:
    """Boxes of funcs, consumers first, and of all that the funcs read."""

    def ranges_at(d: Definition, box: Box) -> dict[str, Interval]:
        return variable_ranges(d, box, facts)

    return propagate(
        funcs,
        boxes,
        lambda f, box: reads_of_func(f, box, ranges_at, facts),
        lambda f, box: box_with_updates(f, box, facts),
        facts,
    )
