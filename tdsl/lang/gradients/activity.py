"""`active_sources`: the tensors and funcs on the way from the inputs of a gradient to its outputs.

A float that is computed of integers which are computed of an input has no derivative by this input; the error
names both conversions. Indices, conditions and bools are constants to a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tdsl.core.node import frozen, memoised
from tdsl.core.source import Loc
from tdsl.errors import DefinitionError
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Cast, Expr, Param, Read, dtype_of
from tdsl.lang.gradients.expression import operands
from tdsl.lang.program import FuncDef, Program


@frozen
class _Dependence:
    """How a value depends on the inputs: by floats only, or through an integer computed at `integer`."""

    integer: Loc | None = None
    through_integer: bool = False


_SMOOTH = _Dependence()


def active_sources(program: Program, wrt: Iterable[str]) -> set[str]:
    """The names of the inputs `wrt` and of all funcs of floats that depend on them continuously.

    Raises DefinitionError where a float is computed of an integer that depends on them.
    """
    known: dict[str, _Dependence] = dict.fromkeys(wrt, _SMOOTH)
    for f in program.funcs:
        for d in f.definitions:
            dependences = [_of_value(v, d, known) for v in d.values]
            dependence = next((x for x in dependences if x), None)
            if dependence is None:
                continue
            if not any(t.is_float for t in f.dtypes):
                dependence = _Dependence(d.loc, True)
            known.setdefault(f.name, dependence)
    return {name for name, dependence in known.items() if not dependence.through_integer}


def _of_value(e: Expr, d: Definition, known: Mapping[str, _Dependence]) -> _Dependence | None:
    memo: dict[Expr, _Dependence | None] = {}

    def visit(n: Expr) -> _Dependence | None:
        if isinstance(n, Read | Param):
            return known.get(n.name)
        inside = next((memo[x] for x in operands(n) if memo[x]), None)
        t = dtype_of(n)
        if inside is None or t.kind == "b":
            return None
        if t.is_integer:
            return inside if inside.through_integer else _Dependence(n.loc or d.loc, True)
        if isinstance(n, Cast) and inside.through_integer:
            raise DefinitionError(
                "an integer computed of an input of the gradient becomes a float here",
                loc=n.loc or d.loc,
                label="this value has no derivative",
                related=((inside.integer, "the integer is computed here"),),
                hint="keep it a float, with td.floor or td.round, whose derivative is 0; or compute the "
                "integers in a program of their own and pass them as a tensor",
            )
        return inside

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
