"""What flows through a graph: arguments, constants, results of calls, and views of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tdsl.compile import Compiled
from tdsl.core.source import Loc

Array = np.ndarray[Any, Any]
Change = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and element type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Argument:
    """An array that a call of the graph passes, by position."""

    position: int


@dataclass(frozen=True, slots=True)
class Constant:
    """An array that the function knows without being passed it, by its number in the graph."""

    number: int


@dataclass(frozen=True, slots=True)
class Result:
    """An output of a call of an operator: the number of the call, and of the output."""

    call: int
    output: int


@dataclass(frozen=True, slots=True)
class View:
    """Another shape of the same memory: `changes` are functions that give views, in order."""

    base: Argument | Constant | Result
    changes: tuple[Change, ...]
    spec: Spec

    def of(self, array: Array) -> Array:
        """The view of an array that lies as the base does."""
        for change in self.changes:
            array = change(array)
        return array


Base = Argument | Constant | Result
Source = Base | View
Given = Source | np.generic


def base_of(source: Source) -> Base:
    """What a source is a view of, or itself."""
    return source.base if isinstance(source, View) else source


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of an operator: what it was given for each input, and what it gives."""

    compiled: Compiled
    inputs: tuple[Given, ...]
    sizes: dict[str, int]
    results: tuple[Spec, ...]
    loc: Loc | None

    @property
    def name(self) -> str:
        """The name of the operator."""
        return self.compiled.signature.name
