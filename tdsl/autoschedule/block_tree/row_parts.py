"""Few long rows on a GPU: several blocks for each row, whose partial results a second kernel puts together.

for rows, for parts of a row (blocks):
  reductions of the part; those that depend on each other in one pass (`online`)
for rows, for parts of a row (blocks):
  the results of all parts, put together
  element-wise stages of the part
"""

from __future__ import annotations

from collections.abc import Sequence

from tdsl.autoschedule.block_tree.reductions import schedule_lanes
from tdsl.autoschedule.block_tree.write_groups import BlockRows
from tdsl.autoschedule.block_tree.write_lanes import reduce_by_threads, reduce_online, share_row
from tdsl.autoschedule.patterns.row_groups import RowGroup, widens
from tdsl.autoschedule.recipes.elements import elements
from tdsl.autoschedule.recipes.grid import fused
from tdsl.autoschedule.recipes.stage_facts import definition_of
from tdsl.cost.sectors import WARP
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.inlining import inline_funcs


def size_of_part(length: int, parts: int, vector: int) -> int:
    """The elements of each of so many parts of a row: equal parts of whole vectors, or vectors of a warp."""
    step = vector if length % (parts * vector) == 0 else vector * WARP
    return -(-length // (parts * step)) * step


def write_parts(owner: Stage, group: RowGroup, plan: BlockRows, machine: Machine) -> None:
    """Schedule the funcs of a group, whose first has the stage `owner`, by a plan for parts of rows."""
    each = size_of_part(group.length, plan.parts, plan.vector)
    for f in group.funcs[1:]:
        if not f.definitions[0].ranges:
            owner.schedule[f.name].inline()
    reductions = [f.name for f in group.funcs[1:] if f.definitions[0].ranges]
    merges = _reduce_parts(owner.schedule, reductions, each, plan)
    _write_owner(owner, group.along(group.funcs[0]), merges, each, plan, machine)


def _reduce_parts(schedule: BaseSchedule, names: list[str], each: int, plan: BlockRows) -> list[str]:
    """Reduce parts of rows in kernels of their own; the reductions that put these together."""
    merges: list[str] = []
    for name in names:  # consumers first
        program = schedule.state.program
        if not program.has_func(name) or not program.func(name).definitions[0].ranges:
            continue  # in the pass of one that reads it
        stage, tiles = reduce_online(schedule[name], each)
        part, _ = stage.split(stage.loops[-1], 1 if tiles else each)
        _write_parts(stage.rfactor(part), tiles, plan)
        merges.append(stage.func)
    return merges


def _write_parts(partial: Stage, tiles: Sequence[str], plan: BlockRows) -> None:
    """A block for each part of a row: its reductions by all threads, those of `tiles` first."""
    schedule, free = partial.schedule, definition_of(partial).free
    rows = [x.name for x in partial.loops if x.name in free]
    inner = [x.name for x in partial.loops if x.name not in free]
    partial.reorder(*rows, *inner)
    at = fused(partial, rows)
    partial.bind(at, "blockIdx.x")
    for name in tiles:
        schedule[name].compute_at(partial, at)
    funcs = [schedule.state.program.func(n) for n in tiles or [partial.func]]
    reads = [r.name for f in funcs for r in reads_in(f.definitions[0].values)]
    for name in dict.fromkeys(reads):
        if name in tiles or (reads.count(name) < 2 and not any(widens(f, name) for f in funcs)):
            continue
        copy = schedule.cache_read(name, partial, at=at, inside=True)
        share_row(copy, [copy.loops[-1].name], plan.threads, plan.vector, unrolled=True)
    if not tiles:
        schedule.cache_write(partial, at=at)
        reduce_by_threads(partial, inner, plan.threads, plan.vector, unrolled=True)
    for stage in map(schedule.__getitem__, tiles):
        term = definition_of(stage).ranges[0][0]
        stage.reorder(*(x.name for x in stage.loops if x.name != term), term)
        reduce_by_threads(stage, [term], plan.threads, plan.vector, unrolled=True)


def _write_owner(
    owner: Stage, along: list[str], merges: list[str], each: int, plan: BlockRows, machine: Machine
) -> None:  # fmt: skip
    """A block for each part of a row: puts the results of all parts together, then computes its elements.

    Results that others read, too, or of which there is one element for each row, are put together before.
    """
    schedule, at = owner.schedule, ""
    state = inline_funcs(schedule.state)
    if along:
        part, inner = (x.name for x in owner.split(along[0], each))
        owner.reorder(*plan.rows, part, inner)
        at = fused(owner, [*plan.rows, part])
        owner.bind(at, "blockIdx.x")
        share_row(owner, [inner], plan.threads, plan.vector)
    elif plan.rows:
        elements(owner)
    for name in merges:
        merge = schedule[name]
        if not along or {f.name for f, _ in state.consumers(name)} != {owner.func}:
            schedule_lanes(merge, machine, parts=1)
            continue
        term = merge.loops[-1].name
        merge.compute_at(owner, at)
        lanes = reduce_by_threads(merge, [term], WARP, 1)
        if not plan.rows:
            lanes.compute_at(owner, at)
