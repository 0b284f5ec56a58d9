"""Reductions of the rows of a product by tensor cores, computed from its tiles in fragments.

for rows of tiles (and parts of all columns): blocks
  the rows' operand, once, in registers
  for tiles of the columns:
    what the other operand holds of the tile, fetched together into shared memory, ahead of its use
    the product of the tile, in fragments
    its elements, merged with those at the same place of the tiles before
  the results of all places of a row, through shared memory and by shuffles
"""

from __future__ import annotations

from math import ceil, prod

from tdsl.autoschedule.recipes.choices import Unsuited, gpu_of, recipe
from tdsl.autoschedule.recipes.grid import bind_blocks
from tdsl.autoschedule.recipes.operand_tiles import Place, copy_tile, load_tile, multiply_tiles
from tdsl.autoschedule.recipes.operands import Operand, plain_operands
from tdsl.autoschedule.recipes.reduced_tiles import (
    LEAST,
    ReducedProduct,
    count_parts,
    find_reduced_product,
    open_blocks,
)
from tdsl.autoschedule.recipes.stage_facts import definition_of, known_sizes, load_width
from tdsl.autoschedule.recipes.tensor_forms import mma_of
from tdsl.core.node import frozen
from tdsl.machine.instructions.tensor_cores import ROWS, Mma
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.state import FRAGMENT, GROUP, REGISTER

_WARPS = 8  # of a block, each with ROWS rows
_COLUMNS = 64  # of a tile, of which a thread has the products and the results in registers
_MOST = 128  # terms: a thread has a quarter as many registers of the rows' operand
_LANES = 32
_GAP = 8  # elements between rows in shared memory, so that those of half a warp are in different banks
_WORD = 4  # bytes of the products and results in fragments


@frozen
class ReducedFragments:
    """The tile of a block (rows, columns) of a `product`, and in how many `parts` the columns are."""

    product: str
    tile: tuple[int, int]
    parts: int


@recipe
def reduced_fragments(stage: Stage, *, machine: Machine | None = None) -> ReducedFragments:
    """Reduce the rows of a product of few terms by tensor cores in the kernel that makes the product.

    As `reduced_tiles`, of operands that tensor cores multiply, with at most 128 terms, a multiple of those of
    an instruction. Returns what was chosen.

    >>> import tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> x, y = td.Tensor("x", (4096, 64), td.f16), td.Tensor("y", (8192, 64), td.f16)
    >>> product, best = td.Func("product"), td.Func("best")
    >>> product[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[j, k], td.f32), axis=k)
    >>> best[i] = td.max(product[i, j], axis=j)
    >>> s = td.Schedule(best, target=td.Target("cuda", arch="sm_90a"))
    >>> reduced_fragments(s[best])
    ReducedFragments(product='product', tile=(128, 64), parts=4)
    """
    schedule = stage.schedule
    machine = gpu_of(stage, machine)
    reduced = find_reduced_product(stage)
    product, program = schedule[reduced.product], schedule.state.program
    d, sizes = definition_of(product), known_sizes(product)
    left, right = sorted(plain_operands(d), key=lambda x: x.along != reduced.inner_row)
    types = [program.func(name).dtypes for name in (stage.func, product.func)]
    form = mma_of(left, right, types[1][0].name)
    if (
        (left.along, right.along) != (reduced.inner_row, reduced.inner_column)
        or left.gathered
        or right.gathered
    ):
        raise Unsuited("its operands are not read along rows, columns and terms")
    if form is None or not machine.supports(form.name):
        raise Unsuited(f"{left.read.dtype} and {right.read.dtype} have no instruction")
    terms = sizes[reduced.term]
    if any(len(t) > 1 or t[0].bytes != _WORD for t in types) or terms > _MOST or terms % form.k:
        raise Unsuited(f"fragments have values of {_WORD} bytes, and {terms} terms do not suit")
    rows, columns = sizes[reduced.inner_row], sizes[reduced.inner_column]
    if min(rows, columns) < LEAST:
        raise Unsuited(f"{rows} rows and {columns} columns are no tiles")
    warps = min(_WARPS, 1 << (ceil(rows / ROWS) - 1).bit_length())
    blocks = prod(sizes[v] for v in d.free) // (rows * columns) * ceil(rows / (warps * ROWS))
    parts = count_parts(blocks, ceil(columns / _COLUMNS), machine.threads)
    plan = ReducedFragments(reduced.product, (warps * ROWS, _COLUMNS), parts)
    _write(stage, reduced, plan, (left, right), form)
    return plan


def _write(
    stage: Stage, reduced: ReducedProduct, plan: ReducedFragments, operands: tuple[Operand, Operand],
    form: Mma,
) -> None:  # fmt: skip
    stage.compute_root()
    owner, blocks, tile, inner, rows = open_blocks(stage, reduced, plan.tile, plan.parts)
    warp, row = owner.split(rows, ROWS)
    places = owner.rfactor(inner)
    each, lane = owner.split(inner, _LANES)
    owner.reorder(*blocks, warp, row, each, lane)
    bind_blocks(owner, blocks)
    owner.bind(warp, "threadIdx.y")
    lanes = owner.rfactor(lane)
    owner.bind(lane.name, "threadIdx.x").unroll(row)
    lanes.compute_at(owner, warp).set_scope(REGISTER)
    _, thread = lanes.split(lane.name, _LANES)
    lanes.bind(thread, "threadIdx.x")
    first = [x.name for x in lanes.loops if x.name not in (reduced.row, each.name)]
    lanes.reorder(*first, reduced.row, each.name).unroll(reduced.row).unroll(each.name)
    places.compute_at(owner, warp).set_scope(FRAGMENT)
    others = [x.name for x in places.loops if x.name not in (tile, reduced.row, inner)]
    places.reorder(*others, tile, reduced.row, inner)
    copy = stage.schedule.cache_read(places.func, lanes, scope=GROUP).compute_at(owner, warp)
    copy.align_storage(len(copy.loops) - 1, plan.tile[1] + _GAP)
    product = stage.schedule[plan.product].compute_at(places, tile).set_scope(FRAGMENT)
    d, terms = definition_of(product), known_sizes(product)[reduced.term]
    outside = [v for v in d.free if v not in (reduced.inner_row, reduced.inner_column)]
    ko = multiply_tiles(product, form, (reduced.inner_row, reduced.inner_column, reduced.term), outside)
    at: tuple[Place, Place] = ((owner, warp), (places, tile))
    for x, operand, place, along in zip(operands, "ab", at, plan.tile, strict=True):
        vector = load_width(product, x.read.name, x.copy_along)
        shared = copy_tile(product, x, along if x.transposed else terms, place, vector)
        load_tile(product, x, shared.func, place if operand == "a" else (product, ko), operand, ROWS)
    places.cooperate()
    copy.cooperate(2)
    places.pipeline(tile, 2)
