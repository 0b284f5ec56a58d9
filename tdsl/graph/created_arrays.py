"""Arrays that a traced function creates, such as `np.zeros(8)`: it can write arrays of the graph to them.

NumPy's own arrays cannot contain symbols. While a function is traced, the module `numpy` among its globals is
replaced by a namespace whose functions that create arrays return symbols with known values.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from tdsl.graph.symbol import Recorder, Symbol

CREATORS = frozenset({
    "zeros", "ones", "empty", "full", "eye", "identity", "arange", "linspace", "geomspace", "logspace", "tri",
    "fromfunction", "indices", "array", "asarray", "asanyarray", "ascontiguousarray",
})  # fmt: skip
_CONVERSIONS = frozenset({"asarray", "asanyarray", "ascontiguousarray"})


class Namespace:
    """The module `numpy` as a traced function uses it: what it creates are arrays of the graph."""

    def __init__(self, trace: Recorder) -> None:
        self._trace = trace

    @property
    def ndarray(self) -> type:
        """The type of arrays: it creates arrays of the graph, and symbols are instances."""
        return _ArrayType("ndarray", (), {"trace": self._trace})

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        return _creator(self._trace, value) if name in CREATORS else value

    def __dir__(self) -> list[str]:
        return dir(np)


class _ArrayType(type):
    """The type of `np.ndarray` in a namespace; instances have the attribute `trace`."""

    def __call__(cls, shape: Any, dtype: Any = float, *args: Any, **options: Any) -> Any:
        if args or options:
            return np.ndarray(shape, dtype, *args, **options)
        return Symbol.created(cls.trace, np.zeros(shape, dtype))  # type: ignore[attr-defined]

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, np.ndarray | Symbol)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, np.ndarray | Symbol)


def _creator(trace: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy that creates an array, with a symbol as its result."""
    name = function.__name__

    def create(*args: Any, **options: Any) -> Any:
        first = args[0] if args else None
        if isinstance(first, Symbol) and name in {"array", *_CONVERSIONS}:
            return _converted(first, name, *args[1:], **options)
        if isinstance(first, list | tuple) and has_symbols(first) and name in {"array", *_CONVERSIONS}:
            return _converted(_stack(first), name, *args[1:], **options)
        result = function(*args, **options)
        captured = name in _CONVERSIONS and isinstance(first, np.ndarray)  # a constant, as without a call
        return result if captured else as_created(trace, result)

    create.__name__ = name
    return create


def as_created(trace: Recorder, result: Any) -> Any:
    """Arrays of NumPy, also in lists and tuples, as symbols with known values; anything else unchanged."""
    if isinstance(result, list | tuple):
        parts = [as_created(trace, part) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)  # as of np.linalg
    return Symbol.created(trace, np.array(result)) if isinstance(result, np.ndarray) else result


def as_known(x: Any) -> Any:
    """Symbols with known values, also in lists, tuples and dicts, as arrays of NumPy; others unchanged."""
    if isinstance(x, Symbol):
        return x if x.known is None else x.known
    if type(x) in (list, tuple):
        return type(x)(map(as_known, x))
    return {name: as_known(part) for name, part in x.items()} if type(x) is dict else x


def has_symbols(x: Any) -> bool:
    """True for a symbol, and for a list, tuple or dict that contains one."""
    if isinstance(x, list | tuple):
        return any(map(has_symbols, x))
    return any(map(has_symbols, x.values())) if isinstance(x, dict) else isinstance(x, Symbol)


def _stack(x: Any) -> Any:
    """Nested lists of arrays and numbers as one array."""
    return np.stack([*map(_stack, x)]) if isinstance(x, list | tuple) else x


def _converted(x: Symbol, name: str, dtype: Any = None, **options: Any) -> Symbol:
    """`np.array` and `np.asarray` of an array of the graph."""
    if dtype is not None and x.dtype != np.dtype(dtype):
        return x.astype(dtype)
    return x.copy() if name == "array" and options.get("copy", True) else x


def with_namespace(function: Callable[..., Any], trace: Recorder) -> Callable[..., Any]:
    """The function with the module `numpy` among its globals replaced by a `Namespace`.

    Functions of the same module that it calls are replaced, too. Unchanged: objects that are no functions of
    Python, and functions that assign to global variables.
    """
    if isinstance(function, MethodType):
        return MethodType(with_namespace(function.__func__, trace), function.__self__)
    if not isinstance(function, FunctionType) or _assigns_globals(function):
        return function
    namespace, names = Namespace(trace), dict(function.__globals__)
    replaced: dict[str, Any] = {}
    for name, value in names.items():
        if value is np:
            replaced[name] = namespace
        elif value in _CREATING_FUNCTIONS if isinstance(value, _CREATOR_TYPES) else False:
            replaced[name] = _creator(trace, value)
    if not replaced:
        return function
    names |= replaced
    for name, value in function.__globals__.items():
        if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
            names[name] = value if _assigns_globals(value) else _with_globals(value, names)
    return _with_globals(function, names)


_CREATING_FUNCTIONS = frozenset(getattr(np, name) for name in CREATORS)
_CREATOR_TYPES = tuple({type(f) for f in _CREATING_FUNCTIONS})


def _with_globals(function: FunctionType, names: Mapping[str, Any]) -> FunctionType:
    """A copy of a function that reads other global variables."""
    assert isinstance(names, dict)
    copy = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    return copy


def _assigns_globals(function: FunctionType) -> bool:
    return any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(function.__code__))
