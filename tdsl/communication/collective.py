"""Detects collectives: messages of a step that together are a broadcast, all-gather, all-to-all or reduction.

A group is a line, plane, ... of ranks: all with the same coordinates along the other axes. Its collective
follows from the boxes that its members read, compute and own, so each member derives the same one. Groups of
fewer than three ranks exchange messages, as do those whose boxes fit no collective.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tdsl.communication.stages import Spans, Stage
from tdsl.communication.steps import Reduce
from tdsl.core.node import frozen
from tdsl.lang.expr import Binary, Param
from tdsl.lang.reduction import Combine
from tdsl.lang.types import DType
from tdsl.placement.grid import Coordinates, Grid
from tdsl.placement.notation import Copies, Placement
from tdsl.placement.ownership import (
    SpanBox,
    contains,
    element_count,
    intersection,
    is_contiguous,
    owned,
    owned_pieces,
    ranks_with_copy,
)  # fmt: skip

MIN_COLLECTIVE_RANKS = 3  # ranks of a collective: two send each other messages
MAX_ALL_TO_ALL_RANKS = 64  # ranks of a group up to which an all-to-all is looked for

Parts = tuple[tuple[int, SpanBox], ...]  # ranks, each with the box that it contributes


@frozen
class Layout:
    """The distribution of all tensors: the grid, and the placement and whole box of each tensor and alias."""

    grid: Grid
    placements: Mapping[str, Placement]
    wholes: Mapping[str, SpanBox]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def tensor_of(self, name: str) -> str:
        """The tensor that a name is, or is an alias of."""
        return self.aliases.get(name, name)

    def owned(self, tensor: str, at: Coordinates) -> SpanBox | None:
        """The box of a tensor that the rank at coordinates `at` owns; None for no elements."""
        return owned(self.placements[tensor], self.grid, self.wholes[tensor], at)

    def pieces(
        self, tensor: str, box: SpanBox, nearest_to: Coordinates
    ) -> Iterator[tuple[Coordinates, SpanBox]]:
        """A box cut at the borders of blocks, each piece with the coordinates of the nearest owner."""
        whole = self.wholes[tensor]
        return owned_pieces(self.placements[tensor], self.grid, whole, box, nearest_to)

    def copies(self, tensor: str, at: Coordinates) -> Iterator[Coordinates]:
        """The coordinates of all ranks that own the same block of a tensor as the rank at `at`."""
        return ranks_with_copy(self.placements[tensor], self.grid, at)

    def line(self, at: Coordinates, axes: Iterable[int]) -> Iterator[Coordinates]:
        """The coordinates of all ranks that differ from the rank at `at` along `axes` only."""
        free = set(axes)
        shape = enumerate(zip(at, self.grid.shape, strict=True))
        return itertools.product(*(range(size) if n in free else (p,) for n, (p, size) in shape))


@frozen
class Gather:
    """A broadcast or all-gather: brings `parts` of a tensor, each from one rank, to all `ranks`."""

    kind: str
    ranks: tuple[int, ...]
    parts: Parts


@dataclass(slots=True)
class StageCollectives:
    """The collectives of a stage, cached by iteration and group."""

    layout: Layout
    stage: Stage
    _collectives: dict[object, Gather | Reduce | None] = field(default_factory=dict)
    _members: dict[object, tuple[frozenset[Coordinates], tuple[int, ...]]] = field(default_factory=dict)

    def source_collective(self, source: str, reader: Coordinates, inner: Spans) -> Gather | None:
        """The broadcast or all-gather of the box of a source that a rank reads in an iteration, or None."""
        placement = self.layout.placements[source]
        axes = [
            n for n in self.stage.uniform_axes(source)
            if not isinstance(placement.entries[n], Copies) and n not in placement.partial
        ]  # fmt: skip
        if not axes:
            return None
        key = (source, inner, tuple(0 if n in axes else p for n, p in enumerate(reader)))
        if key not in self._collectives:
            self._collectives[key] = self._find_source_collective(source, reader, inner, axes)
        collective = self._collectives[key]
        assert collective is None or isinstance(collective, Gather)
        return collective

    def _find_source_collective(
        self, source: str, reader: Coordinates, inner: Spans, axes: list[int]
    ) -> Gather | None:  # fmt: skip
        layout, grid = self.layout, self.layout.grid
        box = self.stage.read_box(source, outer_spans(reader, inner))
        if box is None:
            return None
        cut = list(layout.pieces(source, box, reader))
        owners = {at for at, _ in cut}
        if len(owners) < len(cut) or not all(
            at[n] == reader[n] for at in owners for n in range(len(reader)) if n not in axes
        ):
            return None
        readers, ranks = self._computing_ranks(reader, inner, axes)
        if not owners <= readers:
            if len(owners) > 1:
                return None
            ranks = _rank_numbers(grid, owners | readers)
        if len(ranks) < MIN_COLLECTIVE_RANKS:
            return None
        kind = "broadcast" if len(owners) == 1 else "all-gather"
        return Gather(kind, ranks, tuple((grid.rank(at), part) for at, part in cut))

    def _computing_ranks(
        self, at: Coordinates, inner: Spans, axes: list[int]
    ) -> tuple[frozenset[Coordinates], tuple[int, ...]]:
        """The ranks along `axes` through `at` that have points to compute: their coordinates and numbers."""
        stage = self.stage
        line, steps = {stage.outer[n] for n in axes}, set(stage.outer[stage.fixed :])
        differ = any(part.loops & line and part.loops & steps for part in stage.parts)
        rest = tuple(0 if n in axes else p for n, p in enumerate(at))
        key = (tuple(axes), rest, inner if differ else ())
        if key not in self._members:
            computing = frozenset(
                other
                for other in self.layout.line(at, axes)
                if stage.ranges(outer_spans(other, inner)) is not None
            )
            self._members[key] = computing, _rank_numbers(self.layout.grid, computing)
        return self._members[key]

    def all_to_all_ranks(self, tensor: str, at: Coordinates, inner: Spans) -> tuple[int, ...]:
        """The ranks of an all-to-all that includes the rank at `at`; () if there is none.

        It exchanges parts of a source, or the results of the stage where `tensor` is its own func.
        """
        partners = self._partners(tensor, at, inner)
        axes = [n for n, p in enumerate(at) if any(other[n] != p for other in partners)]
        group = set(itertools.islice(self.layout.line(at, axes), MAX_ALL_TO_ALL_RANKS + 1))
        if not MIN_COLLECTIVE_RANKS <= len(group) <= MAX_ALL_TO_ALL_RANKS or partners != group - {at}:
            return ()
        if any(self._partners(tensor, other, inner) != group - {other} for other in group):
            return ()
        grid = self.layout.grid
        others = set() if len(group) == grid.size else set(map(grid.coordinates, range(grid.size)))
        if len(others) > MAX_ALL_TO_ALL_RANKS:  # too many to test whether one of them takes part
            return ()
        if any(group & self._partners(tensor, other, inner) for other in others - group):
            return ()
        return _rank_numbers(grid, group)

    def _partners(self, tensor: str, at: Coordinates, inner: Spans) -> set[Coordinates]:
        """The other ranks that send a rank its box of a source, or receive the results that it computed."""
        spans, owned_box = outer_spans(at, inner), self.layout.owned(tensor, at)
        is_result = tensor == self.stage.name
        box = self.stage.written_box(spans) if is_result else self.stage.read_box(tensor, spans)
        if box is None or (
            not is_result and owned_box and is_contiguous(owned_box) and contains(owned_box, box)
        ):
            return set()
        owned_part = None if owned_box is None else intersection(owned_box, box)
        if owned_part is not None and 2 * element_count(owned_part) > element_count(box):
            return set()  # the rank owns most of the box: a halo exchange with neighbours
        firsts: Iterable[Coordinates] = (first for first, _ in self.layout.pieces(tensor, box, at))
        if is_result:
            firsts = self.owners_of_result(firsts, at)
        return set(firsts) - {at}

    def owners_of_result(self, firsts: Iterable[Coordinates], at: Coordinates) -> Iterator[Coordinates]:
        """The owners, among all copies of those at `firsts`, to which the rank at `at` brings results.

        Along an axis of which every coordinate computes them, each brings them to owners at its coordinate.
        """
        for first in firsts:
            for owner in self.layout.copies(self.stage.name, first):
                if all(owner[n] == at[n] for n in self.stage.repeated_axes):
                    yield owner

    def result_collective(self, writer: Coordinates, inner: Spans, tag: int) -> Gather | Reduce | None:
        """The collective that brings the results of `writer` to their owners, or None; without buffers."""
        name, combine = self.stage.name, self.stage.combine
        axes = self.reduced_axes()
        if combine is None:
            axes = self.gathered_axes()
        if not axes:
            return None
        key = (name, inner, tuple(0 if n in axes else p for n, p in enumerate(writer)))
        if key not in self._collectives:
            line = list(self.layout.line(writer, axes))
            boxes = {at: self.stage.written_box(outer_spans(at, inner)) for at in line}
            self._collectives[key] = (
                self._result_gather(boxes) if combine is None else self._result_reduction(boxes, tag)
            )
        return self._collectives[key]

    def reduced_axes(self) -> list[int]:
        """The axes along which ranks have partial results of one box, which MPI can combine."""
        stage = self.stage
        if not has_mpi_operator(stage.combine, stage.func.dtypes, in_order=stage.in_order):
            return []
        partial = self.layout.placements[stage.name].partial
        kept = {*partial, *stage.repeated_axes}
        return [n for n in stage.uniform_axes(stage.name) if n not in kept]

    def gathered_axes(self) -> list[int]:
        """The axes along which all ranks own the results, and each computes its own."""
        entries = self.layout.placements[self.stage.name].entries
        copies = (n for n, e in enumerate(entries) if isinstance(e, Copies))
        return [n for n in copies if n not in self.stage.repeated_axes]

    def combined_axes(self, source: str) -> tuple[int, ...]:
        """The axes along which partial results of a source are combined where the stage reads them."""
        partial = self.layout.placements[source].partial
        return tuple(n for n in partial if n not in self.stage.partial_axes)

    def _result_gather(self, boxes: Mapping[Coordinates, SpanBox | None]) -> Gather | None:
        """An all-gather or broadcast of boxes that all ranks of a line own, each computed by one of them."""
        grid, name = self.layout.grid, self.stage.name
        owned_box = self.layout.owned(name, next(iter(boxes)))
        parts = [(grid.rank(at), box) for at, box in boxes.items() if box is not None]
        if owned_box is None or len(boxes) < MIN_COLLECTIVE_RANKS or not parts:
            return None
        if any(not contains(owned_box, box) for _, box in parts):
            return None
        # a box computed by several ranks would be sent twice
        if len({box for _, box in parts}) < len(parts):
            return None
        kind = "broadcast" if len(parts) == 1 else "all-gather"
        return Gather(kind, _rank_numbers(grid, boxes), tuple(parts))

    def _result_reduction(self, boxes: Mapping[Coordinates, SpanBox | None], tag: int) -> Reduce | None:
        """A reduction of one box, of which all ranks of a line have partial results, to its owners."""
        layout, name = self.layout, self.stage.name
        members = sorted((layout.grid.rank(at), at) for at, box in boxes.items() if box is not None)
        partial_boxes = {box for box in boxes.values() if box is not None}
        if len(members) < MIN_COLLECTIVE_RANKS - 1 or len(partial_boxes) > 1:
            return None
        (box,) = partial_boxes
        parts: dict[Coordinates, SpanBox] = {}
        for first, piece in layout.pieces(name, box, members[0][1]):
            for owner in self.owners_of_result((first,), members[0][1]):
                if owner in parts or owner not in boxes:
                    return None
                parts[owner] = piece
        idle = [at for at in parts if boxes[at] is None]
        if idle and set(parts.values()) != partial_boxes:
            return None
        # ranks without partial results take part if each receiver gets the whole box: no more is moved
        members = sorted(members + [(layout.grid.rank(at), at) for at in idle])
        if len(members) < MIN_COLLECTIVE_RANKS:
            return None
        is_disjoint = sum(map(element_count, parts.values())) == element_count(box)
        if not is_disjoint and not (len(parts) == len(members) and set(parts.values()) == partial_boxes):
            return None
        received = tuple(parts.get(at) for _, at in members)
        return Reduce(tuple(rank for rank, _ in members), tag, "", None, box, received)


def has_mpi_operator(combine: Combine | None, dtypes: tuple[DType, ...], *, in_order: bool) -> bool:
    """True if MPI has a predefined operator for `combine`, with the same results for NaN."""
    if combine is None or in_order or len(dtypes) > 1:
        return False
    (dtype,) = dtypes
    match combine.exprs[0]:
        case Binary(op, Param("a0"), Param("b0")):
            if dtype.is_float:
                return op in ("add", "mul") and dtype.bits in (32, 64)
            return op in (("or", "and") if dtype.kind == "b" else ("add", "mul", "min", "max"))
        case _:
            return False


def outer_spans(at: Coordinates, inner: Spans) -> Spans:
    """The spans of the outer loops: the coordinates of the rank at `at`, then the iteration `inner`."""
    return (*((p, p + 1) for p in at), *inner)


def _rank_numbers(grid: Grid, members: Iterable[Coordinates]) -> tuple[int, ...]:
    return tuple(sorted(map(grid.rank, members)))
