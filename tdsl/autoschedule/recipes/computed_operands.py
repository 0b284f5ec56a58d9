"""Factors of a sum of products that are expressions, as arrays that tensor cores can read.

A factor becomes a func, which is inlined: tiles of it are computed where tiles of an array would
be copied. Tensor cores multiply a type that holds all its values, so no result differs.
"""

from __future__ import annotations

from contextlib import suppress

from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.autoschedule.recipes.stage_facts import definition_of
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.exact import is_exact
from tdsl.lang.expr import Binary, Cast, Const, Expr, Read, Select, dtype_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.lang.show import show_expr
from tdsl.lang.types import DType, bf16, f16
from tdsl.machine.instructions.tensor_cores import MMAS
from tdsl.schedule.factor_out import sum_without_common_factors
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.new_stage import new_name
from tdsl.schedule.outline import main_read, product_factors, stored_type

_PREFERRED = (f16, bf16)  # of types that both hold all factors


def factor_types(d: Definition, dtype: str = "") -> tuple[DType, DType] | None:
    """The types as which tensor cores multiply the factors of a sum, exactly; None where there are none.

    The types of the factors themselves come first, unless `dtype` names another.

    >>> import tdsl as td
    >>> i, j, k, f = *td.vars("i j k"), td.Func("f")
    >>> a, b = td.Tensor("a", (64, 64), td.f16), td.Tensor("b", (64, 64), td.i8)
    >>> f[i, j] = td.sum(td.cast(td.maximum(a[i, k], 0), td.f32) * b[k, j], axis=k)
    >>> factor_types(td.Schedule(f).program.func("f").definitions[0])
    (f16, f16)
    """
    parts = product_factors(d)
    if parts is None:
        return None
    total = dtype_of(d.values[0])
    rows = [(x.left, x.right) for x in MMAS if x.kind != "tf32" and x.acc_type == total]
    declared = stored_type(parts[0], None), stored_type(parts[1], None)
    if dtype:
        rows = [types for types in rows if all(t.name == dtype for t in types)]
    rows.sort(key=lambda types: (types != declared, types[0] not in _PREFERRED))
    exact = (x for x in rows if all(is_exact(e, t) for e, t in zip(parts, x, strict=True)))
    return next(exact, None)


def is_for_computed_tiles(f: FuncDef) -> bool:
    """True for a sum whose terms tensor cores multiply, with or without common factors."""
    is_product = len(f.definitions) == 1 and factor_types(f.definitions[0]) is not None
    return is_product or is_product_of_halves(f)


def is_product_of_halves(f: FuncDef) -> bool:
    """True for a sum whose terms have common factors, and without these are products of f16.

    Such products are far from the ends of the range of f32, whose sum may thus be multiplied instead of each.
    Under `fast_math` factors may be bf16, too.
    """
    if len(f.definitions) > 1:
        return False
    d = sum_without_common_factors(f)
    types = None if d is None else factor_types(d)
    return types is not None and (types == (f16, f16) or (f.fast_math and types == (bf16, bf16)))


def outline_results(schedule: BaseSchedule) -> None:
    """Make funcs of factors that are computed of a reduction at all points, which its kernel can compute."""
    sums = {f.name for f in schedule.state.program.funcs if f.definitions[0].init is not None}
    for f in schedule.state.program.funcs:
        d, types = f.definitions[0], factor_types(f.definitions[0])
        parts = product_factors(d)
        if types is None or parts is None or len(f.definitions) > 1 or schedule.state.plan(f.name).scheduled:
            continue
        for part, other, t in zip(parts, reversed(parts), types, strict=True):
            along = [v for v in d.free if v in variables(part) - variables(other)]
            whole = any(r.name in sums and variables(r) >= variables(part) for r in reads_in((part,)))
            if along and whole and not is_plain(part, t):
                source = main_read(part)
                # named here: where the directive is replayed, other funcs may not be inlined yet
                name = f"{f.name if source is None else source.name}_factor"
                name = new_name(schedule.state.program, None, name)
                with suppress(ScheduleError):  # of ranges that are empty, or not known
                    schedule[f.name].outline(along[0], t, name)


def outline_factors(stage: Stage, along: tuple[str, str], dtype: str = "") -> None:
    """Make inlined funcs of the factors that are no arrays of a type that tensor cores multiply.

    `along` are a row and a column variable. Nothing is changed where no type holds the factors.
    """
    d = definition_of(stage)
    parts, types = product_factors(d), factor_types(d, dtype)
    if parts is None or types is None:
        return
    for part, t in zip(parts, types, strict=True):
        if not is_plain(part, t):
            (variable,) = (v for v in along if v in variables(part))
            stage.outline(variable, t).inline()


def is_plain(e: Expr, t: DType) -> bool:
    """True for an element of an array of type `t`, or 0 in its padding, that is converted exactly."""
    match _before_casts(e):
        case Read() | Select(_, Read(), Const()) as array:
            return dtype_of(array) == t
        case _:
            return False


def _before_casts(e: Expr) -> Expr:
    """An expression without outer casts that change no value."""
    while isinstance(e, Cast) and is_exact(e, dtype_of(e.x)):
        e = e.x
    return e


def computed_factors(d: Definition) -> tuple[Expr, Expr]:
    """The factors of each term, which may be any expressions; Unsuited for terms that are no products."""
    parts = product_factors(d)
    if parts is not None:
        return parts
    match d.values:
        case (Cast(Binary("mul", left, right) as product, dtype=total),):
            if total in {x.acc_type for x in MMAS}:
                narrow, factors = dtype_of(product), (_before_casts(left), _before_casts(right))
                is_exact_product = sum(dtype_of(x).bits for x in factors) <= narrow.bits
                loss = "are" if is_exact_product else "are rounded to" if narrow.is_float else "wrap at"
                first, second = map(show_expr, factors)
                raise Unsuited(
                    f"its products {loss} {narrow}, as in NumPy, before they are added up in {total}",
                    f"multiply in {total}: td.cast({first}, td.{total}) * {second}",
                )
            raise Unsuited(
                f"it adds products up in {total}",
                "the instructions accumulate floats in f32, and bytes in i32: td.sum(..., dtype=td.i32)",
            )
        case _:
            pass
    raise Unsuited("its terms are no products of two factors")
