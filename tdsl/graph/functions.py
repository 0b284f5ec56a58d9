"""NumPy's functions that are no ufuncs, on the arrays of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tdsl.compile import compile
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.graph.elementwise import copied, of_elements, tensor_index
from tdsl.graph.symbol import Symbol
from tdsl.lang.casts import cast
from tdsl.lang.functions import clip, where
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import from_numpy
from tdsl.lang.ufunc import call_function
from tdsl.source import here

VIEWS = (
    np.transpose, np.reshape, np.ravel, np.swapaxes, np.moveaxis, np.squeeze, np.expand_dims,
    np.broadcast_to, np.flip, sliding_window_view,
)  # fmt: skip
ELEMENTS = (np.where, np.clip, np.round)


def numpy_function(
    function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
) -> Symbol:
    """What a function of NumPy gives for arrays of a graph; TypeMismatch for one that graphs do not know."""
    if function in VIEWS:
        array, *rest = args
        return array._changed(lambda a: function(a, *rest, **options))  # type: ignore[no-any-return]  # a Symbol
    if function in ELEMENTS and not options:
        trace = next(a.trace for a in args if isinstance(a, Symbol))
        own = lambda *values: call_function(function, values, {})
        return of_elements(trace, function, args, own)
    if function is np.concatenate and {*options} <= {"axis"} and len(args) <= 2:
        return _concatenated(args[0], options.get("axis", args[1] if len(args) > 1 else 0))
    if function is np.copy:
        return copied(*args)
    known = ", ".join(f.__name__ for f in (*ELEMENTS, np.concatenate, np.copy, *VIEWS))
    raise TypeMismatch(
        f"np.{function.__name__} with these arguments does not take arrays of a graph",
        loc=here(),
        label="this call",
        hint=f"write it as an operator; graphs know NumPy's ufuncs, and {known}",
    )


def _concatenated(parts: Sequence[Any], axis: Any) -> Symbol:
    """Arrays one after the other: a where-chain over the axis."""
    try:
        whole = np.concatenate(
            [np.broadcast_to(np.empty((), p.dtype), p.shape) for p in parts], axis
        )
    except (ValueError, TypeError) as error:
        raise ShapeError(
            f"np.concatenate: {error}",
            loc=here(),
            label="this call",
            hint="the parts agree in all extents but that of the axis; reshape them for axis=None",
        ) from None
    axis, dtype = axis % whole.ndim, from_numpy(whole.dtype)
    index = tensor_index(whole.ndim)
    tensors = [Tensor(f"a{n}", p.shape, from_numpy(p.dtype)) for n, p in enumerate(parts)]
    out, start, value = Func("concatenate", shape=whole.shape), whole.shape[axis], None
    for t, part in zip(reversed(tensors), reversed(parts), strict=True):
        extent = part.shape[axis]
        start -= extent
        if not extent:
            continue
        inside = clip(index[axis] - start, 0, extent - 1)
        mine = cast(t[(*index[:axis], inside, *index[axis + 1 :])], dtype)
        value = mine if value is None else where(index[axis] < start + extent, mine, value)
    out[index] = value
    trace = next(p.trace for p in parts if isinstance(p, Symbol))
    given = {t.name: p for t, p in zip(tensors, parts, strict=True) if p.shape[axis]}
    made: Symbol = trace.call(compile(out), (), given)
    return made
