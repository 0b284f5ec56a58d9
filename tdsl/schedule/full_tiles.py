"""Stages whose values on whole tiles of fragments or registers are defined, beyond the needed points."""

from __future__ import annotations

from dataclasses import replace

from tdsl.lang.affine import variables
from tdsl.lang.bounds import Facts, upper
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import ONE, Binary, Cast, Expr, Read, Select, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, Interval
from tdsl.lang.simplify import add, conjuncts, simplify, substitute, subtract
from tdsl.schedule.fragment_layouts import layout_of_fragment
from tdsl.schedule.inlining import is_inlined
from tdsl.schedule.state import FRAGMENT, REGISTER, State


def is_total(state: State, name: str) -> bool:
    """True for a stage defined everywhere: filled copies; fragments, registers and inlined funcs of these."""
    if not state.program.has_func(name):
        return False
    f, plan = state.program.func(name), state.plan(name)
    if plan.filled:
        return True
    d = f.definitions[0]
    is_local = plan.scope in (FRAGMENT, REGISTER) or is_inlined(state, name)
    if not is_local or len(f.definitions) > 1 or has_effects(d):
        return False
    return bool(d.reads) and all(r.name != name and is_total(state, r.name) for r in d.reads)


def total_stages(state: State) -> frozenset[str]:
    """The stages that are defined everywhere, whose tiles reach beyond what the program needs of them."""
    return frozenset(name for name, _ in state.plans if is_total(state, name))


def full_tile_box(state: State, f: FuncDef, box: Box, facts: Facts) -> Box:
    """The box of a stage, rounded up to whole tiles of its fragment or registers if `is_total`."""
    plan = state.plan(f.name)
    if plan.scope not in (FRAGMENT, REGISTER) or not is_total(state, f.name):
        return box
    layout = layout_of_fragment(state, f.name) if plan.scope == FRAGMENT else None
    steps = layout.shape if layout is not None else ()
    if plan.scope == REGISTER:  # a tile of registers has one shape, wherever an edge cuts it
        steps = tuple(_most(interval, facts) for interval in box)
    intervals = list(box)
    for axis, step in enumerate(steps):
        lo, hi = intervals[axis]
        if lo is not None and hi is not None and step > 1:
            extent = _most((lo, hi), facts)
            if extent:
                intervals[axis] = lo, add(lo, const(-(-extent // step) * step - 1))
    return tuple(intervals)


def _most(interval: Interval, facts: Facts) -> int:
    """The most points of an interval; 0 if that is not known."""
    lo, hi = interval
    if lo is None or hi is None:
        return 0
    return upper(simplify(add(subtract(hi, lo), ONE), facts), facts) or 0


def adds_zeros_beyond(state: State, d: Definition, at: Expr, end: Expr) -> bool:
    """True if the terms of a sum with `at >= end` are 0: all their factors read zeros of filled copies there.

    `at` is the index of an axis of each of these copies, such as Var("k"), and `end` is where their sources
    end along it. A factor that is not 0 could be infinite.
    """
    factors = factors_of(d)
    moving = [r for r in factors if any(variables(e) & variables(at) for e in r.index)]
    return bool(moving) and all(ends_in_zeros(state, r, at, end) for r in moving)


def factors_of(d: Definition) -> list[Read]:
    """The factors of a sum of products of reads, with or without casts; none of another definition."""
    if d.combine is None or d.combine.kind != "sum" or len(d.values) != 1:
        return []
    factors, stack = list[Read](), [*d.values]
    while stack:
        match stack.pop():
            case Binary("mul", left, right):
                stack += [left, right]
            case Cast(value):
                stack.append(value)
            case Read() as r:
                factors.append(r)
            case _:
                return []
    return factors


def ends_in_zeros(state: State, r: Read, at: Expr, end: Expr) -> bool:
    """True if a read is of a filled copy, with the index `at` on an axis whose source ends there.

    The source may be a filled copy in turn, which has the zeros.
    """
    if not state.program.has_func(r.name) or not state.plan(r.name).filled:
        return False
    copy = state.program.func(r.name).definitions[0]
    value, index = copy.values[0], dict(zip(copy.free, r.index, strict=False))
    if isinstance(value, Select):
        tests = [c for c in conjuncts(value.cond) if isinstance(c, Binary) and c.op == "le"]
        last = {(c.left, simplify(add(c.right, ONE))) for c in tests}
        if any(e == at and (copy.index[n], simplify(end)) in last for n, e in enumerate(r.index)):
            return True
        value = value.yes
    if not isinstance(value, Read):
        return False
    moved = replace(value, index=tuple(substitute(e, index) for e in value.index))
    return ends_in_zeros(state, moved, at, end)
