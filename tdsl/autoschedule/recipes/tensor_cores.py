"""Sums of products by the tensor cores of a GPU.

for tiles of the result:                on blocks
  for tiles of that:                    on warps, whose registers hold the sums
    for steps along the terms:          tiles of both operands in shared memory, fetched ahead
      for steps of an instruction:      ldmatrix into registers, then mma.sync for each 16 x 8 sums
    results, and what is made of them alone, from registers to memory
"""

from __future__ import annotations

from copy import copy
from dataclasses import fields, replace
from math import prod
from typing import Any

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
from tdsl.autoschedule.recipes.epilogue import PAD_BYTES, ROW_BYTES, following, reader_of, store_by_groups
from tdsl.autoschedule.recipes.grid import on_grid
from tdsl.autoschedule.recipes.operand_tiles import (
    RegisterFactor,
    compute_in_registers,
    copy_tile,
    is_boxed,
    is_fetched_whole,
    load_tile,
    multiply_tiles,
    register_factor,
)
from tdsl.autoschedule.recipes.operands import (
    Operand,
    flatten_sides,
    is_shifted,
    matrices_of,
    operands_of,
    operations_of,
    pack,
    plain_operand,
    source_of,
    vector_width,
    with_zeros,
)
from tdsl.autoschedule.recipes.partial_sums import add_parts, in_parts
from tdsl.autoschedule.recipes.stage_facts import definition_of, even_width, sizes_of
from tdsl.autoschedule.recipes.tensor_forms import (
    Form,
    group_form,
    mma_for,
    mma_of,
    no_instruction,
)
from tdsl.autoschedule.recipes.tensor_tiles import (
    PHASE_BYTES,
    Product,
    Side,
    TensorCoreChoices,
    best_tiles,
    group_unit,
)  # fmt: skip
from tdsl.core.node import frozen
from tdsl.cost.sectors import WIDEST
from tdsl.lang.expr import Expr, Var
from tdsl.lang.regions import reads_in
from tdsl.lang.types import bf16, f8e4m3, f8e5m2, f16
from tdsl.machine.instructions.tensor_cores import Mma
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.state import FRAGMENT, SWIZZLES

