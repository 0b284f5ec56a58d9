"""Sums of products by the tensor cores of a GPU, with tiles that are given or have the lowest price."""

from __future__ import annotations

from copy import copy
from dataclasses import fields, replace
from math import prod
from typing import Any

from tdsl.autoschedule.recipes.block_scaled_operands import TensorProduct
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
from tdsl.autoschedule.recipes.epilogue import ROW_BYTES, reader_of
from tdsl.autoschedule.recipes.operand_tiles import is_boxed, is_fetched_whole, register_factor
from tdsl.autoschedule.recipes.operands import (
    flatten_sides,
    matrices_of,
    operands_of,
    pack,
    plain_operand,
    vector_width,
    with_zeros,
)
from tdsl.autoschedule.recipes.partial_sums import add_parts, in_parts
from tdsl.autoschedule.recipes.stage_facts import definition_of, sizes_of
from tdsl.autoschedule.recipes.tensor_forms import (
    Form,
    group_form,
    mma_for,
    mma_of,
    no_instruction,
)
from tdsl.autoschedule.recipes.tensor_products import product_of, side_of, write_product
from tdsl.autoschedule.recipes.tensor_tiles import Product, Side, TensorCoreChoices, best_tiles, group_unit
from tdsl.core.node import frozen
from tdsl.cost.sectors import WIDEST
from tdsl.lang.regions import reads_in
from tdsl.lang.types import bf16, f8e4m3, f8e5m2, f16
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule, Stage


@frozen
class TensorCoreMatmul(TensorCoreChoices):
    """The choices for a `stage`, and the `instruction` that multiplies.

    They have been applied to the stage; calling them with another schedule of the program applies them there.
    """

    stage: str = ""
    instruction: str = ""

    def __call__(self, schedule: BaseSchedule) -> None:
        """Apply the same choices, unless they have been."""
        if not schedule.state.plan(self.stage).scheduled:
            tensor_core_matmul(schedule[self.stage], **_given(self))


def _given(c: TensorCoreChoices) -> dict[str, Any]:
    return {x.name: getattr(c, x.name) for x in fields(TensorCoreChoices)}


