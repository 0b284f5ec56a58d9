"""Ownership of a placed tensor: the box of each rank, and the owner of each part of a given box.

An extent cut in n has blocks of ceil(extent / n) elements; the last blocks may be short or empty. If two axes
cut one dimension, the second cuts the blocks of the first. A block-cyclic dimension has blocks of a given
size, assigned to the ranks in turn. All bounds are integers: a box is one span for each dimension, which may
have gaps (`spans.py`), so that a rank always owns a single box.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tdsl.placement.grid import Coordinates, Grid
from tdsl.placement.notation import Copies, Fixed, Placement
from tdsl.placement.spans import (
    PeriodicSpan,
    Span,
    clip,
    count,
    covers,
    dealt,
    meet,
    runs,
    standing,
)

Box = tuple[Span, ...]


def block(span: Span, parts: int, n: int) -> Span:
    """The n-th block of a contiguous span cut into `parts` blocks of equal size.

    >>> [block((0, 10), 4, n) for n in range(4)], [block((3, 5), 4, n) for n in range(4)]
    ([(0, 3), (3, 6), (6, 9), (9, 10)], [(3, 4), (4, 5), (5, 5), (5, 5)])
    """
    lo, hi = span
    size = -(-(hi - lo) // parts)
    return min(lo + n * size, hi), min(lo + (n + 1) * size, hi)


def turns(span: Span, parts: int, n: int, size: int) -> Span:
    """The n-th part of a span in a block-cyclic distribution over `parts` coordinates, in blocks of `size`.

    >>> [turns((0, 9), 2, n, 2) for n in range(2)]
    [dealt((0, 9), 2, 4, 0), dealt((2, 8), 2, 4, 2)]
    """
    return dealt(span, size, size * parts, span[0] + n * size)


def owned(placement: Placement, grid: Grid, whole: Box, at: Coordinates) -> Box | None:
    """The box of a tensor that the rank at some coordinates owns; None if it owns no elements.

    >>> from tdsl.placement.notation import read_placement
    >>> g = Grid(x=2, y=2)
    >>> nested = read_placement("r -> r r", 1, g)
    >>> [owned(nested, g, ((0, 5),), g.coordinates(rank)) for rank in range(4)]
    [((0, 2),), ((2, 3),), ((3, 4),), ((4, 5),)]
    """
    for entry, position in zip(placement.entries, at, strict=True):
        if isinstance(entry, Fixed) and entry.coordinate != position:
            return None
    box = []
    for dim, span in enumerate(whole):
        size = placement.dealt(dim)
        for axis in placement.axes_of(dim):
            parts = grid.shape[axis]
            span = (
                block(span, parts, at[axis]) if size is None else turns(span, parts, at[axis], size)
            )
        box.append(span)
    return None if is_empty(box) else tuple(box)


def pieces(
    placement: Placement, grid: Grid, whole: Box, wanted: Box, near: Coordinates
) -> Iterator[tuple[Coordinates, Box]]:
    """The box `wanted`, cut at block boundaries; each piece with the coordinates of the rank that owns it.

    Of several copies, the one with the coordinates of `near` is chosen.
    """
    cuts = [_cut(span, w, placement.axes_of(d), grid.shape, placement.dealt(d)) for d, (span, w) in
            enumerate(zip(whole, wanted, strict=True))]  # fmt: skip
    start = list(near)
    for axis, entry in enumerate(placement.entries):
        if isinstance(entry, Fixed):
            start[axis] = entry.coordinate
    for parts in itertools.product(*cuts):
        at = list(start)
        for positions, _ in parts:
            for axis, position in positions.items():
                at[axis] = position
        yield tuple(at), tuple(span for _, span in parts)


def copies(placement: Placement, grid: Grid, at: Coordinates) -> Iterator[Coordinates]:
    """The coordinates of all ranks that own the same data as the rank at `at`, that rank included."""
    options = (
        range(size) if isinstance(entry, Copies) else (position,)
        for entry, position, size in zip(placement.entries, at, grid.shape, strict=True)
    )  # fmt: skip
    yield from itertools.product(*options)


def _cut(
    span: Span, wanted: Span, axes: Sequence[int], shape: Sequence[int], size: int | None
) -> list[tuple[dict[int, int], Span]]:
    """A span `wanted`, cut at block boundaries: the owner's positions along the axes, and the part."""
    lo, hi = max(span[0], wanted[0]), min(span[1], wanted[1])
    if lo >= hi:
        return []
    if not axes:
        part = clip(wanted, lo, hi)
        return [({}, part)] if part[0] < part[1] else []
    first, *rest = axes
    found: list[tuple[dict[int, int], Span]] = []
    if size is not None:
        parts = (turns(span, shape[first], n, size) for n in range(shape[first]))
        mine = ((n, clip(part, lo, hi)) for n, part in enumerate(parts))
        return [({first: n}, part) for n, part in mine if part[0] < part[1]]
    wide = -(-(span[1] - span[0]) // shape[first])
    spread = (
        range((own[0] - span[0]) // wide, (own[1] - 1 - span[0]) // wide + 1)
        for own in runs(clip(wanted, lo, hi))
    )
    for n in dict.fromkeys(itertools.chain(*spread)):
        for positions, part in _cut(block(span, shape[first], n), wanted, rest, shape, None):
            found.append(({first: n, **positions}, part))
    return found


def common(a: Box, b: Box) -> Box | None:
    """The intersection of two boxes; None if it is empty.

    >>> common(((0, 4), (0, 4)), ((2, 9), (1, 2))), common(((0, 4),), ((4, 5),))
    (((2, 4), (1, 2)), None)
    """
    made = []
    for x, y in zip(a, b, strict=True):
        both = meet(x, y)
        if both[0] >= both[1]:
            return None
        made.append(both)
    return tuple(made)


def contains(outer: Box, inner: Box) -> bool:
    """True if `outer` has all elements of `inner`."""
    return all(covers(a, b) for a, b in zip(outer, inner, strict=True))


def is_whole(box: Box) -> bool:
    """True if a box is contiguous in every dimension (has no gaps)."""
    return not any(isinstance(span, PeriodicSpan) for span in box)


def whole_boxes(box: Box) -> Iterator[Box]:
    """The contiguous boxes of which a box with gaps consists.

    >>> list(whole_boxes((dealt((0, 6), 1, 4, 0), (3, 5))))
    [((0, 1), (3, 5)), ((4, 5), (3, 5))]
    """
    yield from itertools.product(*map(runs, box))


def is_empty(box: Sequence[Span]) -> bool:
    """True if a box has no elements; a box without dimensions has one element."""
    return any(lo >= hi for lo, hi in box)


def elements(box: Box) -> int:
    """The number of elements of a box."""
    return math.prod(map(count, box))


def extents(box: Box) -> tuple[int, ...]:
    """The shape of the array that stores a box, without gaps."""
    return tuple(map(count, box))


def within(box: Box, outer: Box) -> tuple[Any, ...]:
    """The NumPy index of a box in the array that stores a larger box `outer`.

    It selects a view, unless the box has gaps that `outer` does not have.

    >>> within(((2, 4),), ((1, 9),)), within((dealt((2, 9), 1, 2, 2),), ((1, 9),))
    ((Ellipsis, slice(1, 3, None)), (array([1, 3, 5, 7]),))
    """
    parts = [standing(span, around) for span, around in zip(box, outer, strict=True)]
    if all(len(part) == 1 for part in parts):
        return (..., *(slice(*part[0]) for part in parts))
    return np.ix_(*(np.concatenate([np.arange(*run) for run in part]) for part in parts))
