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
from math import gcd
from typing import Any

from tdsl.autoschedule.recipes.block_scaled_operands import (
    TensorProduct,
    block_size,
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
from tdsl.autoschedule.recipes.epilogue import reader_of
from tdsl.autoschedule.recipes.operands import (
    Matrices,
    flatten_sides,
    operands_of,
)
from tdsl.autoschedule.recipes.partial_sums import add_parts, in_parts
from tdsl.autoschedule.recipes.stage_facts import definition_of, sizes_of
from tdsl.autoschedule.recipes.tensor_forms import mma_of
from tdsl.autoschedule.recipes.tensor_products import product_of, row_width, side_of, write_product
from tdsl.autoschedule.recipes.tensor_tiles import TensorCoreChoices, best_tiles, seconds
from tdsl.core.node import frozen
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.expr import TRUE, ZERO, Var
from tdsl.lang.regions import reads_in
from tdsl.lang.show import show_expr
from tdsl.lang.types import bf16, f16
from tdsl.machine.instructions.warpgroups import GroupMma
from tdsl.machine.model import Machine
from tdsl.schedule.factor_out import factors_of_product
from tdsl.schedule.fluent import Stage


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
    tiles = TensorCoreChoices(chosen.block, chosen.warp, chosen.stages, group=chosen.group)
    write_product(stage, product, tiles, reader if stage is whole else None, 0)
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
            x = _scaled_product(scratch, m, gcd(same, 64), machine, native)
        except Unsuited as reason:
            reasons.append(reason)
            continue
        if block_scale is None and native and any(o.transposed for o in x.operands):
            continue  # threads would load single bytes
        widths = [row_width(x, o, shifted=False) for o in x.operands]
        left, right = (side_of(x.stage, o, machine, n) for o, n in zip(x.operands, widths, strict=True))
        assert not isinstance(x.form, GroupMma), "warps multiply"
        sums = 1 if native else 2  # those of a block, too
        p = product_of(scratch, m, count, x.form, (left, right), packed=x.packed, sums=sums)
        tiles = best_tiles(p, machine)[:1]
        best += [(seconds(t, p, machine), _of_whole_steps(t, count, native, x.packed)) for t in tiles]
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
) -> TensorProduct:
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
    return TensorProduct(terms, operands, form, tuple(r for r in reads if r.name != terms.func), same)
