"""Emulated memory of a GPU, which records the last accesses of each element and raises `Hazard` for races."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tdsl.errors import Hazard
from tdsl.lang.expr import Const, Expr

Array = np.ndarray[Any, Any]

NOBODY, SEVERAL, UNIT = -1, -2, -3  # in place of a thread: none, several of different groups, the TMA unit
SEVERAL_IN_GROUP = -4  # minus n: several threads of group n


@dataclass(slots=True)
class LockstepThreads:
    """The threads that run in lockstep, and what each has synchronised with; arrays have a row per thread.

    `block` is the block of a thread, `number` its index there. `epochs` are the clocks of the blocks of the
    launch, which advance when threads synchronise. An access at epoch t is ordered before a thread's next one
    if t < `seen` (by a thread of its block), t < `group_seen` (by a thread of its group) or t < `awaited` (by
    a tile copy). `cluster_seen` is `seen` of each block of the cluster (columns), by its clock. `group` and
    `threads` are the numbers of threads of a group and of a block.
    """

    kernel: str
    block: Array
    number: Array
    epochs: Array
    seen: Array
    group_seen: Array
    awaited: Array
    cluster_seen: Array
    group: int
    threads: int

    @staticmethod
    def of_threads(
        kernel: str, block: Array, number: Array, epochs: Array, group: int, threads: int,
        cluster: int = 1,
    ) -> LockstepThreads:  # fmt: skip
        """Threads that have just synchronised."""
        seen, group_seen, awaited = (epochs[block].copy() for _ in range(3))
        first = block // cluster * cluster
        cluster_seen = epochs[first[:, None] + np.arange(cluster)]
        return LockstepThreads(
            kernel, block, number, epochs, seen, group_seen, awaited, cluster_seen, group, threads
        )

    @property
    def size(self) -> int:
        """The number of threads."""
        return len(self.number)

    def select(self, rows: Array) -> LockstepThreads:
        """Some of the threads."""
        per_thread = (
            self.block,
            self.number,
            self.seen,
            self.group_seen,
            self.awaited,
            self.cluster_seen,
        )
        block, number, seen, group_seen, awaited, cluster_seen = (x[rows] for x in per_thread)
        return replace(
            self,
            block=block,
            number=number,
            seen=seen,
            group_seen=group_seen,
            awaited=awaited,
            cluster_seen=cluster_seen,
        )

    def synchronize(self, rows: Array) -> None:
        """Synchronise threads at a barrier of their blocks."""
        self.epochs[np.unique(self.block[rows])] += 1
        self.seen[rows] = self.group_seen[rows] = self.awaited[rows] = self.epoch[rows]

    def synchronize_groups(self, rows: Array) -> None:
        """Synchronise threads at a barrier of their groups."""
        self.epochs[np.unique(self.block[rows])] += 1
        self.group_seen[rows] = self.epoch[rows]

    def group_of(self, thread: Array) -> Array:
        """The group of each recorded thread, of several of one group, or of a whole group; else -1."""
        several = np.where(thread <= SEVERAL_IN_GROUP, SEVERAL_IN_GROUP - thread, -1)
        one = np.where(thread < self.threads, thread // self.group, thread - self.threads)
        return np.where(thread >= 0, one, several)

    @property
    def cluster(self) -> int:
        """The number of blocks of a cluster."""
        return int(self.cluster_seen.shape[1])

    def in_block(self, rows: Array, rank: int) -> tuple[LockstepThreads, Array]:
        """The threads `rows` as if in block `rank` of their clusters, and the rows of their numbers there."""
        threads, target_rows = (
            self.select(rows),
            rows + (rank - self.block[rows] % self.cluster) * self.threads,
        )
        seen_there = np.where(target_rows == rows, threads.seen, threads.cluster_seen[:, rank])
        awaited = np.where(target_rows == rows, threads.awaited, seen_there)
        group_seen = np.where(target_rows == rows, threads.group_seen, seen_there)
        block = self.block[target_rows]
        return replace(
            threads, block=block, seen=seen_there, group_seen=group_seen, awaited=awaited
        ), target_rows

    @property
    def epoch(self) -> Array:
        """The clock of each thread's block."""
        return self.epochs[self.block]


