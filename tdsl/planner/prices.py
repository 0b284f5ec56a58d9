"""Prices of strategies: what each tensor of a stage costs in communication, and what its tasks cost.

Volumes are those of `communication.volume`. Without levels, block-cyclic blocks and steps of ranks they are
computed by closed forms of the same numbers, once for each pair of a pattern of boxes and a placement: many
strategies of many funcs read or write the same boxes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tdsl.communication.collective import MIN_COLLECTIVE_RANKS, Layout, StageCollectives, has_mpi_operator
from tdsl.communication.rank_boxes import BoxVector, Numbers, RankBoxes, grid_coordinates, owned_boxes
from tdsl.communication.stages import Stage
from tdsl.communication.steps import reduction_volume
from tdsl.communication.volume import Communication, StageVolume, Totals, Volume
from tdsl.cost.network import seconds_of
from tdsl.lang.operations import arithmetic_of
from tdsl.machine.model import Machine
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Blocks, Copies, Partial, Placement
from tdsl.placement.ownership import SpanBox, element_count


@dataclass(frozen=True, slots=True)
class Price:
    """What a tensor costs a stage: seconds and bytes of the busiest rank, bytes of its buffers, a kind."""

    seconds: float
    bytes: int
    buffer: int
    kind: str


@dataclass(frozen=True, slots=True)
class _Moved:
    """The elements that each rank receives, by level of the grid, its messages, and elements of buffers."""

    levels: tuple[Numbers, ...]
    messages: Numbers
    buffer: int


class _Accounts(Totals):
    """Totals that keep the communications and the largest buffers of one tensor."""

    def __init__(self, layout: Layout, tensor: str) -> None:
        super().__init__(layout, dict.fromkeys(layout.wholes, 1), self._keep)
        self.tensor, self.communications, self.most = tensor, list[Communication](), 0
        self.in_use = self.zeros()

    def _keep(self, c: Communication) -> None:
        if c.tensor == self.tensor:
            self.communications.append(c)

    def allocate(self, tensor: str, elements: Numbers) -> None:
        """Add a buffer of a tensor to the memory of each rank."""
        super().allocate(tensor, elements)
        if tensor == self.tensor:
            self.in_use = self.in_use + elements
            self.most = max(self.most, int(self.in_use.max(initial=0)))

    def free(self, tensor: str, elements: Numbers) -> None:
        """Remove a buffer from the memory of each rank."""
        super().free(tensor, elements)
        if tensor == self.tensor:
            self.in_use = self.in_use - elements

    def summed(self, block: int = 0) -> _Moved:
        """The sums of the communications; `block` elements of the buffers are the block of the tensor."""
        levels = [self.zeros() for _ in self.layout.grid.depths]
        messages = self.zeros()
        for c in self.communications:
            messages += c.messages
            for level, crossing in zip(levels, c.crossing, strict=True):
                level += crossing
        return _Moved(tuple(levels), messages, self.most - block)


@dataclass(slots=True)
class Prices:
    """Prices on a grid of ranks with a machine, for boxes `wholes` of tensors and bytes of their elements."""

    grid: Grid
    machine: Machine
    rates: tuple[float, float]
    wholes: Mapping[str, SpanBox]
    sizes: Mapping[str, int]
    coordinates: tuple[Numbers, ...] = field(init=False)
    _owned: dict[object, BoxVector] = field(default_factory=dict)
    _prices: dict[object, Price] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coordinates = grid_coordinates(Layout(self.grid, {}, {}))

    def block_bytes(self, tensor: str, placement: Placement) -> int:
        """The bytes of the largest block of a tensor."""
        return int(self.block_of(tensor, placement).counts().max(initial=0)) * self.sizes[tensor]

    def of_stage(self, stage: Stage) -> StagePrices:
        """The prices of the tensors of a stage."""
        layout = Layout(self.grid, {}, {n: self.wholes[n] for n in (*stage.sources, stage.name)})
        return StagePrices(self, stage, RankBoxes(layout, stage, self.coordinates, {}))

    def block_of(self, tensor: str, placement: Placement) -> BoxVector:
        """The block of a tensor that each rank owns."""
        key = self.wholes[tensor], placement.entries
        if key not in self._owned:
            layout = Layout(self.grid, {tensor: placement}, {tensor: self.wholes[tensor]})
            self._owned[key] = owned_boxes(layout, tensor, self.coordinates)
        return self._owned[key]

    def priced(self, moved: _Moved, size: int, kind: str) -> Price:
        """The price of a communication of elements of `size` bytes."""
        levels = tuple(size * level for level in moved.levels)
        received = np.sum(levels, axis=0)
        if not received.any():
            return Price(0.0, 0, size * moved.buffer, "")
        volume = Volume(received, received, moved.messages, received, {"": levels}, {})
        seconds = float(seconds_of(volume, self.grid, self.machine).max())
        return Price(seconds, int(received.max()), size * moved.buffer, kind)

    def remembered(self, key: object) -> Price | None:
        """The price of a key that was stored."""
        return self._prices.get(key)

    def remember(self, key: object, price: Price) -> Price:
        """Store the price of a key; returns it."""
        self._prices[key] = price
        return price


@dataclass(slots=True)
class StagePrices:
    """The prices of the sources and of the results of one stage."""

    prices: Prices
    stage: Stage
    boxes: RankBoxes
    _read: dict[str, BoxVector] = field(default_factory=dict)
    _keys: dict[str, object] = field(default_factory=dict)

    @property
    def is_stepped(self) -> bool:
        """True if ranks step through loops, of which each iteration communicates."""
        return len(self.stage.outer) > self.stage.fixed

    def _boxes(self, tensor: str) -> BoxVector:
        """The boxes that ranks read of a source, or write of the results."""
        if tensor not in self._read:
            written = tensor == self.stage.name
            self._read[tensor] = self.boxes.written(()) if written else self.boxes.read(tensor, ())
        return self._read[tensor]

    def _key(self, tensor: str) -> object:
        """What the volume of a tensor depends on beside its placement."""
        if tensor not in self._keys:
            stage, boxes = self.stage, self._boxes(tensor)
            spans = tuple((d.spans, d.index.tobytes()) for d in boxes.dims)
            results: object = ()
            if tensor == stage.name:
                combine = stage.combine
                results = (combine, combine and has_mpi_operator(combine, stage.func.dtypes, in_order=False))
                results = (*results, stage.in_order, stage.repeated_axes, stage.fixed_axes)
            self._keys[tensor] = (
                self.prices.wholes[tensor], self.prices.sizes[tensor], spans, boxes.present.tobytes(),
                tuple(stage.uniform_axes(tensor)), stage.partial_axes, results,
            )  # fmt: skip
        return self._keys[tensor]

    def fetch(self, source: str, placement: Placement) -> Price:
        """The price of a source."""
        if self.is_stepped:
            return self._exact(source, placement)
        key = (self._key(source), placement.entries)
        known = self.prices.remembered(key)
        if known is not None:
            return known
        block = self.prices.block_of(source, placement)
        combined = [n for n in placement.partial if n not in self.stage.partial_axes]
        if combined or len(self.prices.grid.depths) > 1 or not _is_plain(placement, block):
            price = self._exact(source, placement)
        else:
            moved = self._fetched(source, placement, block)
            price = self.prices.priced(moved, self.prices.sizes[source], self._kind(source, placement))
        return self.prices.remember(key, price)

    def _fetched(self, source: str, placement: Placement, block: BoxVector) -> _Moved:
        boxes = self._boxes(source)
        local = boxes.counts_within(block)
        whole = np.prod([hi - lo for lo, hi in self.prices.wholes[source]], dtype=np.int64)
        inside = boxes.counts()
        if inside.max(initial=0) > whole or not _is_inside(boxes, self.prices.wholes[source]):
            inside = boxes.counts_within(self.boxes.whole(source))
        received = inside - local
        buffers = np.where(boxes.is_within(block), 0, boxes.counts())
        messages = (received > 0).astype(np.int64)
        if self._kind(source, placement) == "halo":
            messages *= 2
        return _Moved((received,), messages, int(buffers.max(initial=0)))

    def deliver(self, placement: Placement) -> Price:
        """The price of the results; the stage is of this placement."""
        name, stage = self.stage.name, self.stage
        if self.is_stepped:
            return self._exact(name, placement)
        key = (self._key(name), placement.entries)
        known = self.prices.remembered(key)
        if known is not None:
            return known
        block, boxes = self.prices.block_of(name, placement), self._boxes(name)
        plain = _is_plain(placement, block) and not stage.fixed_axes and bool(boxes.present.all())
        moved = None
        if len(self.prices.grid.depths) == 1 and plain:
            moved = self._delivered(placement, block)
        if moved is None:
            price = self._exact(name, placement)
        else:
            price = self.prices.priced(moved, self.prices.sizes[name], self._kind(name, placement))
        return self.prices.remember(key, price)

    def _delivered(self, placement: Placement, block: BoxVector) -> _Moved | None:
        """What ranks receive of results, as `StageVolume` delivers them on a grid of one level.

        None if only some of the lines of ranks reduce by a collective.
        """
        stage, shape = self.stage, self.prices.grid.shape
        boxes = self._boxes(stage.name)
        owned, written, local = block.counts(), boxes.counts(), boxes.counts_within(block)
        buffers = np.where(boxes.is_within(block), 0, written)
        uniform = {*stage.uniform_axes(stage.name)} - {*stage.repeated_axes, *placement.partial}
        axes = sorted(uniform) if stage.combine is not None else []
        count = math.prod(shape[n] for n in axes)
        received = count * owned - local
        if count > 1:
            mpi = has_mpi_operator(stage.combine, stage.func.dtypes, in_order=stage.in_order)
            along = [placement.entries[n] for n in axes]
            collective, together = "", np.zeros(len(owned), bool)
            inside = {*axes, *stage.repeated_axes}
            copied = (isinstance(e, Copies) for n, e in enumerate(placement.entries) if n not in inside)
            if mpi and count >= MIN_COLLECTIVE_RANKS and not any(copied):
                if all(isinstance(e, Copies) for e in along):
                    collective, together = "all-reduce", local == written
                elif all(isinstance(e, Blocks) for e in along):
                    collective, together = "reduce-scatter", self._line_sums(local, axes) == written
            if together.any() and not together.all():
                return None
            if together.all():
                received = self._reduced(collective, axes, count, written, local)
            else:
                buffers = buffers + received
        return _Moved((received,), (received > 0).astype(np.int64), int(buffers.max(initial=0)))

    def _line_sums(self, values: Numbers, axes: list[int]) -> Numbers:
        """The sum over the ranks that differ along some axes, for each rank."""
        shape = self.prices.grid.shape
        sums = values.reshape(shape).sum(axis=tuple(axes), keepdims=True)
        return np.broadcast_to(sums, shape).reshape(-1)

    def _reduced(
        self, collective: str, axes: list[int], count: int, written: Numbers, local: Numbers
    ) -> Numbers:
        parts = local
        if collective == "all-reduce":
            position = np.zeros(len(written), np.int64)
            for n in axes:
                position = position * self.prices.grid.shape[n] + self.prices.coordinates[n]
            each = -(-written // count)
            parts = np.minimum((position + 1) * each, written) - np.minimum(position * each, written)
        received: Numbers = reduction_volume(collective, count, written, parts)[1]  # type: ignore[arg-type]
        return received

    def _exact(self, tensor: str, placement: Placement) -> Price:
        """The price of a tensor as the volume of the stage has it."""
        stage, prices = self.stage, self.prices
        is_result = tensor == stage.name
        alone = replace(stage, sources=() if is_result else (tensor,))
        results = placement if is_result else dict(stage.state.placed)[stage.name]
        placements = {stage.name: results, tensor: placement}
        layout = Layout(prices.grid, placements, {n: prices.wholes[n] for n in placements})
        blocks = {n: prices.block_of(n, p) for n, p in placements.items()}
        accounts = _Accounts(layout, tensor)
        volume = StageVolume(accounts, RankBoxes(layout, alone, prices.coordinates, blocks))
        block = 0
        if is_result or self.is_stepped:
            volume.run()
            overwrites = tensor in dict(stage.state.overwrites)
            block = int(blocks[tensor].counts().max(initial=0)) if is_result and not overwrites else 0
        else:
            volume.fetch([tensor], ())
        return prices.priced(accounts.summed(block), prices.sizes[tensor], self._kind(tensor, placement))

    def task_seconds(self) -> float:
        """The seconds of the tasks of the busiest rank: of operations, or of the bytes read and written."""
        stage, wholes = self.stage, self.prices.wholes
        spans, active = self.boxes.variables(())
        points = np.prod([v.map(lambda s: s[1] - s[0]) for v in spans.values()], axis=0, initial=1) * active
        total = math.prod(hi - lo for lo, hi in stage.bounds.values())
        share = float(np.max(points)) / max(total, 1)
        work = 0.0
        for n, d in enumerate(stage.func.definitions):
            work += arithmetic_of(d) * (total if n == stage.definition_index else element_count(stage.whole))
        moved = float(self._boxes(stage.name).counts().max(initial=0)) * self.prices.sizes[stage.name]
        for t in stage.sources:
            read = min(int(self._boxes(t).counts().max(initial=0)), element_count(wholes[t]))
            moved += read * self.prices.sizes[t]
        operations, memory = self.prices.rates
        return max(share * work / operations, moved / memory)

    def _kind(self, tensor: str, placement: Placement) -> str:
        """The kind of communication by which a stage gets a source or delivers its results."""
        stage = self.stage
        uniform = stage.uniform_axes(tensor)
        cut = {n for dim in range(len(placement.dims)) for n in placement.axes_of(dim)}
        if tensor == stage.name:
            if stage.combine is not None and {*uniform} - {*stage.repeated_axes, *placement.partial}:
                return "reduce-scatter" if cut & {*uniform} else "all-reduce"
            layout = Layout(self.prices.grid, {tensor: placement}, {tensor: self.prices.wholes[tensor]})
            return "all-gather" if StageCollectives(layout, stage).gathered_axes() else "all-to-all"
        if any(n not in stage.partial_axes for n in placement.partial):
            return "all-reduce"
        if cut & {*uniform}:
            return "all-gather"
        boxes = self._boxes(tensor)
        local = boxes.counts_within(self.prices.block_of(tensor, placement))
        return "halo" if bool(np.all(2 * local >= boxes.counts())) else "all-to-all"


def _is_plain(placement: Placement, block: BoxVector) -> bool:
    """True if blocks are contiguous, and each rank has one or a copy."""
    entries = all(
        isinstance(e, Copies | Partial) or (isinstance(e, Blocks) and e.size is None)
        for e in placement.entries
    )
    return entries and all(d.is_contiguous for d in block.dims)


def _is_inside(boxes: BoxVector, whole: SpanBox) -> bool:
    """True if no box goes beyond the tensor."""
    pairs = zip(boxes.dims, whole, strict=True)
    return all(lo <= first and end <= hi for d, (lo, hi) in pairs for first, end in d.spans)
