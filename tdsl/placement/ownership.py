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
    block_cyclic,
    clip,
    contiguous_parts,
    covers,
    intersect_spans,
    length,
    storage_parts,
)

SpanBox = tuple[Span, ...]


def block(span: Span, parts: int, n: int) -> Span:
    """The n-th block of a contiguous span cut into `parts` blocks of equal size.

    >>> [block((0, 10), 4, n) for n in range(4)], [block((3, 5), 4, n) for n in range(4)]
    ([(0, 3), (3, 6), (6, 9), (9, 10)], [(3, 4), (4, 5), (5, 5), (5, 5)])
    """
    lo, hi = span
    size = -(-(hi - lo) // parts)
    return min(lo + n * size, hi), min(lo + (n + 1) * size, hi)


def cyclic_blocks(span: Span, parts: int, n: int, size: int) -> Span:
    """The n-th part of a span in a block-cyclic distribution over `parts` coordinates, in blocks of `size`.

    Blocks begin at multiples of `size`: an index has the same coordinate in spans that begin elsewhere.

    >>> [cyclic_blocks((0, 9), 2, n, 2) for n in range(2)]
    [block_cyclic((0, 9), 2, 4, 0), block_cyclic((2, 8), 2, 4, 2)]
    >>> [cyclic_blocks((3, 6), 2, n, 2) for n in range(2)]
    [(4, 6), (3, 4)]
    """
    return block_cyclic(span, size, size * parts, n * size)


def owned(placement: Placement, grid: Grid, whole: SpanBox, at: Coordinates) -> SpanBox | None:
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
    box = [owned_span(placement, grid, whole, dim, at) for dim in range(len(whole))]
    return None if is_empty(box) else tuple(box)


def owned_span(placement: Placement, grid: Grid, whole: SpanBox, dim: int, at: Sequence[int]) -> Span:
    """The span of a dimension in the blocks of the rank at some coordinates; it may be empty."""
    span, size = whole[dim], placement.cyclic_size(dim)
    for axis in placement.axes_of(dim):
        parts = grid.shape[axis]
        span = block(span, parts, at[axis]) if size is None else cyclic_blocks(span, parts, at[axis], size)
    return span


def owned_pieces(
    placement: Placement, grid: Grid, whole: SpanBox, box: SpanBox, preferred: Coordinates
) -> Iterator[tuple[Coordinates, SpanBox]]:
    """The box `box`, cut at block boundaries; each piece with the coordinates of the rank that owns it.

    Of several copies, the one with the coordinates of `preferred` is chosen.
    """
    cuts = [
        cut_span(span, part, placement.axes_of(d), grid.shape, placement.cyclic_size(d))
        for d, (span, part) in enumerate(zip(whole, box, strict=True))
    ]
    start = list(preferred)
    for axis, entry in enumerate(placement.entries):
        if isinstance(entry, Fixed):
            start[axis] = entry.coordinate
    for parts in itertools.product(*cuts):
        at = list(start)
        for positions, _ in parts:
            for axis, position in positions.items():
                at[axis] = position
        yield tuple(at), tuple(span for _, span in parts)


def ranks_with_copy(placement: Placement, grid: Grid, at: Coordinates) -> Iterator[Coordinates]:
    """The coordinates of all ranks that own the same data as the rank at `at`, that rank included."""
    options = (
        range(size) if isinstance(entry, Copies) else (position,)
        for entry, position, size in zip(placement.entries, at, grid.shape, strict=True)
    )  # fmt: skip
    yield from itertools.product(*options)


def cut_span(
    span: Span, requested: Span, axes: Sequence[int], shape: Sequence[int], size: int | None
) -> list[tuple[dict[int, int], Span]]:
    """A span `requested`, cut at block boundaries: the owner's positions along the axes, and the part."""
    lo, hi = max(span[0], requested[0]), min(span[1], requested[1])
    if lo >= hi:
        return []
    if not axes:
        part = clip(requested, lo, hi)
        return [({}, part)] if part[0] < part[1] else []
    first, *rest = axes
    result: list[tuple[dict[int, int], Span]] = []
    if size is not None:
        parts = (cyclic_blocks(span, shape[first], n, size) for n in range(shape[first]))
        clipped = ((n, clip(part, lo, hi)) for n, part in enumerate(parts))
        return [({first: n}, part) for n, part in clipped if part[0] < part[1]]
    block_length = -(-(span[1] - span[0]) // shape[first])
    spread = (
        range((run[0] - span[0]) // block_length, (run[1] - 1 - span[0]) // block_length + 1)
        for run in contiguous_parts(clip(requested, lo, hi))
    )
    for n in dict.fromkeys(itertools.chain(*spread)):
        for positions, part in cut_span(block(span, shape[first], n), requested, rest, shape, None):
            result.append(({first: n, **positions}, part))
    return result


def intersection(a: SpanBox, b: SpanBox) -> SpanBox | None:
    """The intersection of two boxes; None if it is empty.

    >>> intersection(((0, 4), (0, 4)), ((2, 9), (1, 2))), intersection(((0, 4),), ((4, 5),))
    (((2, 4), (1, 2)), None)
    """
    spans = []
    for x, y in zip(a, b, strict=True):
        both = intersect_spans(x, y)
        if both[0] >= both[1]:
            return None
        spans.append(both)
    return tuple(spans)


def contains(outer: SpanBox, inner: SpanBox) -> bool:
    """True if `outer` has all elements of `inner`."""
    return all(covers(a, b) for a, b in zip(outer, inner, strict=True))


def is_contiguous(box: SpanBox) -> bool:
    """True if a box is contiguous in every dimension (has no gaps)."""
    return not any(isinstance(span, PeriodicSpan) for span in box)


def contiguous_boxes(box: SpanBox) -> Iterator[SpanBox]:
    """The contiguous boxes of which a box with gaps consists.

    >>> list(contiguous_boxes((block_cyclic((0, 6), 1, 4, 0), (3, 5))))
    [((0, 1), (3, 5)), ((4, 5), (3, 5))]
    """
    yield from itertools.product(*map(contiguous_parts, box))


def is_empty(box: Sequence[Span]) -> bool:
    """True if a box has no elements; a box without dimensions has one element."""
    return any(lo >= hi for lo, hi in box)


def element_count(box: SpanBox) -> int:
    """The number of elements of a box."""
    return math.prod(map(length, box))


def stored_shape(box: SpanBox) -> tuple[int, ...]:
    """The shape of the array that stores a box, without gaps."""
    return tuple(map(length, box))


def index_within(box: SpanBox, outer: SpanBox) -> tuple[Any, ...]:
    """The NumPy index of a box in the array that stores a larger box `outer`.

    It selects a view, unless the box has gaps that `outer` does not have.

    >>> index_within(((2, 4),), ((1, 9),)), index_within((block_cyclic((2, 9), 1, 2, 2),), ((1, 9),))
    ((Ellipsis, slice(1, 3, None)), (array([1, 3, 5, 7]),))
    """
    parts = [storage_parts(span, around) for span, around in zip(box, outer, strict=True)]
    if all(len(part) == 1 for part in parts):
        return (..., *(slice(*part[0]) for part in parts))
    return np.ix_(*(np.concatenate([np.arange(*run) for run in part]) for part in parts))