@recipe
def tensor_core_matmul(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> TensorCoreMatmul:
    """Make a sum of products of f16, bf16, floats (in f32) or integers (in i32) of 8 bits by `mma.sync`.

    `choices` are `block`, the tile of a block (rows, columns, terms; 128, 128, 32), `warp`, that of a warp
    (64, 32), and how many `stages` of tiles of the operands are in shared memory, fetched with cp.async (3).
    Operands may lie either way in memory; other free variables are batches, also those that one operand alone
    has: of these its rows or columns are the last. An element-wise stage that alone
    reads the sums is made of them in registers. With `tf32` products of f32 are made of 10 bits of each
    factor. Factors that are expressions are computed in each tile, in a type that holds all their values:
    `factors`, or one that an instruction multiplies.

    With `warpgroups`, `wgmma` computes the products (on sm_100a `tcgen05`), from shared memory; `warp` is the
    tile of a group of four warps (64, 256, or 128, 128; of a block 128, 256, and 128 bytes of terms, in 4
    stages). Tiles that divide the operands,
    with rows of a multiple of 32 bytes, are fetched as wholes (TMA).
    Blocks go down `group` rows of tiles before the next column, which keeps operands in the cache; with
    `blocks` there are only so many, of several tiles each. A `cluster` of blocks has neighbouring rows, and
    each of them fetches a part of the columns' operand for all.

    The terms may be in `parts` (split-K), each of whole steps: their sums are added up, in a fixed order, by
    another kernel, which computes the element-wise stage, too. Operands that are `packed` (that of the rows,
    that of the columns) are copied first, by other kernels, to rows that begin at multiples of 16 bytes.

    Returns what was chosen; ScheduleError for a stage of another kind, for sums of no terms, for choices that
    there are not, and for tiles that do not fit each other or the instruction.

    >>> import tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> a, b, c = td.Tensor("a", (256, 64), td.f16), td.Tensor("b", (64, 256), td.f16), td.Func("c")
    >>> c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    >>> s = td.Schedule(c)
    >>> plan = td.recipes.tensor_core_matmul(s[c], block=(64, 64, 32), warp=(32, 32))
    >>> plan.instruction, plan.stages
    ('mma_m16n8k16_f16_f16', 3)
    """
    chosen, machine = choose(TensorCoreChoices(), choices), gpu_of(stage, machine)
    group = group_unit(machine) if chosen.warpgroups else None
    unit = group.name if group else ""
    if chosen.warpgroups and not group:
        arch = machine.gpu.arch if machine.gpu else ""
        raise Unsuited(
            f"wgmma needs sm_90a, tcgen05 sm_100a, and the schedule is for {arch}",
            'leave warpgroups= out, or td.Schedule(..., target="cuda:sm_90a")',
        )
    d = reduction_of(stage)
    m = matrices_of(d, computed=True)
    outline_factors(stage, (m.rows[-1], m.columns[-1]), chosen.factors)
    d, sizes = reduction_of(stage), sizes_of(stage)
    matrices_of(d)
    if group:
        chosen = choose(group.default(max(r.dtype.bytes for r in reads_in(d.values))), choices)
        if "warp" not in choices:
            chosen = replace(chosen, warp=(chosen.warp[0], min(chosen.warp[1], chosen.block[1])))
    if chosen.blocks % chosen.cluster:
        raise refused(
            f"blocks={chosen.blocks} are no whole clusters of {chosen.cluster}",
            f"choose blocks= as a multiple of {chosen.cluster}, or 0 for one for each tile",
        )
    if 0 in (sizes.get(v) for v in m.terms):
        raise Unsuited("its sums have no terms")
    m, reader = flatten_sides(stage, m.fitting(d, sizes, chosen.block))
    whole, steps = stage, -(-(sizes_of(stage).get(m.terms[0]) or 0) // chosen.block[2])
    part = -(-steps // min(chosen.parts, max(steps, 1))) * chosen.block[2]
    if any(chosen.packed):
        for x, along, packed in zip(operands_of(stage, m), chosen.block, chosen.packed, strict=False):
            if packed:
                pack(stage, x, along, part if chosen.parts > 1 else chosen.block[2])
    if chosen.parts > 1 and steps > 1:
        reader = reader or reader_of(stage)
        stage, _, _ = in_parts(stage, m.terms[0], part)
        m = replace(m, terms=(definition_of(stage).ranges[0][0],))
    left, right = with_zeros(stage, operands_of(stage, m), chosen.block[2])
    total = stage.schedule.state.program.func(stage.func).dtypes[0].name
    tiles = chosen.block[:1] + chosen.block[2:], chosen.block[1:]
    fetched = [is_fetched_whole(stage, x, tile) for x, tile in zip((left, right), tiles, strict=True)]
    boxed = fetched if unit and chosen.stages > 1 else [False, False]
    factor = register_factor(stage, left, chosen.block[2]) if unit == "wgmma" and boxed[1] else None
    in_registers, tf32 = factor is not None, chosen.tf32
    form: Form | None = mma_of(left, right, total, machine, tf32=tf32)
    if unit:
        form = group_form(left, right, total, chosen.warp[1], unit, tf32=tf32, in_registers=in_registers)
    if form is None:
        raise no_instruction(left, right, total, unit, chosen.warp[1], tf32=tf32)
    product = TensorProduct(stage, (left, right), form, sources=(factor or boxed[0], boxed[1]))
    shared = machine.level("shared").bytes or 0
    write_product(stage, product, chosen, reader if stage is whole else None, shared)
    if stage is not whole:
        add_parts(whole, reader)
    return TensorCoreMatmul(**_given(chosen), stage=whole.func, instruction=form.name)


def on_tensor_cores(stage: Stage, machine: Machine) -> TensorCoreMatmul | None:
    """The recipe with the cheapest tiles for the sizes of a stage on a machine; None where it does not apply.

    Factors of 8-bit floats are multiplied as f16, since tensor cores add products of the former with fewer
    bits than f32 has. A size that only a call tells counts as a large one.
    """
    types = factor_types(definition_of(stage))
    factors = f16.name if types is not None and types[0] in (f8e4m3, f8e5m2) else ""
    try:
        p = _product(Stage(copy(stage.schedule), stage.func, stage.definition), machine, factors)
    except Unsuited:
        return None
    for t in best_tiles(p, machine) if p is not None else ():
        plan = if_suited(tensor_core_matmul, stage, machine=machine, **_given(replace(t, factors=factors)))
        if plan is not None:
            return plan
    return None


def _product(stage: Stage, machine: Machine, factors: str) -> Product | None:
    """What the price of a stage depends on; None if no instruction makes it.

    The stage is one to be thrown away, whose computed factors become funcs.
    """
    m, sizes = matrices_of(reduction_of(stage), computed=True), sizes_of(stage)
    types = factor_types(definition_of(stage), factors)
    total = stage.schedule.state.program.func(stage.func).dtypes[0]
    form = None if types is None else mma_for(*types, total.name, machine)
    rates = {x.dtype for x in machine.rates if x.unit == "tensor"}
    if form is None or form.left.name not in rates or not machine.supports(form.name):
        return None
    if 0 in sizes.values():
        return None
    outline_factors(stage, (m.rows[-1], m.columns[-1]), factors)
    left = _side(stage, m.rows, m.terms, form.left.bytes, machine, is_left=True)
    right = _side(stage, m.columns, m.terms, form.left.bytes, machine, is_left=False)
    p = product_of(stage, m, prod(sizes.get(v) or 0 for v in m.terms), form, (left, right))
    bytes_in_order = form.left.bytes < 4 and not left.turned and not right.turned
    return replace(p, groups=form.left in (f16, bf16) or bytes_in_order)


def _side(
    stage: Stage, names: tuple[str, ...], terms: tuple[str, ...], size: int, machine: Machine, *,
    is_left: bool,
) -> Side:  # fmt: skip
    """An operand as tiles of it are fetched; what is gathered may be fetched 16 bytes at a time."""
    x = plain_operand(stage, names, terms)
    if x is None:
        return Side(size, WIDEST, turned=False)
    plain, in_registers = x.axes[1] == len(x.read.index) - 1, "wgmma" in machine.features and is_left
    boxed = is_boxed(stage, x) or (in_registers and register_factor(stage, x, ROW_BYTES // size) is not None)
    width = vector_width(stage, x, shifted=False)
    return side_of(stage, x, machine, width, packable=plain and not x.twice, boxed=boxed)
