"""`Selection`: the elements of an array of a graph at a mask, whose number is not known.

Element-wise functions of elements at one mask are elements at it; reductions, whose results have known
shapes, leave the other elements out. Any other use of such elements is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from tdsl.core.source import here
from tdsl.errors import IndexBoundError, TypeMismatch
from tdsl.graph.arguments import bind_arguments
from tdsl.graph.masked_reductions import REDUCTIONS, reduce_some
from tdsl.graph.symbol import ElementwiseOperators, Symbol


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Selection, *args: Any, **options: Any) -> Any:
        return _reduce(function, self, *args, **options)

    method.__name__, method.__qualname__ = function.__name__, f"Selection.{function.__name__}"
    return method


class Selection(ElementwiseOperators):
    """`values[mask]` for a mask of the first axes of `values`, as they are when it is created."""

    __slots__ = ("mask", "values")

    def __init__(self, values: Symbol, mask: Any) -> None:
        for axis, (n, extent) in enumerate(zip(mask.shape, values.shape, strict=False)):
            if n != extent:
                raise IndexBoundError(
                    f"boolean index did not match indexed array along axis {axis}; "
                    f"size of axis is {extent} but size of corresponding boolean axis is {n}",
                    loc=here(),
                    label="this index",
                    hint="a mask is as long as the axes that it chooses from",
                )
        self.values = values.frozen()
        self.mask = mask.frozen() if isinstance(mask, Symbol) else values.trace.constant_symbol(mask)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.values.dtype

    def is_at(self, mask: Symbol) -> bool:
        """True for a mask of the same values."""
        return self.mask.trace.is_same(self.mask.source, mask.source)

    def condition(self) -> Any:
        """The mask with axes of extent 1, so that it broadcasts with the values."""
        return self.mask.reshape(self.mask.shape + (1,) * (self.values.ndim - self.mask.ndim))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **options: Any) -> Any:
        for x in args:
            same = isinstance(x, Selection) and self.is_at(x.mask)
            if method != "__call__" or not (same or not np.shape(getattr(x, "values", x))):
                raise unknown_size_error(self.mask.dtype)
        values = [x.values if isinstance(x, Selection) else x for x in args]
        return Selection(getattr(ufunc, method)(*values, **options), self.mask)

    def __array_function__(
        self, function: Any, _: Any, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Any:
        if function not in REDUCTIONS:
            raise unknown_size_error(self.mask.dtype)
        return _reduce(function, *args, **options)

    sum, prod, mean = _method(np.sum), _method(np.prod), _method(np.mean)
    var, std = _method(np.var), _method(np.std)
    max, min = _method(np.max), _method(np.min)
    any, all = _method(np.any), _method(np.all)

    def _unknown_size(self, *_: Any, **__: Any) -> NoReturn:
        raise unknown_size_error(self.mask.dtype)

    __array__ = __getitem__ = __len__ = __iter__ = __bool__ = _unknown_size
    shape = size = property(_unknown_size)


def _reduce(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A reduction over all elements, or along the first axis, whose extent is not known."""
    arguments = bind_arguments(function, args, options)
    selection, axis = arguments.pop("a"), arguments.pop("axis", None)
    several = selection.values.ndim > selection.mask.ndim
    if axis not in (None, 0) and not (axis == -1 and not several):
        raise unknown_size_error(selection.mask.dtype)
    axes = None if axis is None else tuple(range(selection.mask.ndim))
    kept = selection.condition()
    if arguments.pop("keepdims", False):
        result = reduce_some(function, selection.values, kept, axes, **arguments)
        return result.reshape(
            (1,) * (selection.values.ndim - selection.mask.ndim + 1) if axis is None else (1, *result.shape)
        )
    return reduce_some(function, selection.values, kept, axes, **arguments)


def unknown_size_error(dtype: Any) -> TypeMismatch:
    """The error for elements at a mask where an array of known shape is needed."""
    return TypeMismatch(
        f"an index of type {dtype} chooses no elements of an array of a graph",
        loc=here(),
        label="needed here",
        hint="choose by integers, or reduce: x[x > 0].sum(); where(x > 0, x, 0) has a known shape",
    )
