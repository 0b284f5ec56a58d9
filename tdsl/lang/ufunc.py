"""NumPy's functions on values: `np.sin(a[i])` gives `td.sin(a[i])`, by the protocol `__array_ufunc__`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang import functions, reduction
from tdsl.lang.arithmetic import BINARY, FLOATS, UNARY
from tdsl.lang.composed_functions import COMPOSED
from tdsl.lang.value import Value, binary, unary


def call_ufunc(ufunc: np.ufunc, method: str, args: tuple[Any, ...], options: Any) -> Value:
    """The result of a NumPy ufunc on values; TypeMismatch if tdsl has no such function, or for methods."""
    if method != "__call__":
        raise TypeMismatch(
            f"np.{ufunc.__name__}.{method} does not take values of the index language",
            loc=here(),
            label="this call",
            hint="reduce over a variable, td.sum(x, axis=i), or write an update, f[i] += x",
        )
    return call_function(ufunc, args, options)


def call_function(function: Callable[..., Any], args: tuple[Any, ...], options: Any) -> Value:
    """The result of a NumPy function on values; TypeMismatch if tdsl has none, or for other arguments.

    >>> from tdsl.lang.value import vars
    >>> call_function(np.subtract, (vars("i"), 1), {})
    i - 1
    """
    name = function.__name__
    equivalent = _tdsl_function(function)
    if equivalent is None:
        raise TypeMismatch(
            f"np.{name} does not take values of the index language",
            loc=here(),
            label="this call",
            hint="write it with Python's operators and the functions of td; docs/language.md lists them",
        )
    _check_arguments(name, equivalent, args, options)
    result: Value = equivalent(*args, **options)
    return result


def _tdsl_function(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """The tdsl function or operator that computes a NumPy function; None if there is none."""
    if function in COMPOSED:
        return COMPOSED[function]
    for module in (functions, reduction):
        candidate = vars(module).get(function.__name__)
        if inspect.isfunction(candidate) and candidate.__module__ == module.__name__:
            return candidate
    operators = {f: partial(binary, op) for op, f in BINARY.items()}
    operators |= {f: partial(unary, op) for op, f in UNARY.items()}
    if function in operators:
        return operators[function]
    return next((vars(functions)[fn] for fn, f in FLOATS.items() if f is function), None)


def _check_arguments(
    name: str, equivalent: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    signature = inspect.signature(equivalent)
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        parameters = ", ".join(signature.parameters)
        raise TypeMismatch(
            f"np.{name} on values of the index language: {error}",
            loc=here(),
            label="this call",
            hint=f"td.{equivalent.__name__}({parameters})"
            if hasattr(equivalent, "__name__")
            else "use the operator",
        ) from None


def _array_ufunc(_: Value, ufunc: np.ufunc, method: str, *args: Any, **options: Any) -> Value:
    return call_ufunc(ufunc, method, args, options)


def _array_function(_: Value, function: Any, types: Any, args: Any, options: Any) -> Value:
    return call_function(function, args, options)


# assigned here and not in the class, because the functions import `Value`
Value.__array_ufunc__ = _array_ufunc  # type: ignore[attr-defined]
Value.__array_function__ = _array_function  # type: ignore[attr-defined]
