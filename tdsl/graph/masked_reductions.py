"""Reductions of the elements of an array of a graph that a mask keeps: `np.nanmax(x)`, `x[mask].sum()`.

Every other element is replaced by one that does not change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tdsl.graph.elementwise import map_elements
from tdsl.graph.symbol import Symbol
from tdsl.lang.effects import require

REDUCTIONS = (
    np.sum, np.prod, np.mean, np.var, np.std, np.max, np.min, np.any, np.all, np.count_nonzero,
)  # fmt: skip


def reduce_kept(
    function: Callable[..., Any], x: Any, kept: Any, axis: Any = None, *, dtype: Any = None,
    keepdims: Any = False, ddof: Any = 0,
) -> Any:  # fmt: skip
    """A reduction of NumPy, one of `REDUCTIONS`, over the elements of `x` where `kept` is true.

    `kept` broadcasts to the shape of `x`. Extrema of no elements are the least and the largest value of the
    type, means and variances of none are NaN, as NumPy's.
    """
    kept = np.broadcast_to(kept, x.shape)
    options = {"axis": axis, "keepdims": keepdims}
    typed = options if dtype is None else options | {"dtype": dtype}
    if function is np.mean:
        return _mean(x, kept, typed)
    if function in (np.var, np.std):
        return _variance(function, x, kept, typed, ddof)
    other = np.asarray(_neutral(function, x.dtype), x.dtype)
    replaced = np.where(kept, x, other[()])
    return function(replaced, **(typed if function in (np.sum, np.prod) else options))


def reduce_some(function: Callable[..., Any], x: Symbol, kept: Symbol, axis: Any, **options: Any) -> Any:
    """`reduce_kept`; an extremum of no elements is an error of the call, as in NumPy."""
    result = reduce_kept(function, x, kept, axis, **options)
    if function not in (np.max, np.min):
        return result
    name = "maximum" if function is np.max else "minimum"
    message = f"zero-size array to reduction operation {name} which has no identity"
    count = np.count_nonzero(kept)

    def extremum(value: Any, number: Any) -> Any:
        return value

    return map_elements(x.trace, extremum, (result, count), lambda v, n: require(n > 0, v, message))


def _neutral(function: Callable[..., Any], dtype: Any) -> Any:
    """The element that does not change the result of a reduction."""
    if function in (np.prod, np.all):
        return 1
    if function not in (np.max, np.min):
        return 0
    least = function is np.max
    if dtype.kind == "f":
        return -np.inf if least else np.inf
    if dtype.kind == "b":
        return not least
    return np.iinfo(dtype).min if least else np.iinfo(dtype).max


def _mean(x: Any, kept: Any, options: dict[str, Any]) -> Any:
    result = options.get("dtype") or np.mean(np.ones(1, x.dtype)).dtype
    wide = np.float32 if result == np.float16 else result
    total = reduce_kept(np.sum, x, kept, **options | {"dtype": wide})
    return (total / _count(kept, options)).astype(result)


def _count(kept: Any, options: dict[str, Any]) -> Any:
    return np.sum(kept, axis=options["axis"], keepdims=options["keepdims"])


def _variance(function: Callable[..., Any], x: Any, kept: Any, options: dict[str, Any], ddof: Any) -> Any:
    result = options.get("dtype") or np.var(np.ones(1, x.dtype)).dtype
    wide = x.astype(np.float32 if result == np.float16 else result)
    mean = _mean(wide, kept, options | {"keepdims": True, "dtype": wide.dtype})
    squares = reduce_kept(
        np.sum, (wide - mean) ** 2, kept, axis=options["axis"], keepdims=options["keepdims"]
    )
    degrees = _count(kept, options) - ddof
    variance = squares / np.where(degrees > 0, degrees, np.nan if ddof else 0)
    return (np.sqrt(variance) if function is np.std else variance).astype(result)


NAN_FUNCTIONS: Mapping[Any, Any] = {
    np.nansum: np.sum, np.nanprod: np.prod, np.nanmean: np.mean, np.nanvar: np.var, np.nanstd: np.std,
    np.nanmax: np.max, np.nanmin: np.min,
}  # fmt: skip


def reduce_numbers(
    function: Callable[..., Any], a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
    ddof: Any = 0, keepdims: Any = False,
) -> Any:  # fmt: skip
    """`np.nansum`, `np.nanmax` and their like: NaN is left out; extrema of NaN alone are NaN."""
    kept = ~np.isnan(a)
    reduction = NAN_FUNCTIONS[function]
    result = reduce_kept(reduction, a, kept, axis, dtype=dtype, keepdims=keepdims, ddof=ddof)
    if reduction not in (np.max, np.min):
        return result
    some = np.any(kept, axis=axis, keepdims=keepdims)
    return np.where(some, result, np.nan).astype(a.dtype) if a.dtype.kind == "f" else result
