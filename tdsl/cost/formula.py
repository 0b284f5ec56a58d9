"""What a program costs, as formulas of its sizes."""

from __future__ import annotations

from typing import Any

from tdsl.core.node import frozen
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.symbolic import product
from tdsl.schedule.bounds_inference import bounds_of
from tdsl.schedule.properties import root_boxes, unplaced_at_root
from tdsl.schedule.state import State


@frozen
class Formula:
    """sympy expressions of the sizes of a program.

    `operations` counts arithmetic, each func computed once a point, with divisions and functions weighted
    as the default schedule weights them; `bytes` is every input read once and every output written once.
    """

    operations: Any
    bytes: Any

    @property
    def intensity(self) -> Any:
        """Operations a byte: below a machine's balance, memory decides the time."""
        return self.operations / self.bytes


def formula(state: State) -> Formula:
    """The formulas of the program of a state."""
    program = state.program
    boxes = root_boxes(unplaced_at_root(state))
    operations: Any = 0
    for f in program.funcs:
        if f.name in boxes:
            for d in f.definitions:
                extents = [extent for _, extent in bounds_of(f, d, boxes[f.name]).values()]
                operations += arithmetic_of(d) * product(extents)
    moved: Any = 0
    for t in program.inputs:
        moved += t.dtype.bytes * product(list(t.shape))
    for name in program.outputs:
        f = program.func(name)
        volume = product([extent for _, extent in f.output_box(None)])
        moved += sum(t.bytes for t in f.dtypes) * volume
    return Formula(operations, moved)