@dataclass(slots=True)
class _AccessLog:
    """The last read, or the last write, of each element: its thread, epoch and block.

    `block` is None for the memory of a block, which no other block accesses.
    """

    thread: Array
    epoch: Array
    block: Array | None

    @staticmethod
    def empty(size: int, *, of_a_block: bool) -> _AccessLog:
        thread, epoch, block = (np.full(size, NOBODY, np.int64) for _ in range(3))
        return _AccessLog(thread, epoch, None if of_a_block else block)

    def unordered(self, at: Array, team: LockstepThreads, rows: Array) -> Array:
        """True where another thread's last access is unordered; accesses of other blocks always are."""
        thread, number, epoch = self.thread[at], team.number[rows], self.epoch[at]
        seen, awaited = team.seen[rows], team.awaited[rows]
        races: Array = (thread != number) & (epoch >= np.minimum(seen, awaited))
        if races.any():
            synchronized = np.where(thread == UNIT, awaited, seen)
            same = team.group_of(thread) == team.group_of(number)
            races &= epoch >= np.where(same, np.maximum(synchronized, team.group_seen[rows]), synchronized)
        if self.block is None:
            return races
        block, this_block = self.block[at], team.block[rows]
        return np.asarray(((block == this_block) & races) | ((block != NOBODY) & (block != this_block)))

    def record(self, at: Array, team: LockstepThreads, rows: Array, *, concurrent: bool) -> None:
        """Record accesses; with `concurrent`, unordered readers of one element are recorded as several."""
        number, now = team.number[rows], team.epoch[rows]
        last, last_epoch = self.thread[at], self.epoch[at]
        self.thread[at], self.epoch[at] = number, now
        if concurrent:
            several = (last_epoch >= team.seen[rows]) & (last != number)
            lost = self.thread[at] != number  # overwritten by another reader of this access
            if lost.any() or several.any():
                group = team.group_of(number)
                mixed = several & (team.group_of(last) != group)
                mixed |= lost & (team.group_of(self.thread[at]) != group)
                several |= lost
                self.thread[at[several]] = SEVERAL_IN_GROUP - group[several]
                self.thread[at[mixed]] = SEVERAL
        if self.block is not None:
            this_block, before = team.block[rows], self.block[at]
            self.block[at] = this_block
            if concurrent:
                other_block = ((before != NOBODY) & (before != this_block)) | (self.block[at] != this_block)
                self.block[at[other_block]] = SEVERAL


