"""Emulates asynchronous copies to shared memory (cp.async), which complete when their thread waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tdsl.codegen.emulation.memory import Array, LockstepThreads, Memory
from tdsl.errors import Hazard


@dataclass(slots=True)
class _PendingCopy:
    """Elements of a pending copy: offsets, values, and for each its thread and its commit group."""

    memory: Memory
    at: Array
    rows: Array
    values: Array
    commit_group: Array


@dataclass(slots=True)
class AsyncCopies:
    """The pending copies of threads in lockstep; `commit_groups` counts the commit groups of each thread."""

    team: LockstepThreads
    pending_copies: list[_PendingCopy] = field(default_factory=list)
    commit_groups: Array = field(init=False)

    def __post_init__(self) -> None:
        self.commit_groups = np.zeros(self.team.size, np.int64)

    def issue(self, memory: Memory, index: list[Array], value: Array, mask: Array | None) -> None:
        """Start to copy values to elements, which must not be accessed before the copy completes."""
        at, rows, values = memory.begin_copy(index, value, mask, self.team)
        self.pending_copies.append(_PendingCopy(memory, at, rows, values, self.commit_groups[rows]))

    def commit(self, mask: Array | None) -> None:
        """Close the current commit group of each thread in `mask`: its copies since its last commit."""
        self.commit_groups[slice(None) if mask is None else mask[:, 0]] += 1

    def wait(self, pending: int, mask: Array | None) -> None:
        """Complete the copies of each thread in `mask`, except its last `pending` commit groups."""
        waiting = np.ones(self.team.size, bool) if mask is None else mask[:, 0]
        remaining: list[_PendingCopy] = []
        for x in self.pending_copies:
            done = waiting[x.rows] & (x.commit_group < self.commit_groups[x.rows] - pending)
            x.memory.complete_copy(x.at[done], x.rows[done], x.values[done], self.team)
            if not done.all():
                rest = ~done
                parts = (part[rest] for part in (x.at, x.rows, x.values, x.commit_group))
                remaining.append(_PendingCopy(x.memory, *parts))
        self.pending_copies = remaining

    def finish(self) -> None:
        """Raise Hazard if a copy is still pending when its thread ends."""
        for x in self.pending_copies:
            raise Hazard(
                f"{self.team.kernel}: thread {self.team.number[x.rows[0]]} of block "
                f"{self.team.block[x.rows[0]]} ends before its copy to {x.memory.name!r}, for which there is "
                "no wait"
            )
