"""Reductions that read the same array: one pass computes both, unless a stage of rows reads them."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from itertools import combinations

from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.expr import Expr, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.lang.simplify import substitute
from tdsl.schedule.fluent import BaseSchedule


def join_reductions(schedule: BaseSchedule, hosts: Collection[str] = ()) -> None:
    """Fuse reductions without directives that read the same elements, each once (`fuse_reductions`).

    Reductions that a row-wise stage reads are left to the kernel of those rows. `hosts`, at whose loops other
    funcs are placed, are unchanged.
    """
    while True:
        state = schedule.state
        open_ = [
            f for f in state.program.funcs
            if f.name not in hosts and not state.plan(f.name).scheduled and state.plan(f.name).place is None
        ]  # fmt: skip
        for f, g in combinations(open_, 2):
            whole = not f.variables or {f.name, g.name} <= {*state.program.outputs}
            if whole and _read_the_same(f, g):
                with suppress(ScheduleError):
                    schedule[f.name].fuse_reductions(g.name)
                    break
        else:
            return


def _read_the_same(f: FuncDef, g: FuncDef) -> bool:
    """True for reductions whose terms both read an element of an array that no other term reads."""
    d, e = f.definitions[0], g.definitions[0]
    if d.init is None or e.init is None or len(d.variables) != len(e.variables):
        return False
    names: dict[str, Expr] = {b: Var(a) for a, b in zip(d.variables, e.variables, strict=True)}
    there = {*reads_in(tuple(substitute(v, names) for v in e.values))}
    of_all = [r for r in reads_in(d.values) if {*d.variables} <= {v for x in r.index for v in variables(x)}]
    return any(r in there for r in of_all)
