"""The adjoint of each value that a reduction combines, given that of its result.

sum         the adjoint of the result
max, min    the adjoint of the result, shared equally by all values that are the result (as JAX and torch)
prod        the adjoint times the product of the other values, also where some are 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tdsl.errors import DefinitionError
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Binary, Const, Expr, Param, Read, Select, dtype_of
from tdsl.lang.gradients.expression import widened
from tdsl.lang.gradients.partials import Term, Terms
from tdsl.lang.program import FuncDef
from tdsl.lang.reduction import builtin_combiner
from tdsl.lang.types import DType
from tdsl.lang.value import Value

Auxiliary = Callable[[FuncDef, Definition, DType], tuple[str, Expr]]  # the kind and terms of a reduction
Stored = Callable[[FuncDef, str, Auxiliary], str]  # the name of a new func that holds such a reduction


def terms_of(f: FuncDef, d: Definition, n: int, adjoint: Value, stored: Stored) -> Terms:
    """The adjoint of component `n` of the values of a definition, for the adjoint of what it stores.

    Raises DefinitionError for a reduction that has no derivative.
    """
    value = d.values[n]
    match kind_of(f, n):
        case "sum":
            return (Term(adjoint),)
        case "max" | "min":
            result = Read(f.name, d.index, n, f.dtypes[n])
            ties = stored(f, "ties", _ties)
            share = adjoint / Value(Read(ties, d.index, 0, dtype_of(adjoint.node)))
            return (Term(share, Binary("eq", value, result)),)
        case "prod":
            t = dtype_of(adjoint.node)
            zeros, rest = stored(f, "zeros", _zeros), stored(f, "factors", _factors)
            count, product = (Value(Read(name, d.index, 0, t)) for name in (zeros, rest))
            x = widened(value)
            others = Term(adjoint * (product / x), ((x != 0) & (count == 0)).node)
            return others, Term(adjoint * product, ((x == 0) & (count == 1)).node)
        case kind:
            raise DefinitionError(
                f"the reduction {kind!r} of {f.name!r} has no derivative",
                loc=d.loc,
                label="this reduction",
                hint="use td.sum, td.prod, td.max, td.min or an associative combiner, in a func of its own",
            )


def kind_of(f: FuncDef, n: int) -> str:
    """The reduction that all definitions of a func perform in component `n`: "sum" if none reduces."""
    kinds = dict.fromkeys(_kind(d, n) for d in f.definitions if d.combine is not None)
    if len(kinds) > 1:
        return " and ".join(kinds)
    return next(iter(kinds), "sum")


def _kind(d: Definition, n: int) -> str:
    assert d.combine is not None
    match d.combine.exprs[n]:
        case Binary("add", Param(a), Param(b)) if {a, b} == {f"a{n}", f"b{n}"}:
            return "sum"
        case _:
            return d.combine.kind


def _ties(f: FuncDef, d: Definition, t: DType) -> tuple[str, Expr]:
    """Counts the values that are the result."""
    result = Read(f.name, d.index, 0, f.dtypes[0])
    return "sum", Select(Binary("eq", d.values[0], result), Const(1.0, t), Const(0.0, t))


def _zeros(f: FuncDef, d: Definition, t: DType) -> tuple[str, Expr]:
    """Counts the factors that are 0."""
    return "sum", Select(_is_zero(d.values[0]), Const(1.0, t), Const(0.0, t))


def _factors(f: FuncDef, d: Definition, t: DType) -> tuple[str, Expr]:
    """Multiplies the factors that are not 0."""
    return "prod", Select(_is_zero(d.values[0]), Const(1.0, t), widened(d.values[0]).node)


def _is_zero(x: Expr) -> Expr:
    return Binary("eq", x, Const(0.0, dtype_of(x)))


def with_combiner(d: Definition, kind: str, value: Expr) -> Definition:
    """The definition of an auxiliary func: `value` in place of what `d` combines or stores."""
    combine = builtin_combiner(kind, (dtype_of(value),))
    return replace(
        d,
        values=(value,),
        combine=None if d.combine is None else combine,
        init=None if d.init is None else combine.init,
    )
