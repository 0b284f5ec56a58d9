"""NumPy's functions on the arrays of a graph that depend on order: `np.sort`, `np.quantile`, `np.interp`.

Sorting counts for each element those that come before it, `searchsorted` those that are smaller: they are for
short axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.graph.arguments import as_symbol, axes_of, axis_of, refuse_options, trace_of
from tdsl.graph.elementwise import index_variables, record_call
from tdsl.graph.symbol import Symbol
from tdsl.lang.casts import cast
from tdsl.lang.functions import where
from tdsl.lang.reduction import sum as sum_over
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import from_numpy, i64
from tdsl.lang.value import vars

LONGEST_SORTED = 256  # elements: the work grows with their square


def _array(x: Any) -> Any:
    """A symbol as it is, anything else as an array."""
    return x if isinstance(x, Symbol) else np.asarray(x)


def searchsorted(a: Any, v: Any, side: Any = "left", sorter: Any = None) -> Any:
    """`np.searchsorted`: how many of the sorted elements `a` are below each element of `v`."""
    refuse_options(np.searchsorted, {"sorter": sorter})
    a, v = _array(a), _array(v)[..., None]
    before = np.less(a, v) if side == "left" else np.less_equal(a, v)
    if a.dtype.kind == "f":  # NaNs are last, as np.sort has them
        ends = np.isnan(v) if side == "right" else np.isnan(v) & ~np.isnan(a)
        before = before | ends
    return np.sum(before, axis=-1)


def argsort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    """`np.argsort` along a short axis; equal elements keep their order, NaNs come last."""
    refuse_options(np.argsort, {"order": order})
    x: Any = as_symbol(np.argsort, a)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis_of(np.argsort, axis, x.ndim)
    extent = x.shape[axis]
    if extent > LONGEST_SORTED:
        raise ShapeError(
            f"{extent} elements are sorted along axis {axis}; graphs sort {LONGEST_SORTED} at most",
            loc=here(),
            label="this call",
            hint="sort the array outside of the graph",
        )
    t = from_numpy(x.dtype)
    index, (n, m) = index_variables(x.ndim), vars("n m")
    t_in = Tensor("a", x.shape, t)

    def at(i: Any) -> tuple[Any, ...]:
        return (*index[:axis], i, *index[axis + 1 :])

    one, other = t_in[index], t_in[at(m)]
    less, equal = other < one, other == one
    if t.is_float:
        less, equal = less | ((one != one) & (other == other)), equal | ((one != one) & (other != other))
    before, out = Func("before", shape=x.shape), Func("argsort", shape=x.shape)
    before[index] = sum_over(cast(less | (equal & (m < index[axis])), i64), axis=m)
    out[index] = sum_over(where(before[at(n)] == index[axis], cast(n, i64), 0), axis=n)
    return record_call(x.trace, out, {t_in: x})


def sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    """`np.sort` along a short axis."""
    x: Any = as_symbol(np.sort, a)
    if axis is None:
        x, axis = x.reshape(-1), 0
    return take_along_axis(x, argsort(x, axis, order=order), axis)


def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    """`np.take_along_axis`: elements of each row along an axis at indices of their own."""
    x: Any = as_symbol(np.take_along_axis, arr)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis_of(np.take_along_axis, axis, x.ndim)
    places = [
        np.arange(n).reshape([-1 if d == e else 1 for e in range(x.ndim)]) for d, n in enumerate(x.shape)
    ]
    return x[tuple(indices if d == axis else places[d] for d in range(x.ndim))]


def median(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: Any = False, keepdims: Any = False
) -> Any:
    """`np.median` of short axes: the middle element of a sorted row, or the mean of two."""
    refuse_options(np.median, {"out": out})
    x: Any = as_symbol(np.median, a)
    axes = axes_of(np.median, axis, x.ndim)
    rows = _rows(x, axes)
    ordered, extent = sort(rows), rows.shape[-1]
    middle = np.mean(ordered[..., (extent - 1) // 2 : extent // 2 + 1], axis=-1)
    middle = _or_nan(middle, rows).astype(x.dtype if x.dtype.kind == "f" else np.float64)
    return middle.reshape(_with_ones(x, axes)) if keepdims else middle


def _rows(x: Any, axes: tuple[int, ...]) -> Any:
    """The array with some axes as one, the last."""
    kept = [d for d in range(x.ndim) if d not in axes]
    points = int(np.prod([x.shape[d] for d in axes]))
    return x.transpose(*kept, *axes).reshape([*(x.shape[d] for d in kept), points])


def _with_ones(x: Any, axes: tuple[int, ...]) -> list[int]:
    return [1 if d in axes else n for d, n in enumerate(x.shape)]


def _or_nan(values: Any, rows: Any) -> Any:
    """The values, and NaN for each row with a NaN."""
    return np.where(np.any(np.isnan(rows), axis=-1), np.nan, values) if rows.dtype.kind == "f" else values


METHODS = ("linear", "lower", "higher", "midpoint")


def quantile(
    a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: Any = False, method: Any = "linear",
    keepdims: Any = False, *, weights: Any = None, function: Callable[..., Any] = np.quantile,
) -> Any:  # fmt: skip
    """`np.quantile` of short axes, for probabilities that are known; by linear interpolation by default."""
    refuse_options(function, {"out": out, "weights": weights})
    x: Any = as_symbol(function, a)
    axes, probabilities = axes_of(function, axis, x.ndim), np.asarray(q, np.float64)
    rows = _rows(x, axes)
    extent = rows.shape[-1]
    if method not in METHODS or not ((probabilities >= 0) & (probabilities <= 1)).all() or not extent:
        raise TypeMismatch(
            f"np.{function.__name__} of {extent} elements with q={q!r} and method={method!r}",
            loc=here(),
            label="this call",
            hint=f"one element or more; q is in [0, 1], or in [0, 100] percent; methods are {METHODS}",
        )
    result = function(np.ones(1, x.dtype), 0.5).dtype if method in ("linear", "midpoint") else x.dtype
    ordered = sort(rows)
    wide = ordered if method in ("lower", "higher") else ordered.astype(result)

    def at(probability: float) -> Any:
        place = probability * (extent - 1)
        low, high = int(np.floor(place)), int(np.ceil(place))
        first, last = wide[..., low], wide[..., high]
        match method:
            case "lower":
                return first
            case "higher":
                return last
            case "midpoint":
                return first + (last - first) / 2 if low < high else first
            case _:
                part = place - low
                return first + (last - first) * part if part < 0.5 else last - (last - first) * (1 - part)

    values = [_or_nan(at(p), rows).astype(result) for p in probabilities.ravel()]
    stacked = np.stack(values).reshape(probabilities.shape + values[0].shape)
    return stacked.reshape([*probabilities.shape, *_with_ones(x, axes)]) if keepdims else stacked


def percentile(a: Any, q: Any, *args: Any, **options: Any) -> Any:
    """`np.percentile`: the quantile of a hundredth of `q`."""
    return quantile(a, np.asarray(q, np.float64) / 100, *args, function=np.percentile, **options)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """`np.interp`: linear interpolation between points of increasing `xp`, and constants outside of them."""
    refuse_options(np.interp, {"period": period})
    trace = trace_of(x, xp, fp)
    at, places, values = (
        a if isinstance(a, Symbol) else trace.constant_symbol(np.asarray(a)) for a in (x, xp, fp)
    )
    at, places, values = (a.astype(np.float64) for a in (at, places, values))
    if places.ndim != 1 or places.shape != values.shape or not places.size:
        raise ShapeError(
            f"np.interp between points of shapes {places.shape} and {values.shape}",
            loc=here(),
            label="this call",
            hint="xp and fp are vectors of as many elements, one or more",
        )
    last = places.size - 1
    before = values[0] if left is None else left
    after = values[last] if right is None else right
    inside = values[0] + at * 0
    if last:
        n = np.clip(searchsorted(places, at, side="right") - 1, 0, last - 1)
        slope = (values[1:][n] - values[:-1][n]) / (places[1:][n] - places[:-1][n])
        inside = slope * (at - places[n]) + values[n]
    inside = np.where(at == places[last], values[last], inside)
    outside = np.where(at < places[0], before, np.where(at > places[last], after, inside))
    return np.where(np.isnan(at), at, outside)


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    np.searchsorted: searchsorted, np.argsort: argsort, np.sort: sort, np.median: median, np.interp: interp,
    np.take_along_axis: take_along_axis, np.percentile: percentile,
    np.quantile: partial(quantile, function=np.quantile),
}  # fmt: skip
"""The implementation of each function, with NumPy's parameters."""
