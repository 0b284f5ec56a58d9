"""Emulates asynchronous instructions of thread groups (wgmma), which execute when their threads wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tdsl.codegen.emulation.instructions import Tile, elements, run_instruction
from tdsl.codegen.emulation.memory import Array, LockstepThreads
from tdsl.errors import Hazard
from tdsl.machine.instructions.instruction import Instruction


@dataclass(slots=True)
class _Begun:
    """A pending instruction: its threads, the commit group of each, and its operands' values at issue."""

    chosen: Instruction
    tiles: Sequence[Tile]
    live: Array
    group: Array
    taken: list[Array]

    @property
    def first(self) -> Array:
        """The first thread of each group of threads that runs the instruction."""
        threads = self.chosen.threads
        return np.asarray(np.flatnonzero(self.live[::threads, 0]) * threads)

    def part(self, live: Array) -> _Begun:
        """The same instruction in some of its groups of threads."""
        among = live[self.first, 0]
        taken = [x if len(x) == 1 else x[among] for x in self.taken]
        return replace(self, live=live, taken=taken)


@dataclass(slots=True)
class Products:
    """The pending instructions of a crew; `groups` counts the commit groups of each thread.

    Instructions execute as late as possible, when threads wait for them; until then their operands must not
    change, and threads must not access their results.
    """

    crew: LockstepThreads
    begun: list[_Begun] = field(default_factory=list)
    groups: Array = field(init=False)

    def __post_init__(self) -> None:
        self.groups = np.zeros(self.crew.size, np.int64)

    def begin(self, chosen: Instruction, tiles: Sequence[Tile], live: Array) -> None:
        """Issue an instruction in the groups of threads that are live."""
        begun = _Begun(chosen, tiles, live, self.groups.copy(), [])
        begun.taken = [self.read(begun, n) for n in range(1, len(tiles))]
        self.begun.append(begun)
        self.mark(begun, coming=True)

    def read(self, x: _Begun, n: int) -> Array:
        """The values of operand `n`, a row for each group of threads."""
        memory, index = elements(x.tiles[n], x.chosen.shapes()[n], x.first)
        return memory.load(index, None, self.crew.of(x.first))

    def mark(self, x: _Begun, *, coming: bool) -> None:
        """Mark the results of an instruction as pending, or as complete."""
        memory, index = elements(x.tiles[0], x.chosen.shapes()[0], x.first)
        x.tiles[0][0].announce(memory.places(index, self.crew.of(x.first)), coming=coming)

    def commit(self, mask: Array | None) -> None:
        """Close the current group of each thread in `mask`: its instructions since its last commit."""
        self.groups[slice(None) if mask is None else mask[:, 0]] += 1

    def wait(self, pending: int, mask: Array | None) -> None:
        """Execute the instructions of each thread in `mask`, except its last `pending` groups."""
        came = np.ones(self.crew.size, bool) if mask is None else mask[:, 0]
        left: list[_Begun] = []
        for x in self.begun:
            done = x.live & (came & (x.group < self.groups - pending))[:, None]
            if done.any():
                self.make(x.part(done))
            if not done[x.first].all():
                left.append(x.part(x.live & ~done))
        self.begun = left
        for x in left:
            self.mark(x, coming=True)

    def make(self, x: _Begun) -> None:
        """Execute an instruction; Hazard if an operand has changed since the issue."""
        self.mark(x, coming=False)
        for n, before in enumerate(x.taken, 1):
            now = self.read(x, n)
            if not ((now == before) | (before != before)).all():
                raise Hazard(
                    f"{self.crew.kernel}: {x.tiles[n][0].name!r} is written while {x.chosen.name} reads it"
                )
        run_instruction(x.chosen, x.tiles, x.live, self.crew)

    def finish(self) -> None:
        """Raise Hazard if an instruction is still pending when its threads end."""
        for x in self.begun:
            raise Hazard(
                f"{self.crew.kernel}: threads end before {x.chosen.name}, for which there is no wait"
            )
