"""Tiles of a product by the tensor cores of a GPU: what their price depends on, and their directives.

for tiles of the result:                on blocks
  for tiles of that:                    on warps, whose registers hold the sums
    for steps along the terms:          tiles of both operands in shared memory, fetched ahead
      for steps of an instruction:      ldmatrix into registers, then mma.sync for each 16 x 8 sums
    results, and what is made of them alone, from registers to memory

Where blocks of terms have scales that the instruction does not take, a stage inside of a step has the sums
of a block, which are added up times the scales.
"""

from __future__ import annotations

from math import prod

from tdsl.autoschedule.recipes.block_scaled_operands import TensorProduct, copy_scales
from tdsl.autoschedule.recipes.choices import Unsuited, refused
from tdsl.autoschedule.recipes.epilogue import PAD_BYTES, ROW_BYTES, following, reader_of, store_by_groups
from tdsl.autoschedule.recipes.grid import on_grid
from tdsl.autoschedule.recipes.operand_tiles import (
    RegisterFactor,
    compute_in_registers,
    copy_tile,
    load_tile,
    multiply_tiles,
)
from tdsl.autoschedule.recipes.operands import (
    Matrices,
    Operand,
    is_shifted,
    operations_of,
    source_of,
    vector_width,
)
from tdsl.autoschedule.recipes.pipelining import COPIED
from tdsl.autoschedule.recipes.stage_facts import definition_of, even_width, shape_of_source, sizes_of
from tdsl.autoschedule.recipes.tensor_tiles import PHASE_BYTES, Product, Side, TensorCoreChoices
from tdsl.cost.sectors import WIDEST
from tdsl.lang.expr import Expr, Var
from tdsl.lang.regions import reads_in
from tdsl.machine.instructions.block_scaled import BlockScaledMma
from tdsl.machine.instructions.tensor_cores import Mma
from tdsl.machine.instructions.warpgroups import GroupMma
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.naming import LoopLike
from tdsl.schedule.state import FRAGMENT, SWIZZLES

_MOST_WARPS = 32  # of a block
_OPEN = 4096  # assumed for rows, columns or terms whose number only a call determines
_MOST_PADDING = 32  # times the products of the result that the instructions of a small one may compute


