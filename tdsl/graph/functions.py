"""Dispatch of NumPy's functions on the symbols of a graph: which function of tdsl implements each of them.

views          functions that return a view of their argument                 VIEWS
elements       element-wise functions of arguments that broadcast             elementwise.py
reductions     sums, extrema, argmax, moments, norms, cumulative sums         reductions.py
products       contractions: matmul, dot, einsum                              products.py
concatenate    concatenate, stack, split, pad                                 concatenate.py
indexing       advanced indexing by arrays of integers                        advanced_indexing.py
composed       short compositions of the others: roll, repeat, diff          composed.py
order          sorting and what depends on order: sort, quantile, interp      order.py
masked         reductions of the elements that a mask keeps: nansum, nanmax   masked_reductions.py
writes         functions that write to an array: copyto, fill_diagonal        WRITES

Functions of arrays whose values are known, such as `np.zeros(8)`, are computed by NumPy at once.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.graph import (
    advanced_indexing,
    composed,
    concatenate,
    masked_reductions,
    order,
    products,
    reductions,
)
from tdsl.graph.arguments import as_symbol, name_of, refuse_options, trace_of, wrong_arguments_error
from tdsl.graph.created_arrays import as_created, as_known, has_symbols
from tdsl.graph.elementwise import apply_ufunc, convert, map_elements, record_copy
from tdsl.graph.structure import trace_in
from tdsl.graph.symbol import NumpyFunctions, Recorder, Symbol, write_out
from tdsl.graph.writes import write
from tdsl.lang.ufunc import call_function

NumpyFunction = Callable[..., Any]

VIEWS = (
    np.transpose, np.reshape, np.ravel, np.swapaxes, np.moveaxis, np.rollaxis, np.squeeze, np.expand_dims,
    np.broadcast_to, np.flip, np.fliplr, np.flipud, np.rot90, np.diagonal, np.atleast_1d, np.atleast_2d,
    np.atleast_3d, sliding_window_view,
)  # fmt: skip
SPLITS = (np.split, np.array_split, np.hsplit, np.vsplit, np.dsplit)


def _call_view(function: NumpyFunction, a: Any, *args: Any, **options: Any) -> Symbol:
    return as_symbol(function, a).apply_view(lambda array: function(array, *args, **options))


def _where(condition: Any, x: Any, y: Any) -> Symbol:
    return _map_elements(np.where, condition, x, y)


def _map_elements(function: NumpyFunction, *args: Any, **options: Any) -> Symbol:
    arrays = [np.asarray(a) if isinstance(a, list | tuple) else a for a in args]
    trace = trace_of(*arrays)
    return map_elements(trace, function, arrays, lambda *v: call_function(function, v, options))


def _clip(
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    out: Any = None,
    *,
    min: Any = None,
    max: Any = None,
) -> Any:
    refuse_options(np.clip, {"out": out})
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if low is not None and high is not None:
        return _map_elements(np.clip, a, low, high)
    bounded = a if low is None else np.maximum(a, low)
    return bounded if high is None else np.minimum(bounded, high)


def _isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Symbol:
    return _map_elements(np.isclose, a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)


def _nan_to_num(x: Any, copy: Any = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Symbol:
    return _map_elements(np.nan_to_num, x, nan=nan, posinf=posinf, neginf=neginf)


def _round(a: Any, decimals: Any = 0, out: Any = None) -> Symbol:
    refuse_options(np.round, {"out": out, "decimals": decimals or None})
    return _map_elements(np.round, a)


def _copy(a: Any, order: Any = None, subok: Any = None) -> Symbol:
    refuse_options(np.copy, {"order": order})
    return record_copy(a)


def _full_like(a: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None) -> Symbol:
    extents, element = a.shape if shape is None else shape, a.dtype if dtype is None else dtype
    return Symbol.created(a.trace, np.full(extents, fill_value, element))


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    target = as_symbol(np.copyto, dst)
    value = np.broadcast_to(src, target.shape) if np.shape(src) else np.asarray(src)
    value = value if where is True else np.where(where, value, target)
    write_out(target, np.broadcast_to(value, target.shape), casting)


def _fill_diagonal(a: Any, val: Any, wrap: Any = False) -> None:
    refuse_options(np.fill_diagonal, {"wrap": wrap or None})
    x = as_symbol(np.fill_diagonal, a)
    x[(np.arange(min(x.shape)),) * x.ndim] = val


FUNCTIONS: Mapping[NumpyFunction, NumpyFunction] = {
    **{f: partial(_call_view, f) for f in VIEWS},
    **{f: partial(concatenate.split, f) for f in SPLITS},
    **{f: partial(reductions.call_reduction, f) for f in (*reductions.RULES, *reductions.ALIASES)},
    **{f: partial(reductions.cumulate, f) for f in reductions.CUMULATIVE},
    **composed.FUNCTIONS,
    **order.FUNCTIONS,
    **{f: partial(masked_reductions.reduce_numbers, f) for f in masked_reductions.NAN_FUNCTIONS},
    np.linalg.norm: reductions.norm,
    np.dot: products.dot,
    np.inner: products.inner,
    np.outer: products.outer,
    np.tensordot: products.tensordot,
    np.einsum: products.einsum,
    np.where: _where,
    np.clip: _clip,
    np.isclose: _isclose,
    np.nan_to_num: _nan_to_num,
    np.round: _round,
    np.copy: _copy,
    np.concatenate: concatenate.concatenate,
    np.stack: concatenate.stack,
    np.hstack: concatenate.hstack,
    np.vstack: concatenate.vstack,
    np.pad: concatenate.pad,
    np.take: advanced_indexing.take,
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: a.size if axis is None else a.shape[axis],
    np.full_like: _full_like,
    np.zeros_like: lambda a, dtype=None, *, shape=None: _full_like(a, 0, dtype, shape=shape),
    np.empty_like: lambda a, dtype=None, *, shape=None: _full_like(a, 0, dtype, shape=shape),
    np.ones_like: lambda a, dtype=None, *, shape=None: _full_like(a, 1, dtype, shape=shape),
}


WRITES: Mapping[NumpyFunction, NumpyFunction] = {np.copyto: _copyto, np.fill_diagonal: _fill_diagonal}
_ON_SYMBOLS = frozenset([
    *VIEWS, *SPLITS, *WRITES, np.shape, np.ndim, np.size, np.zeros_like, np.ones_like, np.empty_like,
    np.full_like,
])  # fmt: skip


def numpy_function(function: NumpyFunction, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Calls a function of NumPy on arrays of a graph; TypeMismatch for a function without implementation."""
    if function not in _ON_SYMBOLS:
        trace = trace_in((args, dict(options)))
        args, options = as_known(args), as_known(dict(options))
        if not has_symbols((args, options)):
            return as_created(trace, function(*args, **options))
    implementation = FUNCTIONS.get(function) or WRITES.get(function)
    if implementation is None:
        raise TypeMismatch(
            f"{name_of(function)} does not take arrays of a graph",
            loc=here(),
            label="this call",
            hint=_suggest_functions(function),
        )
    try:
        inspect.signature(implementation).bind(*args, **options)
    except TypeError as error:
        raise wrong_arguments_error(function, implementation, error) from None
    return implementation(*args, **options)


