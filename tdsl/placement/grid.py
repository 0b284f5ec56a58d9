"""A grid of ranks with named axes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tdsl.errors import ShapeError, did_you_mean
from tdsl.source import here

Coordinates = tuple[int, ...]


@dataclass(frozen=True, slots=True, init=False)
class Grid:
    """Ranks in rows and columns: names of axes and how many ranks stand along each, the first slowest.

    >>> grid = Grid(x=2, y=3)
    >>> grid.size, grid.y, grid
    (6, 3, Grid(x=2, y=3))
    >>> grid.coordinates(4), grid.rank((1, 1))
    ((1, 1), 4)

    Raises ShapeError for an axis without ranks, and for no axes.
    """

    axes: tuple[tuple[str, int], ...]

    def __init__(self, **axes: int) -> None:
        for name, size in axes.items():
            if isinstance(size, bool) or not hasattr(size, "__index__") or size < 1:
                raise ShapeError(
                    f"axis {name!r} of a grid has {size!r} ranks",
                    loc=here(),
                    label="this grid",
                    hint="give each axis a positive integer: td.Grid(x=2, y=2)",
                )
        if not axes:
            raise ShapeError(
                "a grid has no axes", loc=here(), label="this grid", hint="td.Grid(x=4)"
            )
        made = tuple((name, operator.index(size)) for name, size in axes.items())
        object.__setattr__(self, "axes", made)

    @property
    def names(self) -> tuple[str, ...]:
        """The axes by name."""
        return tuple(name for name, _ in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many ranks stand along each axis."""
        return tuple(size for _, size in self.axes)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.shape)

    def coordinates(self, rank: int) -> Coordinates:
        """Where a rank stands."""
        found = []
        for size in reversed(self.shape):
            rank, position = divmod(rank, size)
            found.append(position)
        return tuple(reversed(found))

    def rank(self, coordinates: Iterable[int]) -> int:
        """Which rank stands there."""
        found = 0
        for size, position in zip(self.shape, coordinates, strict=True):
            found = found * size + position
        return found

    def __getattr__(self, name: str) -> Any:
        sizes = {} if name == "axes" else dict(self.axes)
        if name in sizes:
            return sizes[name]
        raise AttributeError(f"this grid has no axis {name!r}. {did_you_mean(name, sizes)}")

    def __repr__(self) -> str:
        return f"Grid({', '.join(f'{name}={size}' for name, size in self.axes)})"
