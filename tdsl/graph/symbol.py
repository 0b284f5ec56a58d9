"""`Symbol`: the tracer that replaces an array while a graph is traced; it has shape and type, no values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from tdsl.compile import Compiled
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import DefinitionError, ShapeError, Suggesting, TdslError, TypeMismatch
from tdsl.graph.contents import Contents
from tdsl.graph.values import Array, Base, Source, Spec, View, ViewFunction, base_of

Operator = Callable[["Symbol", Any], "Symbol"]


def binary_operator(ufunc: np.ufunc) -> tuple[Operator, Operator]:
    """A binary operator of Python and its reflected form, by a ufunc."""
    return lambda x, y: ufunc(x, y), lambda x, y: ufunc(y, x)


def unary_operator(ufunc: np.ufunc) -> Callable[[Symbol], Symbol]:
    """A unary operator of Python, by a ufunc."""
    return lambda x: ufunc(x)


def _in_place(ufunc: np.ufunc) -> Operator:
    """An augmented assignment: it writes to the array; a number, of rank 0, is replaced as in NumPy."""

    def method(x: Symbol, y: Any) -> Symbol:
        result: Symbol = ufunc(x, y)
        return write_out(x, result, "same_kind") if x.shape else result

    return method


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `Symbol` that calls NumPy's function with the symbol as its first argument."""

    def method(self: Symbol, *args: Any, **options: Any) -> Any:
        return self.__array_function__(function, (), (self, *args), options)

    method.__name__, method.__qualname__ = function.__name__, f"Symbol.{function.__name__}"
    return method


@frozen
class NumpyFunctions:
    """The implementations of NumPy's functions on symbols; `functions.py` passes an instance to each trace.

    `ufunc` takes the trace and the arguments of `__array_ufunc__`, `function` a function of NumPy, its
    arguments and its options; `copy` takes a symbol, `astype` a symbol and a type, `take` a symbol and the
    parts of an index, at least one of which is an array; `write` a symbol, the parts of an index and a value.
    """

    ufunc: Callable[..., Any]
    function: Callable[..., Any]
    copy: Callable[[Symbol], Symbol]
    astype: Callable[[Symbol, Any], Symbol]
    take: Callable[[Symbol, tuple[Any, ...]], Any]
    write: Callable[[Symbol, tuple[Any, ...], Any], None]


