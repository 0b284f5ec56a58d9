"""The launch configuration of a GPU kernel: its blocks and threads along each axis."""

from __future__ import annotations

from collections.abc import Callable

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.loops import (
    AXES,
    CLUSTER,
    LANES,
    Alloc,
    ArriveBarrier,
    Barrier,
    Block,
    Commit,
    For,
    If,
    InitBarriers,
    Invoke,
    Let,
    Shuffle,
    Stmt,
    Wait,
    WaitBarrier,
)  # fmt: skip
from tdsl.codegen.ir.statements import map_parts, parts_of
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, Facts, upper
from tdsl.lang.expr import Binary, Const, Expr, const
from tdsl.lang.simplify import simplify
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.schedule.launch import MAX_BLOCKS


def map_kernels(s: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """`s` with `change` applied to each kernel, outside of which are only blocks, lets, tests, memory."""
    if isinstance(s, Block | Let | If | Alloc):
        return map_parts(s, lambda part: map_kernels(part, change))
    return change(s)


def launch_extents(body: Stmt) -> dict[str, int]:
    """The number of blocks and threads of a kernel along each axis: the extent of its longest loop there.

    The threads that run an instruction together are along threadIdx.x. If the number of blocks depends on the
    sizes of a call, it is the largest number that a launch allows.
    """
    extents = _extents(body)
    return {a: e.value if isinstance(e, Const) else MAX_BLOCKS[a] for a, e in extents.items()}


def needs_all_threads(s: Stmt) -> bool:
    """True for a loop over threads or blocks, and for what several threads do together.

    Statements without either are run by the first thread of the axes that no loop around them runs over.
    """
    is_collective = isinstance(s, Barrier | Shuffle | Commit | Wait | Invoke | InitBarriers | WaitBarrier)
    is_collective = is_collective or (isinstance(s, ArriveBarrier) and s.per_warp)
    return is_collective or (isinstance(s, For) and s.kind in AXES)


def grid_of(body: Stmt) -> tuple[Expr, ...]:
    """The grid of a kernel: its blocks along x, y, z, in terms of sizes; x includes a cluster's blocks."""
    extents = _extents(body)
    x, y, z = (extents[axis] for axis in MAX_BLOCKS)
    return simplify(Binary("mul", x, extents[CLUSTER])), y, z


def _extents(body: Stmt) -> dict[str, Expr]:
    extents: dict[str, Expr] = dict.fromkeys(AXES, const(1))
    _collect_extents(body, NO_FACTS, extents)
    return extents


def _collect_extents(s: Stmt, facts: Facts, extents: dict[str, Expr]) -> None:
    if isinstance(s, Invoke):
        extents[LANES] = _max_extent(extents[LANES], const(INSTRUCTIONS[s.instruction].threads), s)
    if isinstance(s, For) and s.kind in AXES:
        extents[s.kind] = _max_extent(extents[s.kind], _extent_bound(s, facts), s)
    facts = facts_inside(facts, s)
    for part in parts_of(s):
        _collect_extents(part, facts, extents)


def _max_extent(a: Expr, b: Expr, s: Stmt) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return a if a.value >= b.value else b
    if a in (b, const(1)):
        return b
    raise ScheduleError(
        "loops of a kernel on one axis have extents of which only a call tells the longer one",
        loc=s.loc,
        label="this loop",
        hint="fix the sizes, or give each its own axis",
    )


def _extent_bound(s: For, facts: Facts) -> Expr:
    most = upper(s.extent, facts)
    if most is not None:
        return const(most)
    if s.kind in MAX_BLOCKS and not variables(s.extent):
        return s.extent
    raise ScheduleError(
        f"how many iterations of {s.name!r} run on {s.kind} is not known before the launch",
        loc=s.loc,
        label="this loop",
        hint="split it by a constant, and bind the inner loop, or fix the sizes",
    )


def covers_axis(s: For, extents: dict[str, int]) -> bool:
    """True if every block or thread along the axis of a loop runs an iteration of it."""
    if isinstance(s.extent, Const):
        return bool(s.extent.value == extents[s.kind])
    return extents[s.kind] == MAX_BLOCKS.get(s.kind) and not variables(s.extent)
