"""Few long rows on a GPU: several blocks for each row, whose partial results a second kernel puts together.

for rows, for parts of a row (blocks):
  reductions of the part; those that depend on each other in one pass (`online`)
for rows, for parts of a row (blocks):
  the results of all parts, put together
  element-wise stages of the part
"""

from __future__ import annotations

from typing import Any

from tdsl.autoschedule.block_tree.reductions import schedule_lanes
from tdsl.autoschedule.block_tree.rows import (
    problem_of_rows,
    shape_of_rows,
    vector_of_rows,
    widens,
)
from tdsl.autoschedule.block_tree.write_lanes import reduce_by_threads, share_row
from tdsl.autoschedule.patterns.row_groups import RowGroup, find_row_group
from tdsl.autoschedule.recipes.choices import Unsuited, choose, gpu_of, recipe
from tdsl.autoschedule.recipes.elements import elements
from tdsl.autoschedule.recipes.grid import fused
from tdsl.autoschedule.recipes.stage_facts import definition_of
from tdsl.core.node import frozen
from tdsl.cost.sectors import WARP
from tdsl.errors import ScheduleError
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.properties import element_bytes

_LEAST = 4096  # elements of a part
_PART = 0.65  # of the registers of a multiprocessor, which a part may take
_BLOCKS = 2  # for each multiprocessor
_AGAIN = 1.5  # times the bytes of one pass, where a second kernel has to read the rows from memory again
_KEPT = 0.5  # of L2, in which rows stay for the second kernel


@frozen
class SplitRows:
    """Each row of so many, which the variables `rows` count, has parts of `each` elements."""

    rows: tuple[str, ...]
    each: int
    threads: int
    vector: int


