"""clone_in: some readers of a func read a copy of it that is computed again, as Halide's clone_in.

    h[i]    = exp(x[i])              h[i]       = exp(x[i])
    y[i]    = h[i] + 1         -->   y[i]       = h[i] + 1
    dx[i]   = g[i] * h[i]            h_clone[i] = exp(x[i])
                                     dx[i]      = g[i] * h_clone[i]

The func need not be stored between its readers: the memory of activations is exchanged for operations
(Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tdsl.core.node import Node, transform
from tdsl.errors import did_you_mean
from tdsl.lang.definition import has_effects
from tdsl.lang.expr import Expr, Read
from tdsl.lang.program import FuncDef
from tdsl.schedule.new_stage import insert_func, new_name, replace_func
from tdsl.schedule.state import Illegal, State, fresh_plan


def clone_in(
    state: State, func: str, definition: int, *, readers: Sequence[str], name: str | None = None
) -> State:
    """Compute this func again, before the first of `readers`, for these; others read it as before."""
    f = state.program.func(func)
    reading = [g.name for g in state.program.funcs if g.name != func and _reads(g, func)]
    for reader in readers:
        if reader not in reading:
            raise Illegal(f"{reader!r} does not read {func!r}", did_you_mean(reader, reading))
    if not readers:
        raise Illegal("a clone has readers", f"name some of {', '.join(reading)}")
    if any(map(has_effects, f.definitions)):
        raise Illegal(f"{func!r} has effects", "it is computed once")
    clone = new_name(state.program, name, f"{func}_clone")
    again = _with_reads_of(replace(f, name=clone, declared=False, array=()), func, clone)
    state = insert_func(state, next(n for n in reading if n in readers), again, fresh_plan(again))
    for reader in readers:
        state = replace_func(state, _with_reads_of(state.program.func(reader), func, clone))
    return state


def _reads(f: FuncDef, name: str) -> bool:
    return any(r.name == name for d in f.definitions for r in d.reads)


def _with_reads_of(f: FuncDef, old: str, new: str) -> FuncDef:
    """A func that reads `new` in place of `old`."""

    def renamed(n: Node) -> Node:
        return replace(n, name=new) if isinstance(n, Read) and n.name == old else n

    def rewritten(e: Expr) -> Expr:
        return transform(e, renamed)

    return f.map_expressions(rewritten)
