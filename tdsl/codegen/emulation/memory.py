"""Emulated memory of a GPU, which records the last accesses of each element and raises `Hazard` for races."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tdsl.errors import Hazard

Array = np.ndarray[Any, Any]

NOBODY, SEVERAL, UNIT = -1, -2, -3  # for a thread: none, several of different groups, the TMA unit
SEVERAL_OF = -4  # several threads of group 0; SEVERAL_OF - n for group n


@dataclass(slots=True)
class LockstepThreads:
    """The threads that run in lockstep, and what each has synchronised with; arrays have a row per thread.

    `block` is the block of a thread, `number` its index there. `epochs` are the clocks of the blocks of the
    launch, which advance when threads synchronise. An access at epoch t is ordered before a thread's next one
    if t < `seen` (by a thread of its block), t < `near` (by a thread of its group) or t < `awaited` (by a
    tile copy). `abroad` is `seen` of each block of the cluster (columns), by that block's clock. `group` and
    `threads` are the numbers of threads of a group and of a block.
    """

    kernel: str
    block: Array
    number: Array
    epochs: Array
    seen: Array
    near: Array
    awaited: Array
    abroad: Array
    group: int
    threads: int

    @staticmethod
    def of_threads(
        kernel: str, block: Array, number: Array, epochs: Array, group: int, threads: int,
        cluster: int = 1,
    ) -> LockstepThreads:  # fmt: skip
        """A crew whose threads have just synchronised."""
        seen, near, awaited = (epochs[block].copy() for _ in range(3))
        first = block // cluster * cluster
        abroad = epochs[first[:, None] + np.arange(cluster)]
        return LockstepThreads(
            kernel, block, number, epochs, seen, near, awaited, abroad, group, threads
        )

    @property
    def size(self) -> int:
        """The number of threads."""
        return len(self.number)

    def of(self, rows: Array) -> LockstepThreads:
        """The crew of some of the threads."""
        columns = self.block, self.number, self.seen, self.near, self.awaited, self.abroad
        block, number, seen, near, awaited, abroad = (x[rows] for x in columns)
        return replace(
            self, block=block, number=number, seen=seen, near=near, awaited=awaited, abroad=abroad
        )

    def met(self, rows: Array) -> None:
        """Synchronise threads at a barrier of their blocks."""
        self.epochs[np.unique(self.block[rows])] += 1
        self.seen[rows] = self.near[rows] = self.awaited[rows] = self.epoch[rows]

    def met_in_groups(self, rows: Array) -> None:
        """Synchronise threads at a barrier of their groups."""
        self.epochs[np.unique(self.block[rows])] += 1
        self.near[rows] = self.epoch[rows]

    def group_of(self, thread: Array) -> Array:
        """The group of each recorded thread, of several of one group, or of a whole group; else -1."""
        several = np.where(thread <= SEVERAL_OF, SEVERAL_OF - thread, -1)
        alone = np.where(thread < self.threads, thread // self.group, thread - self.threads)
        return np.where(thread >= 0, alone, several)

    @property
    def cluster(self) -> int:
        """The number of blocks of a cluster."""
        return int(self.abroad.shape[1])

    def in_block(self, rows: Array, rank: int) -> tuple[LockstepThreads, Array]:
        """The threads `rows` as if in block `rank` of their clusters, and the rows of their numbers there."""
        own, there = self.of(rows), rows + (rank - self.block[rows] % self.cluster) * self.threads
        known = np.where(there == rows, own.seen, own.abroad[:, rank])
        awaited = np.where(there == rows, own.awaited, known)
        near = np.where(there == rows, own.near, known)
        block = self.block[there]
        return replace(own, block=block, seen=known, near=near, awaited=awaited), there

    @property
    def epoch(self) -> Array:
        """The clock of each thread's block."""
        return self.epochs[self.block]


