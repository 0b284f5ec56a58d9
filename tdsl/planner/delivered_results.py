"""`DeliveredResults`: what ranks receive of the results of a stage, in closed form for several placements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tdsl.communication.collective import MIN_COLLECTIVE_RANKS, has_mpi_operator
from tdsl.communication.rank_boxes import BoxVector, Mask, Numbers
from tdsl.communication.stages import Stage
from tdsl.communication.steps import reduction_volume
from tdsl.placement.notation import Blocks as BlockEntry
from tdsl.placement.notation import Copies, Placement
from tdsl.planner.blocks import Blocks


@dataclass(frozen=True, slots=True)
class DeliveredResults:
    """The results of a stage on a grid of one level of this shape; `boxes` are those that ranks compute."""

    stage: Stage
    shape: tuple[int, ...]
    coordinates: tuple[Numbers, ...]
    boxes: BoxVector

    def volume(
        self, placements: list[Placement], blocks: Blocks, numbers: list[int]
    ) -> tuple[Numbers, Numbers, Numbers]:
        """What ranks receive of results, as `StageVolume` delivers them on a grid of one level.

        `numbers` are those of the placements in `blocks`. Returns the elements and the messages that each
        rank receives, and the elements of the largest buffers, for each placement.
        """
        stage, boxes = self.stage, self.boxes
        partial = placements[0].partial
        uniform = {*stage.uniform_axes(stage.name)} - {*stage.repeated_axes, *partial}
        axes = sorted(uniform) if stage.combine is not None else []
        count = math.prod(self.shape[n] for n in axes)
        active = self._line_sums(boxes.present.astype(np.int64), axes)
        line = BoxVector(active > 0, boxes.dims)  # what the ranks of a line with iterations have parts of
        others = [n for n in range(len(self.shape)) if n not in partial]
        writers = self._over_lines(np.max, active, others)
        owned, local = blocks.counts[numbers], blocks.shared(boxes)[numbers]
        buffers = np.where(blocks.has(boxes)[numbers], 0, boxes.counts())
        direct, reduced = writers * owned - local, np.zeros_like(owned)
        if count > 1:
            written, parts = line.counts(), blocks.shared(line)[numbers]
            for collective, at in self._collectives(placements, axes, count).items():
                together, members = self._members(collective, axes, active, written, parts[at])
                direct[at] = np.where(together, writers * (owned[at] - parts[at]), direct[at])
                reduced[at] = together * self._reduced(collective, axes, members, written, parts[at])
                buffers[at] = buffers[at] + np.where(together & ~boxes.present, written, 0)
        if stage.combine is not None:
            buffers = buffers + direct
        messages = (direct > 0).astype(np.int64) + (reduced > 0)
        return direct + reduced, messages, buffers.max(axis=-1, initial=0)

    def _members(
        self, collective: str, axes: list[int], active: Numbers, written: Numbers, parts: Numbers
    ) -> tuple[Mask, Numbers]:
        """The ranks whose line reduces its box by a collective, and the number of ranks that take part.

        Of a line `active` ranks have partial results of `written` elements, of which a rank owns `parts`.
        Ranks without iterations take part in an all-reduce only.
        """
        count = math.prod(self.shape[n] for n in axes)
        if collective == "all-reduce":
            together = (parts == written) & (active >= MIN_COLLECTIVE_RANKS - 1)
            return together, np.full_like(active, count)
        idle = parts * ~self.boxes.present
        together = (self._line_sums(parts, axes) == written) & (self._line_sums(idle, axes) == 0)
        return together & (active >= MIN_COLLECTIVE_RANKS), active

    def _collectives(
        self, placements: list[Placement], axes: list[int], count: int
    ) -> dict[str, list[int]]:  # fmt: skip
        """The collective by which lines of ranks along some axes may reduce; the placements of each."""
        stage = self.stage
        mpi = has_mpi_operator(stage.combine, stage.func.dtypes, in_order=stage.in_order)
        if not mpi or count < MIN_COLLECTIVE_RANKS:
            return {}
        collectives: dict[str, list[int]] = {}
        inside = {*axes, *stage.repeated_axes}
        for at, p in enumerate(placements):
            if any(isinstance(e, Copies) for n, e in enumerate(p.entries) if n not in inside):
                continue
            if all(isinstance(p.entries[n], Copies) for n in axes):
                collectives.setdefault("all-reduce", []).append(at)
            elif all(isinstance(p.entries[n], BlockEntry) for n in axes):
                collectives.setdefault("reduce-scatter", []).append(at)
        return collectives

    def _line_sums(self, values: Numbers, axes: Sequence[int]) -> Numbers:
        """The sum over the ranks that differ along some axes, for each rank, which are the last axis."""
        return self._over_lines(np.sum, values, axes)

    def _over_lines(
        self, reduce: Callable[..., Numbers], values: Numbers, axes: Sequence[int]
    ) -> Numbers:  # fmt: skip
        """The sum or maximum over the ranks that differ along some axes, for each rank."""
        shape = *values.shape[:-1], *self.shape
        reduced = reduce(values.reshape(shape), axis=tuple(values.ndim - 1 + n for n in axes), keepdims=True)
        return np.broadcast_to(reduced, shape).reshape(values.shape)

    def _reduced(
        self, collective: str, axes: list[int], members: Numbers, written: Numbers, local: Numbers
    ) -> Numbers:
        """The elements that each rank receives in a reduction of `members` ranks."""
        parts = local
        if collective == "all-reduce":
            position = np.zeros(len(written), np.int64)
            for n in axes:
                position = position * self.shape[n] + self.coordinates[n]
            each = -(-written // members)
            parts = np.minimum((position + 1) * each, written) - np.minimum(position * each, written)
        received: Numbers = reduction_volume(collective, members, written, parts)[1]  # type: ignore[arg-type]
        return received
