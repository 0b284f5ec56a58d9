"""Run-time checks (`require`), prints (`debug_print`), and permission to reassociate floats (`fast_math`)."""

from __future__ import annotations

from typing import Any

from tdsl.core.source import Loc, here
from tdsl.errors import TypeMismatch, counted
from tdsl.lang.expr import Expr, Require, Show
from tdsl.lang.tensor import Func
from tdsl.lang.types import bool_
from tdsl.lang.value import Value, lift


def require(cond: Any, value: Any, message: str = "a required condition does not hold", *shown: Any) -> Value:
    """`value`, with a run-time check of `cond` wherever it is computed.

    If `cond` is false, the kernel stops and the call raises RequireError with `message`, each `{}` in it
    replaced by one of `shown`.

    >>> from tdsl.lang.tensor import Tensor
    >>> from tdsl.lang.value import vars
    >>> i, a = vars("i"), Tensor("a", (4,), "f32")
    >>> checked = require(a[i] >= 0, a[i], "a[{}] is {}", i, a[i])
    """
    loc = here()
    v = lift(value, loc)
    return Value(Require(_condition(cond, loc), v.node, message, _shown(message, shown, loc), loc=loc))


def debug_print(value: Any, message: str = "{}", *shown: Any, when: Any = True) -> Value:
    """`value`; a message is printed wherever it is computed and `when` holds.

    Each `{}` of `message` is replaced by one of `shown`, or by `value` if none is given. How often and in
    which order a value is computed depends on the schedule.
    """
    loc = here()
    v = lift(value, loc)
    values = shown or ((v,) if "{}" in str(message) else ())
    return Value(Show(_condition(when, loc), v.node, message, _shown(message, values, loc), loc=loc))


def _condition(cond: Any, loc: Loc | None) -> Expr:
    c = lift(cond, loc)
    if c.dtype != bool_:
        raise TypeMismatch(
            f"the condition is {c.dtype}, not bool",
            loc=loc,
            label="this call",
            hint="compare it: x != 0",
        )
    return c.node


def _shown(message: object, shown: tuple[Any, ...], loc: Loc | None) -> tuple[Expr, ...]:
    if not isinstance(message, str):
        raise TypeMismatch(
            f"the message is {message!r}, not a string",
            loc=loc,
            label="this call",
            hint="write the text first, then the values that fill its {}",
        )
    if message.count("{}") != len(shown):
        raise TypeMismatch(
            f"the message has {counted(message.count('{}'), 'place')} for {counted(len(shown), 'value')}",
            loc=loc,
            label="this call",
            hint="write {} for each value",
        )
    if len(shown) > 8:
        raise TypeMismatch(
            f"at most 8 values can be shown, not {len(shown)}",
            loc=loc,
            label="this call",
            hint="show fewer, or print in several places",
        )
    return tuple(lift(s, loc).node for s in shown)


def fast_math(func: Func) -> Func:
    """Allow reassociation of float arithmetic in a func's definitions, and assume no NaN or infinity.

    Returns the func.
    """
    if not isinstance(func, Func):
        raise TypeMismatch(
            f"fast_math takes a func, not {type(func).__name__}",
            loc=here(),
            label="this call",
            hint="td.fast_math(f) is for all definitions of f",
        )
    func.fast_math = True
    return func