@dataclass(slots=True)
class _Log:
    """The last read, or the last write, of each element: its thread, epoch and block.

    `block` is None for the memory of a block, which no other block accesses.
    """

    thread: Array
    epoch: Array
    block: Array | None

    @staticmethod
    def of(size: int, *, of_a_block: bool) -> _Log:
        thread, epoch, block = (np.full(size, NOBODY, np.int64) for _ in range(3))
        return _Log(thread, epoch, None if of_a_block else block)

    def others(self, at: Array, crew: LockstepThreads, rows: Array) -> Array:
        """True where another thread's last access is unordered; those of other blocks always are."""
        thread, number, epoch = self.thread[at], crew.number[rows], self.epoch[at]
        seen, awaited = crew.seen[rows], crew.awaited[rows]
        near: Array = (thread != number) & (epoch >= np.minimum(seen, awaited))
        if near.any():
            known = np.where(thread == UNIT, awaited, seen)
            same = crew.group_of(thread) == crew.group_of(number)
            near &= epoch >= np.where(same, np.maximum(known, crew.near[rows]), known)
        if self.block is None:
            return near
        block, own = self.block[at], crew.block[rows]
        return np.asarray(((block == own) & near) | ((block != NOBODY) & (block != own)))

    def enter(self, at: Array, crew: LockstepThreads, rows: Array, *, together: bool) -> None:
        """Record accesses; with `together`, unordered readers of one element are recorded as several."""
        number, now = crew.number[rows], crew.epoch[rows]
        last, touched = self.thread[at], self.epoch[at]
        self.thread[at], self.epoch[at] = number, now
        if together:
            several = (touched >= crew.seen[rows]) & (last != number)
            lost = self.thread[at] != number  # overwritten by another reader of this access
            if lost.any() or several.any():
                group = crew.group_of(number)
                mixed = several & (crew.group_of(last) != group)
                mixed |= lost & (crew.group_of(self.thread[at]) != group)
                several |= lost
                self.thread[at[several]] = SEVERAL_OF - group[several]
                self.thread[at[mixed]] = SEVERAL
        if self.block is not None:
            own, before = crew.block[rows], self.block[at]
            self.block[at] = own
            if together:
                far = ((before != NOBODY) & (before != own)) | (self.block[at] != own)
                self.block[at[far]] = SEVERAL


