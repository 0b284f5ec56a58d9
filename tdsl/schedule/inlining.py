"""Put the definition of every inlined func in the place of its reads."""

from __future__ import annotations

from dataclasses import replace

from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Read
from tdsl.lang.program import FuncDef
from tdsl.lang.simplify import substitute
from tdsl.node import Node, transform
from tdsl.schedule.nest import Inline, State


def inline_funcs(state: State) -> State:
    """The state without its inlined funcs: each read of one is its value at that index."""
    inlined: dict[str, Definition] = {}
    kept: list[FuncDef] = []

    def visit(n: Node) -> Node:
        return value_at(inlined[n.name], n) if isinstance(n, Read) and n.name in inlined else n

    for f in state.program.funcs:
        made = f.map_expressions(lambda e: transform(e, visit)) if inlined else f
        if isinstance(state.plan(f.name).place, Inline):
            inlined[f.name] = made.definitions[0]
        else:
            kept.append(made)
    if not inlined:
        return state
    plans = tuple((name, plan) for name, plan in state.plans if name not in inlined)
    program = replace(state.program, funcs=tuple(kept))
    return replace(state, program=program, plans=plans)


def is_inlined(state: State, name: str) -> bool:
    """True for a func without memory, whose values are made where they are read."""
    return state.program.has_func(name) and isinstance(state.plan(name).place, Inline)


def with_reads(state: State, func: str, source: str) -> State:
    """The state in which a func itself reads what it reads of a source through inlined funcs."""
    program, found, seen = state.program, [func], {func}
    for name in found:  # grows
        read = {r.name for d in program.func(name).definitions for r in d.reads}
        if name != func and source in read:
            own = inline_funcs(state).program.func(func)
            funcs = tuple(own if f.name == func else f for f in program.funcs)
            return replace(state, program=replace(program, funcs=funcs))
        new = [n for n in sorted(read - seen) if is_inlined(state, n)]
        found += new
        seen |= {*new}
    return state


def readers_of(state: State, func: str) -> tuple[FuncDef, ...]:
    """The funcs with loops that read a func, themselves or through inlined ones."""
    found: dict[str, FuncDef] = {}
    for f, _ in state.consumers(func):
        own = readers_of(state, f.name) if is_inlined(state, f.name) else (f,)
        found |= {g.name: g for g in own}
    return tuple(found.values())


def value_at(d: Definition, read: Read) -> Expr:
    """The value of a pure definition at the index of a read."""
    return substitute(d.values[read.component], dict(zip(d.free, read.index, strict=True)))
