"""Which funcs can be computed inside the rows of the func that reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tdsl.lang.affine import variables
from tdsl.lang.bounds import NOTHING, Facts
from tdsl.lang.expr import Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, boxes_at, is_empty, union_box
from tdsl.lang.simplify import subtract
from tdsl.schedule.nest import State
from tdsl.schedule.required import definition_ranges


def group_of(state: State, owner: str, open_: set[str]) -> list[str]:
    """The open funcs that are read by `owner` and each other only, consumers first."""
    group: list[str] = []
    for f in reversed(state.program.funcs):
        if f.name == owner or f.name not in open_ or f.name in state.program.outputs:
            continue
        readers = {c.name for c, _ in state.consumers(f.name)}
        if readers and readers <= {owner, *group}:
            group.append(f.name)
    return group


def boxes_of_rows(
    state: State, owner: str, row: str, group: list[str], boxes: dict[str, Box], rows: int,
    outer: tuple[str, ...] = (),
) -> dict[str, Box]:  # fmt: skip
    """What is needed of a group for some rows of its owner, in terms of the first of them.

    The rows are those of one point of the variables `outer`.
    """
    f = state.program.func(owner)
    axis = f.variables.index(row)
    box = list(boxes[owner])
    for v in outer:
        box[f.variables.index(v)] = (Var(f"row of {v}"), Var(f"row of {v}"))
    first = Var("row")
    box[axis] = (first, subtract(first, const(1 - rows)))
    return boxes_within(state, owner, tuple(box), group)


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


def moves(box: Box) -> bool:
    """True for a box of `boxes_of_rows` that is another one for another row."""
    return any(
        lo is not None and hi is not None and ("row" in variables(lo) or "row" in variables(hi))
        for lo, hi in box
    )
