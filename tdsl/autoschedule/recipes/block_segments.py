"""Reductions of segments of an array on a GPU, whose ends are data: neighbouring threads for each segment.

for some segments (blocks, threadIdx.y):
  for terms of the segment (threadIdx.x): partial results, combined by shuffles
"""

from __future__ import annotations

from math import prod
from typing import Any

from tdsl.autoschedule.recipes.choices import Unsuited, choose, gpu_of, recipe, reduction_of
from tdsl.autoschedule.recipes.conv import known
from tdsl.autoschedule.recipes.grid import fused
from tdsl.autoschedule.recipes.stage_facts import sizes_of
from tdsl.core.node import frozen
from tdsl.cost.sectors import WARP
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.bounds import upper
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage

_LEAST = 8  # threads of a segment: of as many elements of 4 bytes, a sector


@frozen
class BlockSegments:
    """`threads` neighbouring threads, a power of two, for each of `rows` of a block; 1 beyond a warp."""

    threads: int
    rows: int


@recipe
def block_segments(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> BlockSegments:
    """Reduce segments of an array, whose ends are data, by some neighbouring threads each.

    `choices` replace what is chosen: the numbers of `BlockSegments`. Returns what was chosen. Float sums are
    in another order.

    >>> import tdsl as td
    >>> i, v, start = td.vars("i"), td.Tensor("v", (1 << 20,), td.f32), td.Tensor("start", (1001,), td.i32)
    >>> f = td.Func("f", shape=1000)
    >>> k = td.range("k", td.clip(start[i], 0, 1 << 20), td.clip(start[i + 1], 0, 1 << 20))
    >>> f[i] = td.sum(v[k], axis=k)
    >>> td.recipes.block_segments(td.Schedule(f, target="cuda:sm_80")[f])
    BlockSegments(threads=256, rows=1)
    """
    d = reduction_of(stage, 1)
    ((name, _, _),) = d.ranges
    if not d.free or name not in variables(d.where) or not any(True for _ in reads_in((d.where,))):
        raise Unsuited("the ends of what it reduces are not data")
    along = [r for r in reads_in(d.values) if r.index and as_sum(r.index[-1]).terms.get(Var(name)) == 1]
    if not along:
        raise Unsuited("it reads nothing along memory")
    machine = gpu_of(stage, machine)
    plan = choose(_plan(stage, along[0].name, machine), choices)
    block, row = stage.split(fused(stage, list(d.free)), plan.rows)
    stage.bind(block, "blockIdx.x").bind(row, "threadIdx.y")
    stage.schedule.cache_write(stage, at=row)
    _, thread = stage.split(name, plan.threads)
    stage.bind(thread, "threadIdx.x")
    return plan


def _plan(stage: Stage, source: str, machine: Machine) -> BlockSegments:
    """As many threads as half of the mean length of segments, if these share out what is read."""
    (state, _), sizes, threads = known(stage.schedule), sizes_of(stage), WARP
    points = prod(sizes.get(v) or 0 for v in stage.schedule.state.program.func(stage.func).variables)
    if points and not state.program.has_func(source):
        extents = [upper(e) for e in state.program.input(source).shape]
        if None not in extents:
            mean = prod(e or 0 for e in extents) // points
            threads = min(max(1 << max(mean // 2, 1).bit_length() - 1, _LEAST), machine.block_threads)
    return BlockSegments(threads, machine.block_threads // threads if threads <= WARP else 1)
