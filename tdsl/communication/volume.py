"""The price of communication: the bytes and messages of every rank, and its memory, without plans of ranks.

`volume` goes through the iterations of the stages as `distribute/rank.py` does for one rank, with an array
over all ranks in place of each number. Both agree for every rank and communication, which tests assert.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tdsl.communication.collective import MAX_ALL_TO_ALL_RANKS, Layout, StageCollectives
from tdsl.communication.flows import Flow, flow_to_owners
from tdsl.communication.lifetimes import freed_after
from tdsl.communication.partial_reads import PartialReads
from tdsl.communication.rank_boxes import (
    BoxVector,
    Mask,
    Numbers,
    RankBoxes,
    grid_coordinates,
    owned_boxes,
    product,
)
from tdsl.communication.stages import Spans, Stage
from tdsl.communication.steps import Reduce
from tdsl.communication.totals import Communication, Totals, Volume
from tdsl.communication.vector_collectives import all_to_all_members, gathered_results, gathered_sources
from tdsl.communication.volume_of_reductions import Reductions, part_sizes
from tdsl.communication.volume_of_routes import add_routes
from tdsl.placement.ownership import element_count
from tdsl.placement.spans import length


def volume(
    layout: Layout, stages: tuple[Stage, ...], inputs: tuple[str, ...], outputs: tuple[str, ...],
    sizes: Mapping[str, int], record: Callable[[Communication], None] = lambda _: None,
) -> Volume:  # fmt: skip
    """The communication of all ranks; `sizes` has the bytes of an element of each tensor.

    `record` is called with each communication, in the order of tags.
    """
    totals = Totals(layout, sizes, record)
    coordinates = grid_coordinates(layout)
    blocks = {name: owned_boxes(layout, name, coordinates) for name in layout.wholes}
    freed = freed_after(stages, outputs)
    for name in inputs:
        totals.allocate(name, blocks[name].counts())
    for n, stage in enumerate((None, *stages), -1):
        if stage is not None:
            StageVolume(totals, RankBoxes(layout, stage, coordinates, blocks)).run()
        for name in freed.get(n, ()):
            totals.free(name, blocks[name].counts())
    return totals.volume()


@dataclass(slots=True)
class Fetch:
    """The buffers of a fetch, by source: elements of the box, and of the parts that are merged into it."""

    boxes: dict[str, Numbers] = field(default_factory=dict)
    parts: dict[str, Numbers] = field(default_factory=dict)


@dataclass(slots=True)
class StageVolume:
    """The communication of one stage on all ranks."""

    totals: Totals
    boxes: RankBoxes
    computed: list[BoxVector] = field(default_factory=list)  # written since the target was allocated
    collectives: StageCollectives = field(init=False)
    partial_reads: PartialReads = field(init=False)

    def __post_init__(self) -> None:
        self.collectives = StageCollectives(self.layout, self.stage)
        self.partial_reads = PartialReads(self.collectives)

    @property
    def stage(self) -> Stage:
        """The stage."""
        return self.boxes.stage

    @property
    def layout(self) -> Layout:
        """The distribution of all tensors."""
        return self.boxes.layout

    def run(self) -> None:
        """Add the communications of all iterations."""
        name = self.stage.name
        if name not in dict(self.stage.state.overwrites):
            self.totals.allocate(name, self.boxes.owned(name).counts())
        self._iterate((), ())

    def _iterate(self, inner: Spans, ahead: tuple[Fetch, ...]) -> None:
        """One iteration of the loops outside; its prefetches, `ahead`, are in flight."""
        stage, totals, depth = self.stage, self.totals, self.stage.fixed + len(inner)
        fetches = (self.fetch(stage.fetched_sources(depth, 0), inner), *ahead)
        for fetch in fetches:
            for source, elements in fetch.parts.items():
                totals.free(source, elements)
        rows = add_routes(totals, self.boxes, inner)
        at_level, buffer = stage.levels[stage.name] == depth, totals.zeros()
        if at_level:
            buffer = self._allocate_target(inner)
        if depth == len(stage.outer):
            self._run_task(inner)
        else:
            self._loop(inner)
        if at_level:
            self._deliver(inner)
            totals.free(stage.name, buffer)
        for fetch in fetches:
            for source, elements in fetch.boxes.items():
                totals.free(source, elements)
        for source, elements in rows.items():
            totals.free(source, elements)

    def _loop(self, inner: Spans) -> None:
        stage, depth = self.stage, self.stage.fixed + len(inner)
        first, count = stage.loops[stage.outer[depth]][0], stage.counts[depth]
        distances = sorted({stage.ahead.get(s, 0) for s in stage.sources} - {0})
        prefetched = {a: stage.fetched_sources(depth + 1, a) for a in distances}
        coming: dict[int, list[Fetch]] = {}
        for n in range(count):
            for a, sources in prefetched.items():
                for m in range(0 if n == 0 else n + a, min(n + a + 1, count) if sources else 0):
                    at = (*inner, (first + m, first + m + 1))
                    coming.setdefault(m, []).append(self.fetch(sources, at))
            self._iterate((*inner, (first + n, first + n + 1)), tuple(coming.pop(n, ())))

    # -- sources

    def fetch(self, sources: list[str], inner: Spans) -> Fetch:
        """Add the communication of sources in an iteration; returns the buffers of what is not owned."""
        fetch = Fetch()
        for source in sources:
            boxes, blocks = self.boxes.read(source, inner), self.boxes.owned(source)
            if self.collectives.combined_axes(source):
                fetch.boxes[source] = boxes.counts()
                self.totals.allocate(source, fetch.boxes[source])
                fetch.parts[source] = self._fetch_partial(source, boxes, inner)
                self.totals.allocate(source, fetch.parts[source])
                continue
            is_owned = boxes.is_within(blocks) & blocks.is_contiguous()
            fetch.boxes[source] = np.where(is_owned, 0, boxes.counts())
            self.totals.allocate(source, fetch.boxes[source])
            self._fetch_source(source, boxes, inner)
        return fetch

    def _fetch_partial(self, source: str, boxes: BoxVector, inner: Spans) -> Numbers:
        """Partial results are reduced, or messages, one for each block and rank.

        Returns the elements received by messages.
        """
        grid, pieces = self.layout.grid, self.boxes.pieces(source)
        axes = self.collectives.combined_axes(source)
        line = math.prod(grid.shape[axis] for axis in axes)
        local_elements = boxes.counts_within(self.boxes.owned(source))
        received = line * boxes.counts_within(self.boxes.whole(source)) - local_elements
        messages = line * pieces.counts(boxes) - (local_elements > 0)
        flow = self._flow(source, boxes, boxes.present, axes)
        sent = self._sums(flow.owners, flow.elements) - local_elements
        crossing = self._crossing(source, boxes, received, local_elements)
        reductions = self._read_reductions(source, inner, axes)
        received, sent, messages = (np.where(reductions.members, 0, x) for x in (received, sent, messages))
        self._communicate(
            source, received + reductions.received, sent + reductions.sent, messages + reductions.messages,
            tuple(
                np.where(reductions.members, more, x)
                for x, more in zip(crossing, reductions.crossing, strict=True)
            ),
        )  # fmt: skip
        return received

    def _read_reductions(self, source: str, inner: Spans, axes: tuple[int, ...]) -> Reductions:
        """The reductions by which partial results of a source are read in an iteration."""
        total = Reductions.none(self.layout.grid)
        firsts = np.all([self.boxes.coordinates[n] == 0 for n in axes], axis=0)
        for rank in np.flatnonzero(firsts):
            at = tuple(int(c[rank]) for c in self.boxes.coordinates)
            reduction = self.partial_reads.reduction(source, at, inner, self.totals.tag)
            if reduction is not None:
                total.members[list(reduction.ranks)] = True
                total.add(self.layout.grid, reduction)
        return total

    def _fetch_source(self, source: str, boxes: BoxVector, inner: Spans) -> None:
        local_elements = boxes.counts_within(self.boxes.owned(source))
        received = boxes.counts_within(self.boxes.whole(source)) - local_elements
        messages = self.boxes.pieces(source).counts(boxes) - (local_elements > 0)
        flow = self._flow(source, boxes, boxes.present)
        sent = self._sums(flow.owners, flow.elements) - local_elements
        gathers = gathered_sources(self.boxes, source, boxes, self.boxes.active(inner))
        if self.layout.grid.size <= MAX_ALL_TO_ALL_RANKS:
            to_others = flow.owners != flow.partners
            sends = self._sums(flow.owners, to_others & ~gathers[flow.partners]) > 0
            together = all_to_all_members(self.boxes, source, boxes, flow) & sends
            gathers |= together
        messages = np.where(gathers, np.minimum(messages, 1), messages)
        self._communicate(
            source, received, sent, messages, self._crossing(source, boxes, received, local_elements)
        )

    def _flow(self, source: str, boxes: BoxVector, among: Mask, combined_axes: tuple[int, ...] = ()) -> Flow:
        """The parts of boxes of a source in the blocks of their owners; on many ranks summed by owner."""
        ranks = np.arange(self.layout.grid.size)
        partners = ranks if len(ranks) <= MAX_ALL_TO_ALL_RANKS else 0 * ranks
        return flow_to_owners(
            self.boxes.pieces(source), boxes, among, self.boxes.coordinates, partners, all_copies=False,
            combined_axes=combined_axes,
        )  # fmt: skip

    def _result_flow(self, boxes: BoxVector, among: Mask) -> Flow:
        """The parts of results in the blocks of their owners, on many ranks summed by groups of ranks.

        Along an axis of which every coordinate computes them, each brings them to owners at its coordinate.
        """
        grid, repeated_axes = self.layout.grid, self.stage.repeated_axes
        partners = np.arange(grid.size)
        if grid.size > MAX_ALL_TO_ALL_RANKS:  # the first rank of each group of which sums are used below
            axes = {*range(len(grid.shape) - grid.depths[-1]), *repeated_axes}
            first = [c if n in axes else 0 * c for n, c in enumerate(self.boxes.coordinates)]
            partners = np.ravel_multi_index(first, grid.shape)
        pieces = self.boxes.pieces(self.stage.name)
        flow = flow_to_owners(pieces, boxes, among, self.boxes.coordinates, partners, all_copies=True)
        if not repeated_axes:
            return flow
        owner, writer = (np.unravel_index(x, grid.shape) for x in (flow.owners, flow.partners))
        same = np.all([owner[n] == writer[n] for n in repeated_axes], axis=0)
        return Flow(flow.owners[same], flow.partners[same], flow.boxes[same], flow.elements[same])

    def _sums(self, ranks: Numbers, values: Numbers | Mask) -> Numbers:
        """The sum of the values for each rank."""
        sums = self.totals.zeros()
        np.add.at(sums, ranks, values)
        return sums

    def _crossing(
        self, tensor: str, boxes: BoxVector, received: Numbers, local_elements: Numbers
    ) -> tuple[Numbers, ...]:
        """The elements received from other groups of each level of the grid."""
        grid = self.layout.grid
        if len(grid.depths) == 1:
            return (received,)
        crossing, outside = [], received + local_elements
        for behind in list(itertools.accumulate(grid.depths))[:-1]:
            line = 1
            for axis in self.collectives.combined_axes(tensor):
                line *= grid.shape[axis] if axis >= behind else 1
            inside = line * self.boxes.pieces(tensor).counts_in_node(
                boxes, self.boxes.coordinates, set(range(behind))
            )
            crossing.append(outside - inside)
            outside = inside
        return (*crossing, outside - local_elements)

    def _communicate(
        self, tensor: str, received: Numbers, sent: Numbers, messages: Numbers, crossing: tuple[Numbers, ...]
    ) -> None:
        tag, func, tensor = self.totals.tag, self.stage.name, self.stage.tensor_of(tensor)
        self.totals.communicate(Communication(tag, func, tensor, received, sent, messages, crossing))

    # -- results

    def _allocate_target(self, inner: Spans) -> Numbers:
        """Allocate the buffers for results of the iterations inside; returns their elements."""
        stage, boxes = self.stage, self.boxes.written(inner)
        self.computed.clear()
        elements = boxes.counts()
        if stage.combine is None or not inner:
            elements = np.where(boxes.is_within(self.boxes.owned(stage.name)), 0, elements)
        self.totals.allocate(stage.name, elements)
        return elements

    def _run_task(self, inner: Spans) -> None:
        """Add the points of a task, and its memory if others' results are combined with its own."""
        stage = self.stage
        self._count_computed(inner)
        if stage.combine is None or stage.levels[stage.name] == stage.fixed + len(inner):
            return
        boxes = self.boxes.written(inner)
        again = self.totals.zeros() > 0
        for other in self.computed:
            again |= boxes.counts_within(other) > 0
        if not any(map(boxes.is_same, self.computed)):
            self.computed.append(boxes)
        part = np.where(again, boxes.counts(), 0)
        self.totals.allocate(stage.name, part)
        self.totals.free(stage.name, part)

    def _count_computed(self, inner: Spans) -> None:
        """Add the elements that a task computes; of a reduction that is shared out its part of them."""
        stage, computed = self.stage, self.totals.computed
        spans, active = self.boxes.variables(inner)
        points = math.prod(hi - lo for lo, hi in stage.bounds.values())
        part = product((v.map(length) for v in spans.values()), active) / max(points, 1)
        counts: dict[str, NDArray[np.float64]] = {stage.name: part * element_count(stage.whole)}
        for f in stage.task_funcs:
            counts[f.name] = self.boxes.read(f.name, inner).counts().astype(np.float64)
        for name, count in counts.items():
            computed[name] = computed[name] + count if name in computed else count

    def _deliver(self, inner: Spans) -> None:
        """Results go to their owners by a reduction, or a gather, or messages."""
        name, boxes, blocks = self.stage.name, self.boxes.written(inner), self.boxes.owned(self.stage.name)
        reductions = self._reductions(boxes, inner)
        direct = boxes.present & ~reductions.members
        local_elements = np.where(direct, boxes.counts_within(blocks), 0)
        flow = self._result_flow(boxes, direct)
        received = self._sums(flow.owners, flow.elements) - local_elements
        messages = self._sums(flow.owners, flow.boxes) - (local_elements > 0)
        gathered_axes, repeated_axes = self.collectives.gathered_axes(), {*self.stage.repeated_axes}
        copies = math.prod(self.layout.grid.shape[n] for n in gathered_axes)
        delivered = self.boxes.pieces(name).counts_in_node(boxes, self.boxes.coordinates, repeated_axes)
        sent = np.where(direct, copies * delivered - local_elements, 0)
        gathers, others = gathered_results(self.boxes, boxes, gathered_axes)
        if self.layout.grid.size <= MAX_ALL_TO_ALL_RANKS and self.stage.combine is None:
            together = all_to_all_members(self.boxes, name, boxes, flow) & ~gathers & (sent > 0)
            messages = np.where(together, np.minimum(messages, 1), messages)
        messages = np.where(gathers, messages - others + np.minimum(others, 1), messages)
        if self.stage.combine is not None:
            self.totals.allocate(name, received)
            self.totals.free(name, received)
        crossing = self._crossing_results(flow, received)
        total = zip(crossing, reductions.crossing, strict=True)
        self._communicate(
            name, received + reductions.received, sent + reductions.sent, messages + reductions.messages,
            tuple(a + b for a, b in total),
        )  # fmt: skip

    def _crossing_results(self, flow: Flow, received: Numbers) -> tuple[Numbers, ...]:
        """The elements of results received from other groups of each level of the grid."""
        grid, crossing, outside = self.layout.grid, [], 0 * received
        owner, writer = (np.unravel_index(x, grid.shape) for x in (flow.owners, flow.partners))
        same, first = np.ones(len(flow.owners), bool), 0
        for depth in grid.depths[:-1]:
            axes = range(first, first + depth)
            inside = functools.reduce(lambda m, n: m & (owner[n] == writer[n]), axes, same)
            crossing.append(self._sums(flow.owners, (same & ~inside) * flow.elements))
            outside, same, first = outside + crossing[-1], inside, first + depth
        return (*crossing, received - outside)

    def _reductions(self, boxes: BoxVector, inner: Spans) -> Reductions:
        """The reductions of results in an iteration; adds their memory."""
        grid, name = self.layout.grid, self.stage.name
        zeros = self.totals.zeros
        total = Reductions.none(grid)
        buffers = zeros()
        axes = self.collectives.reduced_axes()
        firsts = np.all([self.boxes.coordinates[n] == 0 for n in axes], axis=0) if axes else zeros()
        for rank in np.flatnonzero(firsts):
            at = tuple(int(c[rank]) for c in self.boxes.coordinates)
            reduction = self.collectives.result_collective(at, inner, self.totals.tag)
            if isinstance(reduction, Reduce):
                members = list(reduction.ranks)
                total.members[members] = True
                buffers[members] = np.where(boxes.present[members], 0, element_count(reduction.box))
                if inner:
                    buffers[members] += part_sizes(reduction)
                buffers += total.add_phases(grid, reduction)
        self.totals.allocate(name, buffers)
        self.totals.free(name, buffers)
        return total
