"""Windows on a GPU: stencils, filters, and pipelines of such, in tiles.

    for tiles (blocks):
      what the tile reads of each source, with its halo, fetched together into shared memory
      what it needs of each func inside, made together in shared memory
      the tile, some neighbours for each thread

What two tiles need of the funcs inside is made in both: tiles are so large that this is little.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tdsl.autoschedule.patterns.groups import open_group
from tdsl.autoschedule.patterns.row_groups import is_plain
from tdsl.autoschedule.recipes.block_rows import fused
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe
from tdsl.autoschedule.recipes.epilogue import write_neighbours
from tdsl.autoschedule.recipes.grid import bind_blocks
from tdsl.autoschedule.recipes.stage_facts import definition_of, known_sizes, vector_of
from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Const, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import Stage
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.needed_boxes import boxes_of_group
from tdsl.schedule.properties import element_bytes, extents, root_boxes, unplaced_at_root, volume
from tdsl.schedule.state import REGISTER, SHARED, State

_SHARED = 48 << 10  # bytes of a block, which every GPU has
_AGAIN = 1.6  # how often points of the funcs inside may be made
_TERMS = 64  # of a filter whose sums one thread adds up
_LEAST = 32  # rows and columns that are worth tiles


@frozen
class BlockStencil:
    """The tile of a block (rows, columns) and its threads (along rows, along columns).

    `inside` are funcs that are made for each tile, `sources` what is fetched for it.
    """

    tile: tuple[int, int]
    threads: tuple[int, int]
    inside: tuple[str, ...]
    sources: tuple[str, ...]


@recipe
def block_stencil(stage: Stage, **choices: Any) -> BlockStencil:
    """Schedule a stage that reads windows, and what it alone reads, in tiles of shared memory.

    The stage is element-wise, or a sum of few terms; its last two dimensions are those of the tiles, the
    others are batches. `choices` replace what is chosen: the numbers of `BlockStencil`. Returns what was
    chosen. The schedule has to know all sizes.

    >>> import tdsl as td
    >>> i, j, a = *td.vars("i j"), td.Tensor("a", (1002, 1002), td.f32)
    >>> rows, blur = td.Func("rows"), td.Func("blur", shape=(1000, 1000))
    >>> rows[i, j] = (a[i, j] + a[i, j + 1] + a[i, j + 2]) / 3
    >>> blur[i, j] = (rows[i, j] + rows[i + 1, j] + rows[i + 2, j]) / 3
    >>> s = td.Schedule(blur)
    >>> td.recipes.block_stencil(s[blur])
    BlockStencil(tile=(16, 128), threads=(8, 32), inside=('rows',), sources=('a',))
    """
    plan = choose(plan_block_stencil(stage), choices)
    _write(stage, definition_of(stage), plan)
    return plan


def plan_block_stencil(stage: Stage) -> BlockStencil:
    """The funcs and sources of tiles of a stage; Unsuited where there are none."""
    state = unplaced_at_root(inline_funcs(bind_state(stage.schedule.state, stage.schedule.sizes)))
    boxes = root_boxes(state)
    f = state.program.func(stage.func)
    if f.name not in boxes or not is_plain(f) or len(f.variables) < 2:
        raise Unsuited("it has updates, one variable, an order, or nothing of it is needed")
    d, sizes = f.definitions[0], extents(f, f.definitions[0], boxes[f.name])
    known_sizes(stage)
    terms = prod(sizes[v] or 0 for v, _, _ in d.ranges)
    if any((sizes[v] or 0) < _LEAST for v in d.free[-2:]):
        raise Unsuited(f"rows or columns are less than {_LEAST}, and no tile")
    if terms > _TERMS:
        raise Unsuited(f"its sums have {terms} terms, and one thread adds {_TERMS} at most")
    if d.index[-1:] != (Var(d.free[-1]),):
        raise Unsuited("its last variable does not go along memory")
    return _plan(state, f, boxes)


def _plan(state: State, f: FuncDef, boxes: dict[str, Box]) -> BlockStencil:
    """The funcs that can be made for a tile, and what is read several times for it."""
    tile = (16, 128)
    group = [g for g in open_group(state, f.name) if g in boxes]
    tile_boxes = _tile_boxes(state, f, boxes[f.name], tile, group)
    inside: list[str] = []
    for name in group:
        g = state.program.func(name)
        readers = {c.name for c, _ in state.consumers(name)}
        points = volume(tile_boxes[name]) if name in tile_boxes else None
        if not readers <= {f.name, *inside} or points is None or g.definitions[0].ranges:
            continue
        if is_plain(g) and points <= _AGAIN * prod(tile):
            inside.append(name)
    sources = tuple(n for n in _windows(state, f, inside) if _fits(tile_boxes, n, tile))
    kept = [*inside, *sources]
    size = sum((volume(tile_boxes[n]) or 0) * element_bytes(state.program, n) for n in kept)
    if not kept:
        raise Unsuited("it reads no window of an array, and nothing that may be made for a tile of it")
    if size > _SHARED:
        raise Unsuited(f"a tile needs {size} bytes of shared memory, of {_SHARED}")
    return BlockStencil(tile, (8, 32), tuple(inside), sources)


def _tile_boxes(
    state: State, f: FuncDef, whole: Box, tile: tuple[int, int], group: list[str]
) -> Mapping[str, Box]:
    """The boxes that an inner tile of a func needs."""
    box = []
    sides = (*(1,) * (len(f.variables) - 2), *tile)
    for (lo, hi), size in zip(whole, sides, strict=True):
        assert isinstance(lo, Const) and isinstance(hi, Const), "sizes are known"
        first = int(lo.value) + (int(hi.value) - int(lo.value)) // 4
        box.append((const(first), const(first + size - 1)))
    return boxes_of_group(state, f.name, tuple(box), group)


def _windows(state: State, f: FuncDef, inside: list[str]) -> list[str]:
    """The arrays that are not computed for the tile, and are read at several places for one point of it."""
    indices: dict[str, set[tuple[object, ...]]] = {}
    moving: set[str] = set()
    for g in (f, *map(state.program.func, inside)):
        d = g.definitions[0]
        ranges = {v for v, _, _ in d.ranges}
        for r in reads_in(d.values):
            if any(variables(e) & ranges and variables(e) & {*d.free} for e in r.index):
                moving.add(r.name)
            indices.setdefault(r.name, set()).add(r.index)
    return [n for n, places in indices.items() if n not in inside and (len(places) > 1 or n in moving)]


def _fits(tile_boxes: Mapping[str, Box], name: str, tile: tuple[int, int]) -> bool:
    """True for a source of which a tile needs about a tile."""
    points = volume(tile_boxes[name]) if name in tile_boxes else None
    return points is not None and prod(tile) // 4 <= points <= 2 * prod(tile)


def _write(stage: Stage, d: Definition, plan: BlockStencil) -> None:
    schedule = stage.schedule
    *batch, rows, columns = d.free
    (height, width), (lines, across) = plan.tile, plan.threads
    ranges = [v for v, _, _ in d.ranges]
    wide = bool(ranges) or vector_of(stage) == width // across
    io, jo, ii, ji = (x.name for x in stage.tile((rows, columns), (height, width)))
    # what is copied out of registers is a box, so that the lines of a thread are neighbours
    part, ty = (x.name for x in stage.split(ii, height // lines if ranges else lines))
    if ranges:
        part, ty = ty, part
    first, second = (x.name for x in stage.split(ji, width // across if wide else across))
    tx, lane = (first, second) if wide else (second, first)
    stage.reorder(*batch, io, jo, ty, tx, *ranges, part, lane)
    bind_blocks(stage, [*([fused(stage, batch)] if batch else []), io, jo])
    stage.bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
    for name in plan.inside:
        schedule[name].compute_at(stage, tx).set_scope(SHARED).cooperate()
    for name in plan.sources:
        schedule.cache_read(name, stage, at=tx, scope=SHARED, inside=True).cooperate()
    if ranges:
        out = schedule.cache_write(stage, at=tx, scope=REGISTER)
        write_neighbours(out, width // across, vector_of(out))
    elif wide:
        stage.vectorize(lane)
    for v in (*ranges, part, *([lane] if ranges or not wide else [])):
        stage.unroll(v)
