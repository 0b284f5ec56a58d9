"""Which funcs can be computed inside the rows of the func that reads them."""

from __future__ import annotations

from tdsl.lang.affine import variables
from tdsl.lang.expr import Var, const
from tdsl.lang.regions import Box
from tdsl.lang.simplify import subtract
from tdsl.schedule.needed_boxes import boxes_of_group
from tdsl.schedule.state import State


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


def open_group(state: State, owner: str) -> list[str]:
    """The funcs without directives that are read by `owner` and each other only, consumers first."""
    return group_of(state, owner, {name for name, plan in state.plans if not plan.scheduled})


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
    return boxes_of_group(state, owner, tuple(box), group)


def moves(box: Box) -> bool:
    """True for a box of `boxes_of_rows` that is another one for another row."""
    return any(
        lo is not None and hi is not None and ("row" in variables(lo) or "row" in variables(hi))
        for lo, hi in box
    )
