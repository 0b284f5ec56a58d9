"""Stages on the blocks and threads of a GPU.

`on_blocks` takes the recipe that fits.
"""

from __future__ import annotations

from tdsl.autoschedule.block_tree.reductions import best_lanes, write_lanes
from tdsl.autoschedule.block_tree.rows import block_rows
from tdsl.autoschedule.block_tree.schedule import schedule_points, schedule_sums
from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.block_tree.write_groups import BlockRows
from tdsl.autoschedule.patterns.row_groups import find_row_group
from tdsl.autoschedule.problem import Problem
from tdsl.autoschedule.recipes.block_segments import BlockSegments, block_segments
from tdsl.autoschedule.recipes.choices import Unsuited, gpu_of, if_suited
from tdsl.autoschedule.recipes.elements import Elements, elements
from tdsl.autoschedule.recipes.epilogue import reader_of
from tdsl.autoschedule.recipes.stage_facts import definition_of
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage

Plan = Elements | BlockSegments | BlockRows | BlockTree


def on_blocks(stage: Stage, *, machine: Machine | None = None) -> Plan | None:
    """The recipe that fits the sizes of a stage; what it chose, or None for a stage of one point."""
    machine = gpu_of(stage, machine)
    segments = if_suited(block_segments, stage, machine=machine)
    if segments is not None:
        return segments
    for candidate in (stage, *_followed(stage)):
        tree = if_suited(schedule_sums, candidate, machine=machine)
        if tree is not None:
            return tree
    row = if_suited(_parts_of_row, stage, machine=machine)
    if row is not None:
        return row
    rows = if_suited(block_rows, stage, machine=machine)
    if rows is not None:
        return rows
    points = if_suited(schedule_points, stage, machine=machine)
    return if_suited(elements, stage, threads=machine.block_threads) if points is None else points


def _followed(stage: Stage) -> list[Stage]:
    """What only a stage reads, element by element: it can be made as soon as these values are there.

    What a directive has mentioned has a place already.
    """
    state = stage.schedule.state
    names = {r.name for r in reads_in(definition_of(stage).values)} - {stage.func}
    open_ = (n for n in sorted(names) if state.program.has_func(n) and not state.plan(n).scheduled)
    before = [stage.schedule[name] for name in open_]
    return [p for p in before if (reader := reader_of(p)) and reader.func == stage.func]


def _parts_of_row(stage: Stage, machine: Machine) -> BlockTree:
    """Schedule a reduction along memory that reads nothing else of its row, if its terms are in parts."""
    group, d = find_row_group(stage, siblings=False), definition_of(stage)
    if group is None or len(group.funcs) > 1 or not d.ranges or not d.free:
        raise Unsuited("it reads others of its row, or reduces none")
    p = Problem.of(stage, reduction=True)
    tree, _ = best_lanes(p, machine)
    if tree.parts == 1:
        raise Unsuited("its rows are enough for blocks of their own")
    return write_lanes(stage, p, tree, machine)
