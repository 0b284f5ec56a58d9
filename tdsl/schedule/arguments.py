"""The arguments of directives, checked against the signatures of the functions that apply them.

Directives come from Python and from JSON text, so their arguments may have any type.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tdsl.errors import counted, did_you_mean
from tdsl.schedule.state import SCOPES, Illegal, State


def json_value(value: Any) -> Any:
    """A value with integers of any type as Python's int and sequences as tuples, for JSON text.

    >>> import numpy as np
    >>> json_value([np.int64(3), True, "x"])
    (3, True, 'x')
    """
    if isinstance(value, list | tuple):
        return tuple(map(json_value, value))
    if isinstance(value, dict):
        return {key: json_value(v) for key, v in value.items()}
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def items_of(pack: object) -> Any:
    """The items of a mapping, () for None; any other value unchanged, for `check_arguments` to refuse."""
    if isinstance(pack, Mapping):
        return tuple(pack.items())
    return () if pack is None else pack


def check_scope(scope: str) -> None:
    """Raise Illegal unless a scope is one of `SCOPES`."""
    if scope not in SCOPES:
        raise Illegal(f"there is no memory scope {scope!r}", did_you_mean(scope, SCOPES))


def check_stage(state: State, func: str, definition: int) -> None:
    """Raise Illegal unless the program has this definition."""
    if not state.program.has_func(func):
        names = ", ".join(f.name for f in state.program.funcs)
        raise Illegal(f"there is no func {func!r} in this program", f"There are: {names}")
    count = len(state.program.func(func).definitions)
    if not 0 <= definition < count:
        raise Illegal(
            f"{func!r} has {counted(count, 'definition')}, there is no definition {definition}",
            f"definition 0 is the first, then come its updates, up to {count - 1}",
        )


def check_arguments(state: State, rule: Callable[..., State], arguments: Mapping[str, Any]) -> None:
    """Raise Illegal unless the arguments match the keyword-only parameters of `rule` by name and type.

    Arguments that name a definition of another func must name an existing one.
    """
    parameters, types_ = _signature(rule)
    for name in arguments:
        if name not in parameters:
            known = ", ".join(parameters)
            raise Illegal(f"there is no argument {name!r}", f"the arguments are: {known}")
    for name, p in parameters.items():
        if name not in arguments and p.default is p.empty:
            raise Illegal(f"argument {name!r} is missing", f"pass {type_text(types_[name])}")
        if name in arguments and not has_type(arguments[name], types_[name]):
            expected = type_text(types_[name])
            raise Illegal(f"{name} must be {expected}, not {arguments[name]!r}", f"pass {expected}")
    for name in arguments:
        if f"{name}_definition" in arguments:
            check_stage(state, arguments[name], arguments[f"{name}_definition"])


@functools.cache
def _signature(rule: Callable[..., State]) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    parameters = inspect.signature(rule).parameters.values()
    keyword_only = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    return keyword_only, typing.get_type_hints(rule)


def has_type(value: Any, expected: Any) -> bool:
    """True if a value is an instance of a type, also of a union, tuple or sequence type."""
    if expected is Any:
        return True
    inner = typing.get_args(expected)
    match typing.get_origin(expected):
        case None:
            return isinstance(value, expected) and (expected is bool or not isinstance(value, bool))
        case types.UnionType | typing.Union:
            return any(has_type(value, t) for t in inner)
        case origin if origin is tuple and inner[-1] is not Ellipsis:
            sizes = isinstance(value, tuple) and len(value) == len(inner)
            return sizes and all(has_type(v, t) for v, t in zip(value, inner, strict=True))
        case origin if origin is tuple or origin is Sequence:
            return isinstance(value, list | tuple) and all(has_type(v, inner[0]) for v in value)
        case origin:
            return isinstance(value, origin)


_WORDS = {bool: "True or False", int: "an integer", str: "a string"}


def type_text(type_: Any) -> str:
    """A type in words, for error messages; None in a union is left out.

    >>> type_text(int | None), type_text(tuple[str | None, str | None])
    ('an integer', 'a tuple of 2 (each a string)')
    """
    inner = typing.get_args(type_)
    match typing.get_origin(type_):
        case None:
            return _WORDS.get(type_, getattr(type_, "__name__", "anything"))
        case types.UnionType | typing.Union:
            return " or ".join(type_text(t) for t in inner if t is not type(None))
        case origin if origin is dict:
            return "an object"
        case _:
            count = "" if inner[-1] is Ellipsis or len(inner) == 1 else f" of {len(inner)}"
            return f"a tuple{count} (each {type_text(inner[0])})"