@dataclass(slots=True)
class Memory:
    """A buffer: `data` has a row for each instance; `row_of` has the row of each thread, None if all use one.

    `writes` and `reads` are logs of accesses, None unless several threads share elements and may write;
    `private` memory has an instance for each thread. `pending` marks elements of pending copies, which will
    hold `values`. `owners` tells which threads of a group (rows) hold which elements of a fragment (columns);
    `copies` consecutive instances of a fragment hold the same elements.
    """

    name: str
    extents: tuple[int, ...]
    data: Array
    written: Array
    row_of: Array | None
    writes: _AccessLog | None = None
    reads: _AccessLog | None = None
    private: bool = False
    pending: Array | None = None
    values: Array | None = None
    owners: Array | None = None
    copies: int = 1
    strides: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        tail = [prod(self.extents[n + 1 :]) for n in range(len(self.extents))]
        self.strides = tuple(tail)

    def log_accesses(self) -> None:
        """Start to record the accesses of elements."""
        size, inner = self.data.size, self.row_of is not None
        self.writes = _AccessLog.empty(size, of_a_block=inner)
        self.reads = _AccessLog.empty(size, of_a_block=inner)

    def load(self, index: list[Array], mask: Array | None, team: LockstepThreads) -> Array:
        """The elements at an index, a row per thread and a column per lane; 0 where the mask is false."""
        offset = self._uniform_offset(index)
        if offset is not None and self.written[:, offset].all():
            column = self.data[:, offset, None]
            if mask is None:
                return column.copy()  # a later store does not change it
            return np.where(mask, column, np.zeros((), column.dtype))
        at, rows, shape = self._resolve_index(index, mask, team)
        self._check_not_pending("reads", at, rows, team)
        written = self.written.ravel()[at]
        if not written.all():
            self._fail("reads what nobody wrote", at[~written], rows[~written], team)
        if self.writes is not None and self.reads is not None:
            races = self.writes.unordered(at, team, rows)
            if races.any():
                self._fail("reads what another thread writes", at[races], rows[races], team)
            self.reads.record(at, team, rows, concurrent=True)
        values = self.data.ravel()[at]
        if mask is None:
            return values.reshape(shape)
        result = np.zeros(shape, self.data.dtype)
        result[np.broadcast_to(mask, shape)] = values
        return result

    def store(self, index: list[Array], value: Array, mask: Array | None, team: LockstepThreads) -> None:
        """Write elements; Hazard for a race, unless it writes equal values."""
        offset = self._uniform_offset(index)
        if offset is not None and (mask is None or mask.shape[1] == 1) and value.shape[1] == 1:
            who: Any = slice(None) if mask is None else np.broadcast_to(mask, (team.size, 1))[:, 0]
            self.data[who, offset] = np.broadcast_to(value, (team.size, 1))[who, 0]
            self.written[who, offset] = True
            return
        at, rows, shape = self._resolve_index(index, mask, team)
        new = np.broadcast_to(value, shape)
        new = new.ravel() if mask is None else new[np.broadcast_to(mask, shape)]
        data = self.data.ravel()
        self._check_not_pending("writes", at, rows, team)
        self._check_write_race(at, rows, new, team)
        if self.writes is not None:
            self.writes.record(at, team, rows, concurrent=False)
        data[at] = new
        if self.writes is not None:
            races = (self.writes.thread[at] != team.number[rows]) & ~_same(data[at], new)
            if races.any():
                self._fail("writes what another thread writes", at[races], rows[races], team)
        self.written.ravel()[at] = True
        if self.copies > 1:
            self._check_copies(at, rows, team)

    def _check_copies(self, at: Array, rows: Array, team: LockstepThreads) -> None:
        """Raise Hazard if the threads that hold copies of one element have stored different values."""
        size = self.data.shape[1]
        first = at // size // self.copies * self.copies * size + at % size
        for n in range(self.copies):
            other = first + n * size
            races = self.written.ravel()[other] & ~_same(self.data.ravel()[other], self.data.ravel()[at])
            if races.any():
                self._fail("and another one keep different values of", at[races], rows[races], team)

    def _check_write_race(self, at: Array, rows: Array, new: Array, team: LockstepThreads) -> None:
        """Raise Hazard if a write races with an access of another thread, unless it writes an equal value."""
        if self.writes is None or self.reads is None:
            return
        races = self.reads.unordered(at, team, rows)
        if races.any():
            self._fail("writes what another thread reads", at[races], rows[races], team)
        races = self.writes.unordered(at, team, rows) & ~_same(self.data.ravel()[at], new)
        if races.any():
            self._fail("writes what another thread writes", at[races], rows[races], team)

    def _check_not_pending(self, does: str, at: Array, rows: Array, team: LockstepThreads) -> None:
        """Raise Hazard for an access to an element that a pending copy or instruction writes."""
        if self.pending is not None and self.pending[at].any():
            races, what = self.pending[at], "result" if self.values is None else "copy"
            self._fail(f"{does} a pending {what} before a wait", at[races], rows[races], team)

    def begin_copy(
        self, index: list[Array], value: Array, mask: Array | None, team: LockstepThreads
    ) -> tuple[Array, Array, Array]:
        """Start to copy values to elements; the offsets, threads and values to pass to `complete_copy`."""
        at, rows, shape = self._resolve_index(index, mask, team)
        new = np.broadcast_to(value, shape)
        new = new.ravel() if mask is None else new[np.broadcast_to(mask, shape)]
        self._mark_copies(at, rows, new, team)
        return at, rows, new

    def begin_copy_at(
        self, index: list[Array], values: Array, rows: Array, team: LockstepThreads, rank: int = -1
    ) -> tuple[Array, Array, Array]:
        """As `begin_copy`, by the threads `rows`; into block `rank` of their clusters unless it is -1."""
        at_block, target_rows = team.in_block(rows, rank) if rank >= 0 else (team.select(rows), rows)
        view = replace(self, row_of=None if self.row_of is None else self.row_of[target_rows])
        at, local, _ = view._resolve_index(index, None, at_block)
        new = values.ravel()
        self._mark_copies(at, local, new, at_block)
        return at, target_rows[local], new

    def _mark_copies(self, at: Array, rows: Array, new: Array, team: LockstepThreads) -> None:
        if self.pending is None or self.values is None:
            self.pending = np.zeros(self.data.size, bool)
            self.values = np.zeros(self.data.size, self.data.dtype)
        races = self.pending[at] & ~_same(self.values[at], new)
        if races.any():
            self._fail("writes a pending copy before a wait", at[races], rows[races], team)
        self._check_write_race(at, rows, new, team)
        self.pending[at], self.values[at] = True, new

    def offsets(self, index: list[Array], team: LockstepThreads) -> Array:
        """The offsets in `data` of the elements at an index, as a flat array."""
        return self._resolve_index(index, None, team)[0]

    def mark_pending(self, at: Array, *, pending: bool) -> None:
        """Mark elements as pending, or as complete."""
        if self.pending is None:
            self.pending = np.zeros(self.data.size, bool)
        self.pending[at] = pending

    def complete_copy(
        self, at: Array, rows: Array, values: Array, team: LockstepThreads, *, by_unit: bool = False
    ) -> None:
        """Complete copies, as if their threads, or the TMA unit, wrote the values now."""
        assert self.pending is not None
        self.pending[at] = False
        self.data.ravel()[at] = values
        self.written.ravel()[at] = True
        if self.writes is not None:
            self.writes.record(at, team, rows, concurrent=False)
            if by_unit:
                self.writes.thread[at] = UNIT

    def update(
        self,
        index: list[Array],
        value: Array,
        mask: Array | None,
        team: LockstepThreads,
        function: Any,
    ) -> None:
        """Update elements atomically; updates do not race with each other."""
        at, rows, shape = self._resolve_index(index, mask, team)
        written = self.written.ravel()[at]
        if not written.all():
            self._fail("updates what nobody wrote", at[~written], rows[~written], team)
        new = np.broadcast_to(value, shape)
        new = new.ravel() if mask is None else new[np.broadcast_to(mask, shape)]
        function.at(self.data.reshape(-1), at, new)

    def invalidate(self, rows: Array | None) -> None:
        """Mark the contents of some instances, or of all, as undefined."""
        self.written[slice(None) if rows is None else rows] = False

    def _uniform_offset(self, index: list[Array]) -> int | None:
        """The offset of an element of private memory if all threads have the same index; else None."""
        if not self.private or any(i.size != 1 for i in index):
            return None
        at = [int(i.item()) for i in index]
        if any(not 0 <= i < n for i, n in zip(at, self.extents, strict=True)):
            return None  # `_resolve_index` raises the error
        return sum(i * step for i, step in zip(at, self.strides, strict=True))

    def _resolve_index(
        self, index: list[Array], mask: Array | None, team: LockstepThreads
    ) -> tuple[Array, Array, tuple[int, int]]:
        """Offsets in `data` and threads where the mask is true, flat, and the shape (threads, lanes)."""
        lanes = max((x.shape[1] for x in (*index, mask) if x is not None), default=1)
        mask = None if mask is None or mask.all() else mask
        shape = (team.size, lanes)
        offset = np.zeros((1, 1), np.int64)
        for axis, (i, extent) in enumerate(zip(index, self.extents, strict=True)):
            inside = (i >= 0) & (i < extent)
            if mask is not None:
                inside = inside | ~mask
            if not inside.all():
                row = int(np.argwhere(~np.broadcast_to(inside, shape))[0][0])
                wrong = np.broadcast_to(i, shape)[~np.broadcast_to(inside, shape)].ravel()[0]
                raise Hazard(
                    f"{team.kernel}: thread {team.number[row]} of block {team.block[row]} uses index {wrong} "
                    f"on axis {axis} of {self.name!r}, which has {extent} elements there"
                )
            offset = offset + i * self.strides[axis]
        if self.row_of is not None:
            offset = offset + (self.row_of * prod(self.extents))[:, None]
        if self.owners is not None:
            elements = np.broadcast_to(offset, shape) % self.owners.shape[1]
            self._check_owners(elements, mask, team)
        offset, rows = np.broadcast_to(offset, shape), np.arange(team.size)
        if mask is None:
            return offset.ravel(), np.repeat(rows, shape[1]), shape
        chosen = np.broadcast_to(mask, shape)
        return offset[chosen], np.broadcast_to(rows[:, None], shape)[chosen], shape

    def _check_owners(self, element: Array, mask: Array | None, team: LockstepThreads) -> None:
        assert self.owners is not None
        wrong = ~self.owners[(team.number % len(self.owners))[:, None], element]
        if mask is not None:
            wrong = wrong & mask
        if wrong.any():
            row, lane = np.argwhere(wrong)[0]
            at, rows = element[row, lane][None], np.asarray([row])
            self._fail("touches what another thread has in its registers", at, rows, team)

    def _fail(self, what: str, at: Array, rows: Array, team: LockstepThreads) -> None:
        place = np.unravel_index(int(at[0]) % max(prod(self.extents), 1), self.extents or (1,))
        index = ", ".join(map(str, map(int, place))) if self.extents else "()"
        row = int(rows[0])
        who = f"thread {team.number[row]} of block {team.block[row]}"
        raise Hazard(f"{team.kernel}: {who} {what}: {self.name}[{index}]")


