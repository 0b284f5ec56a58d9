"""`Symbol`: the tracer that replaces an array while a graph is traced; it has shape and type, no values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import numpy as np

from tdsl.compile import Compiled
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import DefinitionError, ShapeError, Suggesting, TypeMismatch
from tdsl.graph.values import Base, Source, Spec, View, ViewFunction, base_of

Operator = Callable[["Symbol", Any], "Symbol"]


def _binary(ufunc: np.ufunc) -> tuple[Operator, Operator]:
    return lambda x, y: ufunc(x, y), lambda x, y: ufunc(y, x)


def _unary(ufunc: np.ufunc) -> Callable[[Symbol], Symbol]:
    return lambda x: ufunc(x)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `Symbol` that calls NumPy's function with the symbol as its first argument."""

    def method(self: Symbol, *args: Any, **options: Any) -> Any:
        return self.trace.numpy.function(function, (self, *args), options)

    method.__name__, method.__qualname__ = function.__name__, f"Symbol.{function.__name__}"
    return method


@frozen
class NumpyFunctions:
    """The implementations of NumPy's functions on symbols; `functions.py` passes an instance to each trace.

    `ufunc` takes the trace and the arguments of `__array_ufunc__`, `function` a function of NumPy, its
    arguments and its options; `copy` takes a symbol, `astype` a symbol and a type, `take` a symbol and the
    parts of an index, at least one of which is an array.
    """

    ufunc: Callable[..., Any]
    function: Callable[..., Any]
    copy: Callable[[Symbol], Symbol]
    astype: Callable[[Symbol, Any], Symbol]
    take: Callable[[Symbol, tuple[Any, ...]], Symbol]


