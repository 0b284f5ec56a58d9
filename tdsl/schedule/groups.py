"""Which funcs can be computed inside the rows of the func that reads them, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tdsl.lang.affine import variables
from tdsl.lang.bounds import NOTHING
from tdsl.lang.expr import Var, const
from tdsl.lang.regions import Box, boxes_of, is_empty, union_box
from tdsl.lang.simplify import subtract
from tdsl.schedule.facts import extents, volume
from tdsl.schedule.nest import State
from tdsl.schedule.required import definition_ranges

NEAR = 1 << 20  # bytes of intermediates that are worth keeping near


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


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Funcs (consumers first) of which each row of their owner needs other points.

    `count` is the number of rows where it is known, `boxes` are those that one row needs, also of the
    owner and of what the funcs read. `size` is the bytes of a row of all funcs, None where it is not known;
    `again` says how often each point is computed if each row is apart.
    """

    owner: str
    row: str
    count: int | None
    inside: tuple[str, ...]
    boxes: Mapping[str, Box]
    size: int | None
    again: float

    def is_apart(self) -> bool:
        """True when the rows share no points, and what one needs stays near."""
        return self.size is not None and self.size <= NEAR and self.again <= 1.1


def row_group(state: State, owner: str, group: list[str], boxes: dict[str, Box]) -> RowGroup | None:
    """What of a group can be computed in the rows of its owner, which are its first variable's."""
    f = state.program.func(owner)
    sizes = extents(f, f.definitions[0], boxes[owner])
    row = next((v for v in f.variables if (sizes[v] or 2) > 1), None)
    if row is None:
        return None
    near = boxes_of_rows(state, owner, row, group, boxes, 1)
    inside = [n for n in group if n in near and n in boxes and moves(near[n])]
    # a func that the rest reads from outside would be read before it is made
    inside = [n for n in inside if {c.name for c, _ in state.consumers(n)} <= {owner, *inside}]
    if not inside:
        return None
    size, again = _price(state, inside, near, boxes, sizes[row])
    return RowGroup(owner, row, sizes[row], tuple(inside), near, size, again)


def boxes_of_rows(
    state: State, owner: str, row: str, group: list[str], boxes: dict[str, Box], rows: int
) -> dict[str, Box]:
    """What is needed of a group for some rows of its owner, in terms of the first of them."""
    f = state.program.func(owner)
    axis = f.variables.index(row)
    box = list(boxes[owner])
    first = Var("row")
    box[axis] = (first, subtract(first, const(1 - rows)))
    found: dict[str, Box] = {owner: tuple(box)}
    for name in [owner, *group]:
        if name not in found:
            continue
        g = state.program.func(name)
        for d in g.definitions:
            ranges = definition_ranges(g, d, found[name], NOTHING)
            if any(is_empty(r) for r in ranges.values()):
                continue
            for source, touched in boxes_of(d.expressions(), ranges, NOTHING, d.where).items():
                if source != name:
                    found[source] = union_box(found.get(source), touched)
    return found


def moves(box: Box) -> bool:
    """True for a box of `boxes_of_rows` that is another one for another row."""
    return any(
        lo is not None and hi is not None and ("row" in variables(lo) or "row" in variables(hi))
        for lo, hi in box
    )


def _price(
    state: State, inside: list[str], near: dict[str, Box], boxes: dict[str, Box], rows: int | None
) -> tuple[int | None, float]:
    """(bytes of a row of all funcs inside, how often each point is computed if each row is apart)."""
    size, points, whole = 0, 0, 0
    for name in inside:
        f = state.program.func(name)
        n, total = volume(near[name]), volume(boxes[name])
        if n is None:
            return None, 0.0
        size += n * sum(t.bytes for t in f.dtypes)
        points += n * (rows or 1)
        whole += total if total is not None else n * (rows or 1)
    return size, points / max(whole, 1)
