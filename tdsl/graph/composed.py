"""NumPy's functions on the arrays of a graph that are short compositions of others, such as `np.roll`.

What moves elements consists of views and concatenations, so that it is fused with its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.graph.arguments import as_symbol, axis_of, refuse_options
from tdsl.graph.concatenate import full
from tdsl.graph.elementwise import index_variables, record_call
from tdsl.graph.symbol import Symbol
from tdsl.lang.casts import cast
from tdsl.lang.functions import clip, where
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import from_numpy
from tdsl.lang.value import vars


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """`np.roll`: along each axis the last elements before the first ones."""
    x: Any = as_symbol(np.roll, a)
    if axis is None:
        return roll(x.reshape(-1), shift, 0).reshape(x.shape)
    for s, n in zip(*map(np.ravel, np.broadcast_arrays(shift, axis)), strict=True):
        number = axis_of(np.roll, int(n), x.ndim)
        s = int(s) % max(x.shape[number], 1)
        if s:
            x = np.concatenate([_part(x, number, -s, None), _part(x, number, 0, -s)], number)
    return x


def _array(x: Any) -> Any:
    """A symbol as it is, anything else as an array."""
    return x if isinstance(x, Symbol) else np.asarray(x)


def _part(x: Any, axis: int, start: int | None, stop: int | None, step: int | None = None) -> Any:
    """A slice along one axis."""
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """`np.repeat`: each element, or each row along an axis, several times."""
    x: Any = as_symbol(np.repeat, a)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis_of(np.repeat, axis, x.ndim)
    counts = np.asarray(repeats)
    if counts.size == 1:
        count = int(counts.ravel()[0])
        expanded = np.expand_dims(x, axis + 1)
        shape = (*x.shape[: axis + 1], count, *x.shape[axis + 1 :])
        rows = x.shape[axis] * count
        return np.broadcast_to(expanded, shape).reshape(*x.shape[:axis], rows, *x.shape[axis + 1 :])
    try:
        chosen = np.repeat(np.arange(x.shape[axis]), counts)
    except ValueError as error:
        raise ShapeError(
            f"np.repeat: {error}",
            loc=here(),
            label="this call",
            hint=f"repeats= is a number, or {x.shape[axis]} numbers, one for each element along the axis",
        ) from None
    return np.take(x, chosen, axis)


def tile(A: Any, reps: Any) -> Any:  # the name in NumPy
    """`np.tile`: the array several times along each axis."""
    x: Any = as_symbol(np.tile, A)
    counts = tuple(int(n) for n in np.ravel(reps))
    rank = max(x.ndim, len(counts))
    x = x.reshape((1,) * (rank - x.ndim) + x.shape)
    counts = (1,) * (rank - len(counts)) + counts
    pairs = [part for n, count in zip(x.shape, counts, strict=True) for part in (count, n)]
    expanded = x.reshape([part for n in x.shape for part in (1, n)])
    return np.broadcast_to(expanded, pairs).reshape([n * c for n, c in zip(x.shape, counts, strict=True)])


def triangle(function: Callable[..., Any], m: Any, k: Any = 0) -> Any:
    """`np.tril` and `np.triu`: matrices with zeros above, or below, a diagonal."""
    x: Any = as_symbol(function, m)
    if x.ndim < 2:  # a vector is each row of a square matrix
        x = np.broadcast_to(x, (x.size, x.size))
    index, a = index_variables(x.ndim), Tensor("a", x.shape, from_numpy(x.dtype))
    kept = index[-1] - index[-2] <= k if function is np.tril else index[-1] - index[-2] >= k
    out = Func(function.__name__)
    out[index] = where(kept, a[index], cast(0, a.dtype))
    return record_call(x.trace, out, {a: x})


def diag(v: Any, k: Any = 0) -> Any:
    """`np.diag`: the diagonal of a matrix, or a matrix with a vector as its diagonal."""
    x: Any = as_symbol(np.diag, v)
    if x.ndim == 2:
        return np.diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(
            f"np.diag takes a vector or a matrix, not an array of {x.ndim} dimensions",
            loc=here(),
            label="this call",
            hint="np.diagonal takes the diagonals of several matrices",
        )
    rows = x.size + abs(k)
    if not x.size:
        return full(x.trace, "diag", (rows, rows), 0, from_numpy(x.dtype))
    a, (i, j), out = Tensor("a", x.shape, from_numpy(x.dtype)), vars("i j"), Func("diag", shape=(rows, rows))
    at = i if k >= 0 else j
    out[i, j] = where(j - i == k, a[clip(at, 0, x.size - 1)], cast(0, a.dtype))
    return record_call(x.trace, out, {a: x})


def trace(a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1, dtype: Any = None, out: Any = None) -> Any:
    """`np.trace`: the sum of a diagonal."""
    return np.sum(np.diagonal(as_symbol(np.trace, a), offset, axis1, axis2), axis=-1, dtype=dtype, out=out)


def matrix_trace(x: Any, /, *, offset: Any = 0, dtype: Any = None) -> Any:
    """`np.linalg.trace`: the sums of the diagonals of matrices, the last two axes."""
    return trace(x, offset, -2, -1, dtype)


def diff(a: Any, n: Any = 1, axis: Any = -1, prepend: Any = None, append: Any = None) -> Any:
    """`np.diff`: differences of neighbours along an axis, n times, of the array between two others."""
    x: Any = _array(a)
    axis = axis_of(np.diff, axis, x.ndim)
    ends = [None if end is None else _array(end) for end in (prepend, append)]
    row = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    parts = [end if end is None or end.ndim else np.broadcast_to(end, row) for end in ends]
    if any(part is not None for part in parts):
        x = np.concatenate([part for part in (parts[0], x, parts[1]) if part is not None], axis)
    subtract = np.not_equal if x.dtype == bool else np.subtract
    for _ in range(n):
        x = subtract(_part(x, axis, 1, None), _part(x, axis, None, -1))
    return x


def append(arr: Any, values: Any, axis: Any = None) -> Any:
    """`np.append`: the concatenation of two arrays."""
    return np.concatenate([arr, values], axis)


def column_stack(tup: Sequence[Any]) -> Any:
    """`np.column_stack`: vectors as columns of a matrix, joined along the second axis."""
    return np.concatenate([x.reshape(-1, 1) if x.ndim < 2 else x for x in tup], 1)


def dstack(tup: Sequence[Any]) -> Any:
    """`np.dstack`: arrays joined along the third axis."""
    return np.concatenate([np.atleast_3d(x) for x in tup], 2)


def block(arrays: Any) -> Any:
    """`np.block`: nested lists of blocks; the innermost lists are joined along the last axis."""

    def depth(x: Any) -> int:
        return 1 + depth(x[0]) if isinstance(x, list) else 0

    def join(x: Any, level: int) -> Any:
        if not isinstance(x, list):
            array = _array(x)
            return array.reshape((1,) * (rank - array.ndim) + array.shape)
        return np.concatenate([join(part, level - 1) for part in x], -level)

    def ranks(x: Any) -> list[int]:
        return [n for part in x for n in ranks(part)] if isinstance(x, list) else [np.ndim(x)]

    levels = depth(arrays)
    rank = max(levels, *ranks(arrays)) if levels else np.ndim(arrays)
    return join(arrays, levels)


def kron(a: Any, b: Any) -> Any:
    """`np.kron`: the Kronecker product."""
    a, b = _array(a), _array(b)
    rank = max(a.ndim, b.ndim)
    left, right = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    product = left.reshape([p for n in left.shape for p in (n, 1)]) * right.reshape(
        [p for n in right.shape for p in (1, n)]
    )
    return product.reshape([n * m for n, m in zip(left.shape, right.shape, strict=True)])


def cross(a: Any, b: Any, axisa: Any = -1, axisb: Any = -1, axisc: Any = -1, axis: Any = None) -> Any:
    """`np.cross`: the vector products of vectors of three elements."""
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = np.moveaxis(_array(a), axisa, -1), np.moveaxis(_array(b), axisb, -1)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise ShapeError(
            f"np.cross of vectors of {x.shape[-1]} and {y.shape[-1]} elements",
            loc=here(),
            label="this call",
            hint="vectors have three elements, along axis=",
        )
    parts = [x[..., m] * y[..., n] - x[..., n] * y[..., m] for m, n in ((1, 2), (2, 0), (0, 1))]
    return np.stack(parts, axis_of(np.cross, axisc, parts[0].ndim + 1))


def average(a: Any, axis: Any = None, weights: Any = None, *, keepdims: Any = False) -> Any:
    """`np.average`: the mean, or the mean with weights of the shape of the array or of one axis."""
    if weights is None:
        return np.mean(a, axis=axis, keepdims=keepdims)
    w = _array(weights)
    if w.shape != a.shape:
        along = axis_of(np.average, axis, a.ndim)
        w = w.reshape([n if d == along else 1 for d, n in enumerate(a.shape)])
    total = np.sum(np.broadcast_to(w, a.shape), axis=axis, keepdims=keepdims)
    return np.sum(a * w, axis=axis, keepdims=keepdims) / total


def cov(m: Any, y: Any = None, rowvar: Any = True, bias: Any = False, ddof: Any = None, **others: Any) -> Any:
    """`np.cov`: the covariances of the rows, or with `rowvar=False` of the columns."""
    refuse_options(np.cov, {"y": y, **others})
    x: Any = as_symbol(np.cov, m)
    x = x.reshape(1, -1) if x.ndim < 2 else x if rowvar else x.T
    x = x - np.mean(x, axis=1, keepdims=True)
    degrees = x.shape[1] - ((not bias) if ddof is None else ddof)
    return np.squeeze(x @ x.T / np.float64(degrees))


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """`np.select`: the first choice whose condition holds, else the default."""
    pairs = list(zip(condlist, choicelist, strict=True))
    values = [x if type(x) in (int, float) else _array(x) for x in (*choicelist, default)]
    result = np.result_type(*(x if type(x) in (int, float) else x.dtype for x in values))
    chosen = reduce(lambda rest, pair: np.where(pair[0], pair[1], rest), reversed(pairs), default)
    return chosen.astype(result)


def meshgrid(*xi: Any, copy: Any = True, sparse: Any = False, indexing: Any = "xy") -> tuple[Any, ...]:
    """`np.meshgrid`: coordinates of a grid, from the coordinates along each axis."""
    rank = len(xi)
    arrays = [x.reshape([-1 if d == n else 1 for d in range(rank)]) for n, x in enumerate(xi)]
    if indexing == "xy" and rank > 1:
        arrays = [x.swapaxes(0, 1) for x in arrays]
    return tuple(arrays) if sparse else tuple(np.broadcast_arrays(*arrays))


def broadcast_arrays(*args: Any, subok: Any = False) -> tuple[Any, ...]:
    """`np.broadcast_arrays`: views of the arrays in their common shape."""
    shape = np.broadcast_shapes(*(np.shape(x) for x in args))
    return tuple(np.broadcast_to(x, shape) for x in args)


def convolve(a: Any, v: Any, mode: Any = "full") -> Any:
    """`np.convolve` of two vectors, as a sum over the shorter one."""
    a, v = _array(a), _array(v)
    x, y = (a, v) if a.size >= v.size else (v, a)
    before = {"full": y.size - 1, "same": y.size // 2, "valid": 0}
    extent = {"full": x.size + y.size - 1, "same": x.size, "valid": x.size - y.size + 1}
    if mode not in before or x.ndim != 1 or y.ndim != 1 or not y.size:
        raise TypeMismatch(
            f"np.convolve of arrays of shapes {a.shape} and {v.shape} with mode {mode!r}",
            loc=here(),
            label="this call",
            hint="vectors with one element or more; mode is 'full', 'same' or 'valid'",
        )
    after = extent[mode] + y.size - 1 - x.size - before[mode]
    padded = np.pad(x, (before[mode], after))
    return np.lib.stride_tricks.sliding_window_view(padded, y.size) @ y[::-1]


def matrix_power(a: Any, n: Any) -> Any:
    """`np.linalg.matrix_power` for powers of 0 or more, by repeated squares."""
    if n < 0:
        raise TypeMismatch(
            f"np.linalg.matrix_power with {n} needs an inverse",
            loc=here(),
            label="this call",
            hint="graphs have powers of 0 or more",
        )
    if not n:
        return np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape)
    result, square = None, a
    while n:
        if n % 2:
            result = square if result is None else result @ square
        n //= 2
        square = square @ square if n else square
    return result


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    **{f: partial(triangle, f) for f in (np.tril, np.triu)},
    np.roll: roll, np.repeat: repeat, np.tile: tile, np.diag: diag, np.trace: trace,
    np.linalg.trace: matrix_trace, np.diff: diff, np.append: append, np.column_stack: column_stack,
    np.dstack: dstack, np.block: block, np.kron: kron, np.cross: cross, np.average: average,
    np.select: select, np.meshgrid: meshgrid, np.broadcast_arrays: broadcast_arrays, np.convolve: convolve,
    np.cov: cov, np.linalg.matrix_power: matrix_power,
    np.linalg.multi_dot: lambda arrays: reduce(np.matmul, arrays),
    np.allclose: lambda a, b, *args, **options: np.all(np.isclose(a, b, *args, **options)),
    np.iscomplexobj: lambda x: False,
    np.isrealobj: lambda x: True,
}  # fmt: skip
"""The implementation of each function, with NumPy's parameters."""
