"""The values of a graph: arguments, constants, results of operator calls, and views of these arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import placeholder, view_of
from tdsl.codegen.runtime.signature import ArrayArg
from tdsl.compile import Compiled
from tdsl.core.node import frozen
from tdsl.core.source import Loc
from tdsl.lang.types import f32

Array = np.ndarray[Any, Any]
ViewFunction = Callable[[Array], Array]


@frozen
class Spec:
    """Shape and element type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The size of an array of this shape and type in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


@frozen
class Argument:
    """An array argument of the graph, by its position among the arrays in the arguments."""

    position: int


@frozen
class Constant:
    """An array that the function captures instead of taking it as an argument, by its number in the trace."""

    number: int


@frozen
class Result:
    """An output of an operator call: the number of the call in the trace, and of the output in the call."""

    call: int
    output: int


@frozen
class View:
    """A NumPy view of an array: `functions` return views, in order of application."""

    base: Argument | Constant | Result
    functions: tuple[ViewFunction, ...]
    spec: Spec

    def apply(self, array: Array) -> Array:
        """The view of an array that has the shape and layout of the base."""
        for function in self.functions:
            array = function(array)
        return array


Base = Argument | Constant | Result
Source = Base | View
Operand = Source | np.generic


def base_of(source: Source) -> Base:
    """The array that a view refers to; `source` itself if it is not a view."""
    return source.base if isinstance(source, View) else source


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A recorded operator call: the value passed for each input, its sizes, and the specs of its results."""

    compiled: Compiled
    inputs: tuple[Operand, ...]
    sizes: dict[str, int]
    results: tuple[Spec, ...]
    loc: Loc | None

    @property
    def name(self) -> str:
        """The name of the operator."""
        return self.compiled.signature.name


def as_array(x: Any) -> Array:
    """A NumPy array over the memory of `x`; for a type an array of its shape in the memory of one element."""
    array = placeholder(x)
    return array if type(array) is np.ndarray else view_of(ArrayArg("an argument", f32, ()), array)
