"""factor_out: factors that all terms of a sum have in common multiply the sum, in the place of each term."""

from __future__ import annotations

from dataclasses import replace

from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import TRUE, Binary, Const, Expr, Read, Var
from tdsl.lang.program import FuncDef
from tdsl.schedule.new_stage import insert_func, new_name, replace_func
from tdsl.schedule.state import Illegal, State, fresh_nest, fresh_plan
from tdsl.schedule.sum_factors import Factor, product_of


def factor_out(state: State, func: str, definition: int, *, name: str | None = None) -> State:
    """Multiply this sum by the factors of its terms that depend on no range, instead of each term.

        y[i, j] = sum over k of                  y_terms[i, j] = sum over k of a[i, k] * b[k, j]
                  a[i, k] * s[i] * b[k, j]       y[i, j]       = y_terms[i, j] * s[i]

    Floats are rounded in another order.
    """
    f = state.program.func(func)
    d, t = f.definitions[0], f.dtypes[0]
    summed = d.init == (Const(0.0 if t.is_float else 0, t),) and d.combine is not None
    if not summed or d.combine is None or d.combine.kind != "sum" or len(f.definitions) > 1 or has_effects(d):
        raise Illegal(f"{func!r} is no sum of numbers", "factors of the terms of sums are factored out")
    if state.plan(func).nests[0] != fresh_nest(d):
        raise Illegal(f"the loops of {func!r} were changed before", "give this directive first")
    common, rest = common_factors(d)
    if not common or all(divides for _, divides in rest):
        raise Illegal(
            f"the terms of {func!r} are no products with a factor that depends on none of its ranges",
            "name ranges that such a factor does not depend on",
        )
    terms = new_name(state.program, name, f"{func}_terms")
    one = replace(d, values=(product_of(rest, t),))
    inner = replace(f, name=terms, definitions=(one,), declared=False, array=())
    index = tuple(map(Var, d.free))
    value = product_of([(Read(terms, index, 0, t), False), *common], t)
    outer = Definition(index, d.free, (), TRUE, (value,), None, None, d.loc)
    state = replace_func(state, replace(f, definitions=(outer,)))
    state = state.with_plan(func, state.plan(func).with_nest(0, fresh_nest(outer)))
    return insert_func(state, func, inner, fresh_plan(inner))


def common_factors(d: Definition) -> tuple[list[Factor], list[Factor]]:
    """The factors of the terms of a sum that depend on no range, and the others."""
    ranges = {v for v, _, _ in d.ranges}
    factors = list[Factor]()
    for e in d.values[:1]:
        factors += _factors(e, divides=False)
    common = [x for x in factors if not variables(x[0]) & ranges]
    return common, [x for x in factors if x not in common]


def _factors(e: Expr, *, divides: bool) -> list[Factor]:
    """The factors of a product, each with whether it is a divisor; products that are converted are one."""
    match e:
        case Binary("mul", left, right):
            return _factors(left, divides=divides) + _factors(right, divides=divides)
        case Binary("div", left, right):
            return _factors(left, divides=divides) + _factors(right, divides=not divides)
        case _:
            return [(e, divides)]


def sum_without_common_factors(f: FuncDef) -> Definition | None:
    """The sum that `factor_out` leaves of a func; None where it has no common factors."""
    d = f.definitions[0]
    common, rest = common_factors(d)
    if not common or all(divides for _, divides in rest):
        return None
    return replace(d, values=(product_of(rest, f.dtypes[0]),))