def product_of(
    stage: Stage, m: Matrices, terms: int | None, form: Mma | BlockScaledMma, sides: tuple[Side, Side], *,
    packed: int = 1, sums: int = 1,
) -> Product:  # fmt: skip
    """What the price of a stage depends on; Unsuited where an instruction would make mostly padding.

    A byte of an operand has `packed` terms, and a thread `sums` for each of its results.
    """
    sizes, program = sizes_of(stage), stage.schedule.state.program
    counts = [prod(sizes.get(v) or 0 for v in names) for names in (m.rows, m.columns)]
    is_open = not all((*counts, terms))
    rows, columns, terms = (n or _OPEN for n in (*counts, terms))
    steps = form.rows, form.columns, form.k
    padded = prod(-(-n // step) * step for n, step in zip((rows, columns, terms), steps, strict=True))
    if padded > _MOST_PADDING * rows * columns * terms:
        raise Unsuited(f"{rows} rows, {columns} columns and {terms} terms are mostly padding")
    total, result = (program.func(x.func).dtypes[0].bytes for x in (stage, reader_of(stage) or stage))
    others = (v for v in definition_of(stage).free if v not in (*m.rows, *m.columns))
    left, right = sides
    return Product(
        rows, columns, terms // packed, prod(sizes.get(v) or 1 for v in others), left, right, form.left.name,
        sums * total, result, (*steps[:2], form.k // packed), open=is_open,
    )  # fmt: skip


def side_of(
    stage: Stage, x: Operand, machine: Machine, width: int, *, packable: bool = False, boxed: bool = False,
) -> Side:  # fmt: skip
    """An operand as its price sees it, whose rows are aligned to `width` elements."""
    size = x.read.dtype.bytes
    return Side(
        size, width * size, x.transposed, x.computed, packable, boxed, source_of(stage, x).dtype.bytes,
        operations_of(stage, x, machine), is_shifted(stage, x, width),
    )  # fmt: skip


def row_width(x: TensorProduct, o: Operand, *, shifted: bool = True) -> int:
    """The elements of an operand's rows in one access of at most 16 bytes."""
    if x.packed == 1 or o.transposed:
        return vector_width(x.stage, o, shifted=shifted)
    return even_width(WIDEST // o.read.dtype.bytes, shape_of_source(x.stage, o.read.name)[-1])


def check_tiles(plan: TensorCoreChoices, x: TensorProduct) -> None:
    """Raise ScheduleError for tiles that an instruction does not divide, or cannot read."""
    block, warp, form, is_group = plan.block, plan.warp, x.form, isinstance(x.form, GroupMma)
    for what, size, step in (
        ("rows of a warp", warp[0], form.rows), ("columns of a warp", warp[1], form.columns),
        ("terms of a block", block[2], form.k), ("rows of a block", block[0], warp[0]),
        ("columns of a block", block[1], warp[1]),
    ):  # fmt: skip
        if size <= 0 or size % step:
            raise refused(
                f"{size} {what} are no multiple of {step}",
                f"{form.name} makes {form.rows} x {form.columns} x {form.k} products at once",
            )
    most = _MOST_WARPS // 4 if is_group else _MOST_WARPS
    warps = block[0] // warp[0] * (block[1] // warp[1])
    if warps > most:
        raise refused(
            f"tiles of {warp} make {warps} warps of a block, which has {most} at most",
            "choose larger tiles of a warp",
        )
    for o, along, what in zip(x.operands, block, ("rows", "columns"), strict=False):
        elements, size, least = along if o.transposed else block[2], o.read.dtype.bytes, min(SWIZZLES)
        if is_group and elements * size % least:
            raise refused(
                f"rows of {elements * size} bytes of tiles of {o.read.name!r} are no multiple of {least}",
                f"swizzled tiles are read: choose a multiple of {least // size} "
                f"{what if o.transposed else 'terms'} of a block",
            )


def write_product(
    stage: Stage, x: TensorProduct, plan: TensorCoreChoices, reader: Stage | None, shared: int
) -> None:
    """Write the loops of tiles, of blocks that can share so many bytes; `reader` is the epilogue of sums."""
    check_tiles(plan, x)
    (left, right), terms, d = x.operands, x.stage, definition_of(stage)
    (term, _, _), in_blocks, is_group = d.ranges[0], terms.func != stage.func, isinstance(x.form, GroupMma)
    batch = [v for v in d.free if v not in (left.along, right.along)]
    vectors, sizes = [row_width(x, o) for o in x.operands], sizes_of(stage)
    io, jo, ii, ji = stage.tile((left.along, right.along), plan.block[:2])
    wi, wj, ii, ji = stage.tile((ii, ji), plan.warp)
    ko, ki = stage.split(term, plan.block[2] // (x.terms if in_blocks else 1))
    outside: tuple[LoopLike, ...] = (*batch, io, jo, wi, wj, ko)
    if in_blocks:
        stage.reorder(*outside, ki, ii, ji).unroll(ki)
    else:
        ki = multiply_tiles(stage, x.form, (ii, ji, ki), outside)
    loops = [*batch, io.name, jo.name]
    on_grid(stage, loops, group=plan.group, blocks=plan.blocks, cluster=plan.cluster)
    stage.bind(wi, "threadIdx.z").bind(wj, "threadIdx.y")
    index, order = definition_of(stage).index, stage.schedule.state.plan(stage.func).order
    index = tuple(index[axis] for axis in order or range(len(index)))  # that with the largest stride first
    out = following(stage, wj, FRAGMENT, reader)
    if in_blocks:
        terms.compute_at(stage, ki).set_scope(FRAGMENT)
        inner = definition_of(terms).ranges[0][0]
        ki = multiply_tiles(terms, x.form, (left.along, right.along, inner), (*batch, term))
        stage.cooperate()
    size = out.schedule.state.program.func(out.func).dtypes[0].bytes
    if isinstance(x.form, GroupMma) and _is_stored_whole(stage, out, plan, index, x.operands, shared):
        adjacent = WIDEST // size if x.form.unit == "tcgen05" else 2
        store_by_groups(out, size, adjacent, even_width(WIDEST // size, sizes.get(right.along)))
    else:
        out.cooperate(2 if index[-1] == Var(right.along) else 1)
    step = x.terms if in_blocks else plan.block[2] // x.packed
    tiles = zip(x.operands, vectors, x.sources, plan.block, plan.warp, "ab", strict=False)
    for o, vector, source, along, rows, name in tiles:
        if isinstance(source, RegisterFactor):
            compute_in_registers(stage, o, ko, source, plan.block[2])
            continue
        tile = copy_tile(terms, o, along if o.transposed else step, (stage, ko), 0 if source else vector)
        if not is_group:
            load_tile(terms, o, tile.func, (terms, ki), name, rows)
    if x.scales:
        blocks = (sizes.get(term) or 1) // (1 if in_blocks else x.terms)
        copy_scales(stage, x, ko, even_width(plan.block[2] // x.terms, blocks))
    copied = any(n * o.read.dtype.bytes >= COPIED for n, o in zip(vectors, x.operands, strict=True))
    if plan.stages > 1 and (any(x.sources) or copied):
        stage.pipeline(ko, plan.stages, producer_warps=all(x.sources))


def _is_stored_whole(
    stage: Stage, out: Stage, plan: TensorCoreChoices, index: tuple[Expr, ...],
    operands: tuple[Operand, Operand], shared: int,
) -> bool:  # fmt: skip
    """True where tiles of a group have whole rows to store, and shared memory for them besides the ring's."""
    along, sizes, copy = [x.along for x in operands], sizes_of(stage), definition_of(out)
    if any((sizes.get(v) or 0) < n for v, n in zip(along, plan.warp, strict=True)):
        return False
    if plan.blocks:
        tiles = prod(-(-(sizes.get(v) or 1) // n) for v, n in zip(along, plan.block, strict=False))
        others = prod(sizes.get(e.name) or 1 for e in index if isinstance(e, Var) and e.name not in along)
        if tiles * others % plan.blocks:
            return False
    size = out.schedule.state.program.func(out.func).dtypes[0].bytes
    ring = sum(n * x.read.dtype.bytes for n, x in zip(plan.block, operands, strict=False))
    used = plan.stages * plan.block[2] * ring + plan.tiles * plan.warp[0] * (ROW_BYTES + PAD_BYTES)
    whole = plan.warp[1] * size % ROW_BYTES == 0 and used + PHASE_BYTES <= shared
    same = all(r.index == copy.index for r in reads_in(copy.values) if r.name == stage.func)
    return whole and same and index[-2:] == tuple(map(Var, along))
