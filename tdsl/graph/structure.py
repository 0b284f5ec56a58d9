"""Flattening and unflattening of nested tuples, lists and dicts of arrays, as JAX does with pytrees."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang.types import TensorType


@frozen
class Leaf:
    """An array in a structure."""


@frozen
class Static:
    """A value that is no array; `text` distinguishes values that compare equal, such as 0.0 and -0.0."""

    kind: type
    value: Any
    text: str = ""


@frozen
class Nested:
    """A tuple, a list, or a dict with the keys `keys`."""

    kind: type
    keys: tuple[Hashable, ...]
    parts: tuple[Structure, ...]


Structure = Leaf | Static | Nested
_INTERFACES = ("__dlpack__", "__array_interface__", "__cuda_array_interface__")
Extractor = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...] | None]


def flatten(x: Any, is_leaf: Callable[[Any], bool], leaves: list[Any]) -> Structure:
    """The structure of `x`; appends the arrays in `x` to `leaves`.

    Equal structures have arrays at the same positions, and equal values at all other positions.

    >>> leaves = []
    >>> flatten({"w": 7, "b": (8, True)}, lambda x: type(x) is int, leaves).keys, leaves
    (('w', 'b'), [7, 8])
    """
    if is_leaf(x):
        leaves.append(x)
        return Leaf()
    kind = type(x)
    if kind is tuple or kind is list:
        return Nested(kind, (), tuple([flatten(part, is_leaf, leaves) for part in x]))
    if kind is dict:
        return Nested(kind, tuple(x), tuple([flatten(v, is_leaf, leaves) for v in x.values()]))
    try:
        hash(x)
    except TypeError:
        raise TypeMismatch(
            f"a {kind.__name__} cannot be passed to a graph",
            loc=here(),
            label="this call",
            hint="pass arrays, numbers, text, and tuples, lists or dicts of these",
        ) from None
    return Static(kind, x, x.hex() if kind is float else "")


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    """The value with this structure and the arrays from `leaves`: the inverse of `flatten`."""
    match structure:
        case Leaf():
            return next(leaves)
        case Static(_, value):
            return value
        case Nested(kind, keys, parts):
            values = [unflatten(part, leaves) for part in parts]
            return dict(zip(keys, values, strict=True)) if kind is dict else kind(values)


def paths(structure: Structure, name: str) -> list[str]:
    """The access path of each array in a structure that is named `name`.

    >>> paths(Nested(tuple, (), (Leaf(), Nested(dict, ("w",), (Leaf(),)))), "p")
    ['p[0]', "p[1]['w']"]
    """
    match structure:
        case Leaf():
            return [name]
        case Static():
            return []
        case Nested(kind, keys, parts):
            labels = keys if kind is dict else range(len(parts))
            return [
                path
                for label, part in zip(labels, parts, strict=True)
                for path in paths(part, f"{name}[{label!r}]")
            ]


def make_extractor(
    args: Structure, kwargs: Structure, is_leaf: Callable[[Any], bool] | None = None
) -> Extractor:
    """A function from args and kwargs to the arrays in them, or to None if their structure differs.

    Arrays are those of NumPy, and others for which `is_leaf` is true.

    The function is generated as source code for this structure: a generic traversal takes a microsecond for
    each array.
    """
    generator = _Writer(is_leaf)
    generator.write(args, "args")
    generator.write(kwargs, "kwargs")
    leaves = "".join(f"{leaf}, " for leaf in generator.leaves)
    lines = ["def read(args, kwargs):", *generator.lines, f"    return ({leaves})"]
    exec("\n".join(lines), generator.names)
    extract: Extractor = generator.names["read"]
    return extract


class _Writer:
    def __init__(self, is_leaf: Callable[[Any], bool] | None) -> None:
        self.names: dict[str, Any] = {
            "array": np.ndarray, "floating": np.floating, "asarray": np.asarray, "is_leaf": is_leaf,
        }  # fmt: skip
        self._others = "False" if is_leaf is None else "is_leaf({})"
        self.lines: list[str] = []
        self.leaves: list[str] = []
        self._parts = 0

    def write(self, structure: Structure, name: str) -> None:
        match structure:
            case Leaf():
                self.lines.append(f"    if type({name}) is not array:")
                self.lines.append(f"        if isinstance({name}, floating): {name} = asarray({name})")
                self.lines.append(f"        elif not ({self._others.format(name)}): return None")
                self.leaves.append(name)
            case Static(kind, value, text):
                is_equal = f"{name}.hex() == {text!r}" if text else f"{name} == {self._literal(value)}"
                self._require(f"type({name}) is {self._literal(kind)} and {is_equal}")
            case Nested(kind, keys, parts):
                self._require(f"type({name}) is {self._literal(kind)} and len({name}) == {len(parts)}")
                for n, part in enumerate(parts):
                    element = f"x{self._parts}"
                    self._parts += 1
                    if kind is dict:
                        self._require(f"{self._literal(keys[n])} in {name}")
                    key = self._literal(keys[n]) if kind is dict else n
                    self.lines.append(f"    {element} = {name}[{key}]")
                    self.write(part, element)

    def _require(self, condition: str) -> None:
        self.lines.append(f"    if not ({condition}): return None")

    def _literal(self, value: Any) -> str:
        if type(value) in (int, str):
            return repr(value)
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name


def is_array(x: Any) -> bool:
    """True for a NumPy array or float, and for an object with DLPack, an array interface or a buffer.

    A float of NumPy, which results of rank 0 are, is an array of rank 0.
    """
    if isinstance(x, np.ndarray | np.floating):
        return True
    if isinstance(x, np.generic | str | bytes | int | float | complex | tuple | list | dict | type | None):
        return False
    return isinstance(x, memoryview) or any(hasattr(x, name) for name in _INTERFACES)


def is_array_or_type(x: Any) -> bool:
    """True for an array, and for a tensor type such as `td.f32[64, 128]` in place of an array."""
    return isinstance(x, TensorType) or is_array(x)


def trace_in(x: Any) -> Any:
    """The trace of the first symbol in the arguments, at any depth; None if there is none."""
    if isinstance(x, tuple | list | dict):
        parts = x.values() if isinstance(x, dict) else x
        return next((trace for part in parts if (trace := trace_in(part)) is not None), None)
    return x.trace if hasattr(x, "__tdsl_call__") else None
