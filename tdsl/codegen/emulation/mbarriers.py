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
class _PendingTileCopy:
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
    team: LockstepThreads
    first: int
    phases_done: Array = field(init=False)
    missing_arrivals: Array = field(init=False)
    missing_bytes: Array = field(init=False)
    first_arrival: Array = field(init=False)  # epoch of each block's first arrival at the phase
    last_arrival: Array = field(init=False)  # the same of the last completed phase
    pending_copies: list[_PendingTileCopy] = field(default_factory=list)

    def __post_init__(self) -> None:
        blocks = int(self.team.block.max()) - self.first + 1
        self.phases_done = np.zeros((blocks, self.slots), np.int64)
        self.missing_arrivals = np.full((blocks, self.slots), self.arrivals)
        self.missing_bytes = np.zeros((blocks, self.slots), np.int64)
        self.first_arrival = np.full((blocks, self.slots, self.team.cluster), _NEVER)
        self.last_arrival = np.zeros((blocks, self.slots, self.team.cluster), np.int64)

    def resolve(self, slot: Array, mask: Array | None) -> tuple[Array, Array, Array]:
        """The threads in `mask`, their blocks relative to `first`, and their slots."""
        rows = np.arange(self.team.size) if mask is None else np.flatnonzero(mask[:, 0])
        slots = np.broadcast_to(slot, (self.team.size, 1))[rows, 0]
        if ((slots < 0) | (slots >= self.slots)).any():
            self.raise_hazard(rows[0], f"uses slot {slots[0]} of {self.slots}")
        return rows, self.team.block[rows] - self.first, slots

    def arrive(self, slot: Array, count: int, mask: Array | None, blocks: int = 1) -> None:
        """Arrive at barriers, of all `blocks` of the cluster if several; expect `count` bytes per thread."""
        rows, this_block, slots = self.resolve(slot, mask)
        rank = self.team.block[rows] % self.team.cluster
        now = self.team.epoch[rows] + 1
        for other in range(blocks):
            block = this_block if blocks == 1 else this_block - rank + other
            np.subtract.at(self.missing_arrivals, (block, slots), 1)
            np.add.at(self.missing_bytes, (block, slots), count)
            np.minimum.at(self.first_arrival, (block, slots, rank), now)
            if (self.missing_arrivals[block, slots] < 0).any():
                self.raise_hazard(rows[0], f"arrives at an mbarrier that has its {self.arrivals} arrivals")
            self.complete_phases(block, slots)
        self.team.epochs[np.unique(self.team.block[rows])] += 1

    def complete_phases(self, block: Array, slots: Array) -> None:
        """Complete the phases that lack no arrivals and no bytes."""
        done = (self.missing_arrivals[block, slots] == 0) & (self.missing_bytes[block, slots] == 0)
        pairs = np.unique(np.stack([block[done], slots[done]]), axis=1)
        b, s = pairs
        self.phases_done[b, s] += 1
        self.missing_arrivals[b, s] = self.arrivals
        first_arrival = self.first_arrival[b, s]
        self.last_arrival[b, s], self.first_arrival[b, s] = (
            np.where(first_arrival == _NEVER, 0, first_arrival),
            _NEVER,
        )

    def copy(
        self, memory: Memory, corner: Sequence[Array], source: Memory, start: Sequence[Array],
        extents: tuple[int, ...], slot: Array, mask: Array | None, blocks: int = 1,
    ) -> None:  # fmt: skip
        """Start to copy a box, with 0 outside of its source, to all `blocks` of the cluster if several."""
        rows, _, slots = self.resolve(slot, mask)
        element_indices = np.indices(extents).reshape(len(extents), 1, -1)

        def column(x: Array) -> Array:
            return np.asarray(np.broadcast_to(x, (self.team.size, 1))[rows])

        lead = len(corner) - len(extents)
        index = [column(i) + (element_indices[n - lead] if n >= lead else 0) for n, i in enumerate(corner)]
        inside, offset = np.ones((len(rows), prod(extents)), bool), np.zeros((1, 1), np.int64)
        for n, (i, extent) in enumerate(zip(start, source.extents, strict=True)):
            position = column(i) + element_indices[n]
            inside = inside & (position >= 0) & (position < extent)
            offset = offset + np.clip(position, 0, max(extent - 1, 0)) * source.strides[n]
        if not source.written.ravel()[offset[inside]].all():
            self.raise_hazard(rows[0], f"copies what nobody wrote of {source.name!r}")
        values = np.where(inside, source.data.ravel()[offset], source.data.dtype.type(0))
        spread = np.repeat(np.arange(len(rows)), values.shape[1])
        for rank in range(blocks) if blocks > 1 else (-1,):
            at, owners, new = memory.begin_copy_at(index, values, rows, self.team, rank)
            to = self.team.block[owners] - self.first
            self.pending_copies.append(_PendingTileCopy(memory, at, owners, new, to, slots[spread]))

    def wait(self, slot: Array, parity: Array, mask: Array | None) -> bool:
        """Complete the copies of the awaited phases; True if then all phases of the mask have completed."""
        rows, block, slots = self.resolve(slot, mask)
        parities = np.broadcast_to(parity, (self.team.size, 1))[rows, 0]
        incomplete = self.phases_done[block, slots] % 2 == parities
        if incomplete.any():
            self._complete_copies(block[incomplete], slots[incomplete])
            incomplete = self.phases_done[block, slots] % 2 == parities
        if incomplete.any():
            return False
        team = self.team
        team.awaited[rows] = team.epoch[rows]
        arrivals = self.last_arrival[block, slots]
        arrival_here = np.take_along_axis(arrivals, (team.block[rows] % team.cluster)[:, None], 1)[:, 0]
        team.seen[rows] = np.maximum(team.seen[rows], arrival_here)
        team.cluster_seen[rows] = np.maximum(team.cluster_seen[rows], arrivals)
        return True

    def _complete_copies(self, block: Array, slots: Array) -> None:
        awaited_phases = np.zeros(self.phases_done.shape, bool)
        awaited_phases[block, slots] = True
        remaining: list[_PendingTileCopy] = []
        for x in self.pending_copies:
            done = awaited_phases[x.block, x.slot]
            if not done.any():
                remaining.append(x)
                continue
            x.memory.complete_copy(x.at[done], x.rows[done], x.values[done], self.team, by_unit=True)
            size = x.memory.data.dtype.itemsize
            np.subtract.at(self.missing_bytes, (x.block[done], x.slot[done]), size)
            if not done.all():
                rest = ~done
                parts = (part[rest] for part in (x.at, x.rows, x.values, x.block, x.slot))
                remaining.append(_PendingTileCopy(x.memory, *parts))
        if len(remaining) < len(self.pending_copies) or any(
            x is not y for x, y in zip(remaining, self.pending_copies, strict=True)
        ):
            self.team.epochs[np.unique(block) + self.first] += 1
        self.pending_copies = remaining
        self.complete_phases(block, slots)

    def deadlock_error(self, slot: Array, parity: Array, mask: Array | None) -> Hazard:
        """The Hazard for threads that wait forever."""
        rows, block, slots = self.resolve(slot, mask)
        parities = np.broadcast_to(parity, (self.team.size, 1))[rows, 0]
        n = int(np.argmax(self.phases_done[block, slots] % 2 == parities))
        position = block[n], slots[n]
        return Hazard(
            f"{self.team.kernel}: thread {self.team.number[rows[n]]} of block {self.team.block[rows[n]]} "
            f"waits for ever at slot {slots[n]} of {self.name!r}: {self.missing_arrivals[position]} arrivals "
            f"and {self.missing_bytes[position]} bytes are missing"
        )

    def finish(self) -> None:
        """Raise Hazard if tile copies are still pending at the end."""
        for x in self.pending_copies:
            self.raise_hazard(
                x.rows[0], f"ends before its copy to {x.memory.name!r}, for which there is no wait"
            )

    def raise_hazard(self, row: int, what: str) -> None:
        """Raise Hazard with a message about the thread of a row."""
        who = f"thread {self.team.number[row]} of block {self.team.block[row]}"
        raise Hazard(f"{self.team.kernel}: {who} {what}")
