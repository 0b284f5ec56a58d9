"""A typical value of index expressions, for choices that change speed and never results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable

from tdsl.lang.bounds import Facts
from tdsl.lang.expr import Binary, Cast, Const, Expr, Select, Size, Unary, Var

_SIZE = 4096  # the value of every size


def typical_values(exprs: Iterable[Expr], facts: Facts) -> list[int]:
    """The value of each expression with all sizes 4096, and loop variables in the middle of their ranges.

    >>> from tdsl.lang.bounds import NO_FACTS
    >>> from tdsl.lang.expr import const
    >>> facts = NO_FACTS.with_range("i", const(0), Binary("sub", Size("n"), const(1)))
    >>> typical_values([Var("i"), Binary("mul", Var("i"), const(2))], facts)
    [2047, 4094]
    """
    values: dict[str, int] = {}
    for name, (lo, hi) in facts.ranges.items():
        values[name] = (_value(lo, values) + _value(hi, values)) // 2
    return [_value(e, values) for e in exprs]


def _value(e: Expr, values: dict[str, int]) -> int:
    match e:
        case Const(value):
            return int(value)
        case Var(name):
            return values.get(name, 0)
        case Size():
            return _SIZE
        case Unary("neg", x):
            return -_value(x, values)
        case Cast(x):
            return _value(x, values)
        case Select(_, yes):
            return _value(yes, values)
        case Binary(op, x, y) if op in _OPERATORS:
            return _OPERATORS[op](_value(x, values), _value(y, values))
        case _:
            return 1


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
}  # fmt: skip