class Recorder(Protocol):
    """The interface of `Trace` that symbols use: it records the operator calls of the traced function."""

    name: str
    numpy: NumpyFunctions

    def spec_of(self, base: Base) -> Spec:
        """The shape and type of an argument, constant or result."""

    def call(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of an operator; its results are symbols."""


class Symbol(Suggesting):
    """The tracer of an array: passed to the function of a graph in place of the array while it is traced.

    Operators of tdsl accept symbols, and so do Python's operators and NumPy's element-wise functions,
    reductions, products and views, as functions and as methods; `tdsl.graph.functions` lists them. A symbol
    has no values: an operation that needs values, such as a condition, raises DefinitionError.
    """

    __slots__ = ("source", "spec", "trace")

    def __init__(self, trace: Recorder, source: Source, spec: Spec) -> None:
        self.trace, self.source, self.spec = trace, source, spec

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents: integers, known while the function is traced."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.spec.nbytes // self.spec.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self.spec.nbytes

    def __tdsl_call__(
        self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Any:
        if out is not None:
            raise in_place_error()
        return self.trace.call(compiled, args, kwargs)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **options: Any) -> Symbol:
        if options.pop("out", None) is not None:
            raise in_place_error()
        result: Symbol = self.trace.numpy.ufunc(self.trace, ufunc, method, args, options)
        return result

    def __array_function__(
        self, function: Any, _: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        return self.trace.numpy.function(function, args, options)

    __add__, __radd__ = _binary(np.add)
    __sub__, __rsub__ = _binary(np.subtract)
    __mul__, __rmul__ = _binary(np.multiply)
    __truediv__, __rtruediv__ = _binary(np.true_divide)
    __floordiv__, __rfloordiv__ = _binary(np.floor_divide)
    __mod__, __rmod__ = _binary(np.remainder)
    __pow__, __rpow__ = _binary(np.power)
    __matmul__, __rmatmul__ = _binary(np.matmul)
    __and__, __rand__ = _binary(np.bitwise_and)
    __or__, __ror__ = _binary(np.bitwise_or)
    __xor__, __rxor__ = _binary(np.bitwise_xor)
    __lshift__, __rlshift__ = _binary(np.left_shift)
    __rshift__, __rrshift__ = _binary(np.right_shift)
    __lt__, __gt__ = _binary(np.less)[0], _binary(np.greater)[0]
    __le__, __ge__ = _binary(np.less_equal)[0], _binary(np.greater_equal)[0]
    __eq__, __ne__ = _binary(np.equal)[0], _binary(np.not_equal)[0]  # type: ignore[assignment]  # elements
    __neg__, __pos__ = _unary(np.negative), _unary(np.positive)
    __abs__, __invert__ = _unary(np.absolute), _unary(np.invert)

    def _in_place(self, *_: Any) -> NoReturn:
        raise in_place_error()

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = _in_place
    __imatmul__ = __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = _in_place
    __setitem__ = _in_place

    sum, mean, prod = _method(np.sum), _method(np.mean), _method(np.prod)
    max, min = _method(np.max), _method(np.min)
    argmax, argmin = _method(np.argmax), _method(np.argmin)
    any, all = _method(np.any), _method(np.all)
    var, std = _method(np.var), _method(np.std)
    cumsum, cumprod = _method(np.cumsum), _method(np.cumprod)
    dot, take, squeeze = _method(np.dot), _method(np.take), _method(np.squeeze)
    diagonal, clip, round = _method(np.diagonal), _method(np.clip), _method(np.round)

    def reshape(self, *shape: Any) -> Symbol:
        """The same elements in another shape; a copy if strides cannot express that shape, as in NumPy."""
        new_shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return self.apply_view(lambda array: array.reshape(new_shape))

    def transpose(self, *axes: Any) -> Symbol:
        """A view with the dimensions permuted, reversed by default."""
        return self.apply_view(lambda array: array.transpose(*axes))

    @property
    def mT(self) -> Symbol:
        """A view with the last two dimensions exchanged."""
        return self.swapaxes(-1, -2)

    def ravel(self) -> Symbol:
        """The elements in one dimension, as a view if possible."""
        return self.reshape(-1)

    def flatten(self) -> Symbol:
        """A one-dimensional copy of the elements."""
        return self.ravel().copy()

    def copy(self) -> Symbol:
        """A contiguous copy of the array."""
        return self.trace.numpy.copy(self)

    def astype(self, dtype: Any) -> Symbol:
        """The elements converted to another type, as by `td.cast`."""
        return self.trace.numpy.astype(self, dtype)

    def swapaxes(self, one: int, other: int) -> Symbol:
        """A view with two dimensions exchanged."""
        return self.apply_view(lambda array: array.swapaxes(one, other))

    @property
    def T(self) -> Symbol:
        """A view with the dimensions in reverse order."""
        return self.transpose()

    def __getitem__(self, index: Any) -> Symbol:
        items = index if isinstance(index, tuple) else (index,)
        items = tuple(int(item) if isinstance(item, np.integer) else item for item in items)
        for item in items:
            basic = item is None or item is Ellipsis or isinstance(item, int | slice)
            if isinstance(item, bool) or not (basic or isinstance(item, list | np.ndarray | Symbol)):
                raise TypeMismatch(
                    f"arrays of a graph are indexed by integers, slices and arrays of integers, not {item!r}",
                    loc=here(),
                    label="this index",
                    hint="x[1:, ..., None, at] for an array `at` of integers",
                )
        if any(isinstance(item, list | np.ndarray | Symbol) for item in items):
            return self.trace.numpy.take(self, items)
        full_index = items if any(item is Ellipsis for item in items) else (*items, ...)
        return self.apply_view(lambda array: array[full_index])

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")  # as NumPy's arrays
        return self.shape[0]

    def __iter__(self) -> Iterator[Symbol]:
        return (self[n] for n in range(len(self)))

    def apply_view(self, function: ViewFunction) -> Symbol:
        """The view that the function returns for this array; of a copy if NumPy would have to copy.

        ShapeError if the function raises for an array of this shape.
        """
        base = base_of(self.source)
        functions = self.source.functions if isinstance(self.source, View) else ()
        memory = np.empty(self.trace.spec_of(base).shape, self.dtype)  # never touched
        array = memory
        for earlier in functions:
            array = earlier(array)
        try:
            view = function(array)
        except (ValueError, IndexError, TypeError) as error:
            hint = "its elements stay as they are; the new shape must hold as many"
            if isinstance(error, IndexError):
                hint = "an index is a number below the extent of its axis, or a slice; -1 is the last"
            raise ShapeError(
                f"an array of shape {self.shape} has no such view: {error}",
                loc=here(),
                label="this view",
                hint=hint,
            ) from None
        if view.size and not np.may_share_memory(view, memory):
            if not isinstance(self.source, View):
                raise ShapeError(
                    f"an array of shape {self.shape} has no such view: its elements are in another order",
                    loc=here(),
                    label="this view",
                    hint='for order="F" transpose before and after: x.T.reshape(shape[::-1]).T',
                )
            return self.copy().apply_view(function)
        spec = Spec(view.shape, self.dtype)
        return Symbol(self.trace, View(base, (*functions, function), spec), spec)

    def _no_values(self, *_: Any, **__: Any) -> NoReturn:
        raise _no_values_error(
            "write what depends on values as an operator; shapes are known, x.shape[0] is a number"
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise _no_values_error(
            "np.stack makes one array of a list; to index an array of NumPy by this one, pass that array as "
            "an argument of the graph, too"
        )

    __bool__ = __int__ = __float__ = __index__ = _no_values
    item = tolist = _no_values

    def __repr__(self) -> str:
        return f"<array {self.spec} of graph {self.trace.name}>"

    __hash__ = None  # type: ignore[assignment]  # == compares elements, as for arrays


def _no_values_error(hint: str) -> DefinitionError:
    return DefinitionError(
        "an array has no values while the function of a graph is traced",
        loc=here(),
        label="values are needed here",
        hint=hint,
    )


def in_place_error() -> TypeMismatch:
    """The error for writing to an array of a graph."""
    return TypeMismatch(
        "the arrays of a graph cannot be changed in place",
        loc=here(),
        label="changed here",
        hint="give the result a name of its own: y = x + 1 for x += 1, y = f(x) for f(x, out=y)",
    )