def order_accesses(kernel: str, memories: Iterable[Memory], mask: Array | None) -> None:
    """Order all accesses so far before all later ones (grid barrier); Hazard if a thread is missing."""
    if mask is not None and not mask.all():
        raise Hazard(f"{kernel}: some threads of the grid do not arrive at a barrier of all blocks")
    for memory in memories:
        if memory.writes is not None:
            memory.log_accesses()


def argument_memory(name: str, array: Array, *, written: bool) -> Memory:
    """The memory of an argument; elements of one that the kernels write are a copy and not yet written."""
    data = np.ascontiguousarray(array).reshape(1, -1)
    return Memory(name, array.shape, data.copy() if written else data, np.full(data.shape, not written), None)


def new_memory(name: str, dtype: Any, extents: tuple[int, ...], count: int, rows: Array | None) -> Memory:
    """Memory of `count` instances, of which nothing is written; `rows` has the instance of each thread."""
    shape = (count, prod(extents))
    return Memory(name, extents, np.zeros(shape, dtype), np.zeros(shape, bool), rows)


def _same(a: Array, b: Array) -> Array:
    """True where values are equal, or both NaN."""
    return np.asarray((a == b) | ((a != a) & (b != b)))


def and_masks(a: Array | None, b: Array | None) -> Array | None:
    """The threads and lanes that are in both masks; None for all."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def constants(extents: Sequence[Expr]) -> tuple[int, ...]:
    """The values of constant extents."""
    return tuple(int(e.value) for e in extents if isinstance(e, Const))
