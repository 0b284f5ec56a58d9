"""Reads of partial results that are one reduction among the ranks with the parts, and not messages.

It is a reduce-scatter where these ranks read disjoint boxes, an all-reduce where all read the same box, and a
reduce where one of them reads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from tdsl.communication.collective import (
    MAX_ALL_TO_ALL_RANKS,
    MIN_COLLECTIVE_RANKS,
    StageCollectives,
    has_mpi_operator,
    outer_spans,
)
from tdsl.communication.stages import Spans
from tdsl.communication.steps import Reduce
from tdsl.lang.reduction import Combine, builtin_combiner
from tdsl.placement.grid import Coordinates
from tdsl.placement.notation import Copies, Partial
from tdsl.placement.ownership import SpanBox, contains, element_count, intersection, is_contiguous
from tdsl.schedule.state import State


@dataclass(slots=True)
class PartialReads:
    """The reductions by which a stage reads partial results, cached by iteration and group of ranks."""

    collectives: StageCollectives
    _reductions: dict[object, Reduce | None] = field(default_factory=dict)
    _within_groups: dict[object, bool] = field(default_factory=dict)

    def reduction(self, source: str, at: Coordinates, inner: Spans, tag: int) -> Reduce | None:
        """The reduction by which the rank at `at` and its group read a source in an iteration, or None.

        A group differs along the axes along which the partial results are combined; without buffers.
        """
        axes = self.collectives.combined_axes(source)
        key = (source, inner, tuple(0 if n in axes else p for n, p in enumerate(at)))
        if key not in self._reductions:
            self._reductions[key] = self._find(source, axes, at, inner, tag)
        return self._reductions[key]

    def _find(
        self, source: str, axes: tuple[int, ...], at: Coordinates, inner: Spans, tag: int
    ) -> Reduce | None:
        layout, stage = self.collectives.layout, self.collectives.stage
        line, block = sorted(layout.line(at, axes)), layout.owned(source, at)
        if block is None or not is_contiguous(block) or len(line) < MIN_COLLECTIVE_RANKS:
            return None
        if (
            stage.ahead.get(source)
            or source in stage.since
            or not combined_by_mpi(stage.state, source)
            or not self._is_local(source, inner)
        ):
            return None
        parts = [stage.read_box(source, outer_spans(other, inner)) for other in line]
        box = _reduced_box([part for part in parts if part is not None], len(line))
        if box is None:
            return None
        ranks = tuple(map(layout.grid.rank, line))
        return Reduce(ranks, tag, "", None, box, tuple(parts))

    def _is_local(self, source: str, inner: Spans) -> bool:
        """True if no rank reads parts of another group's block; False on many ranks unless it is clear."""
        layout, key = self.collectives.layout, (source, inner)
        if key not in self._within_groups:
            entries, grid = layout.placements[source].entries, layout.grid
            is_local = all(isinstance(e, Copies | Partial) for e in entries)
            if not is_local and grid.size <= MAX_ALL_TO_ALL_RANKS:
                is_local = all(
                    self._reads_local_block(source, grid.coordinates(r), inner) for r in range(grid.size)
                )
            self._within_groups[key] = is_local
        return self._within_groups[key]

    def _reads_local_block(self, source: str, at: Coordinates, inner: Spans) -> bool:
        box = self.collectives.stage.read_box(source, outer_spans(at, inner))
        block = self.collectives.layout.owned(source, at)
        return box is None or (block is not None and contains(block, box))


def combined_by_mpi(state: State, source: str) -> bool:
    """True if MPI combines the partial results of a source, in an order of its own."""
    f = state.program.func(source)
    combine: Combine | None = f.definitions[-1].combine
    if combine is None:
        combine = builtin_combiner("sum", f.dtypes)
    return has_mpi_operator(combine, f.dtypes, in_order=state.plan(source).deterministic)


def _reduced_box(parts: list[SpanBox], members: int) -> SpanBox | None:
    """The box of which ranks read these parts; None if no reduction of `members` ranks fits."""
    if not parts or not all(map(is_contiguous, parts)):
        return None
    if len(set(parts)) == 1:
        return parts[0] if len(parts) in (1, members) else None
    box = tuple(
        (min(lo for lo, _ in spans), max(hi for _, hi in spans)) for spans in zip(*parts, strict=True)
    )
    if sum(map(element_count, parts)) != element_count(box):
        return None
    cut = [n for n, spans in enumerate(zip(*parts, strict=True)) if len(set(spans)) > 1]
    if len(cut) == 1:  # many ranks divide one dimension: neighbours are compared
        spans = sorted(part[cut[0]] for part in parts)
        overlap = any(first < behind for (_, behind), (first, _) in itertools.pairwise(spans))
    else:
        overlap = any(intersection(a, b) is not None for a, b in itertools.combinations(parts, 2))
    return None if overlap else box
