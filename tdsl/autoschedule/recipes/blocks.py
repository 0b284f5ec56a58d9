"""Stages on the blocks and threads of a GPU.

`on_blocks` takes the recipe that fits.
"""

from __future__ import annotations

from math import prod

from tdsl.autoschedule.patterns.row_groups import find_row_group
from tdsl.autoschedule.recipes.block_columns import BlockColumns, block_columns
from tdsl.autoschedule.recipes.block_conv import BlockConv, block_conv
from tdsl.autoschedule.recipes.block_rows import (
    BlockRows,
    block_rows,
)
from tdsl.autoschedule.recipes.block_stencil import BlockStencil, block_stencil, plan_block_stencil
from tdsl.autoschedule.recipes.block_sums import BlockSums, block_sums, is_long
from tdsl.autoschedule.recipes.block_tiles import BlockTiles, block_tiles
from tdsl.autoschedule.recipes.block_transpose import BlockTranspose, block_transpose
from tdsl.autoschedule.recipes.choices import Unsuited, if_suited
from tdsl.autoschedule.recipes.elements import (
    Elements,
    definition_of,
    elements,
    sizes_of,
)
from tdsl.autoschedule.recipes.epilogue import reader_of
from tdsl.autoschedule.recipes.operands import matrices_of
from tdsl.lang.regions import reads_in
from tdsl.machine.devices import describe_gpu
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.target import as_target

_LONG = 256  # terms of a sum that are worth a block
_FEW = 1 << 14  # results that leave a GPU idle with a thread for each
_LARGE = 64  # rows and columns of a product that is worth tiles
_MANY = 4  # reads of a window that are worth a tile
_MANY_COLUMNS = 1 << 16  # results that keep a GPU busy with a thread for each


Plan = (
    Elements | BlockSums | BlockTiles | BlockRows | BlockTranspose | BlockStencil | BlockConv | BlockColumns
)


def on_blocks(stage: Stage, *, machine: Machine | None = None) -> Plan | None:
    """The recipe that fits the sizes of a stage; what it chose, or None for a stage of one point."""
    machine = machine or describe_gpu(as_target(stage.schedule.target).arch)
    threads = machine.block_threads
    d, sizes = definition_of(stage), sizes_of(stage)
    points = prod(sizes.get(v) or 1 for v in d.free)
    terms = prod(sizes.get(v) or 1 for v, _, _ in d.ranges)
    for candidate in (stage, *_followed(stage)):
        conv = if_suited(
            block_conv, candidate
        )  # a sum over a window, which is no product of matrices as it is
        tiles = conv or (if_suited(block_tiles, candidate) if _is_large(candidate) else None)
        if tiles is not None:
            return tiles
    if d.free and is_long(d, sizes, machine) and _is_row_by_itself(stage):
        return block_sums(stage, threads=threads, machine=machine)
    rows = if_suited(block_rows, stage, machine=machine)
    if rows is not None:
        return rows
    turned = if_suited(block_transpose, stage)
    if turned is not None:
        return turned
    tiles_of = if_suited(plan_block_stencil, stage)
    reads = {r for r in reads_in(d.values) if tiles_of and r.name in tiles_of.sources}
    if tiles_of is not None and (tiles_of.inside or len(reads) >= _MANY or d.ranges):
        return block_stencil(stage)
    columns = if_suited(block_columns, stage) if points <= _MANY_COLUMNS else None
    if columns is not None:
        return columns
    if terms >= _LONG and points <= _FEW:
        sums = if_suited(block_sums, stage, threads=threads, machine=machine)
        if sums is not None:
            return sums
    return if_suited(elements, stage, threads=threads)


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


def _is_large(stage: Stage) -> bool:
    """True for rows and columns that are worth tiles, as those of a size that only a call tells are.

    They may be several variables, such as the lines and points of a picture.
    """
    d, sizes = definition_of(stage), sizes_of(stage)
    known = [n for v in d.free[-2:] if (n := sizes.get(v)) is not None]
    if d.ranges and all(n >= _LARGE for n in known):
        return True
    try:
        rows, columns, _ = matrices_of(d).extents(sizes)
    except Unsuited:
        return False
    return min(rows, columns) >= _LARGE
