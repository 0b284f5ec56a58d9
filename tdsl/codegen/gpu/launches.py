"""Splits a kernel of the loop IR into GPU launches: one for each outermost statement, with grid and block.

Kernel (loop IR)  ->  Launches: the temporaries in global memory, and the launches in order
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from tdsl.codegen.analysis.launch_axes import grid_of, launch_extents
from tdsl.codegen.gpu.bulk_rows import check_bulk_rows
from tdsl.codegen.gpu.fragments import Fragment, fragments_of
from tdsl.codegen.gpu.shared_memory import SharedMemory, shared_memory
from tdsl.codegen.gpu.tensor_map_specs import TensorMapSpec, tensor_map_specs
from tdsl.codegen.ir.loops import (
    AXES,
    CLUSTER,
    HEAP,
    THREADS,
    Alloc,
    Argument,
    Barrier,
    Block,
    BufferParam,
    Check,
    If,
    Invoke,
    Kernel,
    Let,
    Message,
    Stmt,
    row_major,
)  # fmt: skip
from tdsl.codegen.ir.statements import is_empty, rebuilt, stored_in, walk
from tdsl.codegen.lowering.root_stages import used_params
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import ScheduleError, TargetError
from tdsl.lang.expr import ONE, Const, Expr, Unary, const
from tdsl.lang.simplify import simplify
from tdsl.lang.types import i64, u32
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.schedule.launch import MAX_BLOCKS

FAILED_CHECK = "failed check"  # a buffer; no name of a program has a space
ARRIVED_BLOCKS = "arrived blocks"  # a buffer: the blocks of a grid that wait for the others
THREAD_PREFIX = "[block ({}, {}, {}), thread ({}, {}, {})] "  # before the text a thread prints
Extents = tuple[int, int, int]
Grid = tuple[int | Expr, ...]  # an expression if the extent is known only in a call


@frozen
class Launch:
    """One GPU kernel launch; `params` are the arguments that its body uses.

    `grid` and `block` are the extents along x, y and z; `cluster` is the number of blocks along blockIdx.x
    in a cluster. `memory` is the layout of a block's shared memory, `fragments` has the register fragments
    by name. `maps` are the tensor maps of TMA copies, passed after `params`. At least `resident` blocks run
    at a time on a multiprocessor; with `cooperative`, all blocks of the launch run at a time. `policies` has
    the cache policies of loads by buffer. `messages` are the messages of the whole program.
    """

    name: str
    params: tuple[Argument, ...]
    grid: Grid
    block: Extents
    memory: SharedMemory
    body: Stmt
    fragments: Mapping[str, Fragment] = field(default_factory=dict)
    maps: tuple[TensorMapSpec, ...] = ()
    resident: int = 1
    messages: tuple[Message, ...] = ()
    cluster: int = 1
    policies: tuple[tuple[str, str], ...] = ()
    cooperative: bool = False

    @property
    def shared(self) -> int:
        """The size of a block's shared memory in bytes."""
        return self.memory.size

    def extent(self, axis: str) -> int:
        """The number of blocks or threads along an axis; an upper bound if it is known only in a call.

        >>> Launch("k", (), (7, 1, 1), (32, 4, 1), SharedMemory({}, 0, {}), Block(())).extent("threadIdx.y")
        4
        """
        x, y, z = (
            n if isinstance(n, int) else most for n, most in zip(self.grid, MAX_BLOCKS.values(), strict=True)
        )
        return (self.cluster, x // self.cluster, y, z, *self.block)[AXES.index(axis)]


@frozen
class Launches:
    """The launches of a program in execution order, and the temporaries in global memory between them."""

    kernel: Kernel
    temporaries: tuple[BufferParam, ...]
    launches: tuple[Launch, ...]


def launches_of(kernel: Kernel) -> Launches:
    """The GPU launches of a kernel in which every allocation has its final scope.

    Raises ScheduleError if its loops do not fit a launch, TargetError for an instruction without GPU code.

    >>> from tdsl.codegen.ir.loops import For, Store
    >>> from tdsl.lang.expr import Var, const
    >>> t = For("t", const(0), const(40), "threadIdx.x", Store("a", (Var("t"),), Var("t")))
    >>> launch, = launches_of(Kernel("k", (), For("b", const(0), const(3), "blockIdx.x", t))).launches
    >>> launch.name, launch.grid, launch.block
    ('k', (3, 1, 1), (40, 1, 1))
    """
    temporaries: list[BufferParam] = []
    bodies = [s for s in _outermost_statements(kernel.body, temporaries) if not is_empty(s)]
    known = (*kernel.params, *temporaries)
    record = _failure_record(bodies)
    waiting = [_has_grid_barrier(body) for body in bodies]
    arrived = [BufferParam(ARRIVED_BLOCKS, u32, (ONE,), (1,), written=True)] if any(waiting) else []
    temporaries += [*record, *arrived]
    launches = []
    for n, body in enumerate(bodies):
        _check_gpu_code(body)
        name = kernel.name if len(bodies) == 1 else f"{kernel.name}_{n}"
        extents = launch_extents(body)
        cluster, blocks = extents[CLUSTER], grid_of(body)
        grid = tuple(int(e.value) if isinstance(e, Const) else e for e in blocks)
        block = tuple(extents[a] for a in THREADS)
        _check_groups(body, block[0])
        used, shared = used_params(known, body), shared_memory(body)
        used += tuple(record if any(isinstance(s, Check) for s in walk(body)) else ())
        used += tuple(arrived if waiting[n] else ())
        _check_descriptors(body, shared)
        check_bulk_rows(body, known)
        fragments, maps = fragments_of(body), tensor_map_specs(body, known)
        written = stored_in(body)
        resident = max((count for b, count in kernel.resident if b in written), default=1)
        launches.append(
            Launch(
                name, used, grid, _extents_xyz(block), shared, body, fragments, maps, resident,
                kernel.messages, cluster, _policies(kernel, written, used), waiting[n],
            )
        )  # fmt: skip
    return Launches(kernel, tuple(temporaries), tuple(launches))


def _policies(
    kernel: Kernel, written: frozenset[str], params: tuple[Argument, ...]
) -> tuple[tuple[str, str], ...]:
    """The cache policies of the arrays that a launch with these arguments reads and does not write."""
    chosen = {source: policy for buffer, source, policy in kernel.policies if buffer in written}
    read = {p.name for p in params} - written
    return tuple((source, policy) for source, policy in chosen.items() if source in read)


def _check_groups(body: Stmt, threads: int) -> None:
    """ScheduleError unless each instruction is executed by as many threads as blocks have on threadIdx.x."""
    for s in walk(body):
        if isinstance(s, Invoke) and INSTRUCTIONS[s.instruction].threads != threads:
            chosen = INSTRUCTIONS[s.instruction]
            raise ScheduleError(
                f"instruction {chosen.name!r} is run by {chosen.threads} threads together, and blocks have "
                f"{threads} along threadIdx.x",
                loc=chosen.loc,
                label="declared here",
                hint=f'bind loops of {chosen.threads} iterations to "threadIdx.x", others to "threadIdx.y"',
            )


def _check_descriptors(body: Stmt, memory: SharedMemory) -> None:
    """ScheduleError unless operands read through matrix descriptors (wgmma) are in swizzled shared memory."""
    for s in walk(body):
        if not isinstance(s, Invoke):
            continue
        chosen = INSTRUCTIONS[s.instruction]
        for o, called in zip(s.operands, chosen.operands(), strict=True):
            if called in chosen.descriptors and o.buffer not in memory.swizzles:
                raise ScheduleError(
                    f"instruction {chosen.name!r} reads {called!r} from swizzled shared memory, which "
                    f"{o.buffer!r} is not",
                    loc=chosen.loc,
                    label="declared here",
                    hint='cache_read(..., scope="shared").swizzle(128)',
                )


def _failure_record(bodies: list[Stmt]) -> list[BufferParam]:
    """The buffer for the first check that fails: its site, counted from 1, and its values."""
    checks = [s for body in bodies for s in walk(body) if isinstance(s, Check)]
    if not checks:
        return []
    extents = (const(1 + max(len(s.values) for s in checks)),)
    return [BufferParam(FAILED_CHECK, i64, extents, (1,), written=True)]


def _has_grid_barrier(body: Stmt) -> bool:
    return any(isinstance(s, Barrier) and s.grid for s in walk(body))


def _check_gpu_code(body: Stmt) -> None:
    for s in walk(body):
        if isinstance(s, Invoke) and not INSTRUCTIONS[s.instruction].cuda:
            raise TargetError(
                f"kernels of a GPU cannot use instruction {s.instruction!r}, which has no code for them",
                loc=here(),
                label="compiled here",
                hint='compile for target="cpu"',
            )


def _extents_xyz(extents: tuple[int, ...]) -> Extents:
    x, y, z = extents
    return x, y, z


def _outermost_statements(s: Stmt, temporaries: list[BufferParam]) -> Iterator[Stmt]:
    """The outermost statements, each in its lets and conditions; heap buffers are added to `temporaries`."""
    match s:
        case Block(parts):
            for part in parts:
                yield from _outermost_statements(part, temporaries)
        case Alloc(name, dtype, extents, scope, body) if scope == HEAP:
            shape = tuple(int(e.value) for e in extents if isinstance(e, Const))
            strides: tuple[int | None, ...] = (*(None,) * (len(extents) - 1), 1)[: len(extents)]
            if len(shape) == len(extents):
                strides = row_major(shape)
            temporaries.append(BufferParam(name, dtype, extents, strides, written=True))
            yield from _outermost_statements(body, temporaries)
        case Let():
            for part in _outermost_statements(s.body, temporaries):
                yield rebuilt(s, body=part)
        case If(cond, then, orelse):
            for part in _outermost_statements(then, temporaries):
                yield rebuilt(s, then=part, orelse=None)
            if orelse is not None:
                for part in _outermost_statements(orelse, temporaries):
                    yield rebuilt(s, cond=simplify(Unary("not", cond)), then=part, orelse=None)
        case _:
            yield s