@dataclass(slots=True)
class Memory:
    """A buffer: `data` has a row for each instance; `row_of` has the row of each thread, None if all use one.

    `writes` and `reads` are logs of accesses, None unless several threads share elements and may write;
    `private` memory has an instance for each thread. `coming` marks elements of pending copies, which will
    hold `values`. `owners` tells which threads of a group (rows) hold which elements of a fragment (columns);
    `copies` consecutive instances of a fragment hold the same elements.
    """

    name: str
    extents: tuple[int, ...]
    data: Array
    written: Array
    row_of: Array | None
    writes: _Log | None = None
    reads: _Log | None = None
    private: bool = False
    coming: Array | None = None
    values: Array | None = None
    owners: Array | None = None
    copies: int = 1
    strides: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        tail = [prod(self.extents[n + 1 :]) for n in range(len(self.extents))]
        self.strides = tuple(tail)

    def watch(self) -> None:
        """Start to record the accesses of elements."""
        size, inner = self.data.size, self.row_of is not None
        self.writes = _Log.of(size, of_a_block=inner)
        self.reads = _Log.of(size, of_a_block=inner)

    def load(self, index: list[Array], mask: Array | None, crew: LockstepThreads) -> Array:
        """The elements at an index, a row per thread and a column per lane; 0 where the mask is false."""
        own = self._own_column(index)
        if own is not None and self.written[:, own].all():
            known = self.data[:, own, None]
            if mask is None:
                return known.copy()  # a later store does not change it
            return np.where(mask, known, np.zeros((), known.dtype))
        at, rows, shape = self._places(index, mask, crew)
        self._check_arrived("reads", at, rows, crew)
        written = self.written.ravel()[at]
        if not written.all():
            self._fail("reads what nobody wrote", at[~written], rows[~written], crew)
        if self.writes is not None and self.reads is not None:
            bad = self.writes.others(at, crew, rows)
            if bad.any():
                self._fail("reads what another thread writes", at[bad], rows[bad], crew)
            self.reads.enter(at, crew, rows, together=True)
        values = self.data.ravel()[at]
        if mask is None:
            return values.reshape(shape)
        result = np.zeros(shape, self.data.dtype)
        result[np.broadcast_to(mask, shape)] = values
        return result

    def store(
        self, index: list[Array], value: Array, mask: Array | None, crew: LockstepThreads
    ) -> None:
        """Write elements; Hazard for a race, unless it writes equal values."""
        own = self._own_column(index)
        if own is not None and (mask is None or mask.shape[1] == 1) and value.shape[1] == 1:
            who: Any = slice(None) if mask is None else np.broadcast_to(mask, (crew.size, 1))[:, 0]
            self.data[who, own] = np.broadcast_to(value, (crew.size, 1))[who, 0]
            self.written[who, own] = True
            return
        at, rows, shape = self._places(index, mask, crew)
        new = np.broadcast_to(value, shape)
        new = new.ravel() if mask is None else new[np.broadcast_to(mask, shape)]
        data = self.data.ravel()
        self._check_arrived("writes", at, rows, crew)
        self._check_alone(at, rows, new, crew)
        if self.writes is not None:
            self.writes.enter(at, crew, rows, together=False)
        data[at] = new
        if self.writes is not None:
            bad = (self.writes.thread[at] != crew.number[rows]) & ~_same(data[at], new)
            if bad.any():
                self._fail("writes what another thread writes", at[bad], rows[bad], crew)
        self.written.ravel()[at] = True
        if self.copies > 1:
            self._check_copies(at, rows, crew)

    def _check_copies(self, at: Array, rows: Array, crew: LockstepThreads) -> None:
        """Raise Hazard if the threads that hold copies of one element have stored different values."""
        size = self.data.shape[1]
        first = at // size // self.copies * self.copies * size + at % size
        for n in range(self.copies):
            other = first + n * size
            bad = self.written.ravel()[other] & ~_same(
                self.data.ravel()[other], self.data.ravel()[at]
            )
            if bad.any():
                self._fail("and another one keep different values of", at[bad], rows[bad], crew)

    def _check_alone(self, at: Array, rows: Array, new: Array, crew: LockstepThreads) -> None:
        """Raise Hazard if a write races with an access of another thread, unless it writes an equal value."""
        if self.writes is None or self.reads is None:
            return
        bad = self.reads.others(at, crew, rows)
        if bad.any():
            self._fail("writes what another thread reads", at[bad], rows[bad], crew)
        bad = self.writes.others(at, crew, rows) & ~_same(self.data.ravel()[at], new)
        if bad.any():
            self._fail("writes what another thread writes", at[bad], rows[bad], crew)

    def _check_arrived(self, does: str, at: Array, rows: Array, crew: LockstepThreads) -> None:
        """Raise Hazard for an access to an element that a pending copy or instruction writes."""
        if self.coming is not None and self.coming[at].any():
            bad, what = self.coming[at], "made" if self.values is None else "copied"
            self._fail(f"{does}, with no wait, what is being {what}", at[bad], rows[bad], crew)

    def begin(
        self, index: list[Array], value: Array, mask: Array | None, crew: LockstepThreads
    ) -> tuple[Array, Array, Array]:
        """Start to copy values to elements; the offsets, threads and values to pass to `end`."""
        at, rows, shape = self._places(index, mask, crew)
        new = np.broadcast_to(value, shape)
        new = new.ravel() if mask is None else new[np.broadcast_to(mask, shape)]
        self._begin(at, rows, new, crew)
        return at, rows, new

    def begin_at(
        self, index: list[Array], values: Array, rows: Array, crew: LockstepThreads, rank: int = -1
    ) -> tuple[Array, Array, Array]:
        """As `begin`, by the threads `rows` only; into block `rank` of their clusters unless it is -1."""
        own, there = crew.in_block(rows, rank) if rank >= 0 else (crew.of(rows), rows)
        view = replace(self, row_of=None if self.row_of is None else self.row_of[there])
        at, local, _ = view._places(index, None, own)
        new = values.ravel()
        self._begin(at, local, new, own)
        return at, there[local], new

    def _begin(self, at: Array, rows: Array, new: Array, crew: LockstepThreads) -> None:
        if self.coming is None or self.values is None:
            self.coming = np.zeros(self.data.size, bool)
            self.values = np.zeros(self.data.size, self.data.dtype)
        bad = self.coming[at] & ~_same(self.values[at], new)
        if bad.any():
            self._fail("writes, with no wait, what is being copied", at[bad], rows[bad], crew)
        self._check_alone(at, rows, new, crew)
        self.coming[at], self.values[at] = True, new

    def places(self, index: list[Array], crew: LockstepThreads) -> Array:
        """The offsets in `data` of the elements at an index, as a flat array."""
        return self._places(index, None, crew)[0]

    def announce(self, at: Array, *, coming: bool) -> None:
        """Mark elements as pending, or as complete."""
        if self.coming is None:
            self.coming = np.zeros(self.data.size, bool)
        self.coming[at] = coming

    def end(
        self, at: Array, rows: Array, values: Array, crew: LockstepThreads, *, by_unit: bool = False
    ) -> None:
        """Complete copies, as if their threads, or the TMA unit, wrote the values now."""
        assert self.coming is not None
        self.coming[at] = False
        self.data.ravel()[at] = values
        self.written.ravel()[at] = True
        if self.writes is not None:
            self.writes.enter(at, crew, rows, together=False)
            if by_unit:
                self.writes.thread[at] = UNIT

    def update(
        self,
        index: list[Array],
        value: Array,
        mask: Array | None,
        crew: LockstepThreads,
        function: Any,
    ) -> None:
        """Update elements atomically; updates do not race with each other."""
        at, rows, shape = self._places(index, mask, crew)
        known = self.written.ravel()[at]
        if not known.all():
            self._fail("updates what nobody wrote", at[~known], rows[~known], crew)
        new = np.broadcast_to(value, shape)
        new = new.ravel() if mask is None else new[np.broadcast_to(mask, shape)]
        function.at(self.data.reshape(-1), at, new)

    def forget(self, rows: Array | None) -> None:
        """Mark the contents of some instances, or of all, as undefined."""
        self.written[slice(None) if rows is None else rows] = False

    def _own_column(self, index: list[Array]) -> int | None:
        """The offset of an element of private memory if all threads have the same index; else None."""
        if not self.private or any(i.size != 1 for i in index):
            return None
        at = [int(i.item()) for i in index]
        if any(not 0 <= i < n for i, n in zip(at, self.extents, strict=True)):
            return None  # `_places` raises the error
        return sum(i * step for i, step in zip(at, self.strides, strict=True))

    def _places(
        self, index: list[Array], mask: Array | None, crew: LockstepThreads
    ) -> tuple[Array, Array, tuple[int, int]]:
        """Offsets in `data` and threads where the mask is true, flat, and the shape (threads, lanes)."""
        lanes = max((x.shape[1] for x in (*index, mask) if x is not None), default=1)
        mask = None if mask is None or mask.all() else mask
        shape = (crew.size, lanes)
        offset = np.zeros((1, 1), np.int64)
        for axis, (i, extent) in enumerate(zip(index, self.extents, strict=True)):
            inside = (i >= 0) & (i < extent)
            if mask is not None:
                inside = inside | ~mask
            if not inside.all():
                row = int(np.argwhere(~np.broadcast_to(inside, shape))[0][0])
                wrong = np.broadcast_to(i, shape)[~np.broadcast_to(inside, shape)].ravel()[0]
                raise Hazard(
                    f"{crew.kernel}: thread {crew.number[row]} of block {crew.block[row]} uses index {wrong} "
                    f"on axis {axis} of {self.name!r}, which has {extent} elements there"
                )
            offset = offset + i * self.strides[axis]
        if self.row_of is not None:
            offset = offset + (self.row_of * prod(self.extents))[:, None]
        if self.owners is not None:
            elements = np.broadcast_to(offset, shape) % self.owners.shape[1]
            self._check_owners(elements, mask, crew)
        offset, rows = np.broadcast_to(offset, shape), np.arange(crew.size)
        if mask is None:
            return offset.ravel(), np.repeat(rows, shape[1]), shape
        chosen = np.broadcast_to(mask, shape)
        return offset[chosen], np.broadcast_to(rows[:, None], shape)[chosen], shape

    def _check_owners(self, element: Array, mask: Array | None, crew: LockstepThreads) -> None:
        assert self.owners is not None
        wrong = ~self.owners[(crew.number % len(self.owners))[:, None], element]
        if mask is not None:
            wrong = wrong & mask
        if wrong.any():
            row, lane = np.argwhere(wrong)[0]
            at, rows = element[row, lane][None], np.asarray([row])
            self._fail("touches what another thread has in its registers", at, rows, crew)

    def _fail(self, what: str, at: Array, rows: Array, crew: LockstepThreads) -> None:
        place = np.unravel_index(int(at[0]) % max(prod(self.extents), 1), self.extents or (1,))
        index = ", ".join(map(str, map(int, place))) if self.extents else "()"
        row = int(rows[0])
        who = f"thread {crew.number[row]} of block {crew.block[row]}"
        raise Hazard(f"{crew.kernel}: {who} {what}: {self.name}[{index}]")


def _same(a: Array, b: Array) -> Array:
    """True where values are equal, or both NaN."""
    return np.asarray((a == b) | ((a != a) & (b != b)))
