"""Checks that what ranks read of each tensor has bounds, so that it can be fetched.

f[i] = x[at[i]]                     refused if `at` is an input of 64-bit integers, unless x is routed
f[i] = x[td.clip(at[i], 0, n - 1)]  may read all of x
"""

from __future__ import annotations

from collections.abc import Iterable

from tdsl.communication.stages import Stage, intervals, required_boxes
from tdsl.errors import IndexBoundError
from tdsl.lang.definition import Definition
from tdsl.lang.regions import interval_where
from tdsl.lang.show import show_expr

HINT = "limit the index: td.clip(index, 0, n - 1), or check data when it runs: communicate(..., routed=True)"


def check_indices(stage: Stage) -> None:
    """IndexBoundError if an index of what a stage or its tasks read has no bounds."""
    if any(lo >= hi for lo, hi in stage.bounds.values()):
        return
    boxes = required_boxes(stage.func, stage.definition_index, stage.box_funcs, intervals(stage.bounds))
    unknown = [(name, axis) for name, box in boxes.items() for axis, ends in enumerate(box) if None in ends]
    for name, axis in unknown:
        if name == stage.name:
            continue
        definitions = (*stage.func.definitions, *(d for f in stage.box_funcs for d in f.definitions))
        _refuse(name, axis, definitions, stage)


def _refuse(name: str, axis: int, definitions: Iterable[Definition], stage: Stage) -> None:
    """Raise the IndexBoundError that names the first index of a tensor without bounds."""
    ranges = intervals(stage.bounds)
    for d in definitions:
        for r in d.reads:
            if r.name != name or not (d.variables and ranges.keys() >= {*d.variables}):
                continue
            if None in interval_where(r.index[axis], ranges, d.where):
                text = f"the index {show_expr(r.index[axis])} of {name!r} has no bounds"
                raise IndexBoundError(
                    text, loc=r.loc or d.loc, label=f"axis {axis} of this access", hint=HINT
                )
    raise IndexBoundError(
        f"what {stage.name!r} reads of {name!r} in axis {axis} has no bounds",
        loc=stage.func.loc, label="this func", hint=HINT,
    )  # fmt: skip
