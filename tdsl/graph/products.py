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
from tdsl.errors import ShapeError, counted
from tdsl.graph.arguments import axis_of, name_of, refuse, trace_of
from tdsl.graph.elementwise import element_type, joined, made_of, tensor_index, value_at
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
        return matmul(x, y[:, None])[..., 0]
    if y.ndim and x.ndim == 1:
        return matmul(x[None], y)[..., 0, :]
    whole = joined(np.matmul, [x.shape, y.shape], 2)
    a, b = Tensor("a", x.shape, from_numpy(x.dtype)), Tensor("b", y.shape, from_numpy(y.dtype))
    index, (i, j, k) = tensor_index(len(whole)), vars("i j k")
    left = value_at(a, x.shape[:-2], whole, index, (i, k))
    right = value_at(b, y.shape[:-2], whole, index, (k, j))
    result = promote(a.dtype, b.dtype)
    out, exact = Func("matmul"), result.summed
    out[(*index, i, j)] = cast(sum_over(left * right, axis=k, dtype=exact), result)
    return made_of(trace_of(x, y), out, {a: x, b: y})


def dot(a: Any, b: Any, out: Any = None) -> Symbol:
    """`np.dot`: contracts the last axis of `a` with the second-to-last axis of `b`."""
    refuse(np.dot, {"out": out})
    a, b = _arrays(a, b)
    if not a.ndim or not b.ndim:
        return _elements(a * b)
    if a.ndim < 3 and b.ndim < 3:
        return matmul(a, b)
    return _of_axes(np.dot, a, b, (a.ndim - 1,), (max(b.ndim - 2, 0),))


def inner(a: Any, b: Any) -> Symbol:
    """`np.inner`: contracts the last axes of both arrays."""
    a, b = _arrays(a, b)
    if not a.ndim or not b.ndim:
        return _elements(a * b)
    return _of_axes(np.inner, a, b, (a.ndim - 1,), (b.ndim - 1,))


def outer(a: Any, b: Any, out: Any = None) -> Symbol:
    """`np.outer`: the products of all pairs of elements, as a matrix."""
    refuse(np.outer, {"out": out})
    a, b = _arrays(a, b)
    return _elements(a.reshape(-1, 1) * b.reshape(1, -1))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Symbol:
    """`np.tensordot`: contracts the axes in `axes`, or the last n axes of `a` with the first n of `b`."""
    a, b = _arrays(a, b)
    try:
        mine, theirs = axes
    except TypeError:
        mine, theirs = range(-axes, 0), range(axes)
    found = [
        [axis_of(np.tensordot, n, x.ndim) for n in (given if np.iterable(given) else [given])]
        for given, x in ((mine, a), (theirs, b))
    ]
    if len(found[0]) != len(found[1]):
        raise ShapeError(
            f"np.tensordot of {counted(len(found[0]), 'axis', 'axes')} with {len(found[1])}",
            loc=here(),
            label="this call",
            hint="axes=([1, 0], [0, 1]) names as many axes of the first as of the second",
        )
    return _of_axes(np.tensordot, a, b, *found)


VECTORS = {"vecdot": "...k,...k->...", "matvec": "...ik,...k->...i", "vecmat": "...k,...kj->...j"}


def of_vectors(name: str, x: Any, y: Any) -> Symbol:
    """`np.vecdot`, `np.matvec` and `np.vecmat`: products over the last axes; the leading axes broadcast."""
    arrays = _arrays(x, y)
    function = getattr(np, name)
    parsed = parse(VECTORS[name], tuple(x.ndim for x in arrays), here())
    return _contracted(function, parsed.terms, parsed.result, arrays, frozenset(parsed.dots))


def einsum(
    subscripts: Any,
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    dtype: Any = None,
    **others: Any,
) -> Symbol:
    """`np.einsum` with subscripts as text; three or more operands are contracted in pairs, as `td.einsum`."""
    refuse(np.einsum, {"out": out, **others})
    arrays = _arrays(*operands)
    parsed = parse(subscripts, tuple(x.ndim for x in arrays), here())
    repeated = frozenset(chain(*parsed.terms))
    return _contracted(np.einsum, parsed.terms, parsed.result, arrays, repeated, dtype)


def _of_axes(
    function: Callable[..., Any], a: Any, b: Any, mine: Sequence[int], theirs: Sequence[int]
) -> Symbol:
    """Contracts axes `mine` of `a` with `theirs` of `b`; the result has the other axes, `a` first."""
    left, right = [f"a{n}" for n in range(a.ndim)], [f"b{n}" for n in range(b.ndim)]
    for n, m in zip(mine, theirs, strict=True):
        right[m] = left[n]
    result = [name for name in (*left, *right) if (name in left) != (name in right)]
    return _contracted(function, (left, right), result, (a, b))


def _contracted(
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
        kept = [n == extents[name] for name, n in zip(names, x.shape, strict=True)]
        texts.append("".join(letters[name] for name, k in zip(names, kept, strict=True) if k))
        part = x if all(kept) else x[tuple(slice(None) if k else 0 for k in kept)]
        tensors[Tensor(f"a{len(texts)}", part.shape, from_numpy(x.dtype))] = part
    found = (
        element_type(dtype) if dtype is not None else reduce(promote, (t.dtype for t in tensors))
    )
    text = f"{','.join(texts)}->{''.join(letters[name] for name in result)}"
    made = language.einsum(text, *tensors, dtype=found.summed, name=function.__name__)
    if found != found.summed:
        index, exact = tensor_index(len(result)), made
        made = Func(function.__name__)
        made[index] = cast(exact[index], found)
    return made_of(trace_of(*arrays), made, tensors)


def _extents(
    function: Callable[..., Any],
    terms: Sequence[Sequence[str]],
    arrays: Sequence[Any],
    repeated: Collection[str],
) -> dict[str, int]:
    """The extent of each axis by name; ShapeError if arrays disagree."""
    found: dict[str, set[int]] = {}
    for names, x in zip(terms, arrays, strict=True):
        for name, extent in zip(names, x.shape, strict=True):
            found.setdefault(name, set()).add(extent)
    for name, extents in found.items():
        others = extents - {1} if name in repeated else extents
        if len(others) > 1:
            raise ShapeError(
                f"{name_of(function)} of arrays of shapes {', '.join(str(x.shape) for x in arrays)}",
                loc=here(),
                label="this call",
                hint=f"axes that are summed or go together have one extent, not {sorted(others)}",
            )
        found[name] = others or {1}
    return {name: extent for name, (extent,) in found.items()}


def _arrays(*given: Any) -> list[Any]:
    """The operands with symbols unchanged, and everything else converted to NumPy arrays."""
    return [x if isinstance(x, Symbol) else np.asarray(x) for x in given]


def _elements(made: Any) -> Symbol:
    assert isinstance(made, Symbol)
    return made
