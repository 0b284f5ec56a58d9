"""Placement notation: a letter for each dimension of a tensor, an arrow, an entry for each axis of the grid.

"rc -> r c"     rows over the first axis of the grid, columns over the second
"mk -> m 0 k"   only ranks at coordinate 0 of the second axis have blocks of the tensor
"z -> * *"      a copy on each rank
"r -> r r"      nested blocks: cut over the first axis, then each block over the second
"r -> r' r"     nested blocks, cut over the second axis first: a prime marks the later cut
"r -> r/64"     block-cyclic: blocks of 64, in turn over the coordinates (ScaLAPACK)
"-> 0"          a scalar on one rank
"mn -> m n partial(sum)"   ranks along the third axis have partial results, still to be summed
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from typing import assert_never

from tdsl.core.node import frozen
from tdsl.errors import counted
from tdsl.placement.grid import Grid


@frozen
class Blocks:
    """Entry of an axis over which dimension `dim` is cut into blocks, after the axes of lower `level`.

    Without `size`, one block for each coordinate; else block-cyclic: blocks of `size` elements, in turn.
    """

    dim: int
    level: int = 0
    size: int | None = None


@frozen
class Copies:
    """Entry of an axis of which every coordinate has a copy of the same data."""


@frozen
class Fixed:
    """Entry of an axis of which only ranks at this coordinate own data."""

    coordinate: int


@frozen
class Partial:
    """Entry of an axis of which every coordinate has a partial result, still to be combined with `op`."""

    op: str


Entry = Blocks | Copies | Fixed | Partial


@frozen
class Placement:
    """The distribution of a tensor: a letter for each of its dimensions, an entry for each axis of a grid."""

    dims: str
    entries: tuple[Entry, ...]
    partial: tuple[int, ...] = field(init=False, repr=False, compare=False)  # the axes of partial results
    _axes_by_dim: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    _cyclic_sizes: tuple[int | None, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        blocks = [(n, e) for n, e in enumerate(self.entries) if isinstance(e, Blocks)]
        by_dim = [[(n, e) for n, e in blocks if e.dim == dim] for dim in range(len(self.dims))]
        cuts = (tuple(n for _, n in sorted((e.level, n) for n, e in entries)) for entries in by_dim)
        sizes = (next((e.size for _, e in entries if e.size is not None), None) for entries in by_dim)
        partial = tuple(n for n, e in enumerate(self.entries) if isinstance(e, Partial))
        object.__setattr__(self, "partial", partial)
        object.__setattr__(self, "_axes_by_dim", tuple(cuts))
        object.__setattr__(self, "_cyclic_sizes", tuple(sizes))

    def __str__(self) -> str:
        return f"{self.dims} -> {' '.join(_text(e, self.dims) for e in self.entries)}".lstrip()

    def axes_of(self, dim: int) -> tuple[int, ...]:
        """The numbers of the grid axes over which a dimension is cut, those of the outer blocks first."""
        return self._axes_by_dim[dim]

    def cyclic_size(self, dim: int) -> int | None:
        """The block size of a block-cyclic dimension; None for other dimensions."""
        return self._cyclic_sizes[dim]


def _text(e: Entry, dims: str) -> str:
    match e:
        case Blocks(dim, level, size):
            return dims[dim] + "'" * level + ("" if size is None else f"/{size}")
        case Copies():
            return "*"
        case Fixed(coordinate):
            return str(coordinate)
        case Partial(op):
            return f"partial({op})"
        case _:
            assert_never(e)


class PlacementSyntaxError(Exception):  # converted to a ScheduleError where the directive is known
    """A text is not a valid placement; `reason` says why, `hint` how to correct it."""

    def __init__(self, reason: str, hint: str) -> None:
        Exception.__init__(self, reason)
        self.reason, self.hint = reason, hint


def read_placement(text: str | Sequence[str], ndim: int, grid: Grid) -> Placement:
    """The placement of an `ndim`-dimensional tensor, parsed from a text, or from a text for each grid level.

    >>> read_placement("rc -> r 0", 2, Grid(x=2, y=2))
    Placement(dims='rc', entries=(Blocks(dim=0, level=0, size=None), Fixed(coordinate=0)))
    >>> print(read_placement("->*  0", 0, Grid(x=2, y=2)))
    -> * 0

    Raises PlacementSyntaxError for an invalid text.
    """
    if not isinstance(text, str):
        text = _joined(text, grid)
    dims, arrow, rest = text.partition("->")
    dims, words = dims.strip(), rest.split()
    twice = [letter for letter in dims if dims.count(letter) > 1]
    if arrow and dims.isalpha() and twice:
        raise PlacementSyntaxError(
            f"{text!r} calls two dimensions {twice[0]!r}", "write another letter for each dimension"
        )
    if not arrow or not (dims.isalpha() or not dims):
        raise PlacementSyntaxError(
            f"{text!r} is no placement",
            'write a letter for each dimension, an arrow, an entry for each axis: "rc -> r c"',
        )
    if len(dims) != ndim:
        raise PlacementSyntaxError(
            f"{text!r} names {counted(len(dims), 'dimension')}, the tensor has {ndim}",
            "write one letter for each dimension of the tensor",
        )
    if len(words) != len(grid.axes):
        raise PlacementSyntaxError(
            f"{text!r} has {counted(len(words), 'entry', 'entries')}, the grid {len(grid.axes)}: {grid}",
            "write one entry for each axis: a dimension, * for copies, or a coordinate",
        )
    entries = zip(words, grid.axes, strict=True)
    placement = Placement(dims, tuple(_entry(word, dims, *axis) for word, axis in entries))
    for dim, letter in enumerate(dims):
        if placement.cyclic_size(dim) is not None and len(placement.axes_of(dim)) > 1:
            raise PlacementSyntaxError(
                f"{letter!r} is block-cyclic along one axis and cut along another",
                "cut a block-cyclic dimension along one axis only",
            )
    return placement


def _joined(texts: Sequence[str], grid: Grid) -> str:
    """The texts of all levels joined to one: inner levels cut the blocks of outer levels."""
    if len(texts) != len(grid.levels):
        raise PlacementSyntaxError(
            f"{counted(len(texts), 'notation')} for the {counted(len(grid.levels), 'level')} of {grid}",
            "write one for each level, or one for the axes of all",
        )
    parts = [text.partition("->") for text in texts]
    for text, (dims, _, words), depth in zip(texts, parts, grid.depths, strict=True):
        if dims.strip() != parts[0][0].strip():
            raise PlacementSyntaxError(
                f"{texts[0]!r} and {text!r} name the dimensions differently",
                "use the same letters for all levels",
            )
        if len(words.split()) != depth:
            raise PlacementSyntaxError(
                f"{text!r} has {counted(len(words.split()), 'entry', 'entries')}, its level {depth}",
                "write one entry for each axis: a dimension, * for copies, or a coordinate",
            )
    return f"{parts[0][0]}-> {' '.join(words for _, _, words in parts)}"


def _entry(word: str, dims: str, axis: str, size: int) -> Entry:
    if word == "*":
        return Copies()
    if word.isdecimal():
        if int(word) >= size:
            raise PlacementSyntaxError(f"axis {axis!r} has no coordinate {word}", f"it has 0 to {size - 1}")
        return Fixed(int(word))
    if word.startswith("partial(") and word.endswith(")"):
        return Partial(word[len("partial(") : -1])
    match = re.fullmatch(r"(\w)('*)(?:/(\d+))?", word)
    if match is not None and match[1] in dims:
        if match[3] is not None and not int(match[3]):
            raise PlacementSyntaxError(
                f"{word!r} has blocks of no elements", f"blocks have 1 or more: {match[1]}/1"
            )
        turns = None if match[3] is None else int(match[3])
        return Blocks(dims.index(match[1]), len(match[2]), turns)
    raise PlacementSyntaxError(
        f"{word!r} is no dimension of {dims!r}" if dims else f"{word!r} is no entry of a scalar",
        "an entry is one of the letters on the left, * for copies, a coordinate, or partial(sum)",
    )


def axis_name(axis: str, entry: Copies | Fixed | Partial) -> str:
    """The name of the outer loop of an axis over which no loop is distributed; no loop has such a name."""
    match entry:
        case Copies():
            return f"{axis}=*"
        case Fixed(coordinate):
            return f"{axis}={coordinate}"
        case Partial(op):
            return f"{axis}=partial({op})"
