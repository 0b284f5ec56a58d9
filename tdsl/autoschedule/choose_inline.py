"""`choose_inline`: which funcs the default schedule inlines, and why."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from tdsl.autoschedule.explain import INLINE, Decision
from tdsl.autoschedule.open_stages import host_funcs
from tdsl.autoschedule.recipes.computed_operands import is_for_computed_tiles
from tdsl.lang.affine import variables
from tdsl.lang.expr import Const, Expr, Var
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.inlining import cost_with_inlined, inline_funcs
from tdsl.schedule.properties import has_effects, root_boxes, unplaced_at_root, volume
from tdsl.schedule.state import Inline, State

FEW_OPERATIONS = 6  # the most operations of a func that is recomputed at each of its reads


def choose_inline(state: State, *, products_read_values: bool = False) -> tuple[State, list[Decision]]:
    """The state with the place `Inline` for funcs that are worth inlining, and the decisions.

    With `products_read_values`, a factor of a sum of products that is computed from another func is not
    inlined, since matrix instructions read it from memory; the kernel of its producer may compute it.
    """
    hosts, decisions = host_funcs(state), list[Decision]()
    boxes = functools.cache(functools.partial(root_boxes, unplaced_at_root(state)))
    for f in state.program.funcs:
        plan = state.plan(f.name)
        if plan.scheduled or f.name in hosts or plan.place is not None or f.name in state.program.outputs:
            continue
        if len(f.definitions) > 1 or f.definitions[0].init is not None:
            continue
        if any(state.plan(c.name).bulk for c, _ in state.consumers(f.name)):
            continue  # its reader is a bulk copy, from memory
        if (products_read_values and _is_operand(state, f)) or _is_operand_of_several(state, f):
            continue
        reason = _why_inline(state, f, boxes)
        if reason:
            state = state.with_plan(f.name, replace(plan, place=Inline()))
            decisions.append(Decision(f.name, INLINE, why=(reason,)))
    return state, decisions


def _is_operand_of_several(state: State, f: FuncDef) -> bool:
    """True for a func that reads another func and is a factor of the terms of several sums.

    Each of them would compute it again for each of its rows or columns.
    """
    reads_funcs = any(state.program.has_func(r.name) for r in f.definitions[0].reads)
    sums = [
        c for c, n in state.consumers(f.name) if c.definitions[n].init and len({*c.definitions[n].reads}) > 1
    ]
    return reads_funcs and len(sums) > 1


def _is_operand(state: State, f: FuncDef) -> bool:
    """True for a func that reads another func and is a factor of the terms of a sum.

    Not if it is a few operations on values of rows or columns that tensor cores multiply computed in tiles.
    """
    reads_funcs = any(state.program.has_func(r.name) for r in f.definitions[0].reads)
    readers = [c for c, n in state.consumers(f.name) if c.definitions[n].init]
    if not reads_funcs or not any(len({*c.definitions[0].reads}) > 1 for c in readers):
        return False
    sums = {r.name for r in f.definitions[0].reads if {*map(Var, f.variables)} <= {*r.index}}
    if any(state.program.has_func(n) and state.program.func(n).definitions[0].init for n in sums):
        return True  # the epilogue of a product, whose results may have fewer bytes than the sums
    if arithmetic_of(f.definitions[0]) > FEW_OPERATIONS:
        return True
    inlined = inline_funcs(state.with_plan(f.name, replace(state.plan(f.name), place=Inline()))).program
    return not all(is_for_computed_tiles(inlined.func(c.name)) for c in readers)


def _why_inline(state: State, f: FuncDef, boxes: Callable[[], dict[str, Box]]) -> str:
    """The reason to inline a func, empty if there is none. `boxes()` returns the boxes of all funcs."""
    d = f.definitions[0]
    if has_effects(d):
        return ""
    light = arithmetic_of(d) <= 1 and cost_with_inlined(state, d, FEW_OPERATIONS) <= FEW_OPERATIONS
    sites, chosen = 0, False
    for c, n in state.consumers(f.name):
        reader = c.definitions[n]
        indices = {r.index for r in reader.reads if r.name == f.name}
        sites += _most_overlapping(indices)
        for index in indices:
            used = {v for e in index for v in variables(e)}
            if any(v not in used for v in reader.variables) and not light:
                return ""  # it would be recomputed for each value of the other variables
            if any(True for _ in reads_in(index)) and not light:
                if _is_larger(boxes(), c, f):
                    return ""  # a lookup table: elements are read several times
                chosen = True
    if light:
        return "it is one operation or less"
    if sites <= 1:
        return "it is read in one place"
    readers = list(state.consumers(f.name))
    if chosen and len(readers) == 1 and _is_larger(boxes(), f, readers[0][0], sites):
        return "data chooses few of its values"
    return ""


def _is_larger(boxes: dict[str, Box], f: FuncDef, other: FuncDef, times: int = 1) -> bool:
    """True if a func provably has more than `times` times the points of another."""
    points, others = (volume(boxes[g.name]) if g.name in boxes else 0 for g in (f, other))
    return others is not None and (points is None or points > times * others)


def _most_overlapping(indices: set[tuple[Expr, ...]]) -> int:
    """The most indices that may be the same element: those with different constants never are."""
    planes = Counter(tuple(e if isinstance(e, Const) else None for e in index) for index in indices)
    disjoint = len({tuple(e is None for e in plane) for plane in planes}) <= 1
    return max(planes.values(), default=0) if disjoint else len(indices)
