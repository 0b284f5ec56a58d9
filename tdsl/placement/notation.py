"""Placements as the user writes them: the dimensions of a tensor, an arrow, and an entry for each axis.

"rc -> r c"     rows over the first axis of the grid, columns over the second
"mk -> m 0 k"   the second axis holds the tensor at its coordinate 0 only
"z -> * *"      a copy on each rank
"r -> r r"      blocks of blocks: over the first axis, each of them over the second
"r -> r' r"     the same, the other way round: a prime stands at what is cut later
"-> 0"          a scalar on one rank
"mn -> m n partial(sum)"   along the third axis lie parts of a result, not summed yet
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from tdsl.errors import counted
from tdsl.placement.grid import Grid


@dataclass(frozen=True, slots=True)
class Blocks:
    """The dimension is cut into blocks along this axis, after the axes of lower levels."""

    dim: int
    level: int = 0


@dataclass(frozen=True, slots=True)
class Copies:
    """Every coordinate of this axis has the same."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Only ranks at this coordinate of the axis have anything."""

    coordinate: int


@dataclass(frozen=True, slots=True)
class Partial:
    """Every coordinate of this axis has a part of a result; all of them combined are its value."""

    op: str


Entry = Blocks | Copies | Fixed | Partial


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a tensor lives: a letter for each of its dimensions, an entry for each axis of a grid."""

    dims: str
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return f"{self.dims} -> {' '.join(_text(e, self.dims) for e in self.entries)}".lstrip()

    def axes_of(self, dim: int) -> tuple[int, ...]:
        """The axes over which a dimension is cut, those of the outer blocks first."""
        own = ((n, e) for n, e in enumerate(self.entries) if isinstance(e, Blocks) and e.dim == dim)
        return tuple(n for _, n in sorted((e.level, n) for n, e in own))

    @property
    def partial(self) -> tuple[int, ...]:
        """The axes along which parts of a result lie."""
        return tuple(n for n, e in enumerate(self.entries) if isinstance(e, Partial))


def _text(e: Entry, dims: str) -> str:
    match e:
        case Blocks(dim, level):
            return dims[dim] + "'" * level
        case Copies():
            return "*"
        case Fixed(coordinate):
            return str(coordinate)
        case Partial(op):
            return f"partial({op})"
        case _:
            assert_never(e)


class Unreadable(Exception):  # a reason, made a ScheduleError where the directive is known
    """Why a text is no placement of a tensor on a grid."""

    def __init__(self, reason: str, hint: str) -> None:
        Exception.__init__(self, reason)
        self.reason, self.hint = reason, hint


def read_placement(text: str, ndim: int, grid: Grid) -> Placement:
    """The placement that a text says, of a tensor of `ndim` dimensions.

    >>> read_placement("rc -> r 0", 2, Grid(x=2, y=2))
    Placement(dims='rc', entries=(Blocks(dim=0, level=0), Fixed(coordinate=0)))
    >>> print(read_placement("->*  0", 0, Grid(x=2, y=2)))
    -> * 0

    Raises Unreadable, with a way out.
    """
    dims, arrow, rest = text.partition("->")
    dims, words = dims.strip(), rest.split()
    if not arrow or not (dims.isalpha() or not dims) or len(set(dims)) < len(dims):
        raise Unreadable(
            f"{text!r} is no placement",
            'write a letter for each dimension, an arrow, an entry for each axis: "rc -> r c"',
        )
    if len(dims) != ndim:
        raise Unreadable(
            f"{text!r} names {counted(len(dims), 'dimension')}, the tensor has {ndim}",
            "write one letter for each dimension of the tensor",
        )
    if len(words) != len(grid.axes):
        raise Unreadable(
            f"{text!r} has {counted(len(words), 'entry', 'entries')}, the grid {len(grid.axes)}: {grid}",
            "write one entry for each axis: a dimension, * for copies, or a coordinate",
        )
    entries = zip(words, grid.axes, strict=True)
    return Placement(dims, tuple(_entry(word, dims, *axis) for word, axis in entries))


def _entry(word: str, dims: str, axis: str, size: int) -> Entry:
    if word == "*":
        return Copies()
    if word.isdecimal():
        if int(word) >= size:
            raise Unreadable(f"axis {axis!r} has no coordinate {word}", f"it has 0 to {size - 1}")
        return Fixed(int(word))
    if word.startswith("partial(") and word.endswith(")"):
        return Partial(word[len("partial(") : -1])
    letter = word.rstrip("'")
    if len(letter) == 1 and letter in dims:
        return Blocks(dims.index(letter), len(word) - 1)
    raise Unreadable(
        f"{word!r} is no dimension of {dims!r}" if dims else f"{word!r} is no entry of a scalar",
        "an entry is one of the letters on the left, * for copies, a coordinate, or partial(sum)",
    )
