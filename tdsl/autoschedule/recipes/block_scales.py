"""Sums of products whose factors have a scale for each block of terms, by the tensor cores of a GPU.

for tiles of the result:                      on blocks, then on warps, whose registers hold the sums
  for steps along the terms:                  tiles of the operands and of the scales in shared memory
    for blocks of terms with one scale:
      the products of the block, by tensor cores, in fragments of their own
      sums, to which these are added times the scales

With `block_scale` an instruction takes the scales, and there are no sums of a block.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from math import gcd, prod
from typing import Any

from tdsl.autoschedule.recipes.block_scaled_operands import (
    ScaledProduct,
    block_size,
    copy_scales,
    scaled_operands,
)
from tdsl.autoschedule.recipes.choices import (
    Unsuited,
    choose,
    gpu_of,
    if_suited,
    recipe,
    reduction_of,
    refused,
)
from tdsl.autoschedule.recipes.computed_operands import factor_types, outline_factors
from tdsl.autoschedule.recipes.epilogue import following, reader_of
from tdsl.autoschedule.recipes.grid import on_grid
from tdsl.autoschedule.recipes.operand_tiles import copy_tile, load_tile, multiply_tiles
from tdsl.autoschedule.recipes.operands import (
    Matrices,
    Operand,
    flatten_sides,
    is_shifted,
    operands_of,
    operations_of,
    source_of,
    vector_width,
)
from tdsl.autoschedule.recipes.partial_sums import add_parts, in_parts
from tdsl.autoschedule.recipes.stage_facts import definition_of, even_width, shape_of_source, sizes_of
from tdsl.autoschedule.recipes.tensor_forms import mma_of
from tdsl.autoschedule.recipes.tensor_tiles import Product, Side, TensorCoreChoices, best_tiles, seconds
from tdsl.core.node import frozen
from tdsl.cost.sectors import WIDEST
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.expr import TRUE, ZERO, Var
from tdsl.lang.regions import reads_in
from tdsl.lang.show import show_expr
from tdsl.lang.types import bf16, f16
from tdsl.machine.model import Machine
from tdsl.schedule.factor_out import factors_of_product
from tdsl.schedule.fluent import Stage
from tdsl.schedule.naming import LoopLike
from tdsl.schedule.state import FRAGMENT

_OPEN = 4096  # assumed for rows or columns whose number only a call determines
_COPIED = 4  # bytes that a GPU copies to shared memory asynchronously, at least
_MOST_PADDING = 32  # times the products of the result that the instructions of a small one may compute


@frozen
class BlockScaledChoices:
    """The choices of `block_scaled_matmul`."""

    block: tuple[int, int, int] = (128, 64, 64)
    warp: tuple[int, int] = (32, 32)
    stages: int = 2
    parts: int = 1
    group: int = 1
    block_scale: bool = False


@frozen
class BlockScaledMatmul(BlockScaledChoices):
    """The choices for a product, its `instruction`, and the terms whose products are added before scaling."""

    instruction: str = ""
    terms: int = 0


@recipe
def block_scaled_matmul(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> BlockScaledMatmul:
    """Make a sum of products with scales of blocks of terms by `mma.sync`, on a GPU (from sm_80 on).

    Scales are factors that depend on the terms by `k // n` alone, with a constant n: those of rows, of
    columns, or of both. The products of a block of terms are added up by tensor cores, as f16, which has to
    hold all values of the other two factors (8-bit floats, bytes, nibbles), and threads add these sums up
    times the scales. With `block_scale` (sm_120a) an instruction takes the scales of both operands, 8-bit
    floats or `f4e2m1`: for blocks of 32 terms bytes that are exponents, `exp2(cast(s, f32) - 127)`, and for
    floats of 4 bits also `abs(cast(s, f32))` of f8e4m3, for blocks of 16. Other `choices`
    are those of `tensor_core_matmul`: `block`, `warp`, `stages`, `parts` and `group`. What is not
    given is what has the lowest price.

    Returns what was chosen; ScheduleError for a stage of another kind, and for terms that are no whole
    blocks.

    >>> import tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> a, b = td.Tensor("a", (512, 512), td.f8e4m3), td.Tensor("b", (512, 512), td.f8e4m3)
    >>> s, c = td.Tensor("s", (512, 16), td.f32), td.Func("c")
    >>> c[i, j] = td.sum(td.cast(a[i, k], td.f32) * s[i, k // 32] * td.cast(b[j, k], td.f32), axis=k)
    >>> schedule = td.Schedule(c, target="cuda:sm_80")
    >>> plan = td.recipes.block_scaled_matmul(schedule[c])
    >>> plan.instruction, plan.terms
    ('mma_m16n8k16_f16_f16', 32)
    """
    machine = gpu_of(stage, machine)
    chosen = choose(_cheapest(stage, machine, choices.get("block_scale")), choices)
    m, same, count = _matrices(stage)
    step = chosen.parts * chosen.block[2]
    if count % step:
        raise refused(
            f"{count} terms are no multiple of parts * block[2], which is {step}",
            f"choose block=(rows, columns, {gcd(count, chosen.block[2])}), parts=1",
        )
    m, reader, whole = *_flat(stage, m, chosen.block_scale), stage
    if chosen.parts > 1:
        reader = reader or reader_of(stage)
        stage, _, _ = in_parts(stage, m.terms[0], count // chosen.parts)
        m = replace(m, terms=(definition_of(stage).ranges[0][0],))
    product = _scaled_product(stage, m, gcd(same, chosen.block[2]), machine, chosen.block_scale)
    _write(stage, product, chosen, reader if stage is whole else None)
    if stage is not whole:
        add_parts(whole, reader)
    return BlockScaledMatmul(
        chosen.block, chosen.warp, chosen.stages, chosen.parts, chosen.group, chosen.block_scale,
        product.form.name, product.terms,
    )  # fmt: skip


def on_block_scales(stage: Stage, machine: Machine) -> BlockScaledMatmul | None:
    """The recipe for the sizes of a stage on a machine; None where it or its directives do not apply."""
    if 0 in sizes_of(stage).values():
        return None
    try:
        return if_suited(block_scaled_matmul, stage, machine=machine)
    except ScheduleError:
        return None


def _cheapest(stage: Stage, machine: Machine, block_scale: object) -> BlockScaledChoices:
    """The choices with the lowest price, of those with a `block_scale` that is given."""
    best: list[tuple[float, BlockScaledChoices]] = []
    reasons: list[Unsuited] = []
    for native in (True, False) if block_scale is None else (block_scale is True,):
        scratch = Stage(copy.copy(stage.schedule), stage.func, stage.definition)
        try:
            m, same, count = _matrices(scratch)
            m, _ = _flat(scratch, m, native)
            product = _scaled_product(scratch, m, gcd(same, 64), machine, native)
        except Unsuited as reason:
            reasons.append(reason)
            continue
        if block_scale is None and native and any(x.transposed for x in product.operands):
            continue  # threads would load single bytes
        p = _priced(scratch, product, count, machine)
        tiles = best_tiles(p, machine)[:1]
        best += [(seconds(t, p, machine), _of_whole_steps(t, count, native, product.packed)) for t in tiles]
    if reasons and not best:
        raise reasons[-1]
    return min(best, key=lambda x: x[0])[1] if best else BlockScaledChoices(block_scale=block_scale is True)


def _of_whole_steps(t: TensorCoreChoices, count: int, block_scale: bool, packed: int) -> BlockScaledChoices:
    """The choices of tiles of elements of `packed` terms, with steps and parts that divide all terms."""
    step = gcd(t.block[2] * packed, count)
    parts = max(n for n in range(1, t.parts + 1) if count // step % n == 0)
    return BlockScaledChoices((*t.block[:2], step), t.warp, t.stages, parts, t.group, block_scale)


def _matrices(stage: Stage) -> tuple[Matrices, int, int]:
    """The variables of a product, how many consecutive terms have the same scales, and all terms."""
    d = reduction_of(stage, 1)
    ((term, first, _),) = d.ranges
    if d.combine is None or d.combine.kind != "sum" or not all(isinstance(e, Var) for e in d.index):
        raise Unsuited("it is no sum of products")
    if d.where != TRUE or len(d.values) > 1:
        raise Unsuited(
            f"it adds up its terms only where {show_expr(d.where)}"
            if d.where != TRUE
            else "it has several results",
            "other terms can be 0: td.where(condition, factor, 0)",
        )
    sizes = {e: block_size(e, term) for e, _ in factors_of_product(d.values[0])}
    same = gcd(*(n for n in sizes.values() if n is not None))
    moving = [e for e, n in sizes.items() if n is None]
    if same < 2 or len(moving) != 2 or first != ZERO:
        raise Unsuited("its terms are no products of two factors with scales of blocks of terms")
    sides = []
    for e, other in zip(moving, reversed(moving), strict=True):
        sides.append(tuple(v for v in d.free if v in variables(e) - variables(other)))
    if not all(sides):
        raise Unsuited("no variable of its result indexes one factor alone")
    last = [max(d.index.index(Var(v)) for v in names) for names in sides]
    rows, columns = sides if last[0] < last[1] else sides[::-1]
    count = sizes_of(stage).get(term)
    if not count or count % same:
        raise Unsuited(
            f"its {count} terms are no multiple of the {same} that have one scale"
            if count
            else "the number of its terms is not known, or 0",
            f"add terms that are 0 up to a multiple of {same}, and give their number",
        )
    return Matrices(rows, columns, (term,)), same, count


def _flat(stage: Stage, m: Matrices, block_scale: bool) -> tuple[Matrices, Stage | None]:
    """All rows as one variable and all columns as another; with `block_scale` the others are batches."""
    return (Matrices(m.rows[-1:], m.columns[-1:], m.terms), None) if block_scale else flatten_sides(stage, m)


def _scaled_product(
    stage: Stage, m: Matrices, same: int, machine: Machine, block_scale: bool
) -> ScaledProduct:
    """The product by an instruction with scales, or a stage of the sums of blocks of `same` terms."""
    if block_scale:
        return scaled_operands(stage, m, machine)
    block, inner = stage.split(m.terms[0], same)
    partial = stage.rfactor(block)
    terms = partial.factor_out()
    reads = dict.fromkeys(r for r in reads_in(definition_of(partial).values) if block.name in variables(r))
    partial.inline()
    d = definition_of(terms)
    kinds = (f16, bf16) if stage.schedule.state.program.func(stage.func).fast_math else (f16,)
    types = next((t for t in kinds if factor_types(d, t.name) is not None), None)
    if types is None:
        raise Unsuited("f16 does not hold its factors without their scales")
    outline_factors(terms, (m.rows[0], m.columns[0]), types.name)
    operands = operands_of(terms, Matrices(m.rows, m.columns, (inner.name,)))
    form = mma_of(*operands, "f32", machine)
    if form is None or not machine.supports(form.name) or same % form.k:
        raise Unsuited(f"no instruction adds up {same} products of {types} in f32")
    return ScaledProduct(terms, operands, form, tuple(r for r in reads if r.name != terms.func), same)


def _priced(stage: Stage, x: ScaledProduct, count: int, machine: Machine) -> Product:
    """What the price depends on; registers have the sums of a block besides those of all terms."""
    sizes, d = sizes_of(stage), definition_of(stage)
    extents = [sizes.get(o.along) for o in x.operands]
    others = prod(sizes.get(v) or 1 for v in d.free if v not in [o.along for o in x.operands])
    widths = [_vector(x, o, shifted=False) for o in x.operands]
    sides = [
        Side(
            o.read.dtype.bytes, width * o.read.dtype.bytes, o.transposed, o.computed,
            source_bytes=source_of(x.stage, o).dtype.bytes,
            operations=operations_of(x.stage, o, machine), shifted=is_shifted(x.stage, o, width),
        )
        for o, width in zip(x.operands, widths, strict=True)
    ]  # fmt: skip
    steps = x.form.rows, x.form.columns, x.form.k // x.packed
    rows, columns = (n or _OPEN for n in extents)
    if -(-rows // steps[0]) * steps[0] * -(-columns // steps[1]) * steps[1] > _MOST_PADDING * rows * columns:
        raise Unsuited(f"{rows} rows and {columns} columns are mostly padding")
    result = stage.schedule.state.program.func(stage.func).dtypes[0].bytes
    sums = result if x.stage.func == stage.func else 2 * result
    return Product(
        rows, columns, count // x.packed, others, sides[0], sides[1], x.form.left.name, sums, result, steps,
        open=not all(extents),
    )  # fmt: skip


def _vector(x: ScaledProduct, o: Operand, *, shifted: bool = True) -> int:
    """The elements of an operand's rows in one access of at most 16 bytes."""
    if x.packed == 1 or o.transposed:
        return vector_width(x.stage, o, shifted=shifted)
    return even_width(WIDEST // o.read.dtype.bytes, shape_of_source(x.stage, o.read.name)[-1])


def _write(stage: Stage, x: ScaledProduct, plan: BlockScaledChoices, reader: Stage | None) -> None:
    """Schedule the products, and where they are sums of blocks these sums times the scales."""
    (left, right), terms, d = x.operands, x.stage, definition_of(stage)
    (term, _, _), in_blocks = d.ranges[0], x.stage.func != stage.func
    inner = definition_of(terms).ranges[0][0]
    batch = [v for v in d.free if v not in (left.along, right.along)]
    vectors = [_vector(x, o) for o in x.operands]
    blocks = (sizes_of(stage).get(term) or 1) // (1 if in_blocks else x.terms)
    width = even_width(plan.block[2] // x.terms, blocks)
    io, jo, ii, ji = stage.tile((left.along, right.along), plan.block[:2])
    wi, wj, ii, ji = stage.tile((ii, ji), plan.warp)
    ko, ki = stage.split(term, plan.block[2] // (x.terms if in_blocks else 1))
    outside: tuple[LoopLike, ...] = (*batch, io, jo, wi, wj, ko)
    if in_blocks:
        stage.reorder(*outside, ki, ii, ji).unroll(ki)
    else:
        ki = multiply_tiles(stage, x.form, (ii, ji, ki), outside)
    on_grid(stage, batch, io.name, jo.name, group=plan.group)
    stage.bind(wi, "threadIdx.z").bind(wj, "threadIdx.y")
    out = following(stage, wj, FRAGMENT, reader)
    if in_blocks:
        terms.compute_at(stage, ki).set_scope(FRAGMENT)
        ki = multiply_tiles(terms, x.form, (left.along, right.along, inner), (*batch, term))
    tiles = zip(x.operands, vectors, plan.block[:2], plan.warp, "ab", strict=True)
    for o, vector, along, rows, name in tiles:
        row = along if o.transposed else x.terms if in_blocks else plan.block[2] // x.packed
        tile = copy_tile(terms, o, row, (stage, ko), vector)
        load_tile(terms, o, tile.func, (terms, ki), name, rows)
    copy_scales(stage, x, ko, width)
    if in_blocks:
        stage.cooperate()
    out.cooperate(2)
    copied = any(n * o.read.dtype.bytes >= _COPIED for n, o in zip(vectors, x.operands, strict=True))
    if plan.stages > 1 and copied:
        stage.pipeline(ko, plan.stages)
