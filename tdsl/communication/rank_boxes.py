"""Boxes of all ranks at once: the distinct spans of each dimension, and which of them each rank has.

Spans are computed by the same functions as for one rank (`Stage`), once for each distinct combination of what
they depend on: the ranks of a grid share most.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tdsl.communication.collective import Layout
from tdsl.communication.stages import Spans, Stage
from tdsl.lang.interp import evaluate
from tdsl.placement.notation import Fixed
from tdsl.placement.ownership import SpanBox, cut_span, owned_span
from tdsl.placement.spans import PeriodicSpan, Span, covers, intersect_spans, length

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
MAX_KEY = 1 << 62  # of the numbers of combinations of values


@dataclass(frozen=True)
class SpanVector:
    """A span for each rank: `spans[index[rank]]`; `spans` are distinct."""

    spans: tuple[Span, ...]
    index: Numbers

    @staticmethod
    def of(spans: Iterable[Span], index: Numbers) -> SpanVector:
        """A vector of spans that may be equal."""
        numbers: dict[Span, int] = {}
        renumbered = [numbers.setdefault(span, len(numbers)) for span in spans]
        return SpanVector(tuple(numbers), np.array(renumbered, np.int64)[index])

    def shared(self, other: SpanVector) -> Numbers:
        """The length of the intersection with another span of each rank."""
        if not (self.is_contiguous and other.is_contiguous):
            return _pairwise(self, other, lambda x, y: length(intersect_spans(x, y)))
        (lo, hi), (first, end) = self.ends, other.ends
        shared: Numbers = np.maximum(np.minimum(hi, end) - np.maximum(lo, first), 0)
        return shared

    def is_within(self, other: SpanVector) -> Mask:
        """True for ranks whose other span has all elements of this one."""
        if not (self.is_contiguous and other.is_contiguous):
            return _pairwise(other, self, covers) > 0
        (lo, hi), (first, end) = self.ends, other.ends
        inside: Mask = (first <= lo) & (hi <= end)
        return inside

    def map(self, f: Callable[[Span], int]) -> Numbers:
        """The number `f(span)` for each rank."""
        return np.array([f(span) for span in self.spans], np.int64)[self.index]

    @functools.cached_property
    def lengths(self) -> Numbers:
        """The length of the span of each rank."""
        return self.map(length)

    @functools.cached_property
    def ends(self) -> tuple[Numbers, Numbers]:
        """The first element of each span, and the one behind the last."""
        both = np.array(self.spans, np.int64).reshape(-1, 2)
        return both[self.index, 0], both[self.index, 1]

    @functools.cached_property
    def is_contiguous(self) -> bool:
        """True if no span has gaps."""
        return not any(isinstance(span, PeriodicSpan) for span in self.spans)


@dataclass(frozen=True, slots=True)
class BoxVector:
    """A box for each rank, None where not `present`."""

    present: Mask
    dims: tuple[SpanVector, ...]

    def counts(self) -> Numbers:
        """The number of elements of each box; 0 for None."""
        return product((d.lengths for d in self.dims), self.present)

    def counts_within(self, other: BoxVector) -> Numbers:
        """The number of elements of the intersection of each box with that of `other`; 0 for None."""
        shared = (a.shared(b) for a, b in zip(self.dims, other.dims, strict=True))
        return product(shared, self.present & other.present)

    def is_within(self, other: BoxVector) -> Mask:
        """True for ranks whose box of `other` has all elements of their box; False for None."""
        inside = self.present & other.present
        for a, b in zip(other.dims, self.dims, strict=True):
            inside = inside & b.is_within(a)
        return inside

    def is_contiguous(self) -> Mask:
        """True for ranks whose box has no gaps."""
        gaps = (d.map(lambda span: isinstance(span, PeriodicSpan)) for d in self.dims)
        mask: Mask = functools.reduce(lambda mask, gap: mask & (gap == 0), gaps, self.present)
        return mask

    def is_same(self, other: BoxVector) -> bool:
        """True if every rank has the same box in both."""
        dims = zip(self.dims, other.dims, strict=True)
        same = (a.spans == b.spans and np.array_equal(a.index, b.index) for a, b in dims)
        return np.array_equal(self.present, other.present) and all(same)

    def key(self) -> Numbers:
        """A number for each rank, equal where boxes are equal; those of None are arbitrary."""
        return distinct(*(d.index for d in self.dims), ranks=len(self.present))[1]


def product(factors: Iterable[Numbers], present: Mask) -> Numbers:
    """The product of numbers for each rank, 0 where not `present`."""
    result: Numbers = functools.reduce(np.multiply, factors, present.astype(np.int64))
    return result


def distinct(*columns: Numbers, ranks: int) -> tuple[Numbers, Numbers]:
    """The first of the ranks with each combination of values, and the combination's number of each rank."""
    key, size = np.zeros(ranks, np.int64), 1  # numbers from 0 to size - 1
    for column in columns if ranks else ():
        least = int(column.min())
        extent = int(column.max()) - least + 1
        if size * extent > MAX_KEY:
            first, key = distinct(key, ranks=ranks)
            size = len(first)
        key = key * extent + (column - least)
        size *= extent
    if size > 4 * ranks:
        _, first, key = np.unique(key, return_index=True, return_inverse=True)
        return first, key
    firsts = np.full(size, ranks)
    firsts[key[::-1]] = np.arange(ranks)[::-1]  # of several assignments the last remains
    occurs = firsts < ranks
    return firsts[occurs], (np.cumsum(occurs) - 1)[key]


