"""NumPy's element-wise functions on the arrays of a graph: each call is a small, broadcasting operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tdsl.compile import compile
from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.graph.symbol import Recorder, Symbol
from tdsl.lang.casts import cast
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, as_dtype, from_numpy
from tdsl.lang.ufunc import call_ufunc
from tdsl.lang.value import vars


def elementwise(
    trace: Recorder, ufunc: np.ufunc, method: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Symbol:
    """Calls an element-wise ufunc of NumPy on symbols, other arrays and numbers.

    Broadcasting and type promotion are NumPy's. ShapeError if the shapes do not broadcast, TypeMismatch if
    tdsl has no such function.
    """
    return of_elements(
        trace, ufunc, args, lambda *values: call_ufunc(ufunc, method, values, options)
    )


def of_elements(
    trace: Recorder, function: Callable[..., Any], args: Sequence[Any], value: Callable[..., Any]
) -> Symbol:
    """Applies `value` to elements of arrays that broadcast, and casts to the result type of `function`."""
    arrays = [a for a in args if isinstance(a, Symbol | np.ndarray)]
    shape = joined(function, [a.shape for a in arrays], 0)
    tensors = {
        id(a): Tensor(name, a.shape, from_numpy(a.dtype))
        for a, name in zip({id(a): a for a in arrays}.values(), "abcd", strict=False)
    }
    index = tensor_index(len(shape))
    values = [
        value_at(tensors[id(a)], a.shape, shape, index) if id(a) in tensors else a for a in args
    ]
    result = value(*values)
    wanted = from_numpy(function(*(_empty(a) for a in args)).dtype)
    out = Func(function.__name__)
    out[index] = result if result.dtype == wanted else cast(result, wanted)
    return made_of(trace, out, {tensors[id(a)]: a for a in arrays})


def made_of(trace: Recorder, out: Func, given: Mapping[Tensor, Any]) -> Symbol:
    """Compiles the func `out` as an operator, and records its call with the given array for each tensor."""
    made: Symbol = trace.call(compile(out), (), {t.name: x for t, x in given.items()})
    return made


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


def of_type(x: Symbol, dtype: Any) -> Symbol:
    """The elements converted to another type."""
    wanted = element_type(dtype)

    def astype(a: Any) -> Any:
        return a.astype(wanted.numpy)

    return of_elements(x.trace, astype, (x,), lambda a: cast(a, wanted))


def joined(
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


def copied(x: Symbol) -> Symbol:
    """Records a copy of an array."""
    source, out, index = (
        Tensor("a", x.shape, from_numpy(x.dtype)),
        Func("copy"),
        tensor_index(x.ndim),
    )
    out[index] = source[index]
    made: Symbol = x.trace.call(compile(out), (x,), {})
    return made


def tensor_index(rank: int) -> tuple[Any, ...]:
    """A variable for each dimension: i0, i1, ..."""
    return tuple(vars(f"i{n}") for n in range(rank))


def value_at(
    tensor: Tensor,
    own: tuple[int, ...],
    whole: tuple[int, ...],
    index: tuple[Any, ...],
    inner: tuple[Any, ...] = (),
) -> Any:
    """The element of a tensor of shape `own` that broadcasts to the point `index` of the shape `whole`.

    Broadcast axes are read at 0; `inner` are indices of further, last axes.
    """
    left = len(whole) - len(own)
    at = zip(own, whole[left:], index[left:], strict=True)
    return tensor[(*(0 if mine != theirs else i for mine, theirs, i in at), *inner)]
