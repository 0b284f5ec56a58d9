"""Emulates asynchronous copies to shared memory (cp.async), which complete when their thread waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tdsl.codegen.emulation.memory import Array, LockstepThreads, Memory
from tdsl.errors import Hazard


@dataclass(slots=True)
class _Begun:
    """Elements of a pending copy: offsets, values, and for each its thread and its commit group."""

    memory: Memory
    at: Array
    rows: Array
    values: Array
    group: Array


@dataclass(slots=True)
class Copies:
    """The pending copies of a crew; `groups` counts the groups that each thread has committed."""

    crew: LockstepThreads
    begun: list[_Begun] = field(default_factory=list)
    groups: Array = field(init=False)

    def __post_init__(self) -> None:
        self.groups = np.zeros(self.crew.size, np.int64)

    def begin(self, memory: Memory, index: list[Array], value: Array, mask: Array | None) -> None:
        """Start to copy values to elements, which must not be accessed before the copy completes."""
        at, rows, values = memory.begin(index, value, mask, self.crew)
        self.begun.append(_Begun(memory, at, rows, values, self.groups[rows]))

    def commit(self, mask: Array | None) -> None:
        """Close the current group of each thread in `mask`: its copies since its last commit."""
        self.groups[slice(None) if mask is None else mask[:, 0]] += 1

    def wait(self, pending: int, mask: Array | None) -> None:
        """Complete the copies of each thread in `mask`, except its last `pending` groups."""
        came = np.ones(self.crew.size, bool) if mask is None else mask[:, 0]
        left: list[_Begun] = []
        for x in self.begun:
            done = came[x.rows] & (x.group < self.groups[x.rows] - pending)
            x.memory.end(x.at[done], x.rows[done], x.values[done], self.crew)
            if not done.all():
                rest = ~done
                parts = (part[rest] for part in (x.at, x.rows, x.values, x.group))
                left.append(_Begun(x.memory, *parts))
        self.begun = left

    def finish(self) -> None:
        """Raise Hazard if a copy is still pending when its thread ends."""
        for x in self.begun:
            raise Hazard(
                f"{self.crew.kernel}: thread {self.crew.number[x.rows[0]]} of block "
                f"{self.crew.block[x.rows[0]]} ends before its copy to {x.memory.name!r}, for which there is "
                "no wait"
            )
