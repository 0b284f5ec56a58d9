"""Checks and normalisation of the arguments of NumPy's functions that are called on symbols."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch, counted
from tdsl.graph.symbol import Recorder, Symbol, out_error

_ALTERNATIVES = {
    "where": "choose before: np.where(mask, x, 0) for a sum, np.where(mask, x, -np.inf) for a maximum",
    "initial": "combine it with the result: x.sum() + initial, np.maximum(x.max(), initial)",
    "mean": "leave mean= away: the mean is computed by the same kernel",
}


def name_of(function: Callable[..., Any]) -> str:
    """The name of a NumPy function as users write it.

    >>> name_of(np.linalg.norm), name_of(np.sum)
    ('np.linalg.norm', 'np.sum')
    """
    module: str = getattr(function, "__module__", None) or "numpy"
    return f"{module.replace('numpy', 'np', 1)}.{function.__name__}"


def bind_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by parameter name; TypeMismatch if NumPy's function does not accept them."""
    try:
        bound = inspect.signature(function).bind(*args, **options).arguments
    except TypeError as error:
        raise wrong_arguments_error(function, function, error) from None
    return {name: x for name, x in bound.items() if x is not np._NoValue}


def wrong_arguments_error(
    function: Callable[..., Any], implementation: Callable[..., Any], error: TypeError
) -> TypeMismatch:
    """The TypeMismatch for a call of `function`; its hint lists the parameters of `implementation`."""
    return TypeMismatch(
        f"{name_of(function)}: {error}",
        loc=here(),
        label="this call",
        hint=f"{name_of(function)}({', '.join(_parameter_texts(implementation))})",
    )


def _parameter_texts(implementation: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(implementation).parameters.values()
    return [p.name if p.default in (p.empty, np._NoValue) else f"{p.name}={p.default}" for p in parameters]


def refuse_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raises TypeMismatch for the first of these unsupported arguments that is not None or the default."""
    for name, x in options.items():
        if x is None or (name == "where" and x is True):
            continue
        if name == "out":
            raise out_error(x)
        raise TypeMismatch(
            f"{name_of(function)} takes no {name}= for arrays of a graph",
            loc=here(),
            label="this call",
            hint=_ALTERNATIVES.get(name, f"leave {name}= away"),
        )


def as_symbol(function: Callable[..., Any], x: Any) -> Symbol:
    """Returns `x` if it is a symbol; raises TypeMismatch otherwise."""
    if isinstance(x, Symbol):
        return x
    raise TypeMismatch(
        f"{name_of(function)} takes an array of the graph, not {x!r}",
        loc=here(),
        label="this call",
        hint="arrays that are the same in every call can be created before the graph",
    )


def trace_of(*arrays: Any) -> Recorder:
    """The trace of the first symbol among `arrays`, at least one of which is a symbol."""
    return next(x.trace for x in arrays if isinstance(x, Symbol))


def axes_of(function: Callable[..., Any], axis: Any, rank: int) -> tuple[int, ...]:
    """The axes as sorted non-negative numbers, all axes for None; ShapeError for NumPy's AxisError."""
    if axis is None:
        return tuple(range(rank))
    try:
        return tuple(sorted(normalize_axis_tuple(axis, rank)))
    except (ValueError, TypeError) as error:
        ends = f"0 to {rank - 1}, or -1 to {-rank} from the last" if rank else "none"
        raise ShapeError(
            f"{name_of(function)}: {error}",
            loc=here(),
            label="this call",
            hint=f"the axes of {counted(rank, 'dimension')} are {ends}; axis= takes one, or a tuple",
        ) from None


def axis_of(function: Callable[..., Any], axis: Any, rank: int) -> int:
    """One axis as a non-negative number; TypeMismatch for several, ShapeError for NumPy's AxisError."""
    if isinstance(axis, tuple | list):
        raise TypeMismatch(
            f"{name_of(function)} goes along one axis, not {axis!r}",
            loc=here(),
            label="this call",
            hint="axis= takes a number; reshape the array, so that these are one axis",
        )
    return axes_of(function, axis, rank)[0]
