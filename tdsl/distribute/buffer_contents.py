"""Contents of buffers in the verification of a plan: boxes, and the points of a reduction in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tdsl.communication.steps import PlacedTensor
from tdsl.placement.ownership import SpanBox, contiguous_boxes, element_count, intersection
from tdsl.placement.spans import clip, length

Points = tuple[SpanBox, ...]  # of a reduction, as disjoint boxes; one box of no axes without a reduction
Piece = tuple[SpanBox, Points]  # a box, and the points that each of its elements combines


class PlanFault(AssertionError):  # an error of this package, not of the user
    """A plan is incorrect; the message says where."""


@dataclass(slots=True)
class BufferContents:
    """The contents of a buffer: disjoint boxes whose elements have values, with their points.

    Where it takes the memory of another buffer, that one is `over`.
    """

    tensor: str
    box: SpanBox
    pieces: list[Piece] = field(default_factory=list)
    over: BufferContents | None = None

    def put(self, new: list[Piece]) -> None:
        """Overwrite the boxes of `new`, also those of the buffer whose memory this one takes."""
        for box, points in new:
            if self.over is not None:
                self.over.erase(box)
            kept = [(rest, p) for old, p in self.pieces for rest in box_difference(old, box)]
            self.pieces = [*kept, (box, points)]

    def erase(self, box: SpanBox) -> None:
        """Make the elements of a box undefined."""
        self.pieces = [(rest, p) for old, p in self.pieces for rest in box_difference(old, box)]

    def get(self, box: SpanBox) -> list[Piece]:
        """The pieces within a box, which do not cover it if some elements have no value."""
        overlaps = ((intersection(contents, box), points) for contents, points in self.pieces)
        return [(part, points) for part, points in overlaps if part is not None]

    def add(self, new: list[Piece]) -> None:
        """Combine pieces with the contents; PlanFault if an element would combine a point twice."""
        for box, points in new:
            self.put([(part, disjoint_union(p, points)) for part, p in self.get(box)])


def disjoint_union(a: Points, b: Points) -> Points:
    """The union of two sets of points, adjacent boxes merged; PlanFault where they overlap.

    >>> disjoint_union((((0, 2), (0, 9)),), (((4, 6), (0, 9)), ((2, 4), (0, 9))))
    (((0, 6), (0, 9)),)
    """
    for box in b:
        if any(intersection(present, box) is not None for present in a):
            raise PlanFault(f"points {box} of a reduction are there twice")
        a = _with_adjacent(a, box)
    return a


def _with_adjacent(points: Points, box: SpanBox) -> Points:
    """`points` with one more box, merged with those adjacent to it."""
    for n, present in enumerate(points):
        differ = [axis for axis, (x, y) in enumerate(zip(present, box, strict=True)) if x != y]
        if len(differ) == 1:
            (axis,) = differ
            (lo, hi), (first, behind) = sorted((present[axis], box[axis]))
            if hi == first:
                whole = (*box[:axis], (lo, behind), *box[axis + 1 :])
                return _with_adjacent((*points[:n], *points[n + 1 :]), whole)
    return (*points, box)


def reduction_points(tensor: PlacedTensor) -> Points:
    """All points of the reduction that each element of a tensor combines."""
    return (tuple(span for _, span in tensor.points),)


def point_count(points: Points) -> int:
    """The number of points."""
    return sum(map(element_count, points))


def have_same_points(a: Sequence[Piece], b: Sequence[Piece]) -> bool:
    """True if two lists of pieces have the same elements, and each element the same points in both.

    >>> left, right = ((0, 2),), ((2, 6),)
    >>> have_same_points([(left, (((0, 4),),)), (right, ())], [(left, (((0, 1),), ((1, 4),))), (right, ())])
    True
    >>> have_same_points([(left, (((0, 4),),))], [(left, (((0, 3),), ((5, 6),)))])
    False
    """
    shared = 0
    for box, points in a:
        for other, others in b:
            part = intersection(box, other)
            if part is None:
                continue
            shared += element_count(part)
            both = (intersection(p, q) for p in points for q in others)
            common = sum(element_count(p) for p in both if p is not None)
            if not common == point_count(points) == point_count(others):
                return False
    return all(shared == sum(element_count(box) for box, _ in pieces) for pieces in (a, b))


def box_difference(box: SpanBox, hole: SpanBox) -> Iterator[SpanBox]:
    """The set difference of two boxes, as disjoint boxes.

    >>> list(box_difference(((0, 3), (0, 3)), ((1, 9), (0, 2))))
    [((0, 1), (0, 3)), ((1, 3), (2, 3))]
    """
    shared = intersection(box, hole)
    if shared is None:
        yield box
        return
    spans = list(zip(box, shared, strict=True))
    if any(length(clip(span, *part)) > length(part) for span, part in spans):  # only `hole` has gaps
        rest = list(contiguous_boxes(box))
        for part in contiguous_boxes(shared):
            rest = [piece for remaining in rest for piece in box_difference(remaining, part)]
        yield from rest
        return
    for n, (span, (first, behind)) in enumerate(spans):
        for piece in (clip(span, span[0], first), clip(span, behind, span[1])):
            if piece[0] < piece[1]:
                yield (*shared[:n], piece, *box[n + 1 :])
