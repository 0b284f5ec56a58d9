"""Emulates a kernel of a GPU: runs its statements on all threads at once, as the reference of GPU loops.

A value has a row for each thread, or one for all, and a column for each vector lane, or one. Threads run in
lockstep, statement by statement; a mask says which of them take part if not all do. `memory.Memory` detects
results that depend on the order of threads between two barriers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tdsl.codegen.emulation.asynchronous import PendingInstructions
from tdsl.codegen.emulation.copies import AsyncCopies
from tdsl.codegen.emulation.instructions import run_instruction
from tdsl.codegen.emulation.mbarriers import PhaseBarriers
from tdsl.codegen.emulation.memory import (
    Array,
    LockstepThreads,
    Memory,
    and_masks,
    argument_memory,
    constants,
    new_memory,
    order_accesses,
)  # fmt: skip
from tdsl.codegen.emulation.serial import evaluation_order, is_of_leaders, is_single_threaded
from tdsl.codegen.gpu.launches import THREAD_PREFIX, Launch, Launches, launches_of
from tdsl.codegen.gpu.limits import check_grid, check_limits
from tdsl.codegen.ir.loops import (
    AXES,
    BLOCKS,
    LANES,
    SHARED,
    WARP,
    Alloc,
    ArriveBarrier,
    Barrier,
    Block,
    BufferParam,
    Check,
    Commit,
    CopyTile,
    For,
    If,
    InitBarriers,
    Invoke,
    Kernel,
    Let,
    Message,
    Prefetch,
    Print,
    ScalarParam,
    Shuffle,
    SizeParam,
    Stmt,
    Store,
    Wait,
    WaitBarrier,
    WarpSpecialize,
)  # fmt: skip
from tdsl.codegen.ir.show import message_text
from tdsl.codegen.ir.statements import stored_in
from tdsl.codegen.passes.bind_sizes import bind_sizes
from tdsl.codegen.runtime.failure import check_error
from tdsl.errors import Hazard
from tdsl.lang import arithmetic
from tdsl.lang.expr import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Ramp,
    Select,
    Unary,
    Var,
)  # fmt: skip
from tdsl.machine.devices import describe_gpu
from tdsl.machine.instructions.instruction import INSTRUCTIONS

MOST_THREADS = 1 << 17  # threads run in lockstep; more cost memory and save no time


class EmulatedExecutable:
    """A kernel of a GPU as a callable that runs on the CPU; raises `Hazard` for races and deadlocks.

    Launches that exceed the limits of the architecture are refused with the errors of compilation.
    """

    fast = None

    def __init__(self, kernel: Kernel, arch: str = "") -> None:
        self.kernel, self.params = kernel, kernel.arguments
        self._sizes = {p.name: n for n, p in enumerate(kernel.params) if isinstance(p, SizeParam)}
        self.launches = launches_of(kernel)
        check_limits(self.launches, describe_gpu(arch))

    def run(self, arguments: Sequence[Any]) -> None:
        """Run on arrays, scalars and sizes in the order of `kernel.params`."""
        run_launches(*self.bound(arguments))

    def bound(self, arguments: Sequence[Any]) -> tuple[Launches, Sequence[Any]]:
        """The launches for the sizes among the arguments of a call, and its other arguments."""
        if not self._sizes:
            return self.launches, arguments
        launches = launches_of(
            bind_sizes(self.kernel, {s: int(arguments[n]) for s, n in self._sizes.items()})
        )
        for x in launches.launches:
            check_grid(x.name, x.grid)
        return launches, [x for n, x in enumerate(arguments) if n not in self._sizes.values()]


def run_launches(launches: Launches, arguments: Sequence[Any]) -> None:
    """Run all launches in order, on copies of the arrays; results are written back at the end."""
    memories: dict[str, Memory] = {}
    scalars: dict[str, Array] = {}
    for p, value in zip(launches.kernel.params, arguments, strict=True):
        if isinstance(p, BufferParam):
            memories[p.name] = argument_memory(p.name, value, written=p.written)
        elif isinstance(p, ScalarParam):
            scalars[p.name] = np.asarray(value, p.dtype.numpy).reshape(1, 1)
    for t in launches.temporaries:
        memories[t.name] = new_memory(t.name, t.dtype.numpy, constants(t.extents), 1, None)
    for launch in launches.launches:
        _run_launch(launch, memories, scalars, launches.kernel.messages)
    for p, value in zip(launches.kernel.params, arguments, strict=True):
        if isinstance(p, BufferParam) and p.written:
            value[...] = memories[p.name].data.reshape(value.shape)


def _run_launch(
    launch: Launch, memories: dict[str, Memory], scalars: dict[str, Array], messages: tuple[Message, ...]
) -> None:  # fmt: skip
    """Run a launch in batches of blocks; the access records of one batch are kept for the next."""
    written, is_serial = stored_in(launch.body), is_single_threaded(launch)
    for name, memory in memories.items():
        memory.private = is_serial
        if name in written and not is_serial:
            memory.log_accesses()
    threads, blocks = prod(launch.block), prod(map(launch.extent, BLOCKS))
    epochs = np.zeros(blocks, np.int64)
    most = threads * blocks if launch.cooperative else MOST_THREADS
    step = max(1, most // (threads * launch.cluster)) * launch.cluster
    for first in range(0, blocks, step):
        count = min(step, blocks - first)
        block = np.repeat(np.arange(first, first + count), threads)
        number = np.tile(np.arange(threads), count)
        team = LockstepThreads.of_threads(
            launch.name, block, number, epochs, launch.block[0], threads, launch.cluster
        )
        with np.errstate(all="ignore"):
            BlockBatch(launch, team, first, dict(memories), dict(scalars), messages).run()
    for memory in memories.values():
        memory.private, memory.writes, memory.reads = False, None, None


@dataclass(slots=True)
class BlockBatch:
    """A batch of blocks of a launch; `axes` has each thread's indices. `bound`: axes of enclosing loops."""

    launch: Launch
    team: LockstepThreads
    first: int
    memories: dict[str, Memory]
    scalars: dict[str, Array]
    messages: tuple[Message, ...]
    axes: dict[str, Array] = field(default_factory=dict)
    leaders: dict[frozenset[str], Array | None] = field(default_factory=dict)
    serial: dict[int, bool] = field(default_factory=dict)
    allocations: dict[int, Memory] = field(default_factory=dict)
    copies: AsyncCopies = field(init=False)
    instructions: PendingInstructions = field(init=False)
    mbarriers: dict[str, PhaseBarriers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.copies, self.instructions = AsyncCopies(self.team), PendingInstructions(self.team)

    def run(self) -> None:
        """Run the body of the launch."""
        rest, block = self.team.number, self.team.block
        for axis in AXES:
            which = block if axis in BLOCKS else rest
            extent = self.launch.extent(axis)
            self.axes[axis] = (which % extent)[:, None]
            if axis in BLOCKS:
                block = block // extent
            else:
                rest = rest // extent
        for stuck in self.statement(self.launch.body, None, frozenset()):
            raise stuck
        self.copies.finish()
        self.instructions.finish()

    def statement(self, s: Stmt, mask: Array | None, bound: frozenset[str]) -> Iterator[Hazard]:
        """Run a statement for the threads in `mask`, inside loops over the axes `bound`.

        While its threads wait for other threads, yields the Hazard to raise if they wait forever.
        """
        leaders = self.leaders_outside(bound)
        if leaders is not None and is_of_leaders(s, self.serial):
            yield from self.masked_statement(s, leaders, mask, frozenset(AXES))
            return
        match s:
            case Block(body):
                for part in body:
                    yield from self.statement(part, mask, bound)
            case For():
                yield from self.loop(s, mask, bound)
            case Let(name, value, body):
                self.scalars[name] = self.value(value, mask)
                yield from self.statement(body, mask, bound)
            case Alloc():
                self.alloc(s, mask)
                yield from self.statement(s.body, mask, bound)
            case If(cond, then, orelse):
                condition = self.value(cond, mask)
                yield from self.masked_statement(then, condition, mask, bound)
                if orelse is not None:
                    yield from self.masked_statement(orelse, ~condition, mask, bound)
            case InitBarriers():
                self.barrier(mask)
                barriers = PhaseBarriers(s.name, s.slots, s.arrivals, self.team, self.first)
                self.mbarriers[s.name] = barriers
                yield from self.statement(s.body, mask, bound)
                barriers.finish()
            case WaitBarrier(name, slot, parity):
                where = self.value(slot, mask), self.value(parity, mask), mask
                while not self.mbarriers[name].wait(*where):
                    yield self.mbarriers[name].deadlock_error(*where)
            case WarpSpecialize(parts):
                yield from self.run_warp_specialised(parts, mask, bound)
            case _:
                self.run_immediately(s, mask, bound)

    def run_immediately(self, s: Stmt, mask: Array | None, bound: frozenset[str]) -> None:
        """Run a statement that never yields to other threads."""
        match s:
            case Store():
                self.store(s, and_masks(mask, self.leaders_outside(bound)))
            case Barrier(group, grid):
                self.barrier(mask, of_groups=group)
                if grid:
                    order_accesses(self.launch.name, self.memories.values(), mask)
            case Shuffle():
                self.shuffle(s, mask, and_masks(mask, self.leaders_outside(bound)))
            case ArriveBarrier(name, slot, count):
                who = and_masks(mask, self.leaders_outside(bound)) if count else mask
                if s.per_warp:
                    who = self.warp_leaders(mask)
                self.mbarriers[name].arrive(self.value(slot, mask), count, who, s.blocks)
            case CopyTile():
                self.copy_tile(s, and_masks(mask, self.leaders_outside(bound)))
            case Commit(mma):
                (self.instructions if mma else self.copies).commit(mask)
            case Wait(pending, mma):
                (self.instructions if mma else self.copies).wait(pending, mask)
            case Prefetch():
                pass
            case Check():
                self.check(s, and_masks(mask, self.leaders_outside(bound)))
            case Print():
                self.print(s, and_masks(mask, self.leaders_outside(bound)))
            case Invoke():
                self.invoke(s, mask, bound)
            case _:
                raise AssertionError(f"no kernel of a GPU has a {type(s).__name__}")

    def run_warp_specialised(
        self, parts: Sequence[Stmt], mask: Array | None, bound: frozenset[str]
    ) -> Iterator[Hazard]:
        """Run warp-specialised parts in turns, each until it waits for another part."""
        running = []
        for part in parts:
            batch = copy.copy(self)
            batch.scalars, batch.memories = dict(self.scalars), dict(self.memories)
            running.append(batch.statement(part, mask, bound))
        while running:
            before = int(self.team.epochs.sum())
            waiting = [(x, why) for x in running if (why := next(x, None)) is not None]
            stuck = len(waiting) == len(running) and before == int(self.team.epochs.sum())
            if stuck:  # enclosing parts may make progress
                yield waiting[0][1]
            running = [x for x, _ in waiting]

    def masked_statement(
        self, s: Stmt, condition: Array, mask: Array | None, bound: frozenset[str]
    ) -> Iterator[Hazard]:
        """Run a statement for those threads in `mask` whose condition is true."""
        assert condition.shape[1] == 1, "lanes differ by masks only"
        if condition.all():
            yield from self.statement(s, mask, bound)
        else:
            both = and_masks(mask, condition)
            if both is not None and both.any():
                full_mask = np.broadcast_to(both, (self.team.size, 1))
                yield from self.statement(s, full_mask, bound)

    def loop(self, s: For, mask: Array | None, bound: frozenset[str]) -> Iterator[Hazard]:
        """Run a loop: on threads or blocks at once, else one iteration after the other."""
        lo, extent = self.value(s.lo, mask), self.value(s.extent, mask)
        if s.kind in AXES:
            number = self.axes[s.kind]
            self.scalars[s.name] = lo + number
            yield from self.masked_statement(s.body, number < extent, mask, bound | {s.kind})
            return
        extents = extent if mask is None else np.broadcast_to(extent, mask.shape)[mask]
        trip_count = int(extents.max(initial=0))
        is_uniform = int(extents.min(initial=trip_count)) == trip_count
        for n in range(trip_count):
            self.scalars[s.name] = lo + n
            if is_uniform:
                yield from self.statement(s.body, mask, bound)
            else:
                yield from self.masked_statement(s.body, n < extent, mask, bound)

    def leaders_outside(self, bound: frozenset[str]) -> Array | None:
        """The mask of the threads with index 0 on all axes that no enclosing loop runs over."""
        if bound not in self.leaders:
            leader_mask: Array | None = None
            for axis in AXES:
                if axis not in bound and self.launch.extent(axis) > 1:
                    leader_mask = and_masks(leader_mask, self.axes[axis] == 0)
            self.leaders[bound] = leader_mask
        return self.leaders[bound]

    def alloc(self, s: Alloc, mask: Array | None) -> None:
        """Allocate memory of blocks or threads: the same at each execution, with undefined contents."""
        memory = self.allocations.get(id(s))
        if memory is None:
            extents = constants(s.extents)
            shared = s.scope == SHARED
            rows = self.team.block - self.first if shared else np.arange(self.team.size)
            fragment = self.launch.fragments.get(s.name)
            if fragment is not None:
                threads, copy = fragment.layout.threads, fragment.layout.copy_of(rows)
                rows = rows // threads * fragment.layout.copy_count + copy
            count = int(rows.max()) + 1
            memory = self.allocations[id(s)] = new_memory(s.name, s.dtype.numpy, extents, count, rows)
            memory.private = not shared and fragment is None
            if fragment is not None:
                memory.owners = fragment.layout.owned_by(extents)
                memory.copies = fragment.layout.copy_count
            if shared:
                memory.log_accesses()
        elif memory.row_of is not None:
            memory.invalidate(None if mask is None else np.unique(memory.row_of[mask[:, 0]]))
        self.memories[s.name] = memory

    def store(self, s: Store, mask: Array | None) -> None:
        """Write, update or begin to copy elements."""
        if s.mask is not None:
            mask = and_masks(mask, self.value(s.mask, mask))
        if mask is not None and not mask.any():
            return
        index = [self.value(i, mask) for i in s.index]
        value, memory = self.value(s.value, mask), self.memories[s.buffer]
        if s.asynchronous:
            self.copies.issue(memory, index, value, mask)
        elif s.atomic:
            function = arithmetic.BINARY[s.atomic]
            memory.update(index, value, mask, self.team, function)
        else:
            memory.store(index, value, mask, self.team)

    def warp_leaders(self, mask: Array | None) -> Array:
        """The mask of the first threads of warps; Hazard if only part of a warp is in `mask`."""
        arrived = np.ones(self.team.size, bool) if mask is None else mask[:, 0]
        is_partial = arrived.reshape(-1, WARP).any(axis=1) & ~arrived.reshape(-1, WARP).all(axis=1)
        if is_partial.any():
            row = int(np.flatnonzero(is_partial)[0]) * WARP
            raise Hazard(
                f"{self.launch.name}: only part of the warp of thread {self.team.number[row]} of block "
                f"{self.team.block[row]} arrives at an mbarrier"
            )
        return np.asarray(arrived & (np.arange(self.team.size) % WARP == 0))[:, None]

    def copy_tile(self, s: CopyTile, mask: Array | None) -> None:
        """Begin the copy of a tile."""
        index, start = ([self.value(i, mask) for i in part] for part in (s.index, s.start))
        to, source = self.memories[s.buffer], self.memories[s.source]
        slot = self.value(s.slot, mask)
        self.mbarriers[s.mbarriers].copy(to, index, source, start, s.extents, slot, mask, s.blocks)

    def barrier(self, mask: Array | None, *, of_groups: bool = False) -> None:
        """Synchronise the threads of blocks or of groups; Hazard if some of them do not arrive."""
        rows = np.arange(self.team.size) if mask is None else np.flatnonzero(mask[:, 0])
        if mask is not None:
            size = self.launch.block[0] if of_groups else prod(self.launch.block)
            arrived = mask.reshape(-1, size).sum(axis=1)
            is_partial = (arrived > 0) & (arrived < size)
            if is_partial.any():
                n = int(np.flatnonzero(is_partial)[0])
                raise Hazard(
                    f"{self.launch.name}: {arrived[n]} of {size} threads of block "
                    f"{self.team.block[n * size]} arrive at a barrier"
                )
        if of_groups:
            self.team.synchronize_groups(rows)
        else:
            self.team.synchronize(rows)

    def check(self, s: Check, mask: Array | None) -> None:
        """Raise the error of a check for the first thread whose condition is false."""
        failed = np.broadcast_to(~self.value(s.cond, mask), (self.team.size, 1))
        failed = failed if mask is None else failed & mask
        if failed.any():
            row = int(np.flatnonzero(failed)[0])
            shown = (np.broadcast_to(self.value(v, mask), failed.shape) for v in s.values)
            raise check_error(self.messages[s.site], tuple(v[row, 0] for v in shown))

    def print(self, s: Print, mask: Array | None) -> None:
        """Print a line for each thread whose condition is true."""
        shape = self.team.size, 1
        condition = np.broadcast_to(self.value(s.cond, mask), shape)
        condition = condition if mask is None else condition & mask
        values = [np.broadcast_to(self.value(v, mask), shape) for v in s.values]
        for row in np.flatnonzero(condition):
            thread = THREAD_PREFIX.format(*(self.axes[a][row, 0] for a in AXES[1:]))
            text = message_text(self.messages[s.site], tuple(v[row, 0].item() for v in values))
            print(thread + text)  # noqa: T201  # what td.debug_print asks for

    def shuffle(self, s: Shuffle, mask: Array | None, using: Array | None) -> None:
        """Give each thread in `using` its partner's value; `mask` must contain whole groups of lanes."""
        if mask is not None:
            arrived = mask[:, 0].reshape(-1, s.width)
            is_partial = arrived.any(axis=1) & ~arrived.all(axis=1)
            if is_partial.any():
                row = int(np.flatnonzero(is_partial)[0]) * s.width
                raise Hazard(
                    f"{self.launch.name}: {arrived[row // s.width].sum()} of {s.width} threads from thread "
                    f"{self.team.number[row]} of block {self.team.block[row]} arrive at a shuffle"
                )
        value = np.broadcast_to(self.value(s.value, using), (self.team.size, 1))
        partner = np.arange(self.team.size) ^ s.distance
        self.memories[s.buffer].store([], value[partner], using, self.team)

    def invoke(self, s: Invoke, mask: Array | None, bound: frozenset[str]) -> None:
        """Run or issue an instruction in groups of threads, each group on its own tiles."""
        threads = INSTRUCTIONS[s.instruction].threads
        everywhere = np.ones((self.team.size, 1), bool)
        active = and_masks(and_masks(mask, self.leaders_outside(bound | {LANES})), everywhere)
        assert active is not None
        groups = active.reshape(-1, threads)
        if (groups.any(axis=1) != groups.all(axis=1)).any():
            raise Hazard(f"{self.launch.name}: only part of a group of threads runs {s.instruction}")
        if active.any():
            operands = [
                (self.memories[o.buffer], [self.value(i, mask) for i in o.index], o.axes) for o in s.operands
            ]
            instruction = INSTRUCTIONS[s.instruction]
            if instruction.asynchronous:
                self.instructions.issue(instruction, operands, active)
            else:
                run_instruction(instruction, operands, active, self.team)

    def value(self, e: Expr, mask: Array | None) -> Array:
        """The values of an expression for all threads; loads only where the mask is true."""
        order, done = evaluation_order(e), dict[int, Array]()
        for n in order:
            done[id(n)] = self.node(n, done, mask)
        return done[id(order[-1])]

    def node(self, e: Expr, done: dict[int, Array], mask: Array | None) -> Array:
        """The values of a node, given those of its operands."""
        match e:
            case Const():
                return arithmetic.constant(e).reshape(1, 1)
            case Var(name) | Param(name):
                return self.scalars[name]
            case Unary(op, x):
                return arithmetic.unary(op, done[id(x)])
            case Binary(op, x, y):
                return arithmetic.binary(op, done[id(x)], done[id(y)])
            case Select(cond, yes, no):
                return arithmetic.select(done[id(cond)], done[id(yes)], done[id(no)])
            case Cast(x, dtype, saturate):
                return arithmetic.cast(done[id(x)], dtype, saturate)
            case Call(fn, args, dtype):
                return arithmetic.call(fn, tuple(done[id(a)] for a in args), dtype)
            case Ramp(base, stride, lanes):
                return done[id(base)] + stride * np.arange(lanes)[None, :]
            case Broadcast(x):
                return done[id(x)]
            case Load(buffer, index, _, lane_mask):
                mask = mask if lane_mask is None else and_masks(mask, done[id(lane_mask)])
                return self.memories[buffer].load([done[id(i)] for i in index], mask, self.team)
            case _:
                raise AssertionError(f"no loop has a {type(e).__name__}")
