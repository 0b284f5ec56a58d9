"""NumPy's tensor contractions on the arrays of a graph: `@`, `np.dot`, `np.einsum` and similar functions.

`@` of matrices is defined directly, as one func with a sum; the others become subscripts for `td.einsum`.
Floats of 16 bits and fewer are summed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import reduce
from itertools import chain
from string import ascii_letters
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch, counted
from tdsl.graph.arguments import axis_of, name_of, refuse_options, trace_of
from tdsl.graph.elementwise import (
    broadcast_read,
    broadcast_shape,
    element_type,
    index_variables,
    record_call,
)
from tdsl.graph.symbol import Symbol
from tdsl.lang import einsum as language
from tdsl.lang.casts import cast
from tdsl.lang.reduction import sum as sum_over
from tdsl.lang.subscripts import parse
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import from_numpy, promote
from tdsl.lang.value import vars


def matmul(x: Any, y: Any) -> Symbol:
    """`np.matmul`: the product of two matrices, or of a batch of matrices; vectors as in NumPy."""
    x, y = _arrays(x, y)
    if x.ndim and y.ndim == 1:
        return _as_symbol(matmul(x, y[:, None])[..., 0])
    if y.ndim and x.ndim == 1:
        return _as_symbol(matmul(x[None], y)[..., 0, :])
    batch_shape = broadcast_shape(np.matmul, [x.shape, y.shape], 2)
    a, b = Tensor("a", x.shape, from_numpy(x.dtype)), Tensor("b", y.shape, from_numpy(y.dtype))
    index, (i, j, k) = index_variables(len(batch_shape)), vars("i j k")
    left = broadcast_read(a, x.shape[:-2], batch_shape, index, (i, k))
    right = broadcast_read(b, y.shape[:-2], batch_shape, index, (k, j))
    result = promote(a.dtype, b.dtype)
    out, sum_type = Func("matmul"), result.summed
    out[(*index, i, j)] = cast(sum_over(left * right, axis=k, dtype=sum_type), result)
    return record_call(trace_of(x, y), out, {a: x, b: y})


def dot(a: Any, b: Any, out: Any = None) -> Symbol:
    """`np.dot`: contracts the last axis of `a` with the second-to-last axis of `b`."""
    refuse_options(np.dot, {"out": out})
    a, b = _arrays(a, b)
    if not a.ndim or not b.ndim:
        return _as_symbol(a * b)
    if a.ndim < 3 and b.ndim < 3:
        return matmul(a, b)
    return _contract_axes(np.dot, a, b, (a.ndim - 1,), (max(b.ndim - 2, 0),))


def inner(a: Any, b: Any) -> Symbol:
    """`np.inner`: contracts the last axes of both arrays."""
    a, b = _arrays(a, b)
    if not a.ndim or not b.ndim:
        return _as_symbol(a * b)
    return _contract_axes(np.inner, a, b, (a.ndim - 1,), (b.ndim - 1,))


def outer(a: Any, b: Any, out: Any = None) -> Symbol:
    """`np.outer`: the products of all pairs of elements, as a matrix."""
    refuse_options(np.outer, {"out": out})
    a, b = _arrays(a, b)
    return _as_symbol(a.reshape(-1, 1) * b.reshape(1, -1))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Symbol:
    """`np.tensordot`: contracts the axes in `axes`, or the last n axes of `a` with the first n of `b`."""
    a, b = _arrays(a, b)
    try:
        axes_a, axes_b = axes
    except TypeError:
        axes_a, axes_b = range(-axes, 0), range(axes)
    contracted = [
        [axis_of(np.tensordot, n, x.ndim) for n in (numbers if np.iterable(numbers) else [numbers])]
        for numbers, x in ((axes_a, a), (axes_b, b))
    ]
    if len(contracted[0]) != len(contracted[1]):
        raise ShapeError(
            f"np.tensordot of {counted(len(contracted[0]), 'axis', 'axes')} with {len(contracted[1])}",
            loc=here(),
            label="this call",
            hint="axes=([1, 0], [0, 1]) names as many axes of the first as of the second",
        )
    return _contract_axes(np.tensordot, a, b, *contracted)


VECTOR_PRODUCTS = {
    "vecdot": "...k,...k->...",
    "matvec": "...ik,...k->...i",
    "vecmat": "...k,...kj->...j",
}


def vector_product(name: str, x: Any, y: Any) -> Symbol:
    """`np.vecdot`, `np.matvec` and `np.vecmat`: products over the last axes; the leading axes broadcast."""
    arrays = _arrays(x, y)
    function = getattr(np, name)
    parsed = parse(VECTOR_PRODUCTS[name], tuple(x.ndim for x in arrays), here())
    return _contract(function, parsed.terms, parsed.result, arrays, frozenset(parsed.dots))


def einsum(
    subscripts: Any,
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    dtype: Any = None,
    **others: Any,
) -> Symbol:
    """`np.einsum`; three or more operands are contracted in pairs, as by `td.einsum`.

    Subscripts are text, or a list of numbers after each operand and for the result.
    """
    refuse_options(np.einsum, {"out": out, **others})
    if not isinstance(subscripts, str):
        subscripts, operands = _from_numbers((subscripts, *operands))
    arrays = _arrays(*operands)
    parsed = parse(subscripts, tuple(x.ndim for x in arrays), here())
    repeated = frozenset(chain(*parsed.terms))
    return _contract(np.einsum, parsed.terms, parsed.result, arrays, repeated, dtype)


def _from_numbers(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The subscripts as text of `einsum(a, [0, 1], b, [1, 2], [0, 2])`, and the operands."""

    def text(numbers: Any) -> str:
        return "".join("..." if n is Ellipsis else ascii_letters[n] for n in numbers)

    operands, lists = arguments[: len(arguments) // 2 * 2 : 2], arguments[1::2]
    try:
        terms = ",".join(map(text, lists))
        return f"{terms}->{text(arguments[-1])}" if len(arguments) % 2 else terms, operands
    except (TypeError, IndexError):
        raise TypeMismatch(
            f"np.einsum takes lists of numbers of axes, from 0 to {len(ascii_letters) - 1}",
            loc=here(),
            label="this call",
            hint='np.einsum("ij,jk->ik", a, b), or np.einsum(a, [0, 1], b, [1, 2], [0, 2])',
        ) from None


def _contract_axes(
    function: Callable[..., Any], a: Any, b: Any, axes_a: Sequence[int], axes_b: Sequence[int]
) -> Symbol:
    """Contracts `axes_a` of `a` with `axes_b` of `b`; the result has the other axes, `a` first."""
    left, right = [f"a{n}" for n in range(a.ndim)], [f"b{n}" for n in range(b.ndim)]
    for n, m in zip(axes_a, axes_b, strict=True):
        right[m] = left[n]
    result = [name for name in (*left, *right) if (name in left) != (name in right)]
    return _contract(function, (left, right), result, (a, b))


def _contract(
    function: Callable[..., Any],
    terms: Sequence[Sequence[str]],
    result: Sequence[str],
    arrays: Sequence[Any],
    repeated: Collection[str] = (),
    dtype: Any = None,
) -> Symbol:
    """The contraction of arrays with named axes `terms`; arrays may have extent 1 along `repeated` axes."""
    extents = _extents(function, terms, arrays, repeated)
    letters = dict(zip(extents, ascii_letters, strict=False))
    tensors, texts = dict[Tensor, Any](), []
    for names, x in zip(terms, arrays, strict=True):
        stored = [n == extents[name] for name, n in zip(names, x.shape, strict=True)]
        texts.append("".join(letters[name] for name, k in zip(names, stored, strict=True) if k))
        operand = x if all(stored) else x[tuple(slice(None) if k else 0 for k in stored)]
        tensors[Tensor(f"a{len(texts)}", operand.shape, from_numpy(x.dtype))] = operand
    result_type = element_type(dtype) if dtype is not None else reduce(promote, (t.dtype for t in tensors))
    text = f"{','.join(texts)}->{''.join(letters[name] for name in result)}"
    contraction = language.einsum(text, *tensors, dtype=result_type.summed, name=function.__name__)
    if result_type != result_type.summed:
        index, wide = index_variables(len(result)), contraction
        contraction = Func(function.__name__)
        contraction[index] = cast(wide[index], result_type)
    return record_call(trace_of(*arrays), contraction, tensors)


def _extents(
    function: Callable[..., Any],
    terms: Sequence[Sequence[str]],
    arrays: Sequence[Any],
    repeated: Collection[str],
) -> dict[str, int]:
    """The extent of each axis by name; ShapeError if arrays disagree."""
    known_extents: dict[str, set[int]] = {}
    for names, x in zip(terms, arrays, strict=True):
        for name, extent in zip(names, x.shape, strict=True):
            known_extents.setdefault(name, set()).add(extent)
    for name, extents in known_extents.items():
        others = extents - {1} if name in repeated else extents
        if len(others) > 1:
            raise ShapeError(
                f"{name_of(function)} of arrays of shapes {', '.join(str(x.shape) for x in arrays)}",
                loc=here(),
                label="this call",
                hint=f"axes that are summed or go together have one extent, not {sorted(others)}",
            )
        known_extents[name] = others or {1}
    return {name: extent for name, (extent,) in known_extents.items()}


def _arrays(*operands: Any) -> list[Any]:
    """The operands with symbols unchanged, and everything else converted to NumPy arrays."""
    return [x if isinstance(x, Symbol) else np.asarray(x) for x in operands]


def _as_symbol(x: Any) -> Symbol:
    assert isinstance(x, Symbol)
    return x
