"""Conversion of index expressions to sympy, to solve, substitute and print extents and costs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from tdsl.errors import TypeMismatch
from tdsl.lang.expr import Binary, Cast, Const, Expr, Param, Select, Size, Unary, Var, dtype_of
from tdsl.lang.types import i64


def as_sympy(e: Expr) -> Any:
    """An integer expression as a sympy expression.

    Extents become non-negative integer symbols, variables and scalars integer symbols, `//` the floor of a
    quotient. TypeMismatch for an expression that reads data.

    >>> from tdsl.lang.expr import const
    >>> as_sympy(Binary("floordiv", Binary("sub", Size("N"), const(7)), const(3)))
    floor(N/3 - 7/3)
    """
    import sympy  # slow to import, and needed only here

    def of(x: Expr) -> Any:
        match x:
            case Const(value):
                return sympy.Integer(int(value))
            case Size(name):
                return sympy.Symbol(name, integer=True, nonnegative=True)
            case Var(name) | Param(name):
                return sympy.Symbol(name, integer=True)
            case Unary("neg", y):
                return -of(y)
            case Cast(y, t) if t == i64 and dtype_of(y).is_integer:
                return of(y)
            case Select(cond, yes, no):
                return sympy.Piecewise((of(yes), of(cond)), (of(no), True))
            case Binary(op, y, z) if op in operators:
                return operators[op](of(y), of(z))
            case _:
                raise TypeMismatch(
                    f"{type(x).__name__} has no symbolic form",
                    loc=x.loc,
                    label="this call",
                    hint="use extents and numbers",
                )

    operators: dict[str, Callable[[Any, Any], Any]] = {
        "add": operator.add, "sub": operator.sub, "mul": operator.mul, "mod": sympy.Mod,
        "floordiv": lambda a, b: sympy.floor(a / b), "min": sympy.Min, "max": sympy.Max,
        "lt": sympy.Lt, "le": sympy.Le, "gt": sympy.Gt, "ge": sympy.Ge, "eq": sympy.Eq, "ne": sympy.Ne,
        "and": sympy.And,
    }  # fmt: skip
    return of(e)


def simplify_for_multiples(e: Any, unit: int) -> Any:
    """A sympy expression, simplified for positive multiples of `unit` as values of all symbols.

    >>> n = Size("N")
    >>> half = Binary("floordiv", Binary("add", n, Const(1, i64)), Const(2, i64))
    >>> simplify_for_multiples(as_sympy(half), 2)
    N/2
    """
    import sympy

    scaled = {s: sympy.Symbol(s.name, integer=True, positive=True) for s in e.free_symbols}
    e = e.subs({s: unit * n for s, n in scaled.items()})
    e = sympy.simplify(sympy.piecewise_fold(e))
    return sympy.factor(e.subs({n: s / unit for s, n in scaled.items()}))


def product(exprs: list[Expr]) -> Any:
    """The product of expressions, as a sympy expression.

    >>> from tdsl.lang.expr import const
    >>> product([Size("M"), const(2), Size("N")])
    2*M*N
    """
    import sympy

    return functools.reduce(operator.mul, (as_sympy(e) for e in exprs), sympy.Integer(1))