def _pairwise(a: SpanVector, b: SpanVector, f: Callable[[Span, Span], int]) -> Numbers:
    """The number `f(x, y)` for the two spans of each rank."""
    firsts, numbers = distinct(a.index, b.index, ranks=len(a.index))
    values = [f(a.spans[a.index[n]], b.spans[b.index[n]]) for n in firsts]
    return np.array(values, np.int64)[numbers]


@dataclass(slots=True)
class RankBoxes:
    """The boxes that the ranks own, and those that they read and write in an iteration of a stage.

    Stages on one grid may share the `known` spans: they are known by all that they depend on.
    """

    layout: Layout
    stage: Stage
    coordinates: tuple[Numbers, ...]
    blocks: Mapping[str, BoxVector]  # that the ranks own of each tensor
    known: dict[object, SpanVector] = field(default_factory=dict)
    _pieces: dict[str, Pieces] = field(default_factory=dict)
    _variables: dict[Spans, tuple[dict[str, SpanVector], Mask]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.layout.grid.size

    def owned(self, tensor: str) -> BoxVector:
        """The blocks of a tensor that the ranks own."""
        return self.blocks[tensor]

    def pieces(self, tensor: str) -> Pieces:
        """The parts of spans of a tensor at the borders of blocks."""
        return self._pieces.setdefault(tensor, Pieces(self.layout, tensor))

    def whole(self, tensor: str) -> BoxVector:
        """The whole box of a tensor, for each rank."""
        same = np.zeros(self.ranks, np.int64)
        whole = self.layout.wholes[tensor]
        return BoxVector(np.ones(self.ranks, bool), tuple(SpanVector((span,), same) for span in whole))

    def active(self, inner: Spans) -> Mask:
        """True for ranks that have points to compute in an iteration of the loops that ranks step through."""
        return self.variables(inner)[1]

    def variables(self, inner: Spans) -> tuple[dict[str, SpanVector], Mask]:
        """The range of each variable in an iteration, and which ranks have no empty range."""
        if inner not in self._variables:
            if len(self._variables) > 8:  # iterations follow each other, few are prefetched
                self._variables.clear()
            at = self._iteration(inner)
            self.set_variables(inner, {part.name: self._spans(part.name, at) for part in self.stage.parts})
        return self._variables[inner]

    def set_variables(self, inner: Spans, spans: dict[str, SpanVector]) -> None:
        """Set the range of each variable in an iteration."""
        active = np.ones(self.ranks, bool)
        for axis, coordinate in self.stage.fixed_axes:
            active &= self.coordinates[axis] == coordinate
        for vector in spans.values():
            active &= vector.lengths > 0
        self._variables[inner] = spans, active

    def variable(self, name: str, inner: Spans) -> SpanVector:
        """The range of one variable in an iteration."""
        return self._spans(name, self._iteration(inner))

    def _iteration(self, inner: Spans) -> dict[str, Numbers]:
        """The value of each loop in an iteration, on each rank."""
        stage = self.stage
        names = stage.outer[: stage.fixed + len(inner)]
        steps = (np.asarray(lo) for lo, _ in inner)
        return dict(zip(names, (*self.coordinates, *steps), strict=True))

    def _spans(self, variable: str, at: dict[str, Numbers]) -> SpanVector:
        stage = self.stage
        part = next(p for p in stage.parts if p.name == variable)
        points = frozenset(x for x in part.loops if x in at)
        terms = stage.terms(part, points)
        given = {x: at[x] for x in points}
        values = [np.broadcast_to(evaluate(e, given), self.ranks) for e in terms.terms]
        loops = {x: stage.loops[x] for x in terms.loops}
        key = terms, stage.bounds[variable], *loops.values(), *(v.tobytes() for v in values)
        if key not in self.known:
            firsts, numbers = distinct(*values, ranks=self.ranks)
            spans = (stage.span_of(terms, tuple(int(v[n]) for v in values), loops) for n in firsts)
            self.known[key] = SpanVector.of(spans, numbers)
        return self.known[key]

    def written(self, inner: Spans) -> BoxVector:
        """The boxes that are computed in an iteration."""
        spans, active = self.variables(inner)
        dims = zip(self.stage.dims, self.whole(self.stage.name).dims, strict=True)
        return BoxVector(active, tuple(whole if name is None else spans[name] for name, whole in dims))

    def read(self, source: str, inner: Spans) -> BoxVector:
        """The boxes of a source that are read in an iteration, or of a func that is computed in its tasks."""
        spans, active = self.variables(inner)
        computing = np.flatnonzero(active)
        funcs = {f.name: len(f.variables) for f in self.stage.task_funcs}
        axes = range(funcs[source] if source in funcs else len(self.layout.wholes[source]))
        names = [self.stage.axis_dependencies(source, n) for n in axes]
        if not computing.size:
            nothing = np.zeros(self.ranks, np.int64)
            return BoxVector(active, tuple(SpanVector(((0, 0),), nothing) for _ in axes))

        def combinations(depends: Sequence[str]) -> tuple[list[dict[str, Span]], Numbers]:
            columns = (spans[name].index[computing] for name in depends)
            firsts, numbers = distinct(*columns, ranks=len(computing))
            index = np.zeros(self.ranks, np.int64)
            index[computing] = numbers
            at = computing[firsts]
            return [{x: spans[x].spans[spans[x].index[n]] for x in depends} for n in at], index

        dims = []
        for axis, depends in enumerate(names):
            if depends is None:
                break
            vectors = (spans[name] for name in depends)
            read = self.stage.accessed(source, axis)
            key = read, active.tobytes(), *((v.spans, v.index.tobytes()) for v in vectors)
            if key not in self.known:
                ranges, index = combinations(depends)
                at = (self.stage.axis_span(source, axis, r) for r in ranges)
                self.known[key] = SpanVector.of(at, index)
            dims.append(self.known[key])
        else:
            return BoxVector(active, tuple(dims))
        ranges, index = combinations(self.stage.dependencies(source))
        boxes = [self.stage.box_of_ranges(source, r) for r in ranges]
        return _boxes(boxes, index, active, len(axes))


def _boxes(boxes: list[SpanBox | None], index: Numbers, active: Mask, ndim: int) -> BoxVector:
    """The box `boxes[index[rank]]` of each active rank."""
    present = np.array([box is not None for box in boxes])[index] & active
    dims = ([(0, 0) if box is None else box[n] for box in boxes] for n in range(ndim))
    return BoxVector(present, tuple(SpanVector.of(spans, index) for spans in dims))


def owned_boxes(
    layout: Layout, tensor: str, coordinates: tuple[Numbers, ...],
    known: dict[object, SpanVector] | None = None,
) -> BoxVector:  # fmt: skip
    """The block of a tensor that each rank owns; tensors on one grid may share the `known` spans."""
    placement, grid, whole = layout.placements[tensor], layout.grid, layout.wholes[tensor]
    known = {} if known is None else known
    present, dims = np.ones(grid.size, bool), []
    for entry, at in zip(placement.entries, coordinates, strict=True):
        if isinstance(entry, Fixed):
            present &= at == entry.coordinate
    for dim in range(len(whole)):
        axes = placement.axes_of(dim)
        key = "owned", whole[dim], axes, placement.cyclic_size(dim)
        if key not in known:
            firsts, numbers = distinct(*(coordinates[n] for n in axes), ranks=grid.size)
            spans = [
                owned_span(placement, grid, whole, dim, [int(c[n]) for c in coordinates]) for n in firsts
            ]
            known[key] = SpanVector.of(spans, numbers)
        present &= known[key].lengths > 0
        dims.append(known[key])
    return BoxVector(present, tuple(dims))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a span in one block: the owner's positions along grid axes, and its number of elements."""

    positions: dict[int, int]
    elements: int


@dataclass(slots=True)
class Pieces:
    """The parts of spans of a tensor at the borders of blocks, cached by dimension and span."""

    layout: Layout
    tensor: str
    _cut: dict[tuple[int, Span], list[Piece]] = field(default_factory=dict)

    def cut(self, dim: int, span: Span) -> list[Piece]:
        """The parts of a span of a dimension, one for each block that it meets."""
        if (dim, span) not in self._cut:
            placement, shape = self.layout.placements[self.tensor], self.layout.grid.shape
            whole, axes = self.layout.wholes[self.tensor][dim], placement.axes_of(dim)
            parts = cut_span(whole, span, axes, shape, placement.cyclic_size(dim))
            self._cut[dim, span] = [Piece(positions, length(part)) for positions, part in parts]
        return self._cut[dim, span]

    def counts(self, boxes: BoxVector) -> Numbers:
        """The number of blocks that each box meets."""

        def count(dim: int, spans: SpanVector) -> Numbers:
            return spans.map(lambda span: len(self.cut(dim, span)))

        return product(itertools.starmap(count, enumerate(boxes.dims)), boxes.present)

    def position_ranges(self, dim: int, spans: SpanVector, axis: int) -> tuple[Numbers, Numbers]:
        """The first and the last position along a grid axis of the owners of each span; -1 without owners."""

        def positions(span: Span) -> list[int]:
            return [piece.positions[axis] for piece in self.cut(dim, span)]

        return spans.map(lambda s: min(positions(s), default=-1)), spans.map(
            lambda s: max(positions(s), default=-1)
        )

    def counts_in_node(self, boxes: BoxVector, coordinates: tuple[Numbers, ...], axes: set[int]) -> Numbers:
        """The elements of each box in blocks of ranks with the same coordinates along `axes`, of one copy."""
        placement = self.layout.placements[self.tensor]
        inside = boxes.present.copy()
        for axis in axes:
            entry = placement.entries[axis]
            if isinstance(entry, Fixed):
                inside &= coordinates[axis] == entry.coordinate
        factors = []
        for dim, vector in enumerate(boxes.dims):
            cut_axes = [n for n in placement.axes_of(dim) if n in axes]
            firsts, numbers = distinct(
                vector.index, *(coordinates[n] for n in cut_axes), ranks=len(boxes.present)
            )
            values = []
            for rank in firsts:
                at = {n: int(coordinates[n][rank]) for n in cut_axes}
                parts = self.cut(dim, vector.spans[vector.index[rank]])
                same = (p.elements for p in parts if at.items() <= p.positions.items())
                values.append(sum(same))
            factors.append(np.array(values, np.int64)[numbers])
        return product(factors, inside)


def grid_coordinates(layout: Layout) -> tuple[Numbers, ...]:
    """The coordinates of all ranks along each axis of the grid."""
    shape = layout.grid.shape
    return tuple(np.asarray(c, np.int64) for c in np.unravel_index(np.arange(layout.grid.size), shape))


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """What a step along each axis of a grid adds to the number of a rank."""
    behind = itertools.accumulate(reversed(shape), lambda a, b: a * b, initial=1)
    return tuple(reversed(list(behind)[:-1]))
