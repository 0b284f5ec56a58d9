"""outline: a func of a factor of the terms of a sum, which may then be stored as any other func."""

from __future__ import annotations

from dataclasses import replace

from tdsl.errors import did_you_mean
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.exact import is_exact
from tdsl.lang.expr import TRUE, Binary, Cast, Expr, Read, Var, dtype_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.lang.types import BY_NAME, DType
from tdsl.schedule.gathering import read_variables, variable_intervals
from tdsl.schedule.new_stage import insert_func, new_name, replace_func
from tdsl.schedule.state import Illegal, State, fresh_plan


def outline(
    state: State, func: str, definition: int, *, along: str, dtype: str | None = None, name: str | None = None
) -> State:
    """Make a func of that factor of the terms of a sum whose value depends on `along`.

        f[i, j] = sum over k of                    a_factor[i, k] = max(a[i, k], 0)
                  max(a[i, k], 0) * b[k, j]        f[i, j]        = sum over k of a_factor[i, k] * b[k, j]

    Its elements have the type `dtype`, which must hold all values of the factor.
    """
    f = state.program.func(func)
    d = f.definitions[definition]
    if along not in d.variables:
        raise Illegal(f"{func!r} has no variable {along!r}", did_you_mean(along, d.variables))
    parts = product_factors(d)
    chosen = [e for e in parts or () if along in variables(e)]
    if parts is None or len(chosen) != 1 or has_effects(d):
        raise Illegal(
            f"the terms of {func!r} are no products of two factors of which one depends on {along!r}",
            "name a variable of the result that one factor alone depends on",
        )
    (factor,) = chosen
    stored = stored_type(factor, dtype)
    if not is_exact(factor, stored):
        raise Illegal(
            f"the factor of {along!r} has values that {stored} does not hold",
            f"round it where it is defined: td.cast(..., td.{stored})",
        )
    intervals = variable_intervals(state, f, d)
    names = _variables_in_order(d, factor)
    limits = tuple(intervals[v] for v in names)
    if any(e is None or variables(e) for ends in limits for e in ends):
        raise Illegal(f"the ranges of {func!r} are not known", "declare a shape: with_shape(...)")
    source = main_read(factor)
    new = new_name(state.program, name, f"{func if source is None else source.name}_factor")
    index = tuple(map(Var, names))
    value = as_type(factor, stored)
    one = Definition(index, tuple(names), (), TRUE, (value,), None, None, d.loc)
    outlined = FuncDef(new, (stored,), (one,), limits, limits, fast_math=f.fast_math, loc=f.loc)
    read = as_type(Read(new, index, 0, stored), dtype_of(factor))
    left, right = (read if e is factor else e for e in parts)
    values = (Binary("mul", left, right),)
    definitions = tuple(replace(g, values=values) if g is d else g for g in f.definitions)
    state = replace_func(state, replace(f, definitions=definitions))
    return insert_func(state, func, outlined, fresh_plan(outlined))


def product_factors(d: Definition) -> tuple[Expr, Expr] | None:
    """The two factors of each term of a definition; None for terms that are no products."""
    match d.values:
        case (Binary("mul", left, right),):
            return left, right
        case _:
            return None


def stored_type(factor: Expr, dtype: str | None) -> DType:
    """The type as which a factor is stored: `dtype`, else its own before it was widened."""
    if dtype is not None:
        if dtype not in BY_NAME:
            raise Illegal(f"there is no element type {dtype!r}", did_you_mean(dtype, BY_NAME))
        return BY_NAME[dtype]
    while isinstance(factor, Cast) and is_exact(factor, dtype_of(factor.x)):
        factor = factor.x
    return dtype_of(factor)


def main_read(e: Expr) -> Read | None:
    """The read of most variables in an expression, of these the one of the longest elements, if any."""
    return max(reads_in((e,)), key=lambda r: (len(variables(r)), r.dtype.bits), default=None)


def _variables_in_order(d: Definition, factor: Expr) -> list[str]:
    """The variables of a factor, those along which its main read is contiguous last."""
    used, main = variables(factor), main_read(factor)
    last = [] if main is None else read_variables(d, main)
    return [v for v in d.variables if v in used and v not in last] + last


def as_type(e: Expr, t: DType) -> Expr:
    """An expression, which `t` holds, as a value of type `t`."""
    while isinstance(e, Cast) and dtype_of(e) != t and is_exact(e, dtype_of(e.x)) and not e.saturate:
        e = e.x
    return e if dtype_of(e) == t else Cast(e, t)
