"""A pass that runs kernels one after the other in one, with barriers of all blocks between them."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.analysis.launch_axes import launch_extents
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    BLOCKS,
    CLUSTER,
    LANES,
    SERIAL,
    WARP,
    Alloc,
    Barrier,
    CopyTile,
    For,
    Invoke,
    Kernel,
    Shuffle,
    Stmt,
)  # fmt: skip
from tdsl.codegen.ir.statements import is_empty, sequence, stored_in, walk
from tdsl.codegen.passes.join_blocks import outermost_kernels, within
from tdsl.errors import ScheduleError
from tdsl.lang.expr import ONE, ZERO
from tdsl.machine.instructions.instruction import INSTRUCTIONS


def join_grids(kernel: Kernel) -> Kernel:
    """Run the statements that store buffers of `grid_syncs` in the GPU kernel of the statement before.

    A barrier of the whole grid comes before each of them; the first kernel stays as it is. Raises
    ScheduleError for kernels whose blocks cannot wait for each other.

    >>> from tdsl.codegen.ir.loops import Block, Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Load, Var, const
    >>> from tdsl.lang.types import i64
    >>> b, c = Var("b"), Var("c")
    >>> first = For("b", ZERO, const(8), "blockIdx.x", Store("s", (b,), b))
    >>> last = For("c", ZERO, const(4), "blockIdx.x", Store("a", (c,), Load("s", (const(7),), i64)))
    >>> body = Alloc("s", i64, (const(8),), "heap", Block((first, last)))
    >>> print(show(join_grids(Kernel("k", (), body, grid_syncs=("a",))).body))
    s = alloc(i64, [8])  # heap
    for grid in range(0, 1):
      for b in range(0, 8):  # blockIdx.x
        s[b] = b
      barrier(grid)
      for c in range(0, 4):  # blockIdx.x
        a[c] = s[7]
    """
    if not kernel.grid_syncs:
        return kernel
    memory: list[Alloc] = []
    groups: list[list[Stmt]] = []
    for s in outermost_kernels(kernel.body, memory):
        if is_empty(s):
            continue
        marked = stored_in(s).intersection(kernel.grid_syncs)
        if not marked or not groups:
            groups.append([s])
        else:
            _check(groups[-1], s, ", ".join(sorted(marked)))
            groups[-1].append(s)
    fresh = FreshNames(kernel)
    parts = (g[0] if len(g) == 1 else _joined(g, fresh) for g in groups)
    return dataclasses.replace(kernel, body=within(memory, sequence(parts)))


def _joined(group: list[Stmt], fresh: FreshNames) -> Stmt:
    """One kernel of several statements; its outermost loop, of one iteration, keeps them together."""
    used = [{x.kind for x in walk(s) if isinstance(x, For)} for s in group]
    parts: list[Stmt] = []
    for s, axes in zip(group, used, strict=True):
        for axis in BLOCKS:
            if axis not in axes and any(axis in other for other in used):  # it is for the first block
                s = For(fresh.name("one_block"), ZERO, ONE, axis, s)
        parts += [Barrier(grid=True), s]
    return For(fresh.name("grid"), ZERO, ONE, SERIAL, sequence(parts[1:]))


def _check(group: list[Stmt], s: Stmt, names: str) -> None:
    """ScheduleError unless the blocks of a kernel can wait for each other and then execute `s`."""
    copied = {x.source for x in walk(s) if isinstance(x, CopyTile)}
    stages, reason, hint = (*group, s), "", ""
    if not all(isinstance(x, For) for x in stages):
        reason, hint = "the loops of a stage of the kernel depend on values", "fix the sizes"
    elif any(isinstance(y, For) and y.kind == CLUSTER for x in stages for y in walk(x)):
        reason, hint = "a stage of the kernel has clusters of blocks", "bind no loop to clusterCtaIdx.x"
    elif not copied.isdisjoint(stored_in(sequence(group))):
        reason, hint = "it copies by TMA what the kernel itself writes", "copy by threads: cooperate()"
    elif (threads := launch_extents(sequence(stages))[LANES]) % (width := max(map(_exchanging, stages))):
        reason = f"{threads} threads on threadIdx.x are no multiple of {width}, which exchange values"
        hint = f"bind a multiple of {WARP} iterations"
    if reason:
        raise ScheduleError(f"grid_sync of {names}: {reason}", loc=s.loc, label="scheduled here", hint=hint)


def _exchanging(s: Stmt) -> int:
    """The most threads with consecutive threadIdx.x that shuffle values or run an instruction together."""
    widths = [x.width for x in walk(s) if isinstance(x, Shuffle)]
    return max([1, *widths, *(INSTRUCTIONS[x.instruction].threads for x in walk(s) if isinstance(x, Invoke))])
