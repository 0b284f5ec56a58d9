"""Products of the tiles of a block by tensor cores, where operands have types for these.

for tiles of the sums (warps), in registers:
  for steps along the terms: what is not in shared memory, fetched together
    for steps of an instruction: ldmatrix into registers, then mma.sync for each 16 x 8 sums
  the sums, or their epilogue, to shared memory or to the result
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from tdsl.autoschedule.recipes.choices import Unsuited, reduction_of
from tdsl.autoschedule.recipes.operand_tiles import copy_tile, load_tile, multiply_tiles
from tdsl.autoschedule.recipes.operands import Operand, matrices_of, operands_of, vector_width
from tdsl.autoschedule.recipes.stage_facts import definition_of
from tdsl.autoschedule.recipes.tensor_forms import mma_of
from tdsl.core.node import frozen
from tdsl.lang.expr import Var
from tdsl.machine.instructions.tensor_cores import COLUMNS, ROWS, Mma
from tdsl.schedule.fluent import Stage
from tdsl.schedule.naming import Loop
from tdsl.schedule.state import FRAGMENT

LANES = 32  # threads of a warp
SUMS = 64  # sums of a thread, at most
TERMS = 32  # terms, of which a block fetches the operands


@frozen
class WarpTiles:
    """A product by tensor cores: its operands along rows and columns, the instruction, and a warp's tile."""

    func: str
    left: Operand
    right: Operand
    form: Mma
    tile: tuple[int, int]


def find_warp_tiles(stage: Stage, sizes: Mapping[str, int], warps: int) -> WarpTiles | None:
    """How warps share a tile of these extents; None where tensor cores do not make it in whole."""
    try:
        d = reduction_of(stage, 1)
        m = matrices_of(d)
        if len(m.rows) != 1 or len(m.columns) != 1:
            return None
        left, right = operands_of(stage, m)
    except Unsuited:
        return None
    form = mma_of(left, right, stage.schedule.state.program.func(stage.func).dtypes[0].name)
    rows, columns, terms = (sizes[v] for v in (left.along, right.along, d.ranges[0][0]))
    others = prod(sizes[v] for v in d.free if v not in (left.along, right.along))
    if form is None or left.gathered or right.gathered or others != 1 or terms % form.k:
        return None
    shapes = [  # all warps of the block, since they wait for what they fetch together
        (rows // down, columns * down // warps)
        for down in range(1, warps + 1)
        if warps % down == 0 and rows % (down * ROWS) == 0 and columns % (warps // down * COLUMNS) == 0
    ]
    tiles = [t for t in shapes if prod(t) <= SUMS * LANES]
    if not tiles:
        return None
    return WarpTiles(stage.func, left, right, form, min(tiles, key=lambda t: (prod(t), sum(t))))


@frozen
class WarpLoops:
    """The place of a product: the loops of its rows and columns in a tile, those outside, and the block's."""

    rows: str
    columns: str
    outside: tuple[str, ...]


def write_warp_tiles(
    stage: Stage, plan: WarpTiles, at: WarpLoops, in_shared: Collection[str], reader: Stage | None
) -> Stage:
    """Share a product among warps; the stage that copies its sums out of registers.

    Operands `in_shared` are in shared memory already. A `reader` is an epilogue of the sums in registers.
    """
    form, operands = plan.form, (plan.left, plan.right)
    term, _, _ = definition_of(stage).ranges[0]
    vectors = [vector_width(stage, x) for x in operands]
    wi, ii = stage.split(at.rows, plan.tile[0])
    wj, ji = stage.split(at.columns, plan.tile[1])
    ko, ki = stage.split(term, TERMS)
    ki = multiply_tiles(stage, form, (ii, ji, ki), (*at.outside, wi, wj, ko))
    warp = stage.fuse(wi, wj)
    stage.bind(warp, "threadIdx.y")
    out = _write_out(stage, warp, reader)
    for x, operand, vector, rows in zip(operands, "ab", vectors, plan.tile, strict=True):
        source = x.read.name
        if source not in in_shared:
            source = copy_tile(stage, x, rows if x.transposed else TERMS, (stage, ko), vector).func
        load_tile(stage, x, source, (stage, ki), operand, rows)
    return out


def _write_out(stage: Stage, warp: Loop, reader: Stage | None) -> Stage:
    if reader is None:
        out = stage.schedule.cache_write(stage, at=warp, scope=FRAGMENT)
    else:
        out = reader.reverse_compute_at(stage, warp)
        stage.store_at(stage, warp).set_scope(FRAGMENT)
    d = definition_of(out)
    return out.cooperate(2 if d.index[-1:] == (Var(d.free[-1]),) else 1)
