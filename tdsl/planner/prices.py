"""Prices of strategies: what each tensor of a stage costs in communication, and what its tasks cost.

Volumes are those of `communication.volume`. Without levels, block-cyclic blocks and steps of ranks they are
computed by closed forms of the same numbers, once for each pair of a pattern of boxes and a placement: many
strategies of many funcs read or write the same boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tdsl.communication.collective import (
    MAX_ALL_TO_ALL_RANKS,
    MIN_COLLECTIVE_RANKS,
    Layout,
    has_mpi_operator,
)
from tdsl.communication.partial_reads import combined_by_mpi
from tdsl.communication.rank_boxes import (
    BoxVector,
    Mask,
    Numbers,
    RankBoxes,
    SpanVector,
    grid_coordinates,
    owned_boxes,
)
from tdsl.communication.stages import Stage
from tdsl.communication.totals import Communication, Totals, Volume
from tdsl.communication.volume import StageVolume
from tdsl.cost.network import links_of, seconds_of
from tdsl.lang.operations import arithmetic_of
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Copies, Partial, Placement
from tdsl.placement.ownership import SpanBox, element_count
from tdsl.planner.blocks import Blocks, PlacementAxes, axis_bits
from tdsl.planner.combined_reads import reductions_of_lines
from tdsl.planner.delivered_results import DeliveredResults
from tdsl.planner.price_row import Kinds, Price, PriceRow


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
    _blocks: dict[object, tuple[tuple[Placement, ...], Blocks]] = field(default_factory=dict)
    _prices: dict[object, Price] = field(default_factory=dict)
    _rows: dict[object, PriceRow] = field(default_factory=dict)
    spans: dict[object, SpanVector] = field(default_factory=dict)  # of variables, boxes read, blocks

    def remembered(self, key: object, compute: Callable[[], Price]) -> Price:
        """The price of a key, computed if it is new."""
        if key not in self._prices:
            self._prices[key] = compute()
        return self._prices[key]

    def row(self, key: object, compute: Callable[[], PriceRow]) -> PriceRow:
        """The row of a key, computed if it is new."""
        if key not in self._rows:
            self._rows[key] = compute()
        return self._rows[key]

    def __post_init__(self) -> None:
        self.coordinates = grid_coordinates(Layout(self.grid, {}, {}))

    def block_bytes(self, tensor: str, placements: tuple[Placement, ...]) -> NDArray[np.float64]:
        """The bytes of the largest block of a tensor, for several placements."""
        most: NDArray[np.float64] = self.blocks_of(tensor, placements).counts.max(axis=-1, initial=0)
        return most * float(self.sizes[tensor])

    def of_func(self) -> FuncPrices:
        """The prices of the stages of one func."""
        return FuncPrices(self)

    def block_of(self, tensor: str, placement: Placement) -> BoxVector:
        """The block of a tensor that each rank owns."""
        key = self.wholes[tensor], placement.entries
        if key not in self._owned:
            layout = Layout(self.grid, {tensor: placement}, {tensor: self.wholes[tensor]})
            self._owned[key] = owned_boxes(layout, tensor, self.coordinates, self.spans)
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

    def blocks_of(self, tensor: str, placements: tuple[Placement, ...]) -> Blocks:
        """The blocks of a tensor that the ranks own, for several placements."""
        key = self.wholes[tensor], id(placements)
        if key not in self._blocks:
            blocks = Blocks(placements, [self.block_of(tensor, p) for p in placements])
            self._blocks[key] = placements, blocks
        return self._blocks[key][1]

    def seconds(self, elements: Numbers, messages: Numbers, size: int) -> NDArray[np.float64]:
        """The seconds of the busiest rank on a grid of one level; the last axis is that of ranks."""
        (link,) = links_of(self.machine, 1)
        worst: NDArray[np.float64] = np.max(link_seconds(link, elements, messages, size), axis=-1)
        return worst


def link_seconds(link: MemoryLevel, elements: Numbers, messages: Numbers, size: int) -> NDArray[np.float64]:
    """The seconds in which a link brings numbers of elements of `size` bytes in numbers of messages."""
    granules = -(-size * elements // link.line)
    seconds = link.line * granules / (link.bytes_per_second(1) or math.inf)
    result: NDArray[np.float64] = seconds + messages * (link.latency or 0.0)
    return result


@dataclass(slots=True)
class FuncPrices:
    """The prices of the stages of one func, which differ in the axes over which variables are distributed.

    What depends on some variables only is computed once for each of their distributions.
    """

    prices: Prices
    _variables: dict[object, SpanVector] = field(default_factory=dict)
    _boxes: dict[object, BoxVector] = field(default_factory=dict)
    _work: dict[int, float] = field(default_factory=dict)

    def of_stage(self, stage: Stage) -> StagePrices:
        """The prices of the tensors of a stage."""
        layout = Layout(
            self.prices.grid, {}, {n: self.prices.wholes[n] for n in (*stage.sources, stage.name)}
        )
        boxes = RankBoxes(layout, stage, self.prices.coordinates, {}, self.prices.spans)
        axes = {
            p.name: tuple(n for n in range(stage.fixed) if stage.outer[n] in p.loops) for p in stage.parts
        }
        for name, numbers in axes.items():
            if (stage.definition_index, name, numbers) not in self._variables:
                self._variables[stage.definition_index, name, numbers] = boxes.variable(name, ())
        spans = {name: self._variables[stage.definition_index, name, n] for name, n in axes.items()}
        boxes.set_variables((), spans)
        return StagePrices(self, stage, boxes, axes)

    def work(self, stage: Stage) -> float:
        """The operations of all points of a stage."""
        if stage.definition_index not in self._work:
            self._work[stage.definition_index] = operations_of(stage)
        return self._work[stage.definition_index]


def operations_of(stage: Stage) -> float:
    """The operations of all definitions of the func of a stage, on all ranks."""
    elements, points = element_count(stage.whole), math.prod(hi - lo for lo, hi in stage.bounds.values())
    definitions = enumerate(stage.func.definitions)
    return sum(
        arithmetic_of(d) * (points if n == stage.definition_index else elements) for n, d in definitions
    )


@dataclass(slots=True)
class StagePrices:
    """The prices of the sources and of the results of one stage."""

    family: FuncPrices
    stage: Stage
    boxes: RankBoxes
    axes: Mapping[str, tuple[int, ...]]  # of the grid, over which each variable is distributed
    _uniform_axes: dict[str, frozenset[int]] = field(default_factory=dict)

    @property
    def prices(self) -> Prices:
        """The prices of the program."""
        return self.family.prices

    @property
    def is_stepped(self) -> bool:
        """True if ranks step through loops, of which each iteration communicates."""
        return len(self.stage.outer) > self.stage.fixed

    def _uniform(self, tensor: str) -> frozenset[int]:
        """The axes of the grid along which ranks access the same box of a tensor."""
        if tensor not in self._uniform_axes:
            self._uniform_axes[tensor] = frozenset(self.stage.uniform_axes(tensor))
        return self._uniform_axes[tensor]

    def _access(self, tensor: str) -> object:
        """What the boxes of a tensor depend on: its variables, their axes, and the ranks with iterations."""
        stage, active = self.stage, self.boxes.active(())
        names = stage.dependencies(tensor)
        ranks = b"" if active.all() else active.tobytes()
        return tensor, stage.definition_index, tuple((n, self.axes[n]) for n in names), ranks

    def _boxes(self, tensor: str) -> BoxVector:
        """The boxes that ranks read of a source, or write of the results."""
        key = self._access(tensor)
        if key not in self.family._boxes:
            written = tensor == self.stage.name
            self.family._boxes[key] = self.boxes.written(()) if written else self.boxes.read(tensor, ())
        return self.family._boxes[key]

    def fetch(self, source: str, placements: tuple[Placement, ...], legal: tuple[bool, ...]) -> PriceRow:
        """The prices of a source for each of its placements that are legal."""
        if self.is_stepped:
            prices = {n: self._exact(source, p) for n, p in enumerate(placements) if legal[n]}
            return PriceRow.of(prices, len(placements))
        key = "fetched", id(placements), legal, bool(self.stage.ahead), self._box_key(source)
        return self.prices.row(key, lambda: self._fetched(source, placements, legal))

    def _fetched(
        self, source: str, placements: tuple[Placement, ...], legal: tuple[bool, ...]
    ) -> PriceRow:  # fmt: skip
        prices, boxes = self.prices, self._boxes(source)
        blocks, size = prices.blocks_of(source, placements), prices.sizes[source]
        whole = prices.wholes[source]
        local, written = blocks.shared(boxes), boxes.counts()
        inside = written
        count = math.prod(hi - lo for lo, hi in whole)
        if inside.max(initial=0) > count or not _is_inside(boxes, whole):
            inside = boxes.counts_within(self.boxes.whole(source))
        received = inside - local
        halo = np.all(2 * local >= written, axis=-1)
        buffers = np.where(blocks.has(boxes), 0, written)
        messages = (received > 0).astype(np.int64)
        messages[halo] *= 2
        one_level, exact = len(prices.grid.depths) == 1, []
        contiguous = bool(boxes.present.all()) and all(d.is_contiguous for d in boxes.dims)
        combined: dict[tuple[int, ...], list[int]] = {}
        for n, p in enumerate(placements):
            axes = tuple(axis for axis in p.partial if axis not in self.stage.partial_axes)
            if axes and contiguous and not self.stage.ahead:
                combined.setdefault(axes, []).append(n)
            if legal[n] and not (one_level and blocks.plain[n] and (contiguous or not axes)):
                exact.append(n)
        for axes, numbers in combined.items() if one_level else ():
            at = [n for n in numbers if legal[n]]
            received[at], messages[at], buffers[at] = self._combined(
                source, [placements[n] for n in at], axes, inside, local[at], blocks.has(boxes)[at]
            )  # fmt: skip
        most = np.max(received, axis=-1)
        kinds = np.where(legal & (most > 0), self._kinds(source, blocks.axes, halo), "")
        seconds = prices.seconds(received, messages, size) if one_level else np.zeros(len(placements))
        buffer = size * np.max(buffers, axis=-1, initial=0)
        row = PriceRow(np.where(legal, seconds, np.inf), size * most, buffer, kinds)
        return row.replaced({n: self._exact(source, placements[n]) for n in exact})

    def _combined(
        self, source: str, placements: list[Placement], axes: tuple[int, ...], inside: Numbers,
        local: Numbers, has: Mask,
    ) -> tuple[Numbers, Numbers, Numbers]:  # fmt: skip
        """What ranks receive of partial results that they combine along axes: elements, messages, buffers.

        A line of ranks combines them by one reduction, or each rank those that it gets by messages.
        """
        boxes, shape = self._boxes(source), self.prices.grid.shape
        count = math.prod(shape[n] for n in axes)
        received = count * inside - local
        messages = np.where(received > 0, count - (local > 0), 0)
        direct = received.copy()
        if count >= MIN_COLLECTIVE_RANKS and combined_by_mpi(self.stage.state, source):
            members, reduced = reductions_of_lines(boxes, shape, axes)
            within = has.all(axis=-1) & (len(members) <= MAX_ALL_TO_ALL_RANKS)
            whole = [all(isinstance(e, Copies | Partial) for e in p.entries) for p in placements]
            together = (within | np.array(whole))[:, None] & members
            direct = np.where(together, 0, received)
            received, messages = np.where(together, reduced, received), np.where(together, 1, messages)
        return received, messages, direct + boxes.counts()

    def deliver(self, placements: tuple[Placement, ...]) -> PriceRow:
        """The prices of the results for each placement of the func that has the partial axes of the stage."""
        name, stage = self.stage.name, self.stage
        partial = dict(stage.state.placed)[name].partial
        if self.is_stepped:
            chosen = (n for n, p in enumerate(placements) if p.partial == partial)
            return PriceRow.of({n: self._exact(name, placements[n]) for n in chosen}, len(placements))
        key = "delivered", id(placements), partial, self._box_key(name)
        return self.prices.row(key, lambda: self._deliver(placements, partial))

    def _deliver(self, placements: tuple[Placement, ...], partial: tuple[int, ...]) -> PriceRow:
        name, stage, prices = self.stage.name, self.stage, self.prices
        blocks, row = prices.blocks_of(name, placements), PriceRow.of({}, len(placements))
        plain = len(prices.grid.depths) == 1 and not stage.fixed_axes
        chosen = [n for n, p in enumerate(placements) if p.partial == partial]
        closed = [n for n in chosen if plain and blocks.plain[n]]
        if closed:
            size = prices.sizes[name]
            results = DeliveredResults(stage, prices.grid.shape, prices.coordinates, self._boxes(name))
            received, messages, buffers = results.volume([placements[n] for n in closed], blocks, closed)
            most = received.max(axis=-1)
            row.seconds[closed] = prices.seconds(received, messages, size)
            row.bytes[closed], row.buffers[closed] = size * most, size * buffers
            kinds = self._kinds(name, blocks.axes, np.zeros(len(placements), bool))[closed]
            row.kinds[closed] = np.where(most > 0, kinds, "")
        return row.replaced({n: self._exact(name, placements[n]) for n in {*chosen} - {*closed}})

    def _exact(self, tensor: str, placement: Placement) -> Price:
        """The price of a tensor as the volume of the stage has it; stages with equal boxes share it."""
        if self.is_stepped:
            return self._computed(tensor, placement)
        key = placement.entries, self._box_key(tensor)
        return self.prices.remembered(key, lambda: self._computed(tensor, placement))

    def _box_key(self, tensor: str) -> object:
        """What the prices of a tensor depend on besides its placement; stages with equal boxes share it."""
        stage, boxes, program = self.stage, self._boxes(tensor), self.stage.state.program
        combined: object = program.has_func(tensor) and combined_by_mpi(stage.state, tensor)
        if tensor == stage.name:
            mpi = has_mpi_operator(stage.combine, stage.func.dtypes, in_order=False)
            replaced = tensor in dict(stage.state.overwrites)
            combined = stage.combine, mpi, stage.in_order, stage.repeated_axes, stage.fixed_axes, replaced
        return (
            self.prices.wholes[tensor], self.prices.sizes[tensor], boxes.present.tobytes(),
            tuple((d.spans, d.index.tobytes()) for d in boxes.dims), stage.uniform_axes(tensor),
            stage.partial_axes, combined,
        )  # fmt: skip

    def _computed(self, tensor: str, placement: Placement) -> Price:
        stage, prices = self.stage, self.prices
        is_result = tensor == stage.name
        alone = replace(stage, sources=() if is_result else (tensor,))
        results = placement if is_result else dict(stage.state.placed)[stage.name]
        placements = {stage.name: results, tensor: placement}
        layout = Layout(prices.grid, placements, {n: prices.wholes[n] for n in placements})
        blocks = {n: prices.block_of(n, p) for n, p in placements.items()}
        accounts = _Accounts(layout, tensor)
        rank_boxes = RankBoxes(layout, alone, prices.coordinates, blocks)
        if not self.is_stepped:
            rank_boxes.set_variables((), self.boxes.variables(())[0])
        volume = StageVolume(accounts, rank_boxes)
        block = 0
        if is_result or self.is_stepped:
            volume.run()
            overwrites = tensor in dict(stage.state.overwrites)
            block = int(blocks[tensor].counts().max(initial=0)) if is_result and not overwrites else 0
        else:
            volume.fetch([tensor], ())
        boxes = self._boxes(tensor)
        halo = np.all(2 * boxes.counts_within(blocks[tensor]) >= boxes.counts(), keepdims=True)
        (kind,) = self._kinds(tensor, PlacementAxes((placement,)), halo)
        return prices.priced(accounts.summed(block), prices.sizes[tensor], str(kind))

    def task_seconds(self) -> float:
        """The seconds of the tasks of the busiest rank: of operations, or of the bytes read and written."""
        stage, wholes = self.stage, self.prices.wholes
        spans, active = self.boxes.variables(())
        points = np.prod([v.lengths for v in spans.values()], axis=0, initial=1) * active
        total = math.prod(hi - lo for lo, hi in stage.bounds.values())
        share = float(np.max(points)) / max(total, 1)
        moved = float(self._boxes(stage.name).counts().max(initial=0)) * self.prices.sizes[stage.name]
        for t in stage.sources:
            read = min(int(self._boxes(t).counts().max(initial=0)), element_count(wholes[t]))
            moved += read * self.prices.sizes[t]
        operations, memory = self.prices.rates
        return max(share * self.family.work(stage) / operations, moved / memory)

    def _kinds(self, tensor: str, axes: PlacementAxes, halo: Mask) -> Kinds:
        """The kinds of communication by which a stage gets a source or delivers its results.

        `axes` are those of several placements; `halo`: ranks have at least half of what they read.
        """
        stage, uniform = self.stage, axis_bits(self._uniform(tensor))
        cut_uniform = axes.cut & uniform != 0
        if tensor == stage.name:
            others = ~axis_bits(stage.repeated_axes)
            reduced = (stage.combine is not None) & (uniform & others & ~axes.partial != 0)
            reduction = np.where(cut_uniform, "reduce-scatter", "all-reduce")
            return np.where(
                reduced, reduction, np.where(axes.copied & others != 0, "all-gather", "all-to-all")
            )
        combined = axes.partial & ~axis_bits(stage.partial_axes) != 0
        moved = np.where(cut_uniform, "all-gather", np.where(halo, "halo", "all-to-all"))
        return np.where(combined, "all-reduce", moved)


def _is_inside(boxes: BoxVector, whole: SpanBox) -> bool:
    """True if no box goes beyond the tensor."""
    pairs = zip(boxes.dims, whole, strict=True)
    return all(lo <= first and end <= hi for d, (lo, hi) in pairs for first, end in d.spans)