class Recorder(Protocol):
    """The interface of `Trace` that symbols use: it records the operator calls of the traced function."""

    name: str
    numpy: NumpyFunctions

    def spec_of(self, base: Base) -> Spec:
        """The shape and type of an argument, constant or result."""

    def call(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of an operator; its results are symbols."""

    def constant_symbol(self, array: Array) -> Symbol:
        """The symbol of an array that the function captures."""

    def is_same(self, one: Source, other: Source) -> bool:
        """True if both have the same values: the same array, or results of the same calls."""


class ElementwiseOperators:
    """The operators of Python that NumPy computes element by element, as calls of its functions."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # == compares elements, as for arrays

    __add__, __radd__ = binary_operator(np.add)
    __sub__, __rsub__ = binary_operator(np.subtract)
    __mul__, __rmul__ = binary_operator(np.multiply)
    __truediv__, __rtruediv__ = binary_operator(np.true_divide)
    __floordiv__, __rfloordiv__ = binary_operator(np.floor_divide)
    __mod__, __rmod__ = binary_operator(np.remainder)
    __pow__, __rpow__ = binary_operator(np.power)
    __and__, __rand__ = binary_operator(np.bitwise_and)
    __or__, __ror__ = binary_operator(np.bitwise_or)
    __xor__, __rxor__ = binary_operator(np.bitwise_xor)
    __lshift__, __rlshift__ = binary_operator(np.left_shift)
    __rshift__, __rrshift__ = binary_operator(np.right_shift)
    __lt__, __gt__ = binary_operator(np.less)[0], binary_operator(np.greater)[0]
    __le__, __ge__ = binary_operator(np.less_equal)[0], binary_operator(np.greater_equal)[0]
    __eq__, __ne__ = binary_operator(np.equal)[0], binary_operator(np.not_equal)[0]  # type: ignore[assignment]  # elements
    __neg__, __pos__ = unary_operator(np.negative), unary_operator(np.positive)
    __abs__, __invert__ = unary_operator(np.absolute), unary_operator(np.invert)


class Symbol(ElementwiseOperators, Suggesting):
    """The tracer of an array: passed to the function of a graph in place of the array while it is traced.

    Operators of tdsl accept symbols, and so do Python's operators and NumPy's element-wise functions,
    reductions, products and views, as functions and as methods; `tdsl.graph.functions` lists them. A symbol
    has no values, except one of an array that the function creates, such as `np.zeros(8)`, until an array of
    the graph is written to it: an operation that needs values, such as a condition, raises DefinitionError.

    `contents` is shared with views, which apply `functions` to it: a write to one changes all.
    """

    __slots__ = ("contents", "functions", "spec", "trace")

    def __init__(
        self, trace: Recorder, source: Source | Contents, spec: Spec, functions: tuple[ViewFunction, ...] = ()
    ) -> None:
        self.trace, self.spec, self.functions = trace, spec, functions
        if isinstance(source, Contents):
            self.contents = source
        else:
            self.contents = Contents(base_of(source))
            self.functions = source.functions if isinstance(source, View) else ()

    @classmethod
    def created(cls, trace: Recorder, array: Array) -> Symbol:
        """The symbol of an array that the function creates: its values are known until it is written to."""
        return cls(trace, Contents(None, array), Spec(array.shape, array.dtype))

    @property
    def source(self) -> Source:
        """The present values: an array, or a view of one."""
        contents = self.contents
        if contents.base is None:
            contents.base = base_of(self.trace.constant_symbol(contents.snapshot()).source)
        return View(contents.base, self.functions, self.spec) if self.functions else contents.base

    @property
    def known(self) -> Array | None:
        """The values as an array that must not be written to; None if they depend on arguments."""
        return None if self.contents.known is None else self.viewed(self.contents.snapshot())

    @property
    def base_shape(self) -> tuple[int, ...]:
        """The shape of the array that this one is a view of; its own if it is no view."""
        known, base = self.contents.known, self.contents.base
        if base is not None:
            return self.trace.spec_of(base).shape
        assert known is not None
        shape: tuple[int, ...] = known.shape
        return shape

    def viewed(self, array: Array) -> Array:
        """This view of an array of the shape of the base."""
        for function in self.functions:
            array = function(array)
        return array

    def frozen(self) -> Symbol:
        """A symbol of the present values, which later writes do not change."""
        return Symbol(self.trace, self.source, self.spec)

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
        results = self.trace.call(compiled, args, kwargs)
        return results if out is None else write_out(out, results)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **options: Any) -> Any:
        out = options.pop("out", None)
        result = self.trace.numpy.ufunc(self.trace, ufunc, method, args, options)
        return result if out is None else write_out(out[0] if len(out) == 1 else out, result, "same_kind")

    def __array_function__(
        self, function: Any, _: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        out = options.get("out")
        if not isinstance(out, Symbol):
            return self.trace.numpy.function(function, args, options)
        others = {name: x for name, x in options.items() if name != "out"}
        return write_out(out, self.trace.numpy.function(function, args, others), "same_kind")

    __matmul__, __rmatmul__ = binary_operator(np.matmul)

    __iadd__, __isub__, __imul__ = _in_place(np.add), _in_place(np.subtract), _in_place(np.multiply)
    __itruediv__, __ifloordiv__ = _in_place(np.true_divide), _in_place(np.floor_divide)
    __imod__, __ipow__, __imatmul__ = _in_place(np.remainder), _in_place(np.power), _in_place(np.matmul)
    __iand__, __ior__, __ixor__ = map(_in_place, (np.bitwise_and, np.bitwise_or, np.bitwise_xor))
    __ilshift__, __irshift__ = _in_place(np.left_shift), _in_place(np.right_shift)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.trace.numpy.write(self, _checked_index(index), value)

    def fill(self, value: Any) -> None:
        """Writes a number to all elements."""
        self[...] = value

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

    def __getitem__(self, index: Any) -> Any:
        items = _checked_index(index)
        if has_arrays(items):
            return self.trace.numpy.take(self, items)
        view = self.view_at(items)
        if view.shape or Ellipsis in items:
            return view
        known = view.known  # a number, as in NumPy: later writes to the array do not change it
        return view.frozen() if known is None else known[()]

    def view_at(self, items: tuple[Any, ...]) -> Symbol:
        """The view at an index of integers, slices, None and `...`."""
        full_index = items if Ellipsis in items else (*items, ...)
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
        memory = np.empty(self.base_shape, self.dtype)  # never touched
        try:
            view = function(self.viewed(memory))
        except TdslError:  # of a symbol among the arguments of the view
            raise
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
            if not self.functions:
                raise ShapeError(
                    f"an array of shape {self.shape} has no such view: its elements are in another order",
                    loc=here(),
                    label="this view",
                    hint='for order="F" transpose before and after: x.T.reshape(shape[::-1]).T',
                )
            return self.copy().apply_view(function)
        spec = Spec(view.shape, self.dtype)
        return Symbol(self.trace, self.contents, spec, (*self.functions, function))

    def _values(self) -> Array:
        known = self.known
        if known is None:
            raise _no_values_error(
                "write what depends on values as an operator; shapes are known, x.shape[0] is a number; "
                "an array to write to is created in the function, or an argument"
            )
        return known

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        known = self.known
        if known is None:
            raise _no_values_error(
                "np.stack makes one array of a list; to index an array of NumPy by this one, pass that array "
                "as an argument of the graph, too"
            )
        return np.array(known, dtype)

    def __bool__(self) -> bool:
        return bool(self._values())

    def __int__(self) -> int:
        return int(self._values())

    def __float__(self) -> float:
        return float(self._values())

    def __index__(self) -> int:
        return self._values().__index__()

    def item(self, *index: Any) -> Any:
        """An element as a number of Python, if the values are known."""
        return self._values().item(*index)

    def tolist(self) -> Any:
        """The elements as lists, if the values are known."""
        return self._values().tolist()

    def __repr__(self) -> str:
        return f"<array {self.spec} of graph {self.trace.name}>"


def _no_values_error(hint: str) -> DefinitionError:
    return DefinitionError(
        "an array has no values while the function of a graph is traced",
        loc=here(),
        label="values are needed here",
        hint=hint,
    )


def _checked_index(index: Any) -> tuple[Any, ...]:
    """The parts of an index; TypeMismatch for one that indexes no array of a graph."""
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
    return items


def has_arrays(items: tuple[Any, ...]) -> bool:
    """True if parts of an index are arrays."""
    return any(isinstance(item, list | np.ndarray | Symbol) for item in items)


def write_out(out: Any, result: Any, casting: str = "unsafe") -> Any:
    """Writes results to the arrays of a graph `out`; returns `out`.

    TypeMismatch if `out` has other arrays, or if NumPy's rule `casting` forbids the conversion.
    """
    for array, x in zip(*((v if isinstance(v, tuple) else (v,)) for v in (out, result)), strict=True):
        if not isinstance(array, Symbol):
            raise out_error(array)
        if not np.can_cast(x.dtype, array.dtype, casting):  # type: ignore[arg-type]  # a name of NumPy
            raise TypeMismatch(
                f"a result of type {x.dtype} is not written to an array of type {array.dtype}",
                loc=here(),
                label="written here",
                hint=f"convert it: .astype(np.{array.dtype}), or use another array",
            )
        if x.shape != array.shape:
            raise ShapeError(
                f"a result of shape {x.shape} is not written to an array of shape {array.shape}",
                loc=here(),
                label="written here",
                hint="the shapes of the result and the array agree",
            )
        array[...] = x
    return out


def out_error(x: Any) -> TypeMismatch:
    """The error for an `out=` that is no array of the graph."""
    return TypeMismatch(
        f"out= takes an array of the graph, by name, not {type(x).__name__}",
        loc=here(),
        label="this call",
        hint="give the result a name of its own: y = x + 1, or write it: y[...] = x + 1",
    )
