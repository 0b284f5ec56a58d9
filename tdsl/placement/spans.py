"""Spans: half-open intervals of integers, contiguous or block-cyclic (periodic blocks with gaps).

A contiguous span is (first, last + 1). A `PeriodicSpan` has gaps: the elements of a block-cyclic dimension
that one rank owns, counted and stored without the gaps. An interval that wraps around the end of a dimension
is a `PeriodicSpan` with one block, whose period is the extent: it is stored from the first element of the
block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

Span = tuple[int, int]


class PeriodicSpan(tuple[int, int]):
    """A periodic span: blocks of `block` elements at distance `period`; `block_cyclic` returns it.

    `start` is where a block begins, modulo `period`; the first and last element of the span are in blocks.
    """

    block: int
    period: int
    start: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PeriodicSpan) and _fields(self) == _fields(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_fields(self))

    def __repr__(self) -> str:
        return f"block_cyclic({tuple(self)}, {self.block}, {self.period}, {self.start})"


def _fields(span: PeriodicSpan) -> tuple[int, ...]:
    return (*span, span.block, span.period, span.start)


def block_cyclic(span: Span, block: int, period: int, start: int) -> Span:
    """The elements of a span in blocks of `block` at `start` + n * `period`; a tuple if there are no gaps.

    >>> block_cyclic((0, 10), 2, 6, 0), block_cyclic((0, 10), 2, 6, 4), block_cyclic((3, 6), 2, 6, 0)
    (block_cyclic((0, 8), 2, 6, 0), (4, 6), (6, 6))
    """
    lo, hi = span
    into = (lo - start) % period
    lo = lo if into < block else min(lo - into + period, hi)
    into = (hi - 1 - start) % period
    hi = hi if into < block else hi - 1 - into + block
    if hi - lo <= block - (lo - start) % period:
        return lo, max(lo, hi)
    periodic = PeriodicSpan((lo, hi))
    periodic.block, periodic.period, periodic.start = block, period, start % period
    return periodic


def wrapped(lo: int, hi: int, n: int) -> Span:
    """The elements lo .. hi - 1 modulo n; these must be fewer than n.

    >>> wrapped(-1, 2, 9), list(contiguous_parts(wrapped(-1, 2, 9))), wrapped(10, 12, 9)
    (block_cyclic((0, 9), 3, 9, 8), [(0, 2), (8, 9)], (1, 3))
    """
    first = lo % n
    return block_cyclic((0, n), hi - lo, n, first) if first + hi - lo > n else (first, first + hi - lo)


def union(spans: Sequence[Span]) -> Span | None:
    """The union of contiguous spans if it is a span, contiguous or of equidistant blocks; else None.

    >>> union([(4, 6), (0, 2), (2, 4)]), union([(0, 2), (6, 8), (3, 4)]), union([(0, 2), (6, 8)])
    ((0, 6), None, block_cyclic((0, 8), 2, 6, 0))
    """
    ordered = sorted(set(spans))
    (lo, first), hi = ordered[0], ordered[-1][1]
    if all(a[1] == b[0] for a, b in itertools.pairwise(ordered)):
        return lo, hi
    periodic = block_cyclic((lo, hi), first - lo, ordered[1][0] - lo, lo)
    return periodic if list(contiguous_parts(periodic)) == ordered else None


def is_wrapped(span: Span) -> bool:
    """True if a span is one block that wraps around the end of a dimension."""
    return isinstance(span, PeriodicSpan) and span[1] - span[0] == span.period


def clip(span: Span, lo: int, hi: int) -> Span:
    """The elements of a span from lo to hi - 1.

    >>> clip(block_cyclic((0, 10), 2, 6, 0), 1, 7), clip((2, 5), 0, 4)
    (block_cyclic((1, 7), 2, 6, 0), (2, 4))
    """
    lo = max(lo, span[0])
    hi = max(lo, min(hi, span[1]))
    if isinstance(span, PeriodicSpan) and lo < hi:
        return block_cyclic((lo, hi), span.block, span.period, span.start)
    return lo, hi


def intersect_spans(a: Span, b: Span) -> Span:
    """The intersection of two spans; two with gaps must have equal periods and equal or disjoint blocks."""
    if not isinstance(b, PeriodicSpan):
        return clip(a, b[0], b[1])
    if not isinstance(a, PeriodicSpan):
        return clip(b, a[0], a[1])
    assert (a.block, a.period) == (b.block, b.period), "block-cyclic spans of different blocks"
    if a.start == b.start:
        return clip(a, *b)
    assert a.block <= (a.start - b.start) % a.period <= a.period - a.block, "blocks that overlap"
    return a[0], a[0]


def covers(outer: Span, inner: Span) -> bool:
    """True if `outer` has all elements of `inner`."""
    if not (outer[0] <= inner[0] and inner[1] <= outer[1]):
        return False
    if isinstance(outer, PeriodicSpan) and isinstance(inner, PeriodicSpan) and outer.period == inner.period:
        return (inner.start - outer.start) % outer.period + inner.block <= outer.block
    return not isinstance(outer, PeriodicSpan) or length(intersect_spans(outer, inner)) == length(inner)


def length(span: Span) -> int:
    """The number of elements of a span, without gaps.

    >>> length(block_cyclic((0, 10), 2, 6, 0)), length((3, 5))
    (4, 2)
    """
    lo, hi = span
    return offset(span, hi) if isinstance(span, PeriodicSpan) else max(hi - lo, 0)


def offset(span: Span, at: int) -> int:
    """The number of elements of a span before `at`: the offset of element `at` in its storage.

    >>> offset(block_cyclic((0, 10), 2, 6, 0), 7)
    3
    """
    if not isinstance(span, PeriodicSpan):
        return at - span[0]
    return _count_before(span, at) - _count_before(span, span[0])


def _count_before(span: PeriodicSpan, at: int) -> int:
    blocks, into = divmod(at - span.start, span.period)
    return blocks * span.block + min(into, span.block)


def contiguous_parts(span: Span) -> Iterator[Span]:
    """The contiguous spans of which a span consists.

    >>> list(contiguous_parts(block_cyclic((1, 10), 2, 6, 0)))
    [(1, 2), (6, 8)]
    """
    lo, hi = span
    if not isinstance(span, PeriodicSpan):
        yield span
        return
    at = lo - (lo - span.start) % span.period
    while at < hi:
        yield max(at, lo), min(at + span.block, hi)
        at += span.period


def storage_parts(span: Span, whole: Span) -> list[Span]:
    """The offsets of a span's elements in the storage of a larger span: one contiguous span, or several.

    >>> storage_parts((0, 2), wrapped(-1, 2, 9)), storage_parts(wrapped(-1, 1, 9), wrapped(-1, 2, 9))
    ([(1, 3)], [(1, 2), (0, 1)])
    """
    if isinstance(whole, PeriodicSpan) and is_wrapped(whole):
        firsts = (((lo - whole.start) % whole.period, hi - lo) for lo, hi in contiguous_parts(span))
        return [(first, first + n) for first, n in firsts]
    if isinstance(span, PeriodicSpan) and not isinstance(whole, PeriodicSpan):
        return [(lo - whole[0], hi - whole[0]) for lo, hi in contiguous_parts(span)]
    first = offset(whole, span[0])
    assert offset(whole, span[1]) - first == length(span), "the gaps differ"
    return [(first, first + length(span))]
