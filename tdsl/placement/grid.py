"""`Grid`: a Cartesian grid of ranks with named axes, in one level or several (nodes, ranks of a node)."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tdsl.core.source import here
from tdsl.errors import ShapeError, did_you_mean

Coordinates = tuple[int, ...]
Axes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, init=False)
class Grid:
    """A Cartesian grid of ranks with named axes; ranks are numbered in row-major order (first axis slowest).

    >>> grid = Grid(x=2, y=3)
    >>> grid.size, grid.y, grid
    (6, 3, Grid(x=2, y=3))
    >>> grid.coordinates(4), grid.rank((1, 1))
    ((1, 1), 4)

    A list of grids is one grid of several levels; the axes of the outer levels come first.

    >>> machine = Grid.of([Grid(node=2), Grid(x=2, y=3)])
    >>> machine, machine.size
    ([Grid(node=2), Grid(x=2, y=3)], 12)

    Raises ShapeError for an axis without ranks or without a name, for no axes, and for an axis name used
    twice.
    """

    axes: Axes
    depths: tuple[int, ...]  # the number of axes of each level
    shape: tuple[int, ...]  # the number of ranks along each axis

    def __init__(self, *sizes: int, **axes: int) -> None:
        if sizes:
            raise ShapeError(
                f"the axes of a grid have no names: {', '.join(map(repr, sizes))}",
                loc=here(),
                label="this grid",
                hint="name each axis: td.Grid(x=2, y=2)",
            )
        for name, size in axes.items():
            if isinstance(size, bool) or not hasattr(size, "__index__") or size < 1:
                raise ShapeError(
                    f"axis {name!r} of a grid has {size!r} ranks",
                    loc=here(),
                    label="this grid",
                    hint="give each axis a positive integer: td.Grid(x=2, y=2)",
                )
        if not axes:
            raise ShapeError("a grid has no axes", loc=here(), label="this grid", hint="td.Grid(x=4)")
        named = tuple((name, operator.index(size)) for name, size in axes.items())
        object.__setattr__(self, "axes", named)
        object.__setattr__(self, "depths", (len(named),))
        object.__setattr__(self, "shape", tuple(size for _, size in named))

    @staticmethod
    def of(levels: Sequence[Grid]) -> Grid:
        """One grid of several levels, the outer ones first."""
        axes = tuple(axis for level in levels for axis in level.axes)
        names = [name for name, _ in axes]
        twice = [name for n, name in enumerate(names) if name in names[:n]]
        if twice:
            raise ShapeError(
                f"two levels of a grid have an axis {twice[0]!r}",
                loc=here(),
                label="these grids",
                hint="name each axis once: [td.Grid(node=2), td.Grid(x=2, y=2)]",
            )
        grid = Grid(**dict(axes))
        object.__setattr__(grid, "depths", tuple(len(level.axes) for level in levels))
        return grid

    @property
    def levels(self) -> tuple[Axes, ...]:
        """The axes of each level, outer levels first."""
        left = iter(self.axes)
        return tuple(tuple(itertools.islice(left, n)) for n in self.depths)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(name for name, _ in self.axes)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.shape)

    def coordinates(self, rank: int) -> Coordinates:
        """The coordinates of a rank; ShapeError if the grid has no such rank."""
        if not (hasattr(rank, "__index__") and 0 <= rank < self.size):
            raise ShapeError(
                f"{self} has no rank {rank!r}",
                loc=here(),
                label="this call",
                hint=f"ranks are 0 to {self.size - 1}",
            )
        positions = []
        for size in reversed(self.shape):
            rank, position = divmod(rank, size)
            positions.append(position)
        return tuple(reversed(positions))

    def rank(self, coordinates: Iterable[int]) -> int:
        """The number of the rank at some coordinates."""
        number = 0
        for size, position in zip(self.shape, coordinates, strict=True):
            number = number * size + position
        return number

    def crossed_level(self, ranks: Sequence[int]) -> int:
        """The outermost level in which the coordinates of some ranks differ.

        >>> machine = Grid.of([Grid(node=2), Grid(x=2)])
        >>> machine.crossed_level((0, 1)), machine.crossed_level((1, 2))
        (1, 0)
        """
        if len(self.depths) == 1:
            return 0
        coordinates = [self.coordinates(r) for r in ranks]
        axis = next((n for n, along in enumerate(zip(*coordinates, strict=True)) if len(set(along)) > 1), 0)
        return next(n for n, behind in enumerate(itertools.accumulate(self.depths)) if axis < behind)

    def __getattr__(self, name: str) -> Any:
        sizes = {} if name in ("axes", "depths", "shape") else dict(self.axes)
        if name in sizes:
            return sizes[name]
        raise AttributeError(f"this grid has no axis {name!r}. {did_you_mean(name, sizes)}")

    def __repr__(self) -> str:
        return grid_text(self.levels)


def grid_text(levels: Iterable[Axes], prefix: str = "") -> str:
    """A grid as Python source; a list if it has several levels."""
    texts = [f"{prefix}Grid({', '.join(f'{name}={size}' for name, size in axes)})" for axes in levels]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
