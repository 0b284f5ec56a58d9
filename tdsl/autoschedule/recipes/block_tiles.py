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

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tdsl.autoschedule.recipes.block_rows import ACCESS, fused
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe, reduction_of
from tdsl.autoschedule.recipes.elements import elements
from tdsl.autoschedule.recipes.epilogue import following, reader_of, write_neighbours
from tdsl.autoschedule.recipes.grid import bind_blocks, share_points
from tdsl.autoschedule.recipes.operands import Operand, flatten_sides, matrices_of, vector_width
from tdsl.autoschedule.recipes.stage_facts import (
    definition_of,
    even_width,
    load_width,
    separate_operands,
    sizes_of,
    vector_of,
)
from tdsl.core.node import frozen
from tdsl.errors import ScheduleError
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Read, Var
from tdsl.lang.regions import reads_in
from tdsl.schedule.fluent import Stage
from tdsl.schedule.gathering import uses_variable
from tdsl.schedule.naming import Loop
from tdsl.schedule.state import CLUSTER, REGISTER, SHARED

_COPIED = 4  # bytes, the least that a GPU copies to shared memory by itself
_BLOCKS = 132  # that a GPU runs at a time
_TERMS = 512  # of a part, the least that are worth sums of their own
_THREADS = 256  # of a block that starts results
_GROUP = 8  # rows of tiles whose blocks run one after the other
_SIDE = 64  # rows or columns of a tile, with which few are compared
_WASTE = 1.1  # times the points that tiles of a run of variables may have


