"""`active_sources`: the tensors and funcs on the way from the inputs of a gradient to its outputs.

Integers, indices, conditions and bools are constants to a gradient, also where a float is computed of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tdsl.core.node import memoised
from tdsl.errors import DefinitionError
from tdsl.lang.expr import Expr, Param, Read, dtype_of
from tdsl.lang.gradients.expression import operands
from tdsl.lang.program import FuncDef, Program


def active_sources(program: Program, wrt: Iterable[str]) -> set[str]:
    """The names of the inputs `wrt` and of all funcs that depend on them by floats only."""
    active = {*wrt}
    for f in program.funcs:
        if any(_is_active(v, active) for d in f.definitions for v in d.values):
            active.add(f.name)
    return active


def _is_active(e: Expr, active: set[str]) -> bool:
    memo: dict[Expr, bool] = {}

    def visit(n: Expr) -> bool:
        if not dtype_of(n).is_float:
            return False
        return n.name in active if isinstance(n, Read | Param) else any(memo[x] for x in operands(n))

    return memoised(memo, e, visit, operands)


def check_output(program: Program, f: FuncDef) -> None:
    """Raise DefinitionError unless an output of a gradient holds one value, a float."""
    d = f.definitions[0]
    readers = [f, *(program.func(n) for n in d.sources if program.has_func(n))]
    kinds = {x.combine.kind for r in readers for x in r.definitions if x.combine is not None}
    if len(f.dtypes) > 1:
        raise DefinitionError(
            f"{f.name!r} has several values; a gradient is taken of one",
            loc=d.loc,
            label="this definition",
            hint=f"give it a func: y[...] = {f.name}[...][0]",
        )
    if not f.dtypes[0].is_float:
        arg = next((k for k in ("argmax", "argmin") if k in kinds), "")
        raise DefinitionError(
            f"{f.name!r} holds {f.dtypes[0]}, which has no derivative",
            loc=d.loc,
            label=f"{arg} gives indices" if arg else "this definition",
            hint=f"differentiate td.{arg[3:]}(...), the value at this index" if arg
            else "differentiate a func of floats",
        )  # fmt: skip
