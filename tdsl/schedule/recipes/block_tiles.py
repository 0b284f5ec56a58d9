"""Sums of products on a GPU, in tiles.

    for tiles of the result (blocks):
      for a smaller tile of each thread:
        for steps along the terms:
          what both operands hold of the tile, fetched together into shared memory
          the products of the thread, added up in registers
        the sums, or what is made of them alone, to memory

Where tiles are too few for a GPU, the terms are shared out, too: each part has sums of its own, which are
added up by another kernel, or, where that is asked for, by atomic updates of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.regions import reads_in
from tdsl.schedule.naming import Loop
from tdsl.schedule.nest import CLUSTER, REGISTER, SHARED
from tdsl.schedule.recipes.block_rows import ACCESS, fused
from tdsl.schedule.recipes.choices import Unsuited, choose, recipe, reduction_of
from tdsl.schedule.recipes.elements import (
    definition_of,
    elements,
    even_width,
    fetched,
    share_points,
    sizes_of,
    vector_of,
)
from tdsl.schedule.recipes.epilogue import following, reader_of, write_neighbours
from tdsl.schedule.recipes.grid import bind_blocks
from tdsl.schedule.stage import Stage

_COPIED = 4  # bytes, the least that a GPU copies to shared memory by itself
_BLOCKS = 132  # that a GPU runs at a time
_TERMS = 512  # of a part, the least that are worth sums of their own
_THREADS = 256  # of a block that starts results
_GROUP = 8  # rows of tiles whose blocks run one after the other


@dataclass(frozen=True, slots=True)
class BlockTiles:
    """The tile of a block (rows, columns, terms), and that of a thread (rows, columns).

    `stages` of a block's tiles are in shared memory at a time. The terms are in so many `parts`, which
    `atomic` updates add up: at once, but floats in another order each time. Blocks go
    down `group` rows of tiles before the next column; with `blocks` above 0 there are only so many, each of
    which takes one tile after the other. `epilogue` is what is made of the sums in
    registers, if something is.
    """

    tile: tuple[int, int, int]
    each: tuple[int, int]
    vector: int
    stages: int
    parts: int = 1
    atomic: bool = False
    group: int = 1
    blocks: int = 0
    epilogue: str = ""


@recipe
def block_tiles(stage: Stage, **choices: Any) -> BlockTiles:
    """Tiles for a sum of products over one variable, with two free variables or more.

    The last two free variables are the rows and columns of the tile; those before are batches. What both
    operands hold of a tile is fetched into shared memory by all threads, 16 bytes at a time where extents
    allow that, and while others are in use where copies have 4 bytes or more. An element-wise stage that
    alone reads the sums is made of them in registers. `choices` replace what is chosen: the numbers of
    `BlockTiles`. Returns what was chosen.

    >>> import tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> a, b, c = td.Tensor("a", (256, 64), td.f32), td.Tensor("b", (64, 256), td.f32), td.Func("c")
    >>> c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    >>> s = td.Schedule(c)
    >>> plan = td.recipes.block_tiles(s[c])
    >>> plan.tile, plan.each, plan.vector, plan.stages
    ((64, 64, 16), (4, 4), 4, 3)
    """
    d = reduction_of(stage, 1)
    if len(d.free) < 2:
        raise Unsuited("its results have less than two variables, rows and columns")
    if len(operands_of(d)) < 2:
        rows, columns = d.free[-2:]
        raise Unsuited(
            f"it does not read one array along {rows!r} and another along {columns!r}, its last two variables"
        )
    plan = _plan(stage, d)
    plan = choose(plan, choices, epilogue=dict.fromkeys(("", plan.epilogue)))
    if plan.parts == 1:
        _tiles(stage, plan, list(d.free[:-2]), d.free[-2:], d.ranges[0][0])
    elif plan.atomic:
        plan = replace(plan, epilogue="")
        _added_at_once(stage, plan, d)
    else:
        _in_parts(stage, plan, d)
    return plan


def operands_of(d: Definition) -> list[str]:
    """The tensors and funcs that the terms read along rows or columns, not both."""
    (term, _, _), (rows, columns) = d.ranges[0], d.free[-2:]
    found: dict[str, bool] = {}
    for r in reads_in(d.values):
        used = {v for e in r.index for v in variables(e)}
        near = term in used and len(used & {rows, columns}) == 1
        found[r.name] = near and found.get(r.name, True)
    return [name for name, near in found.items() if near]


def _plan(stage: Stage, d: Definition) -> BlockTiles:
    operands, sizes = operands_of(d), sizes_of(stage)
    vector = min(fetched(stage, source) for source in operands)
    copied = vector * min(r.dtype.bytes for r in reads_in(d.values) if r.name in operands)
    *batch, rows, columns = (sizes.get(v) for v in d.free)
    tile, each, parts, group = (64, 64, 16), (4, 4), 1, 1
    if rows and columns:
        count = prod(n or _BLOCKS for n in batch)
        if count * rows * columns >= 2 * _BLOCKS * 128 * 128 and min(rows, columns) >= 128:
            tile, each = (128, 128, 8), (8, 8)
        grid = -(-rows // tile[0]), -(-columns // tile[1])
        parts = _parts(count * prod(grid), sizes.get(d.ranges[0][0]))
        group = _GROUP if min(grid) >= 2 * _GROUP and grid[0] % _GROUP == 0 else 1
    reader = reader_of(stage)
    epilogue = "" if reader is None else reader.func
    return BlockTiles(
        tile, each, vector, 3 if copied >= _COPIED else 1, parts, False, group, 0, epilogue
    )


def _parts(tiles: int, terms: int | None) -> int:
    """How many parts of the terms keep a GPU busy: a power of two that divides them."""
    parts = 1
    while (
        terms is not None
        and 2 * parts * tiles <= _BLOCKS
        and terms % (2 * parts) == 0
        and terms >= 2 * parts * _TERMS
    ):
        parts *= 2
    return parts


def _in_parts(stage: Stage, plan: BlockTiles, d: Definition) -> None:
    """Sums of each part of the terms, and these added up."""
    reader = reader_of(stage) if plan.epilogue else None
    part, _ = stage.split(d.ranges[0][0], nparts=plan.parts)
    made = stage.rfactor(part)
    made.reorder_storage(part.name, *d.free)
    term = made.schedule.state.program.func(made.func).definitions[0].ranges[0][0]
    _tiles(made, plan, [part.name, *d.free[:-2]], d.free[-2:], term)
    if reader is None:
        elements(stage)
    else:
        elements(reader, vector=1)
        stage.compute_at(reader, reader.loops[-1])


def _added_at_once(stage: Stage, plan: BlockTiles, d: Definition) -> None:
    """Sums of each part of the terms in registers, and these added to the result, which starts apart."""
    part, _ = stage.split(d.ranges[0][0], nparts=plan.parts)
    made = stage.rfactor(part)
    total = stage.atomic()
    share_points(stage, definition_of(stage), _THREADS, vector_of(stage))
    _, tx, r, c = _on_threads(total, plan, [part.name, *d.free[:-2]], d.free[-2:])
    total.unroll(r).unroll(c)
    made.compute_at(total, tx).set_scope(REGISTER)
    term = definition_of(made).ranges[0][0]
    operands = _of_tile(made, term, d.free[-2:])
    ko, ki = made.split(term, plan.tile[2])
    made.reorder(part.name, *d.free[:-2], ko, ki, *d.free[-2:])
    _fetch(made, plan, operands, ko)
    made.unroll(ki).unroll(d.free[-2]).unroll(d.free[-1])


def _on_threads(
    stage: Stage, plan: BlockTiles, batch: list[str], sides: tuple[str, ...]
) -> tuple[Loop, ...]:
    """Tiles of the result for blocks, and smaller ones for threads: the loops over these and inside."""
    ro, co, ri, ci = stage.tile(sides, plan.tile[:2])
    ty, tx, r, c = stage.tile((ri, ci), plan.each)
    stage.reorder(*batch, ro, co, ty, tx, r, c)
    on_grid(stage, batch, ro.name, co.name, group=plan.group, blocks=plan.blocks)
    stage.bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
    return ty, tx, r, c


def _fetch(stage: Stage, plan: BlockTiles, operands: list[str], ko: Loop) -> None:
    """Tiles of the operands in shared memory, ahead of their use."""
    for source in operands:
        stage.schedule.cache_read(source, stage.func, at=ko, scope=SHARED).cooperate(plan.vector)
    if plan.stages > 1:
        stage.pipeline(ko, plan.stages)


def _tiles(
    stage: Stage, plan: BlockTiles, batch: list[str], sides: tuple[str, ...], term: str
) -> None:
    schedule, name = stage.schedule, stage.func
    operands = _of_tile(stage, term, sides)
    _, tx, r, c = _on_threads(stage, plan, batch, sides)
    ko, ki = stage.split(term, plan.tile[2])
    stage.reorder(ko, ki, r, c)
    if plan.epilogue:
        out = following(stage, tx, REGISTER)
    else:
        out = schedule.cache_write(name, at=tx, scope=REGISTER)
    wide = vector_of(out)
    if plan.parts > 1:  # the part is the outermost dimension in memory, the last of the stage
        out.reorder(*batch, *sides)
        wide = even_width(
            ACCESS // stage.schedule.state.program.func(name).dtypes[0].bytes,
            sizes_of(out).get(sides[1]),
        )
    write_neighbours(out, plan.each[1], wide)
    _fetch(stage, plan, operands, ko)
    stage.unroll(ki).unroll(r).unroll(c)


def _of_tile(stage: Stage, term: str, sides: tuple[str, ...]) -> list[str]:
    """The operands, also where a part of the terms is free."""
    found = []
    for r in reads_in(definition_of(stage).values):
        used = {v for e in r.index for v in variables(e)}
        if term in used and len(used & {*sides}) == 1 and r.name not in found:
            found.append(r.name)
    return found


def on_grid(
    stage: Stage, batch: list[str], rows: str, columns: str, *, group: int = 1, blocks: int = 0,
    cluster: int = 1,
) -> None:  # fmt: skip
    """Tiles for blocks: batches on an axis of their own, tiles on two, or in an order on one.

    With a `group` blocks go down so many rows of tiles before the next column; with `blocks` above 0 there
    are only so many, each of which makes several tiles. Neighbours along rows are a `cluster`.
    """
    if cluster > 1:
        rows, rank = (x.name for x in stage.split(rows, cluster))
        stage.reorder(rank, *batch, rows, columns).bind(rank, CLUSTER)
        group, blocks = max(group // cluster, 1), blocks // cluster
    outer = [fused(stage, batch)] if batch else []
    if group == 1 and not blocks:
        bind_blocks(stage, [*outer, rows, columns])
        return
    loops = [rows, columns]
    if group > 1:
        above, inner = (x.name for x in stage.split(rows, group))
        loops = [above, columns, inner]
        stage.reorder(*outer, *loops)
    if blocks:
        turn, block = (x.name for x in stage.split(fused(stage, [*outer, *loops]), blocks))
        stage.reorder(block, turn).bind(block, "blockIdx.x")
    else:
        bind_blocks(stage, [*outer, fused(stage, loops)])
