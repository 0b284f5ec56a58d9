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


def plain(value: Any) -> Any:
    """A value with integers of any type as Python's int and sequences as tuples, for JSON text.

    >>> import numpy as np
    >>> plain([np.int64(3), True, "x"])
    (3, True, 'x')
    """
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def pairs(pack: object) -> Any:
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
            raise Illegal(f"argument {name!r} is missing", f"pass {words(types_[name])}")
        if name in arguments and not fits(arguments[name], types_[name]):
            wanted = words(types_[name])
            raise Illegal(f"{name} must be {wanted}, not {arguments[name]!r}", f"pass {wanted}")
    for name in arguments:
        if f"{name}_definition" in arguments:
            check_stage(state, arguments[name], arguments[f"{name}_definition"])


@functools.cache
def _signature(
    rule: Callable[..., State],
) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    found = inspect.signature(rule).parameters.values()
    own = {p.name: p for p in found if p.kind is p.KEYWORD_ONLY}
    return own, typing.get_type_hints(rule)


def fits(value: Any, wanted: Any) -> bool:
    """True if a value is an instance of a type, also of a union, tuple or sequence type."""
    if wanted is Any:
        return True
    inner = typing.get_args(wanted)
    match typing.get_origin(wanted):
        case None:
            return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
        case types.UnionType | typing.Union:
            return any(fits(value, t) for t in inner)
        case origin if origin is tuple and inner[-1] is not Ellipsis:
            sizes = isinstance(value, tuple) and len(value) == len(inner)
            return sizes and all(fits(v, t) for v, t in zip(value, inner, strict=True))
        case origin if origin is tuple or origin is Sequence:
            return isinstance(value, list | tuple) and all(fits(v, inner[0]) for v in value)
        case origin:
            return isinstance(value, origin)


_WORDS = {bool: "True or False", int: "an integer", str: "a string"}


def words(wanted: Any) -> str:
    """A type in words, for error messages; None in a union is left out.

    >>> words(int | None), words(tuple[str | None, str | None])
    ('an integer', 'a tuple of 2 (each a string)')
    """
    inner = typing.get_args(wanted)
    match typing.get_origin(wanted):
        case None:
            return _WORDS.get(wanted, getattr(wanted, "__name__", "anything"))
        case types.UnionType | typing.Union:
            return " or ".join(words(t) for t in inner if t is not type(None))
        case origin if origin is dict:
            return "an object"
        case _:
            count = "" if inner[-1] is Ellipsis or len(inner) == 1 else f" of {len(inner)}"
            return f"a tuple{count} (each {words(inner[0])})"