@recipe
def split_rows(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> SplitRows:
    """Schedule a chain of row operations with several blocks for each row.

    `stage` is element-wise, and reads reductions of its rows over one variable, which are fewer than the
    multiprocessors and long. It has elements along the rows, or one for each row. `choices` replace
    what is chosen: the numbers of `SplitRows`. Float sums are in another order. Returns what was chosen.

    >>> import tdsl as td
    >>> i, j = td.vars("i j")
    >>> x, top, total, y = td.Tensor("x", (8, 100_000), td.f32), *map(td.Func, ("top", "total", "y"))
    >>> top[i] = td.max(x[i, j], axis=j)
    >>> total[i] = td.sum(td.exp(x[i, j] - top[i]), axis=j)
    >>> y[i, j] = td.exp(x[i, j] - top[i]) / total[i]
    >>> s = td.Schedule(y)
    >>> plan = td.recipes.split_rows(s[y])
    >>> plan.rows, plan.vector
    (('i',), 4)
    """
    machine = gpu_of(stage, machine)
    schedule = stage.schedule
    group = find_row_group(stage, siblings=False, whole=True)
    if group is None or group.outer or not group.count:
        raise Unsuited("it has no rows of extents that the schedule knows, along memory")
    owner = group.funcs[0]
    reductions = [f for f in group.funcs[1:] if f.definitions[0].ranges]
    single = all(len(f.definitions[0].ranges) == 1 for f in reductions)
    if owner.definitions[0].ranges or len(group.along(owner)) > 1 or not single:
        raise Unsuited("it is no element-wise stage of rows that reductions over one variable go through")
    if not group.along(owner) and not any(_reads_another(group, f) for f in reductions):
        raise Unsuited("its reductions of a row do not read each other")
    if group.copies:
        raise Unsuited(f"{group.copies[0]!r}, which it reads, is an output")
    plan = choose(_plan(stage, group, machine), choices)
    for f in group.funcs[1:]:
        if not f.definitions[0].ranges:
            schedule[f.name].inline()
    merges = _reduce_parts(schedule, [f.name for f in reductions], plan)
    _write_owner(stage, group.along(owner), merges, plan, machine)
    return plan


def _reads_another(group: RowGroup, f: FuncDef) -> bool:
    """True for a reduction that needs another of the group, with what only this is computed from."""
    funcs, needed = {g.name: g for g in group.funcs}, [f.name]
    for name in needed:  # grows
        needed += [x for x in funcs[name].definitions[0].sources if x in funcs and x not in needed]
    return any(funcs[name].definitions[0].ranges for name in needed[1:])


def _plan(stage: Stage, group: RowGroup, machine: Machine) -> SplitRows:
    """Parts of the rows for all multiprocessors; Unsuited where rows are enough, or parts too short."""
    length, vector, program = group.length, vector_of_rows(group), stage.schedule.state.program
    most = int(_PART * (machine.level("registers").bytes or 0)) // 4  # elements in the registers of a block
    count = max(-(-_BLOCKS * machine.threads // group.count), -(-length // most))
    count = min(count, length // _LEAST)
    inputs = {r.name for f in group.funcs for r in reads_in(f.definitions[0].values)}
    read = sum(group.count * length * element_bytes(program, x) for x in inputs if not program.has_func(x))
    cost = 1.0 if read < _KEPT * (machine.level("L2").bytes or 0) else _AGAIN
    if count < 2 or group.count * cost >= machine.threads:
        raise Unsuited(f"{group.count} rows of {length} elements are enough for blocks of their own")
    whole = (n for n in range(count, 2 * count) if length % n == 0 and length // n % vector == 0)
    parts, step = next(whole, 0), vector * WARP
    each = length // parts if parts else -(-length // (count * step)) * step
    p = problem_of_rows(stage, group)
    p = p.with_parts(p.summed[-1].name, -(-length // each))
    funcs = {f.name for f in group.funcs}
    reduced = (r.name for f, r in group.reads if f.definitions[0].ranges and group.is_of_row(f, r))
    kept = [name for name in dict.fromkeys(reduced) if name not in funcs]
    shape = shape_of_rows(p, group, machine, vector, kept, alone=True)
    if shape is None:
        raise Unsuited(f"no block has the registers for {each} elements")
    return SplitRows(group.rows, each, shape[0], vector)


def _reduce_parts(schedule: BaseSchedule, names: list[str], plan: SplitRows) -> list[str]:
    """Reduce parts of rows in kernels of their own; the reductions that put these together."""
    merges: list[str] = []
    for name in names:  # consumers first
        before = schedule.state.program
        if not before.has_func(name) or not before.func(name).definitions[0].ranges:
            continue  # in the pass of one that reads it
        ((term, _, _),) = before.func(name).definitions[0].ranges
        try:
            with schedule.all_or_nothing():
                merge = schedule[name].online(term, plan.each)
        except ScheduleError:  # it depends on no other, or cannot be corrected for it
            part, _ = schedule[name].split(term, plan.each)
            _write_parts(schedule[name].rfactor(part), [], plan)
            merges.append(name)
            continue
        merges.append(merge.func)
        program = schedule.state.program
        tiles = [f.name for f in program.funcs if not before.has_func(f.name) and f.name != merge.func]
        for f in [f for f in program.funcs if merge.func in f.definitions[0].sources]:
            if f.name not in program.outputs and f.name != merge.func:
                schedule[f.name].inline()
        part, _ = merge.split(merge.loops[-1], 1)
        _write_parts(merge.rfactor(part), tiles, plan)
    return merges


def _write_parts(partial: Stage, tiles: list[str], plan: SplitRows) -> None:
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
    owner: Stage, along: list[str], merges: list[str], plan: SplitRows, machine: Machine
) -> None:  # fmt: skip
    """A block for each part of a row: puts the results of all parts together, then computes its elements.

    Results that others read, too, or of which there is one element for each row, are put together before.
    """
    schedule, at = owner.schedule, ""
    state = inline_funcs(schedule.state)
    if along:
        part, inner = (x.name for x in owner.split(along[0], plan.each))
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
