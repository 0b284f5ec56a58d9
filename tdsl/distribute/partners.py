"""The ranks with which a rank exchanges parts of its blocks in the iterations of a stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tdsl.communication.collective import Layout, StageCollectives, outer_spans
from tdsl.communication.stages import Spans, Stage
from tdsl.distribute.accessing_ranks import AccessedBox, ranks_accessing
from tdsl.placement.grid import Coordinates
from tdsl.placement.notation import Copies, Partial
from tdsl.placement.ownership import SpanBox, contains, is_empty

AccessesByIteration = dict[Spans, list[tuple[Coordinates, SpanBox]]]  # other ranks and boxes, by iteration


@dataclass(slots=True)
class Partners:
    """The partners of the rank at `at` in a stage, all of which are determined at the first use."""

    collectives: StageCollectives
    at: Coordinates
    layout: Layout = field(init=False)
    stage: Stage = field(init=False)
    _readers_by_source: dict[tuple[str, int], AccessesByIteration] = field(default_factory=dict)
    _all_writers: AccessesByIteration | None = None

    def __post_init__(self) -> None:
        self.layout, self.stage = self.collectives.layout, self.collectives.stage

    def requests(self, source: str, spans: Spans) -> Sequence[tuple[Coordinates, SpanBox]]:
        """The parts of this rank's block of `source` that others read in an iteration, and by whom."""
        key = (source, len(spans))
        if key not in self._readers_by_source:
            self._readers_by_source[key] = self._readers(*key)
        return self._readers_by_source[key].get(spans[self.stage.fixed :], ())

    def writers(self, inner: Spans) -> Sequence[tuple[Coordinates, SpanBox]]:
        """The parts of this rank's block that each rank computes in an iteration."""
        if self._all_writers is None:
            self._all_writers = self._writers()
        return self._all_writers.get(inner, ())

    def _readers(self, source: str, depth: int) -> AccessesByIteration:
        """The parts of this rank's block of `source` that others read, and by whom, by iteration."""
        owned_box, grid = self.layout.owned(source, self.at), self.layout.grid
        entries, combined_axes = (
            self.layout.placements[source].entries,
            self.collectives.combined_axes(source),
        )
        candidates = tuple(
            (p, p + 1)
            if isinstance(e, Copies) or (isinstance(e, Partial) and n not in combined_axes)
            else (0, size)
            for n, (e, p, size) in enumerate(zip(entries, self.at, grid.shape, strict=True))
        )

        def read_box(spans: Spans) -> SpanBox | None:
            return self.stage.read_box(source, spans)

        accesses: AccessesByIteration = {}
        for reader, inner, box in self._accesses(candidates, depth, owned_box, read_box):
            readers_block = self.layout.owned(source, reader)
            reader_box = self.stage.read_box(source, outer_spans(reader, inner))
            assert reader_box is not None, "who touches a box needs something"
            has_box = readers_block is not None and contains(readers_block, reader_box) and not combined_axes
            if reader != self.at and not has_box:
                accesses.setdefault(inner, []).append((reader, box))
        return accesses

    def _accesses(
        self, ranks: Spans, depth: int, box: SpanBox | None, accessed: AccessedBox
    ) -> Iterator[tuple[Coordinates, Spans, SpanBox]]:
        """The ranks that access a box, with the iteration and the part of the box."""
        if box is None:
            return
        fixed = self.stage.fixed
        names, counts = self.stage.outer[fixed:depth], self.stage.counts[fixed:depth]
        firsts = [self.stage.loops[x][0] for x in names]
        steps = tuple((lo, lo + n) for lo, n in zip(firsts, counts, strict=True))
        if is_empty(steps):
            return
        for at, shared in ranks_accessing((*ranks, *steps), box, accessed):
            yield at[:fixed], tuple((n, n + 1) for n in at[fixed:]), shared

    def _writers(self) -> AccessesByIteration:
        """The parts of this rank's block that each rank computes, by iteration."""
        name, accesses = self.stage.name, AccessesByIteration()
        # along these axes each rank keeps its own results
        kept_axes = {*self.layout.placements[name].partial, *self.stage.repeated_axes}
        candidates = tuple(
            (p, p + 1) if n in kept_axes else (0, size)
            for n, (p, size) in enumerate(zip(self.at, self.layout.grid.shape, strict=True))
        )
        owned_box, depth = self.layout.owned(name, self.at), self.stage.levels[name]
        for writer, inner, box in self._accesses(candidates, depth, owned_box, self.stage.written_box):
            accesses.setdefault(inner, []).append((writer, box))
        return accesses
