"""NumPy's element-wise functions on the arrays of a graph: each call is a small, broadcasting operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tdsl.compile import compile
from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.graph.symbol import Recorder, Symbol
from tdsl.lang.casts import cast
from tdsl.lang.expr import Const
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, as_dtype, from_numpy
from tdsl.lang.ufunc import call_ufunc
from tdsl.lang.value import vars

NO_NUMBERS: Mapping[str, Any] = MappingProxyType({})


def apply_ufunc(
    trace: Recorder, ufunc: np.ufunc, method: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Symbol:
    """Calls an element-wise ufunc of NumPy on symbols, other arrays and numbers.

    Broadcasting and type promotion are NumPy's. ShapeError if the shapes do not broadcast, TypeMismatch if
    tdsl has no such function.
    """
    return map_elements(trace, ufunc, args, lambda *values: call_ufunc(ufunc, method, values, options))


def map_elements(
    trace: Recorder | None, function: Callable[..., Any], args: Sequence[Any], value: Callable[..., Any]
) -> Symbol:
    """Applies `value` to elements of arrays that broadcast, and casts to the result type of `function`.

    Without a trace the result is computed at once, as by `record_call`.
    """
    arrays = [a for a in args if isinstance(a, Symbol | np.ndarray)]
    shape = broadcast_shape(function, [a.shape for a in arrays], 0)
    tensors = {
        id(a): Tensor(name, a.shape, from_numpy(a.dtype))
        for a, name in zip({id(a): a for a in arrays}.values(), "abcd", strict=False)
    }
    index = index_variables(len(shape))
    values = [broadcast_read(tensors[id(a)], a.shape, shape, index) if id(a) in tensors else a for a in args]
    result = value(*values)
    result_type = from_numpy(function(*(_empty(a) for a in args)).dtype)
    reads = not isinstance(result.node, Const)  # what reads nothing has no range of its own
    out = Func(function.__name__, shape=None if reads else shape)
    out[index] = result if result.dtype == result_type else cast(result, result_type)
    return record_call(trace, out, {tensors[id(a)]: a for a in arrays} if reads else {})


def record_call(
    trace: Recorder | None,
    out: Func,
    inputs: Mapping[Tensor, Any],
    numbers: Mapping[str, Any] = NO_NUMBERS,
) -> Symbol:
    """Compiles the func `out` as an operator, and records its call with the arrays `inputs` by tensor.

    `numbers` are the values of its scalars by name.

    Without a trace the operator is called at once, on arrays of NumPy.
    """
    compiled, arrays = compile(out), {t.name: x for t, x in inputs.items()} | dict(numbers)
    result: Symbol = compiled(**arrays) if trace is None else trace.call(compiled, (), arrays)
    return result


def _empty(a: Any) -> Any:
    """An array without elements of the operand's type; numbers unchanged."""
    return np.empty(0, a.dtype) if isinstance(a, Symbol | np.ndarray) else a


def element_type(dtype: Any) -> DType:
    """The element type for NumPy's name or type: "i8" has 8 bytes in NumPy, 8 bits in the language.

    >>> element_type("i8"), element_type("f4"), element_type("bf16")
    (i64, f32, bf16)
    """
    if isinstance(dtype, str):
        try:
            return from_numpy(np.dtype(dtype))
        except TypeError as error:
            if isinstance(error, TypeMismatch):
                raise
    return as_dtype(dtype)


def convert(x: Symbol, dtype: Any) -> Symbol:
    """The elements converted to another type."""
    result_type = element_type(dtype)

    def astype(a: Any) -> Any:
        return a.astype(result_type.numpy)

    return map_elements(x.trace, astype, (x,), lambda a: cast(a, result_type))


def broadcast_shape(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], inner: int
) -> tuple[int, ...]:
    """The broadcast shape of `shapes` without their last `inner` dimensions; ShapeError if they disagree."""
    try:
        if inner and (min(map(len, shapes)) < inner or shapes[0][-1] != shapes[1][-2]):
            raise ValueError
        return np.broadcast_shapes(*(shape[: len(shape) - inner] for shape in shapes))
    except ValueError:
        raise ShapeError(
            f"np.{function.__name__} of arrays of shapes {', '.join(map(str, shapes))}",
            loc=here(),
            label="this operation",
            hint="extents must agree, or be 1, counted from the last"
            if not inner
            else "columns of the first are as many as rows of the second",
        ) from None


def record_copy(x: Symbol) -> Symbol:
    """Records a copy of an array."""
    source, out, index = (
        Tensor("a", x.shape, from_numpy(x.dtype)),
        Func("copy"),
        index_variables(x.ndim),
    )
    out[index] = source[index]
    result: Symbol = x.trace.call(compile(out), (x,), {})
    return result


def index_variables(rank: int) -> tuple[Any, ...]:
    """A variable for each dimension: i0, i1, ..."""
    return tuple(vars(f"i{n}") for n in range(rank))


def broadcast_read(
    tensor: Tensor,
    shape: tuple[int, ...],
    result_shape: tuple[int, ...],
    index: tuple[Any, ...],
    inner: tuple[Any, ...] = (),
) -> Any:
    """The element of a tensor of `shape` that broadcasts to the point `index` of `result_shape`.

    Broadcast axes are read at 0; `inner` are indices of further, last axes.
    """
    left = len(result_shape) - len(shape)
    axes = zip(shape, result_shape[left:], index[left:], strict=True)
    return tensor[(*(0 if extent != result_extent else i for extent, result_extent, i in axes), *inner)]
