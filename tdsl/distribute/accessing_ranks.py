"""Finds the ranks that access a box by bisection of the grid, without a visit to each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tdsl.communication.stages import Spans
from tdsl.placement.grid import Coordinates
from tdsl.placement.ownership import SpanBox, intersection

AccessedBox = Callable[[Spans], SpanBox | None]  # the box that ranks with these spans of coordinates access


def ranks_accessing(
    ranks: Spans, box: SpanBox, accessed: AccessedBox
) -> Iterator[tuple[Coordinates, SpanBox]]:
    """The ranks within spans of coordinates that access a box, each with the part of it that it accesses.

    >>> def halo(ranks):
    ...     (lo, hi), = ranks
    ...     return ((10 * lo - 1, 10 * hi + 1),)
    >>> list(ranks_accessing(((0, 1000),), ((500, 510),), halo))
    [((49,), ((500, 501),)), ((50,), ((500, 510),)), ((51,), ((509, 510),))]
    """
    candidates = [(at, shared, 0) for at, shared in _accessing_spans((ranks,), box, accessed)]
    while candidates:
        at, shared, axis_tried = candidates.pop()
        widths = [hi - lo for lo, hi in at]
        if max(widths) == 1:
            yield tuple(first for first, _ in at), shared
            continue
        wide = [n for n, w in enumerate(widths) if w > 1]
        wide.sort(key=lambda n: (n != axis_tried, -widths[n]))
        halves = _accessing_spans(_halves(at, wide[0]), box, accessed)
        cut = wide[0]
        for axis in wide[1:]:
            if len(halves) < 2:
                break
            # prefer an axis of which one half misses the box; it is tried first next time
            other = _accessing_spans(_halves(at, axis), box, accessed)
            if len(other) < 2 or widths[axis] > widths[cut]:
                halves, cut = other, axis
        candidates += [(half, part, cut) for half, part in halves]


def _accessing_spans(
    parts: tuple[Spans, ...], box: SpanBox, accessed: AccessedBox
) -> list[tuple[Spans, SpanBox]]:
    """The spans of coordinates in which a rank may access a box, with the part of it; the last ones first."""
    boxes = [(ranks, accessed(ranks)) for ranks in reversed(parts)]
    shared = [(ranks, intersection(part, box)) for ranks, part in boxes if part is not None]
    return [(ranks, part) for ranks, part in shared if part is not None]


def _halves(ranks: Spans, axis: int) -> tuple[Spans, Spans]:
    lo, hi = ranks[axis]
    middle = (lo + hi) // 2
    before, behind = ranks[:axis], ranks[axis + 1 :]
    return (*before, (lo, middle), *behind), (*before, (middle, hi), *behind)
