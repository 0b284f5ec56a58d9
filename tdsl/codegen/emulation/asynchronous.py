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
class _PendingInstruction:
    """A pending instruction: its `active` threads, their commit groups, its operands' values at issue."""

    instruction: Instruction
    tiles: Sequence[Tile]
    active: Array
    commit_group: Array
    operand_values: list[Array]

    @property
    def first(self) -> Array:
        """The first thread of each thread group that runs the instruction."""
        threads = self.instruction.threads
        return np.asarray(np.flatnonzero(self.active[::threads, 0]) * threads)

    def select_groups(self, active: Array) -> _PendingInstruction:
        """The same instruction in the thread groups in `active`, some of its own."""
        among = active[self.first, 0]
        operand_values = [x if len(x) == 1 else x[among] for x in self.operand_values]
        return replace(self, active=active, operand_values=operand_values)


@dataclass(slots=True)
class PendingInstructions:
    """The pending instructions of threads in lockstep; `commit_groups` counts each thread's.

    Instructions execute as late as possible, when threads wait for them; until then their operands must not
    change, and threads must not access their results.
    """

    team: LockstepThreads
    pending_instructions: list[_PendingInstruction] = field(default_factory=list)
    commit_groups: Array = field(init=False)

    def __post_init__(self) -> None:
        self.commit_groups = np.zeros(self.team.size, np.int64)

    def issue(self, instruction: Instruction, tiles: Sequence[Tile], active: Array) -> None:
        """Issue an instruction in the thread groups in `active`."""
        issued = _PendingInstruction(instruction, tiles, active, self.commit_groups.copy(), [])
        issued.operand_values = [self.read(issued, n) for n in range(1, len(tiles))]
        self.pending_instructions.append(issued)
        self.mark_results(issued, pending=True)

    def read(self, x: _PendingInstruction, n: int) -> Array:
        """The values of operand `n`, a row for each thread group."""
        memory, index = elements(x.tiles[n], x.instruction.shapes()[n], x.first)
        return memory.load(index, None, self.team.select(x.first))

    def mark_results(self, x: _PendingInstruction, *, pending: bool) -> None:
        """Mark the results of an instruction as pending, or as complete."""
        memory, index = elements(x.tiles[0], x.instruction.shapes()[0], x.first)
        x.tiles[0][0].mark_pending(memory.offsets(index, self.team.select(x.first)), pending=pending)

    def commit(self, mask: Array | None) -> None:
        """Close the current commit group of each thread in `mask`: its instructions since its last commit."""
        self.commit_groups[slice(None) if mask is None else mask[:, 0]] += 1

    def wait(self, pending: int, mask: Array | None) -> None:
        """Execute the instructions of each thread in `mask`, except its last `pending` commit groups."""
        waiting = np.ones(self.team.size, bool) if mask is None else mask[:, 0]
        remaining: list[_PendingInstruction] = []
        for x in self.pending_instructions:
            done = x.active & (waiting & (x.commit_group < self.commit_groups - pending))[:, None]
            if done.any():
                self.execute(x.select_groups(done))
            if not done[x.first].all():
                remaining.append(x.select_groups(x.active & ~done))
        self.pending_instructions = remaining
        for x in remaining:
            self.mark_results(x, pending=True)

    def execute(self, x: _PendingInstruction) -> None:
        """Execute an instruction; Hazard if an operand has changed since the issue."""
        self.mark_results(x, pending=False)
        for n, before in enumerate(x.operand_values, 1):
            now = self.read(x, n)
            if not ((now == before) | (before != before)).all():
                raise Hazard(
                    f"{self.team.kernel}: {x.tiles[n][0].name!r} is written while"
                    f" {x.instruction.name} reads it"
                )
        run_instruction(x.instruction, x.tiles, x.active, self.team)

    def finish(self) -> None:
        """Raise Hazard if an instruction is still pending when its threads end."""
        for x in self.pending_instructions:
            raise Hazard(
                f"{self.team.kernel}: threads end before {x.instruction.name}, for which there is no wait"
            )
