"""Masks: terms that none of the reductions of a pass counts, so that tiles of such terms need not be made.

    score[i, j] = where(j <= i, x[i, j], -inf)
    m[i] = max of score[i, j]              s[i] = sum of exp(score[i, j] - m[i])

A tile of terms from j = 64 * o on has none that counts unless 64 * o <= i.
"""

from __future__ import annotations

from collections.abc import Iterator

from tdsl.lang.affine import as_expr, as_sum, variables
from tdsl.lang.expr import (
    ONE,
    ZERO,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Read,
    Select,
    Var,
    const,
)
from tdsl.lang.regions import reads_in
from tdsl.lang.simplify import add, conjunction, conjuncts, substitute, subtract
from tdsl.schedule.inlining import value_at
from tdsl.schedule.one_pass import Member, Pass

_EXPONENTIALS = ("exp", "exp2")


def needs_tile(made: Pass, first: Expr, factor: int) -> Expr:
    """What holds where one of the `factor` terms from `first` on counts; TRUE where all may.

    Of each comparison of a mask, what holds if it does for one of these terms.
    """
    masks = [dict.fromkeys(_masks_of(made, m)) for m in made.members.values()]
    common = [mask for mask in masks[0] if all(mask in found for found in masks)]
    last = add(first, const(factor - 1))
    return conjunction(c for mask in common for c in _of_any(mask, made.variable, first, last))


def _of_any(mask: Expr, variable: str, first: Expr, last: Expr) -> Iterator[Expr]:
    """The comparisons of a mask at that end of a tile where they hold, if anywhere."""
    for c in conjuncts(mask):
        if isinstance(c, Binary) and c.op in ("le", "lt", "ge", "gt") and not any(reads_in((c,))):
            left, right = (c.left, c.right) if c.op in ("le", "lt") else (c.right, c.left)
            if c.op in ("lt", "gt"):
                left = add(left, ONE)
            lacks = as_sum(subtract(left, right))
            step = lacks.terms.get(Var(variable), 0)
            rest = as_expr(lacks.without(Var(variable)))
            if variable not in variables(rest) and isinstance(step, int):
                at = {variable: first if step > 0 else last}
                yield Binary("le", substitute(as_expr(lacks), at), ZERO)


def _masks_of(made: Pass, member: Member) -> Iterator[Expr]:
    """The conditions without which a term of a reduction does not count."""
    kind, term = member.combine.kind, member.terms[0]
    if kind in ("max", "argmax"):
        yield from _mask(made, term)
    elif kind == "sum":
        for factor in _factors(term):
            if isinstance(factor, Call) and factor.fn in _EXPONENTIALS:
                for summand in _summands(made, factor.args[0]):
                    yield from _mask(made, summand)


def _mask(made: Pass, e: Expr) -> Iterator[Expr]:
    match _written(made, e):
        case Select(cond, _, Const(value)) if value == -float("inf"):
            yield cond
        case _:
            return


def _written(made: Pass, e: Expr) -> Expr:
    """An element-wise func's value in the place of a read."""
    program = made.state.program
    if isinstance(e, Read) and program.has_func(e.name) and e.name not in made.members:
        f = program.func(e.name)
        if len(f.definitions) == 1 and f.definitions[0].init is None and len(f.dtypes) == 1:
            return _written(made, value_at(f.definitions[0], e))
    return e


def _factors(e: Expr) -> Iterator[Expr]:
    match e:
        case Binary("mul", x, y):
            yield from _factors(x)
            yield from _factors(y)
        case Cast(x):
            yield from _factors(x)
        case _:
            yield e


def _summands(made: Pass, e: Expr) -> Iterator[Expr]:
    """What is added to a value, as it is or times a positive number."""
    match _written(made, e):
        case Binary("add", x, y):
            yield from _summands(made, x)
            yield from _summands(made, y)
        case Binary("sub", x, _):
            yield from _summands(made, x)
        case Binary("mul" | "div", x, Const(value)) if value > 0:
            yield from _summands(made, x)
        case found:
            yield found
