"""Put the definition of every inlined func in the place of its reads; which a definition reads."""

from __future__ import annotations

from collections.abc import Iterable
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


def inlined_into(state: State, definitions: Iterable[Definition]) -> tuple[Definition, ...]:
    """The definitions of the inlined funcs that some definitions read, themselves or through others."""
    found: dict[str, Definition] = {}
    queue = [*definitions]
    for d in queue:  # grows
        for name in sorted({r.name for r in d.reads} - {*found}):
            if is_inlined(state, name):
                found[name] = state.program.func(name).definitions[0]
                queue.append(found[name])
    return tuple(found.values())


def with_reads(state: State, func: str, source: str) -> State:
    """The state in which a func itself reads what it reads of a source through inlined funcs."""
    program = state.program
    inside = inlined_into(state, program.func(func).definitions)
    if not any(r.name == source for d in inside for r in d.reads):
        return state
    own = inline_funcs(state).program.func(func)
    funcs = tuple(own if f.name == func else f for f in program.funcs)
    return replace(state, program=replace(program, funcs=funcs))


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
