"""Emulates mbarriers, and the bulk tile copies (TMA) that complete their phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tdsl.codegen.emulation.memory import Array, LockstepThreads, Memory
from tdsl.errors import Hazard

_NEVER = np.iinfo(np.int64).max


@dataclass(slots=True)
class _Tile:
    """A pending tile copy: offsets, threads and values of elements, and block and slot of the mbarrier."""

    memory: Memory
    at: Array
    rows: Array
    values: Array
    block: Array
    slot: Array


@dataclass(slots=True)
class PhaseBarriers:
    """The mbarriers of each block: the number of completed phases, and what the current phases wait for.

    Copies are as late as possible: they complete when a thread waits for them.
    """

    name: str
    slots: int
    arrivals: int
    crew: LockstepThreads
    first: int
    ended: Array = field(init=False)
    missing: Array = field(init=False)
    bytes: Array = field(init=False)
    came: Array = field(init=False)  # epoch of each block's first arrival at the phase
    seen: Array = field(init=False)  # the same of the last completed phase
    tiles: list[_Tile] = field(default_factory=list)

    def __post_init__(self) -> None:
        blocks = int(self.crew.block.max()) - self.first + 1
        self.ended = np.zeros((blocks, self.slots), np.int64)
        self.missing = np.full((blocks, self.slots), self.arrivals)
        self.bytes = np.zeros((blocks, self.slots), np.int64)
        self.came = np.full((blocks, self.slots, self.crew.cluster), _NEVER)
        self.seen = np.zeros((blocks, self.slots, self.crew.cluster), np.int64)

    def places(self, slot: Array, mask: Array | None) -> tuple[Array, Array, Array]:
        """The threads in `mask`, their blocks relative to `first`, and their slots."""
        rows = np.arange(self.crew.size) if mask is None else np.flatnonzero(mask[:, 0])
        slots = np.broadcast_to(slot, (self.crew.size, 1))[rows, 0]
        if ((slots < 0) | (slots >= self.slots)).any():
            self.fail(rows[0], f"uses slot {slots[0]} of {self.slots}")
        return rows, self.crew.block[rows] - self.first, slots

    def arrive(self, slot: Array, count: int, mask: Array | None, blocks: int = 1) -> None:
        """Arrive at barriers, of all `blocks` of the cluster if several; expect `count` bytes per thread."""
        rows, own, slots = self.places(slot, mask)
        rank = self.crew.block[rows] % self.crew.cluster
        now = self.crew.epoch[rows] + 1
        for other in range(blocks):
            block = own if blocks == 1 else own - rank + other
            np.subtract.at(self.missing, (block, slots), 1)
            np.add.at(self.bytes, (block, slots), count)
            np.minimum.at(self.came, (block, slots, rank), now)
            if (self.missing[block, slots] < 0).any():
                self.fail(rows[0], f"comes to a phase that {self.arrivals} have come to")
            self.end(block, slots)
        self.crew.epochs[np.unique(self.crew.block[rows])] += 1

    def end(self, block: Array, slots: Array) -> None:
        """Complete the phases that lack no arrivals and no bytes."""
        done = (self.missing[block, slots] == 0) & (self.bytes[block, slots] == 0)
        pairs = np.unique(np.stack([block[done], slots[done]]), axis=1)
        b, s = pairs
        self.ended[b, s] += 1
        self.missing[b, s] = self.arrivals
        came = self.came[b, s]
        self.seen[b, s], self.came[b, s] = np.where(came == _NEVER, 0, came), _NEVER

    def copy(
        self, memory: Memory, corner: Sequence[Array], source: Memory, start: Sequence[Array],
        extents: tuple[int, ...], slot: Array, mask: Array | None, blocks: int = 1,
    ) -> None:  # fmt: skip
        """Start to copy a box, with 0 outside of its source, to all `blocks` of the cluster if several."""
        rows, _, slots = self.places(slot, mask)
        each = np.indices(extents).reshape(len(extents), 1, -1)

        def column(x: Array) -> Array:
            return np.asarray(np.broadcast_to(x, (self.crew.size, 1))[rows])

        lead = len(corner) - len(extents)
        index = [column(i) + (each[n - lead] if n >= lead else 0) for n, i in enumerate(corner)]
        inside, offset = np.ones((len(rows), prod(extents)), bool), np.zeros((1, 1), np.int64)
        for n, (i, extent) in enumerate(zip(start, source.extents, strict=True)):
            place = column(i) + each[n]
            inside = inside & (place >= 0) & (place < extent)
            offset = offset + np.clip(place, 0, max(extent - 1, 0)) * source.strides[n]
        if not source.written.ravel()[offset[inside]].all():
            self.fail(rows[0], f"copies what nobody wrote of {source.name!r}")
        values = np.where(inside, source.data.ravel()[offset], source.data.dtype.type(0))
        spread = np.repeat(np.arange(len(rows)), values.shape[1])
        for rank in range(blocks) if blocks > 1 else (-1,):
            at, owners, new = memory.begin_at(index, values, rows, self.crew, rank)
            to = self.crew.block[owners] - self.first
            self.tiles.append(_Tile(memory, at, owners, new, to, slots[spread]))

    def wait(self, slot: Array, parity: Array, mask: Array | None) -> bool:
        """Complete the copies of the awaited phases; True if then all phases of the mask have completed."""
        rows, block, slots = self.places(slot, mask)
        wanted = np.broadcast_to(parity, (self.crew.size, 1))[rows, 0]
        waits = self.ended[block, slots] % 2 == wanted
        if waits.any():
            self._land(block[waits], slots[waits])
            waits = self.ended[block, slots] % 2 == wanted
        if waits.any():
            return False
        crew = self.crew
        crew.awaited[rows] = crew.epoch[rows]
        seen = self.seen[block, slots]
        own = np.take_along_axis(seen, (crew.block[rows] % crew.cluster)[:, None], 1)[:, 0]
        crew.seen[rows] = np.maximum(crew.seen[rows], own)
        crew.abroad[rows] = np.maximum(crew.abroad[rows], seen)
        return True

    def _land(self, block: Array, slots: Array) -> None:
        due = np.zeros(self.ended.shape, bool)
        due[block, slots] = True
        left: list[_Tile] = []
        for x in self.tiles:
            done = due[x.block, x.slot]
            if not done.any():
                left.append(x)
                continue
            x.memory.end(x.at[done], x.rows[done], x.values[done], self.crew, by_unit=True)
            size = x.memory.data.dtype.itemsize
            np.subtract.at(self.bytes, (x.block[done], x.slot[done]), size)
            if not done.all():
                rest = ~done
                parts = (part[rest] for part in (x.at, x.rows, x.values, x.block, x.slot))
                left.append(_Tile(x.memory, *parts))
        if len(left) < len(self.tiles) or any(
            x is not y for x, y in zip(left, self.tiles, strict=True)
        ):
            self.crew.epochs[np.unique(block) + self.first] += 1
        self.tiles = left
        self.end(block, slots)

    def stuck(self, slot: Array, parity: Array, mask: Array | None) -> Hazard:
        """The Hazard for threads that wait forever."""
        rows, block, slots = self.places(slot, mask)
        wanted = np.broadcast_to(parity, (self.crew.size, 1))[rows, 0]
        n = int(np.argmax(self.ended[block, slots] % 2 == wanted))
        place = block[n], slots[n]
        return Hazard(
            f"{self.crew.kernel}: thread {self.crew.number[rows[n]]} of block {self.crew.block[rows[n]]} "
            f"waits for ever at slot {slots[n]} of {self.name!r}: {self.missing[place]} arrivals and "
            f"{self.bytes[place]} bytes are missing"
        )

    def finish(self) -> None:
        """Raise Hazard if tile copies are still pending at the end."""
        for x in self.tiles:
            self.fail(
                x.rows[0], f"ends before its copy to {x.memory.name!r}, for which there is no wait"
            )

    def fail(self, row: int, what: str) -> None:
        """Raise Hazard with a message about the thread of a row."""
        who = f"thread {self.crew.number[row]} of block {self.crew.block[row]}"
        raise Hazard(f"{self.crew.kernel}: {who} {what}")