_MOST_WARPS = 32  # of a block
_COPIED = 4  # bytes that a GPU copies to shared memory asynchronously, at least
_OPEN = 4096  # assumed for rows, columns or terms whose number only a call determines
_MOST_PADDING = 32  # times the products of the result that the instructions of a small one may compute


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
    _check_tiles(chosen.block, chosen.warp, form, left, right)
    plan = TensorCoreMatmul(**_given(chosen), stage=whole.func, instruction=form.name)
    sources = (factor or boxed[0], boxed[1])
    shared = machine.level("shared").bytes or 0
    _schedule(stage, (left, right), sources, form, plan, reader if stage is whole else None, shared)
    if stage is not whole:
        add_parts(whole, reader)
    return plan


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
    """What the price of a stage depends on; None if no instruction makes it, or mostly padding.

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
    steps = form.rows, form.columns, form.k
    sides = m.rows, m.columns, m.terms
    rows, columns, terms = (prod(sizes.get(v) or 0 for v in names) or _OPEN for names in sides)
    padded = prod(-(-n // step) * step for n, step in zip((rows, columns, terms), steps, strict=True))
    if padded > _MOST_PADDING * rows * columns * terms:
        return None
    reader = reader_of(stage)
    result = stage.schedule.state.program.func((reader or stage).func).dtypes[0]
    outline_factors(stage, (m.rows[-1], m.columns[-1]), factors)
    left = _side(stage, m.rows, m.terms, form.left.bytes, machine, is_left=True)
    right = _side(stage, m.columns, m.terms, form.left.bytes, machine, is_left=False)
    others = (v for v in definition_of(stage).free if v not in (*m.rows, *m.columns))
    return Product(
        rows, columns, terms, prod(sizes.get(v) or 1 for v in others), left, right, form.left.name,
        total.bytes, result.bytes, steps,
        groups=form.left in (f16, bf16) or (form.left.bytes < 4 and not left.turned and not right.turned),
        open=any(sizes.get(v) is None for names in sides for v in names),
    )  # fmt: skip


def _side(
    stage: Stage, names: tuple[str, ...], terms: tuple[str, ...], size: int, machine: Machine, *,
    is_left: bool,
) -> Side:  # fmt: skip
    """An operand as tiles of it are fetched; what is gathered may be fetched 16 bytes at a time."""
    x = plain_operand(stage, names, terms)
    if x is None:
        return Side(size, WIDEST, turned=False)
    width, plain = vector_width(stage, x, shifted=False), x.axes[1] == len(x.read.index) - 1
    in_registers = "wgmma" in machine.features and is_left
    boxed = is_boxed(stage, x) or (in_registers and register_factor(stage, x, ROW_BYTES // size) is not None)
    return Side(
        size, width * size, x.transposed, x.computed, plain and not x.twice, boxed,
        source_of(stage, x).dtype.bytes, operations_of(stage, x, machine), is_shifted(stage, x, width),
    )  # fmt: skip


def _check_tiles(block: tuple[int, int, int], warp: tuple[int, int], form: Form, *operands: Operand) -> None:
    """Raise ScheduleError for tiles that an instruction does not divide, or cannot read."""
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
    most = _MOST_WARPS if isinstance(form, Mma) else _MOST_WARPS // 4
    warps = block[0] // warp[0] * (block[1] // warp[1])
    if warps > most:
        raise refused(
            f"tiles of {warp} make {warps} warps of a block, which has {most} at most",
            "choose larger tiles of a warp",
        )
    for x, along, what in zip(operands, block, ("rows", "columns"), strict=False):
        elements, size, least = along if x.transposed else block[2], x.read.dtype.bytes, min(SWIZZLES)
        if not isinstance(form, Mma) and elements * size % least:
            raise refused(
                f"rows of {elements * size} bytes of tiles of {x.read.name!r} are no multiple of {least}",
                f"swizzled tiles are read: choose a multiple of {least // size} "
                f"{what if x.transposed else 'terms'} of a block",
            )


def _schedule(
    stage: Stage, operands: tuple[Operand, Operand], sources: tuple[RegisterFactor | bool, bool], form: Form,
    plan: TensorCoreMatmul, reader: Stage | None, shared: int,
) -> None:  # fmt: skip
    """Write the loops of tiles; `sources`: whether TMA fetches an operand, or what threads compute it of."""
    left, right = operands
    block, warp = plan.block, plan.warp
    d = definition_of(stage)
    term = d.ranges[0][0]
    batch = [v for v in d.free if v not in (left.along, right.along)]
    vectors, sizes = [vector_width(stage, x) for x in operands], sizes_of(stage)
    io, jo, ii, ji = stage.tile((left.along, right.along), block[:2])
    wi, wj, ii, ji = stage.tile((ii, ji), warp)
    ko, ki = stage.split(term, block[2])
    ki = multiply_tiles(stage, form, (ii, ji, ki), (*batch, io, jo, wi, wj, ko))
    on_grid(stage, batch, io.name, jo.name, group=plan.group, blocks=plan.blocks, cluster=plan.cluster)
    stage.bind(wi, "threadIdx.z").bind(wj, "threadIdx.y")
    index, order = definition_of(stage).index, stage.schedule.state.plan(stage.func).order
    index = tuple(index[axis] for axis in order or range(len(index)))  # that with the largest stride first
    out = following(stage, wj, FRAGMENT, reader)
    size = out.schedule.state.program.func(out.func).dtypes[0].bytes
    if not isinstance(form, Mma) and _is_stored_whole(stage, out, plan, index, operands, shared):
        adjacent = WIDEST // size if form.unit == "tcgen05" else 2
        store_by_groups(out, size, adjacent, even_width(WIDEST // size, sizes.get(right.along)))
    else:
        out.cooperate(2 if index[-1] == Var(right.along) else 1)
    for x, along, vector, source in zip(operands, block, vectors, sources, strict=False):
        if isinstance(source, RegisterFactor):
            compute_in_registers(stage, x, ko, source, block[2])
            continue
        tile = copy_tile(stage, x, along if x.transposed else block[2], (stage, ko), 0 if source else vector)
        if isinstance(form, Mma):
            operand, rows = ("a", warp[0]) if x is left else ("b", warp[1])
            load_tile(stage, x, tile.func, (stage, ki), operand, rows)
    copied = any(n * x.read.dtype.bytes >= _COPIED for n, x in zip(vectors, operands, strict=True))
    if plan.stages > 1 and (any(sources) or copied):
        stage.pipeline(ko, plan.stages, producer_warps=all(sources))


def _is_stored_whole(
    stage: Stage, out: Stage, plan: TensorCoreMatmul, index: tuple[Expr, ...],
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
