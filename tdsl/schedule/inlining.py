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


def value_at(d: Definition, read: Read) -> Expr:
    """The value of a pure definition at the index of a read."""
    return substitute(d.values[read.component], dict(zip(d.free, read.index, strict=True)))
