"""The derivatives of operators and functions, as a table: from the adjoint of a result to those of operands.

    RULES["mul"](a, y, x0, x1)   the adjoints of x0 and x1, for y = x0 * x1 and the adjoint a of y

Where a function has a corner, the convention is that of JAX: `maximum` and `minimum` of equal operands share
the adjoint, `abs` has the derivative 0 at 0. Functions with steps (`floor`, `round`) have the derivative 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tdsl.core.node import frozen
from tdsl.lang import functions as fn
from tdsl.lang.expr import TRUE, Const, Expr
from tdsl.lang.value import Value


@frozen
class Term:
    """A part of an adjoint: `value` at the points where `cond` holds, 0 elsewhere."""

    value: Value
    cond: Expr = TRUE


Terms = tuple[Term, ...]
Rule = Callable[..., tuple[Any, ...]]  # a Value, a tuple of Terms, or None for each operand


def _where(*choices: tuple[Value, Value]) -> Terms:
    """One term for each pair of a condition and a value."""
    return tuple(Term(value, cond.node) for cond, value in choices)


def _extremum(a: Value, larger: Value, smaller: Value, equal: Value) -> tuple[Terms, Terms]:
    half = a * 0.5
    return _where((larger, a), (equal, half)), _where((smaller, a), (equal, half))


def _power(a: Value, y: Value, x: Value, n: Value) -> tuple[Any, ...]:
    if isinstance(n.node, Const):
        return a * (n * fn.power(x, n.node.value - 1)) if n.node.value else None, None
    return _where((n != 0, a * (n * fn.power(x, n - 1)))), _where((x > 0, a * (y * fn.log(x))))


def _divide(a: Value, y: Value, x0: Value, x1: Value) -> tuple[Any, ...]:
    quotient = a / x1
    return quotient, -(quotient * y)


def _hypot(a: Value, y: Value, x0: Value, x1: Value) -> tuple[Any, ...]:
    return _where((y > 0, a * (x0 / y))), _where((y > 0, a * (x1 / y)))


def _arctan2(a: Value, y: Value, x0: Value, x1: Value) -> tuple[Any, ...]:
    scaled = a / (x0 * x0 + x1 * x1)
    return scaled * x1, -(scaled * x0)


_LN2, _LN10 = math.log(2), math.log(10)

RULES: dict[str, Rule] = {
    # operators
    "neg": lambda a, y, x: (-a,),
    "abs": lambda a, y, x: (_where((x > 0, a), (x < 0, -a)),),
    "add": lambda a, y, x0, x1: (a, a),
    "sub": lambda a, y, x0, x1: (a, -a),
    "mul": lambda a, y, x0, x1: (a * x1, a * x0),
    "div": _divide,
    "mod": lambda a, y, x0, x1: (a, -(a * fn.floor(x0 / x1))),
    "floordiv": lambda a, y, x0, x1: (None, None),
    "pow": _power,
    "max": lambda a, y, x0, x1: _extremum(a, x0 > x1, x1 > x0, x0 == x1),
    "min": lambda a, y, x0, x1: _extremum(a, x0 < x1, x1 < x0, x0 == x1),
    # functions
    "sqrt": lambda a, y, x: (a * (0.5 / y),),
    "rsqrt": lambda a, y, x: (a * (-0.5 * y * y * y),),
    "exp": lambda a, y, x: (a * y,),
    "exp2": lambda a, y, x: (a * (y * _LN2),),
    "expm1": lambda a, y, x: (a * fn.exp(x),),
    "log": lambda a, y, x: (a / x,),
    "log2": lambda a, y, x: (a / (x * _LN2),),
    "log10": lambda a, y, x: (a / (x * _LN10),),
    "log1p": lambda a, y, x: (a / (x + 1),),
    "sin": lambda a, y, x: (a * fn.cos(x),),
    "cos": lambda a, y, x: (-(a * fn.sin(x)),),
    "tan": lambda a, y, x: (a * (1 + y * y),),
    "arcsin": lambda a, y, x: (a * fn.rsqrt((1 - x) * (1 + x)),),
    "arccos": lambda a, y, x: (-(a * fn.rsqrt((1 - x) * (1 + x))),),
    "arctan": lambda a, y, x: (a / (1 + x * x),),
    "arctan2": _arctan2,
    "sinh": lambda a, y, x: (a * fn.cosh(x),),
    "cosh": lambda a, y, x: (a * fn.sinh(x),),
    "tanh": lambda a, y, x: (a * (1 - y * y),),
    "arcsinh": lambda a, y, x: (a / fn.hypot(x, 1.0),),
    "arccosh": lambda a, y, x: (a * fn.rsqrt((x - 1) * (x + 1)),),
    "arctanh": lambda a, y, x: (a / ((1 - x) * (1 + x)),),
    "erf": lambda a, y, x: (a * (2 / math.sqrt(math.pi) * fn.exp(-(x * x))),),
    "sigmoid": lambda a, y, x: (a * (y * (1 - y)),),
    "hypot": _hypot,
    "copysign": lambda a, y, x, s: (a * fn.copysign(1.0, x) * fn.copysign(1.0, s), None),
    "fma": lambda a, y, x0, x1, x2: (a * x1, a * x0, a),
    "floor": lambda a, y, x: (None,),
    "ceil": lambda a, y, x: (None,),
    "trunc": lambda a, y, x: (None,),
    "round": lambda a, y, x: (None,),
}
