"""Stages whose values on whole tiles of fragments are defined, beyond the points that are needed."""

from __future__ import annotations

from tdsl.lang.bounds import Facts, upper
from tdsl.lang.definition import has_effects
from tdsl.lang.expr import ONE, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box
from tdsl.lang.simplify import add, simplify, subtract
from tdsl.schedule.fragment_layouts import layout_of_fragment
from tdsl.schedule.state import FRAGMENT, State


def is_total(state: State, name: str) -> bool:
    """True if a stage is defined everywhere: filled copies, and fragments that read such stages only."""
    if not state.program.has_func(name):
        return False
    f, plan = state.program.func(name), state.plan(name)
    if plan.filled:
        return True
    d = f.definitions[0]
    if plan.scope != FRAGMENT or len(f.definitions) > 1 or has_effects(d):
        return False
    return all(r.name != name and is_total(state, r.name) for r in d.reads)


def full_tile_box(state: State, f: FuncDef, box: Box, facts: Facts) -> Box:
    """The box of a stage, rounded up to whole tiles of its fragment if `is_total`."""
    if state.plan(f.name).scope != FRAGMENT or not is_total(state, f.name):
        return box
    layout = layout_of_fragment(state, f.name)
    intervals = list(box)
    for axis, step in enumerate(layout.shape if layout is not None else ()):
        lo, hi = intervals[axis]
        if lo is not None and hi is not None and step > 1:
            extent = upper(simplify(add(subtract(hi, lo), ONE), facts), facts)
            if extent is not None:
                intervals[axis] = lo, add(lo, const(-(-extent // step) * step - 1))
    return tuple(intervals)
