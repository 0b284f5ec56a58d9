"""factor_out: common factors of the terms of a reduction multiply its result, in the place of each term."""

from __future__ import annotations

from dataclasses import replace
from math import frexp, inf

from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import ONE, TRUE, Binary, Const, Expr, Read, Select, Var, dtype_of
from tdsl.lang.program import FuncDef
from tdsl.lang.simplify import simplify, subtract
from tdsl.schedule.inlining import is_inlined, value_at
from tdsl.schedule.new_stage import insert_func, new_name, replace_func
from tdsl.schedule.state import Illegal, State, fresh_nest, fresh_plan
from tdsl.schedule.sum_factors import Factor, product_of

_FIXED = (0.0, inf, -inf)  # numbers that a positive factor does not change


def factor_out(state: State, func: str, definition: int, *, name: str | None = None) -> State:
    """Multiply a result by common factors of its terms, instead of each term.

        y[i, j] = sum over k of                  y_terms[i, j] = sum over k of a[i, k] * b[k, j]
                  a[i, k] * s[i] * b[k, j]       y[i, j]       = y_terms[i, j] * s[i]
        m[i] = max over k of a[i, k] * 2         m_terms[i] = max over k of a[i, k], m[i] = m_terms[i] * 2

    Factors of sums depend on no range; floats are then rounded in another order. Factors of the largest and
    smallest floats, and of funcs that reduce nothing, are positive constants: not a bit of a result changes.
    """
    f = state.program.func(func)
    d, t = f.definitions[0], f.dtypes[0]
    summed = d.init == (Const(0.0 if t.is_float else 0, t),) and d.combine is not None
    if len(f.definitions) > 1 or has_effects(d) or not ((summed and is_sum(d)) or _is_scaled(f)):
        raise Illegal(
            f"{func!r} is no sum of numbers, and no largest, smallest or element-wise float",
            "factors of the terms of sums, and positive factors of floats, are factored out",
        )
    if state.plan(func).nests[0] != fresh_nest(d):
        raise Illegal(f"the loops of {func!r} were changed before", "give this directive first")
    terms = new_name(state.program, name, f"{func}_terms")
    index = tuple(map(Var, d.free))
    result: Expr = Read(terms, index, 0, t)
    if is_sum(d):
        common, rest = common_factors(d)
        if not common or all(divides for _, divides in rest):
            raise Illegal(
                f"the terms of {func!r} are no products with a factor that depends on none of its ranges",
                "name ranges that such a factor does not depend on",
            )
        term, result = product_of(rest, t), product_of([(result, False), *common], t)
    else:
        term = d.values[0]
        while isinstance(term, Read) and is_inlined(state, term.name):
            term = value_at(state.program.func(term.name).definitions[0], term)
        scales, term = scales_of(term)
        if not scales:
            raise Illegal(f"the terms of {func!r} have no positive constant as a factor", "multiply by one")
        for op, scale in scales:
            result = Binary(op, result, scale)
    one = replace(d, values=(term,))
    inner = replace(f, name=terms, definitions=(one,), declared=False, array=())
    outer = Definition(index, d.free, (), TRUE, (result,), None, None, d.loc)
    state = replace_func(state, replace(f, definitions=(outer,)))
    state = state.with_plan(func, state.plan(func).with_nest(0, fresh_nest(outer)))
    return insert_func(state, func, inner, fresh_plan(inner))


def is_sum(d: Definition) -> bool:
    """True for a reduction that adds its terms up."""
    return d.combine is not None and d.combine.kind == "sum"


def _is_scaled(f: FuncDef) -> bool:
    """True for floats that a positive factor of the terms multiplies: it keeps their order as it rounds."""
    d = f.definitions[0]
    if d.init is not None and (d.combine is None or d.combine.kind not in ("max", "min")):
        return False
    fixed = d.init is None or (isinstance(d.init[0], Const) and d.init[0].value in _FIXED)
    plain = d.index == tuple(map(Var, d.free)) and d.where == TRUE
    return len(f.dtypes) == 1 and f.dtypes[0].is_float and fixed and plain


def scales_of(e: Expr) -> tuple[list[tuple[str, Const]], Expr]:
    """The positive constants that multiply or divide an expression, the first one first, and the rest of it.

    >>> from tdsl.lang.types import f32
    >>> scales_of(Binary("mul", Binary("div", Var("x"), Const(8.0, f32)), Const(3.0, f32)))[1]
    Var(name='x')
    """
    match e:
        case Binary("mul" | "div" as op, x, Const(c) as scale) | Binary(
            "mul" as op, Const(c) as scale, x
        ) if 0 < c < inf and dtype_of(x) == dtype_of(e):
            inner, rest = scales_of(x)
            if (
                op == "div" and frexp(c)[0] == frexp(1 / c)[0] == 0.5
            ):  # a power of two: the same result, sooner
                op, scale = "mul", Const(1 / c, scale.dtype)
            return [*inner, (op, scale)], rest
        case Select(condition, x, Const(c) as other) if c in _FIXED:
            inner, rest = scales_of(x)
            return inner, Select(condition, rest, other)
        case Select(condition, Const(c) as other, x) if c in _FIXED:
            inner, rest = scales_of(x)
            return inner, Select(condition, other, rest)
        case _:
            return [], e


def common_factors(d: Definition) -> tuple[list[Factor], list[Factor]]:
    """The factors of the terms of a sum that depend on no range, and the others.

    `s[k // 32]` depends on no range where all terms are within one block of 32.
    """
    facts, ranges = NO_FACTS, {v for v, _, _ in d.ranges}
    for v, first, end in d.ranges:
        if first is not None and end is not None:
            facts = facts.with_range(v, first, subtract(end, ONE))
    common, rest = list[Factor](), list[Factor]()
    for e in d.values[:1]:
        for factor, divides in factors_of_product(e):
            value = simplify(factor, facts)
            if variables(value) & ranges:
                rest.append((factor, divides))
            else:
                common.append((value, divides))
    return common, rest


def factors_of_product(e: Expr, *, divides: bool = False) -> list[Factor]:
    """The factors of a product, each with whether it is a divisor; products that are converted are one."""
    match e:
        case Binary("mul", left, right):
            return factors_of_product(left, divides=divides) + factors_of_product(right, divides=divides)
        case Binary("div", left, right):
            return factors_of_product(left, divides=divides) + factors_of_product(right, divides=not divides)
        case _:
            return [(e, divides)]


def sum_without_common_factors(f: FuncDef) -> Definition | None:
    """The sum that `factor_out` leaves of a func; None where it has no common factors."""
    d = f.definitions[0]
    common, rest = common_factors(d)
    if not common or all(divides for _, divides in rest):
        return None
    return replace(d, values=(product_of(rest, f.dtypes[0]),))
