"""Stages on the blocks and threads of a GPU.

`on_blocks` takes the recipe that fits.
"""

from __future__ import annotations

from math import prod

from tdsl.autoschedule.block_tree.schedule import schedule_points, schedule_sums
from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.patterns.row_groups import find_row_group
from tdsl.autoschedule.recipes.block_columns import BlockColumns, block_columns
from tdsl.autoschedule.recipes.block_rows import (
    BlockRows,
    block_rows,
)
from tdsl.autoschedule.recipes.block_segments import BlockSegments, block_segments
from tdsl.autoschedule.recipes.block_sums import BlockSums, block_sums, is_long
from tdsl.autoschedule.recipes.choices import if_suited
from tdsl.autoschedule.recipes.elements import Elements, elements
from tdsl.autoschedule.recipes.epilogue import reader_of
from tdsl.autoschedule.recipes.split_rows import SplitRows, split_rows
from tdsl.autoschedule.recipes.stage_facts import definition_of, sizes_of
from tdsl.lang.regions import reads_in
from tdsl.machine.devices import describe_gpu
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.target import as_target

_LONG = 256  # terms of a sum that are worth a block
_FEW = 1 << 14  # results that leave a GPU idle with a thread for each
_MANY_COLUMNS = 1 << 16  # results that keep a GPU busy with a thread for each


Plan = Elements | BlockSegments | BlockSums | BlockRows | SplitRows | BlockColumns | BlockTree


def on_blocks(stage: Stage, *, machine: Machine | None = None) -> Plan | None:
    """The recipe that fits the sizes of a stage; what it chose, or None for a stage of one point."""
    machine = machine or describe_gpu(as_target(stage.schedule.target).arch)
    threads = machine.block_threads
    d, sizes = definition_of(stage), sizes_of(stage)
    points = prod(sizes.get(v) or 1 for v in d.free)
    terms = prod(sizes.get(v) or 1 for v, _, _ in d.ranges)
    segments = if_suited(block_segments, stage, machine=machine)
    if segments is not None:
        return segments
    for candidate in (stage, *_followed(stage)):
        tree = if_suited(schedule_sums, candidate, machine=machine)
        if tree is not None:
            return tree
    if d.free and is_long(d, sizes, machine) and _is_row_by_itself(stage):
        sums = if_suited(block_sums, stage, threads=threads, machine=machine)
        if sums is not None:
            return sums
    split = if_suited(split_rows, stage, machine=machine)
    if split is not None:
        return split
    rows = if_suited(block_rows, stage, machine=machine)
    if rows is not None:
        return rows
    columns = if_suited(block_columns, stage, machine=machine) if points <= _MANY_COLUMNS else None
    if columns is not None:
        return columns
    if (terms >= _LONG and points <= _FEW) or (not d.free and terms > 1):
        sums = if_suited(block_sums, stage, threads=threads, machine=machine)
        if sums is not None:
            return sums
    points_of = if_suited(schedule_points, stage, machine=machine)
    return if_suited(elements, stage, threads=threads) if points_of is None else points_of


def _followed(stage: Stage) -> list[Stage]:
    """What only a stage reads, element by element: it can be made as soon as these values are there.

    What a directive has mentioned has a place already.
    """
    state = stage.schedule.state
    names = {r.name for r in reads_in(definition_of(stage).values)} - {stage.func}
    open_ = (n for n in sorted(names) if state.program.has_func(n) and not state.plan(n).scheduled)
    before = [stage.schedule[name] for name in open_]
    return [p for p in before if (reader := reader_of(p)) and reader.func == stage.func]


def _is_row_by_itself(stage: Stage) -> bool:
    """True for a reduction along memory that is made of nothing else in its row."""
    group = find_row_group(stage, siblings=False)
    return group is not None and len(group.funcs) == 1 and bool(definition_of(stage).ranges)
