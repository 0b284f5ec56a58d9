"""Adds funcs that directives create to a program, under unused names."""

from __future__ import annotations

import keyword
from dataclasses import replace

from tdsl.lang.program import FuncDef, Program
from tdsl.schedule.state import (
    FuncPlan,
    Illegal,
    State,
)  # fmt: skip


def fresh_name(program: Program, base: str) -> str:
    """`base`, or the first of base_1, base_2, ... that no func or input has."""
    used = {f.name for f in program.funcs} | {t.name for t in program.inputs}
    name, count = base, 0
    while name in used:
        count += 1
        name = f"{base}_{count}"
    return name


def new_name(program: Program, name: str | None, default: str) -> str:
    """The name of a new func: `name`, which must be unused, or an unused name derived from `default`."""
    if name is None:
        return fresh_name(program, default)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise Illegal(f"{name!r} is not a name", "use letters, digits and _, as in Python")
    if name != fresh_name(program, name):
        raise Illegal(f"there is already a func or input {name!r}", "choose another name")
    return name


def insert_func(state: State, before: str, f: FuncDef, plan: FuncPlan) -> State:
    """The state with a new func and its plan, inserted before the func `before`, which may read it."""
    at = next(n for n, g in enumerate(state.program.funcs) if g.name == before)
    funcs = (*state.program.funcs[:at], f, *state.program.funcs[at:])
    program = replace(state.program, funcs=funcs)
    return replace(state, program=program, plans=(*state.plans, (f.name, plan)))


def replace_func(state: State, f: FuncDef) -> State:
    """The state with the func of the same name replaced by `f`."""
    funcs = tuple(f if g.name == f.name else g for g in state.program.funcs)
    return replace(state, program=replace(state.program, funcs=funcs))


def without_unread(state: State, names: set[str]) -> State:
    """The state without those funcs of `names` that nothing reads, repeatedly.

    Raises Illegal if another func is computed in the loops of a removed one.
    """
    program = state.program
    read = frozenset[str]().union(*(d.sources for f in program.funcs for d in f.definitions))
    gone = {n for n in names if program.has_func(n)} - read - {*program.outputs}
    if not gone:
        return state
    for name in gone:
        for other in {*state.placed_in.get(name, ())} - gone:
            raise Illegal(
                f"{other!r} has its place in the loops of {name!r}, which is not needed any more",
                "give this directive first",
            )
    funcs = tuple(f for f in program.funcs if f.name not in gone)
    plans = tuple((n, plan) for n, plan in state.plans if n not in gone)
    return without_unread(replace(state, program=replace(program, funcs=funcs), plans=plans), names)
