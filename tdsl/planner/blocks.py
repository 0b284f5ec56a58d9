"""`Blocks`: the blocks of a tensor that ranks own under several placements, in arrays; and their axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tdsl.communication.rank_boxes import BoxVector, Mask, Numbers, SpanVector
from tdsl.placement.notation import Blocks as BlockEntry
from tdsl.placement.notation import Copies, Partial, Placement


class PlacementAxes:
    """The axes along which placements cut a tensor, copy it, or have partial sums, as bits of a number."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        self.cut = _axes_with(BlockEntry, placements)
        self.copied = _axes_with(Copies, placements)
        self.partial = _axes_with(Partial, placements)


def _axes_with(kind: type, placements: Sequence[Placement]) -> Numbers:
    entries = ([n for n, e in enumerate(p.entries) if isinstance(e, kind)] for p in placements)
    return np.array([axis_bits(axes) for axes in entries], np.int64)


def axis_bits(axes: Iterable[int]) -> int:
    """A number with a bit for each of several axes."""
    return sum(1 << n for n in axes)


class Blocks:
    """The blocks of a tensor under several placements, in arrays of placements and ranks."""

    def __init__(self, placements: tuple[Placement, ...], boxes: list[BoxVector]) -> None:
        self.axes = PlacementAxes(placements)
        self.plain = [_is_plain(p, b) for p, b in zip(placements, boxes, strict=True)]
        self.present = np.array([b.present for b in boxes])
        self.counts = np.array([b.counts() for b in boxes])
        self.dims: list[tuple[list[SpanVector], Numbers]] = []  # distinct ones, and the number of each
        for dim in range(len(boxes[0].dims)):
            numbers: dict[object, int] = {}
            vectors, index = [], []
            for box in boxes:
                vector = box.dims[dim]
                key = id(vector)
                if key not in numbers:
                    numbers[key] = len(numbers)
                    vectors.append(vector)
                index.append(numbers[key])
            self.dims.append((vectors, np.array(index)))
        self.ends = [_ends(vectors) for vectors, _ in self.dims]

    def shared(self, boxes: BoxVector) -> Numbers:
        """The number of elements of boxes of ranks in each of the blocks."""
        shared = (self.present & boxes.present).astype(np.int64)
        for (vectors, index), ends, d in zip(self.dims, self.ends, boxes.dims, strict=True):
            if ends is None or not d.is_contiguous:
                lengths = np.array([d.shared(v) for v in vectors])
            else:
                lengths = np.minimum(ends[1], d.ends[1]) - np.maximum(ends[0], d.ends[0])
                np.maximum(lengths, 0, out=lengths)
            shared *= lengths[index]
        return shared

    def has(self, boxes: BoxVector) -> Mask:
        """True where a block has all elements of the box of a rank."""
        inside = self.present & boxes.present
        for (vectors, index), ends, d in zip(self.dims, self.ends, boxes.dims, strict=True):
            if ends is None or not d.is_contiguous:
                within = np.array([d.is_within(v) for v in vectors])
            else:
                within = (ends[0] <= d.ends[0]) & (d.ends[1] <= ends[1])
            inside &= within[index]
        return inside


def _ends(vectors: list[SpanVector]) -> tuple[Numbers, Numbers] | None:
    """The ends of spans, in arrays of vectors and ranks; None if spans have gaps."""
    if not all(v.is_contiguous for v in vectors):
        return None
    return np.array([v.ends[0] for v in vectors]), np.array([v.ends[1] for v in vectors])


def _is_plain(placement: Placement, block: BoxVector) -> bool:
    """True if blocks are contiguous, and each rank has one or a copy."""
    entries = all(
        isinstance(e, Copies | Partial) or (isinstance(e, BlockEntry) and e.size is None)
        for e in placement.entries
    )
    return entries and all(d.is_contiguous for d in block.dims)