def _suggest_functions(function: NumpyFunction) -> str:
    """The hint for an unsupported function: supported ones with similar names, and where all are listed."""
    functions = {name_of(f): f for f in FUNCTIONS}
    similar = difflib.get_close_matches(name_of(function), functions, n=3, cutoff=0.75)
    suggestion = f"did you mean {' or '.join(similar)}? " if similar else ""
    return f"{suggestion}Write it as an operator; docs/graph.md lists NumPy's functions that graphs know"


def numpy_ufunc(
    trace: Recorder, ufunc: np.ufunc, method: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """Calls a ufunc of NumPy, or its `reduce`, `accumulate` or `outer`, on arrays of a graph."""
    args, options = as_known(args), as_known(dict(options))
    if not has_symbols((args, options)):
        result: Any = as_created(trace, getattr(ufunc, method)(*args, **options))
        return result
    if method == "outer" and not options:
        return ufunc(*(np.asarray(a) if not isinstance(a, Symbol) else a for a in _outer_operands(*args)))
    if method != "__call__":
        return reductions.call_ufunc_method(ufunc, method, args, options)
    if not options and ufunc is np.matmul:
        return products.matmul(*args)
    if not options and ufunc.__name__ in products.VECTOR_PRODUCTS:
        return products.vector_product(ufunc.__name__, *args)
    arrays = tuple(np.asarray(a) if isinstance(a, list | tuple) else a for a in args)
    return apply_ufunc(trace, ufunc, method, arrays, options)


def _outer_operands(a: Any, b: Any) -> tuple[Any, Any]:
    """The operands of `ufunc.outer`, so that they broadcast to all pairs."""
    left, right = (x if isinstance(x, Symbol) else np.asarray(x) for x in (a, b))
    return left.reshape(left.shape + (1,) * right.ndim), right


def _copy_symbol(x: Symbol) -> Symbol:
    return record_copy(x) if x.known is None else Symbol.created(x.trace, x.known.copy())


def _convert_symbol(x: Symbol, dtype: Any) -> Symbol:
    return convert(x, dtype) if x.known is None else Symbol.created(x.trace, x.known.astype(dtype))


NUMPY = NumpyFunctions(
    numpy_ufunc, numpy_function, _copy_symbol, _convert_symbol, advanced_indexing.index_by_arrays, write
)
