"""Stages on the blocks and threads of a GPU.

`on_blocks` takes the recipe that fits; `block_sums` has a block for each result, whose threads sum parts,
which they combine.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tdsl.autoschedule.patterns.row_groups import find_row_group
from tdsl.autoschedule.recipes.block_columns import BlockColumns, block_columns
from tdsl.autoschedule.recipes.block_conv import BlockConv, block_conv
from tdsl.autoschedule.recipes.block_rows import (
    ACCESS,
    BlockRows,
    block_rows,
    fused,
    reduce_by_threads,
)
from tdsl.autoschedule.recipes.block_stencil import BlockStencil, block_stencil, plan_block_stencil
from tdsl.autoschedule.recipes.block_tiles import BlockTiles, block_tiles
from tdsl.autoschedule.recipes.block_transpose import BlockTranspose, block_transpose
from tdsl.autoschedule.recipes.choices import Unsuited, if_suited, recipe, reduction_of
from tdsl.autoschedule.recipes.elements import (
    Elements,
    definition_of,
    elements,
    even_width,
    load_width,
    sizes_of,
)
from tdsl.autoschedule.recipes.epilogue import reader_of
from tdsl.autoschedule.recipes.operands import matrices_of
from tdsl.core.node import frozen
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.gathering import uses_variable

_LONG = 256  # terms of a sum that are worth a block
_WARP = 32
_FEW_ROWS = 66  # results with a block for each of which half of a GPU is idle
_FEW = 1 << 14  # results that leave a GPU idle with a thread for each
_LARGE = 64  # rows and columns of a product that is worth tiles
_MANY = 4  # reads of a window that are worth a tile
_MANY_COLUMNS = 1 << 16  # results that keep a GPU busy with a thread for each
_EACH = 16  # terms of a thread where many blocks reduce to one element


@frozen
class BlockSums:
    """A block for each result, whose threads sum over `along`."""

    along: str
    threads: int


Plan = (
    Elements | BlockSums | BlockTiles | BlockRows | BlockTranspose | BlockStencil | BlockConv | BlockColumns
)


def on_blocks(stage: Stage, *, threads: int = 256, machine: Machine | None = None) -> Plan | None:
    """The recipe that fits the sizes of a stage; what it chose, or None for a stage of one point."""
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
    if d.free and _is_long(d, sizes, threads) and _is_row_by_itself(stage):
        return block_sums(stage, threads=threads)
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
        sums = if_suited(block_sums, stage, threads=threads)
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


def _is_long(d: Definition, sizes: Mapping[str, int | None], threads: int) -> bool:
    """True for so few sums that a block for each leaves a GPU idle, of terms for several blocks each."""
    points = prod(sizes.get(v) or 0 for v in d.free)
    terms = prod(sizes.get(v) or 0 for v, _, _ in d.ranges)
    return 0 < points <= _FEW_ROWS and terms >= 2 * threads * _EACH


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


@recipe
def block_sums(stage: Stage, *, threads: int = 256) -> BlockSums:
    """Reduce each element of a stage by a block of threads; float sums are then in another order.

    A stage of one element, or of few with many terms, is reduced by many blocks, and their results by one
    more for each. Returns what was chosen. The order of the terms must not matter.

    >>> import tdsl as td
    >>> i, k, a, f = *td.vars("i k"), td.Tensor("a", (100, 5000), td.f32), td.Func("f")
    >>> f[i] = td.sum(a[i, k], axis=k)
    >>> s = td.Schedule(f)
    >>> td.recipes.block_sums(s[f])
    BlockSums(along='k', threads=256)
    """
    d = reduction_of(stage)
    names, sizes = [name for name, _, _ in d.ranges], sizes_of(stage)
    if not d.free or _is_long(d, sizes, threads):
        block, _ = stage.split(fused(stage, names), threads * _EACH)
        parts = stage.rfactor(block)
        sources = dict.fromkeys(r.name for r in reads_in(d.values) if uses_variable(r, names[-1]))
        terms = prod(sizes.get(v) or 0 for v in names)
        whole = len(names) == 1 and terms > 0 and terms % (threads * _EACH) == 0
        vector = min((load_width(parts, source) for source in sources), default=1) if whole else 1
        _sum_in_blocks(parts, [parts.loops[-1].name], threads, vector)
        if d.free:
            _sum_in_blocks(stage, [block.name], _WARP, 1)
        else:
            _, part = stage.split(block.name, threads)
            stage.bind(part, "threadIdx.x")
    else:
        _sum_in_blocks(stage, names, threads, _loaded(stage, d))
    return BlockSums(names[-1], threads)


def _sum_in_blocks(stage: Stage, names: list[str], threads: int, vector: int) -> None:
    whole = fused(stage, [x.name for x in stage.loops if x.name not in names])
    stage.bind(whole, "blockIdx.x")
    stage.schedule.cache_write(stage, at=whole)
    reduce_by_threads(stage, names, threads, vector)


def _loaded(stage: Stage, d: Definition) -> int:
    """How many terms of a reduction that are neighbours in memory 16 bytes hold, where rows have so many."""
    last = d.ranges[-1][0]
    contiguous = [r for r in reads_in(d.values) if r.index[-1:] == (Var(last),)]
    widest = max((r.dtype.bytes for r in contiguous), default=ACCESS)
    return even_width(ACCESS // widest, sizes_of(stage).get(last))