@frozen
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
    """Tiles for a sum of products with two free variables or more.

    The last two free variables are the rows and columns of the tile; those before are batches. Where these
    two fill no tile, as in a 1 x 1 convolution, variables that one operand alone moves with are flattened;
    so are those of a sum over several.
    What both operands hold of a tile is fetched into shared memory by all threads, 16 bytes at a time where
    extents allow that, and while others are in use where copies have 4 bytes or more. An element-wise stage
    that alone reads the sums is made of them in registers. `choices` replace what is chosen: the numbers of
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
    d = reduction_of(stage)
    if len(d.free) < 2:
        raise Unsuited("its results have less than two variables, rows and columns")
    reader = _flatten_sides(stage, d)
    d = reduction_of(stage, 1)
    if len(operands_of(d)) < 2:
        rows, columns = d.free[-2:]
        raise Unsuited(
            f"it does not read one array along {rows!r} and another along {columns!r}, its last two variables"
        )
    flat, reader = reader is not None, reader or reader_of(stage)
    plan = replace(_plan(stage, d, operands_of(d)), epilogue="" if reader is None else reader.func)
    plan = choose(plan, choices, epilogue=dict.fromkeys(("", plan.epilogue)))
    if plan.atomic and plan.parts > 1:
        plan = replace(plan, epilogue="")
    if flat and reader is not None and not plan.epilogue:
        elements(reader)
    if not plan.epilogue:
        reader = None
    if plan.parts == 1:
        _tiles(stage, plan, list(d.free[:-2]), d.free[-2:], d.ranges[0][0], reader)
    elif plan.atomic:
        _added_at_once(stage, plan, d)
    else:
        _in_parts(stage, plan, d, reader)
    return plan


def _flatten_sides(stage: Stage, d: Definition) -> Stage | None:
    """One variable for terms, and one for rows and for columns where the last two of a stage fill no tile.

    What alone reads the sums is flattened, too; this stage is given.
    """
    sizes = sizes_of(stage)
    known = [n for v in d.free[-2:] if (n := sizes.get(v)) is not None]
    several = len(d.ranges) > 1
    if not several and all(n >= _SIDE for n in known) and len(operands_of(d)) > 1:
        return None
    try:
        m = matrices_of(d)
        m = replace(m, rows=_filling(m.rows, sizes), columns=_filling(m.columns, sizes))
        left = [v for v in d.free if v not in (*m.rows[:-1], *m.columns[:-1])]
        flat = len(m.rows) == len(m.columns) == 1 and not several
        if flat or {*left[-2:]} != {m.rows[-1], m.columns[-1]}:
            return None
        with stage.schedule.all_or_nothing():
            return flatten_sides(stage, m)[1]
    except (Unsuited, ScheduleError):  # it is no product, or what reads it reads beyond its array
        return None


def _filling(names: tuple[str, ...], sizes: Mapping[str, int | None]) -> tuple[str, ...]:
    """The last of some variables, as many as fill tiles nearly; all where none do.

    >>> _filling(("n", "h", "w"), {"n": 8, "h": 32, "w": 32}), _filling(("n", "h"), {"n": 9, "h": 7})
    (('h', 'w'), ('n', 'h'))
    """
    for n in range(1, len(names) + 1):
        points = prod(sizes.get(v) or 0 for v in names[-n:])
        if not points:
            return names[-max(n - 1, 1) :]
        if -(-points // _SIDE) * _SIDE <= _WASTE * points:
            return names[-n:]
    return names


def operands_of(d: Definition) -> list[tuple[str, str | None]]:
    """The tensors and funcs that the terms read along rows or columns, not both; see `separate_operands`."""
    (term, _, _), sides = d.ranges[0], d.free[-2:]
    reads, others = list[Read](), set[str]()
    for r in reads_in(d.values):
        used = {v for e in r.index for v in variables(e)}
        if term in used and len(used.intersection(sides)) == 1:
            reads.append(r)
        else:
            others.add(r.name)
    return separate_operands((r for r in reads if r.name not in others), sides)


def _plan(stage: Stage, d: Definition, operands: list[tuple[str, str | None]]) -> BlockTiles:
    sizes, names = sizes_of(stage), {name for name, _ in operands}
    vector = min(_vector_of(stage, d, *x) for x in operands)
    copied = vector * min(r.dtype.bytes for r in reads_in(d.values) if r.name in names)
    *batch, rows, columns = (sizes.get(v) for v in d.free)
    tile, each, parts, group = (64, 64, 16), (4, 4), 1, 1
    if rows and columns:
        count = prod(n or _BLOCKS for n in batch)
        if count * rows * columns >= 2 * _BLOCKS * 128 * 128 and min(rows, columns) >= 128:
            tile, each = (128, 128, 8), (8, 8)
        grid = -(-rows // tile[0]), -(-columns // tile[1])
        parts = _parts(count * prod(grid), sizes.get(d.ranges[0][0]))
        group = _GROUP if min(grid) >= 2 * _GROUP and grid[0] % _GROUP == 0 else 1
    return BlockTiles(tile, each, vector, 3 if copied >= _COPIED else 1, parts, False, group)


def _vector_of(stage: Stage, d: Definition, source: str, along: str | None) -> int:
    """How many neighbours of an operand, or of what is gathered of it, one access has."""
    for r in reads_in(d.values):
        if r.name == source and uses_variable(r, along) and _is_gathered(r, (*d.free[-2:], d.ranges[0][0])):
            side = next(v for v in d.free[-2:] if uses_variable(r, v))
            return vector_width(stage, Operand(r, side, (0, 1), gathered=True))
    return load_width(stage, source, along)


def _is_gathered(r: Read, sides: tuple[str, ...]) -> bool:
    """True for what is read at parts of a flat variable: tiles have a dimension for this, not for those."""
    return any(v in variables(e) and Var(v) not in as_sum(e).terms for e in r.index for v in sides)


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


def _in_parts(stage: Stage, plan: BlockTiles, d: Definition, reader: Stage | None) -> None:
    """Sums of each part of the terms, and these added up."""
    part, _ = stage.split(d.ranges[0][0], nparts=plan.parts)
    partial = stage.rfactor(part)
    partial.reorder_storage(part.name, *d.free)
    term = partial.schedule.state.program.func(partial.func).definitions[0].ranges[0][0]
    _tiles(partial, plan, [part.name, *d.free[:-2]], d.free[-2:], term, None)
    if reader is None:
        elements(stage)
    else:
        elements(reader, vector=1)
        stage.compute_at(reader, reader.loops[-1])


def _added_at_once(stage: Stage, plan: BlockTiles, d: Definition) -> None:
    """Sums of each part of the terms in registers, added to the result, which is initialised before."""
    part, _ = stage.split(d.ranges[0][0], nparts=plan.parts)
    partial = stage.rfactor(part)
    total = stage.atomic()
    share_points(stage, definition_of(stage).free, _THREADS, vector_of(stage))
    _, tx, r, c = _on_threads(total, plan, [part.name, *d.free[:-2]], d.free[-2:])
    total.unroll(r).unroll(c)
    partial.compute_at(total, tx).set_scope(REGISTER)
    term = definition_of(partial).ranges[0][0]
    operands = _of_tile(partial, term, d.free[-2:])
    ko, ki = partial.split(term, plan.tile[2])
    partial.reorder(part.name, *d.free[:-2], ko, ki, *d.free[-2:])
    _fetch(partial, plan, d.free[-2:], operands, ko)
    partial.unroll(ki).unroll(d.free[-2]).unroll(d.free[-1])


def _on_threads(stage: Stage, plan: BlockTiles, batch: list[str], sides: tuple[str, ...]) -> tuple[Loop, ...]:
    """Tiles of the result for blocks, and smaller ones for threads: the loops over these and inside."""
    ro, co, ri, ci = stage.tile(sides, plan.tile[:2])
    ty, tx, r, c = stage.tile((ri, ci), plan.each)
    stage.reorder(*batch, ro, co, ty, tx, r, c)
    on_grid(stage, batch, ro.name, co.name, group=plan.group, blocks=plan.blocks)
    stage.bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
    return ty, tx, r, c


def _fetch(
    stage: Stage, plan: BlockTiles, sides: tuple[str, ...],
    operands: list[tuple[str, str | None]], ko: Loop,
) -> None:  # fmt: skip
    """Tiles of the operands in shared memory, ahead of their use."""
    reads, term = [*reads_in(definition_of(stage).values)], definition_of(stage).ranges[0][0]
    for source, along in operands:
        source_reads = (r for r in reads if r.name == source and uses_variable(r, along))
        gathered = any(_is_gathered(r, (*sides, term)) for r in source_reads)
        tile = stage.schedule.cache_read(
            source, stage.func, at=ko, scope=SHARED, gathered=gathered, along=along
        )
        tile.cooperate(plan.vector)
    if plan.stages > 1:
        stage.pipeline(ko, plan.stages)


def _tiles(
    stage: Stage, plan: BlockTiles, batch: list[str], sides: tuple[str, ...], term: str,
    reader: Stage | None,
) -> None:  # fmt: skip
    schedule, name = stage.schedule, stage.func
    operands = _of_tile(stage, term, sides)
    _, tx, r, c = _on_threads(stage, plan, batch, sides)
    ko, ki = stage.split(term, plan.tile[2])
    stage.reorder(ko, ki, r, c)
    if reader is not None:
        out = following(stage, tx, REGISTER, reader)
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
    _fetch(stage, plan, sides, operands, ko)
    stage.unroll(ki).unroll(r).unroll(c)


def _of_tile(stage: Stage, term: str, sides: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """The operands, also where a part of the terms is free."""
    used = ((r, {v for e in r.index for v in variables(e)}) for r in reads_in(definition_of(stage).values))
    reads = (r for r, moving in used if term in moving and len(moving & {*sides}) == 1)
    return separate_operands(reads, sides)


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
