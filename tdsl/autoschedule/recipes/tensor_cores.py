"""Sums of products by the tensor cores of a GPU.

for tiles of the result:                on blocks
  for tiles of that:                    on warps, whose registers hold the sums
    for steps along the terms:          tiles of both operands in shared memory, fetched ahead
      for steps of an instruction:      ldmatrix into registers, then mma.sync for each 16 x 8 sums
    results, and what is made of them alone, from registers to memory
"""

from __future__ import annotations

from collections.abc import Mapping
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
    check_terms,
    flatten_sides,
    matrices_of,
    operands_of,
    operations_of,
    pack,
    plain_operand,
    source_of,
    vector_width,
)
from tdsl.autoschedule.recipes.partial_sums import add_parts, in_parts
from tdsl.autoschedule.recipes.stage_facts import definition_of, even_width, sizes_of
from tdsl.autoschedule.recipes.tensor_forms import (
    Form,
    group_form,
    group_unit,
    mma_for,
    mma_of,
    no_instruction,
    shape_of,
)
from tdsl.autoschedule.recipes.tensor_tiles import (
    GROUP_TILES,
    PHASE_BYTES,
    Product,
    Side,
    TensorCoreChoices,
    best_tiles,
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
_GROUP_TILE = (128, 256)  # of two groups of four warps
_GROUP_ROW_BYTES = 128  # of terms in a tile
_GROUP_STAGES = 4
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
    unit = group_unit(machine) if chosen.warpgroups else ""
    if chosen.warpgroups and not unit:
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
    if chosen.warpgroups:
        chosen = _for_groups(choices, max(r.dtype.bytes for r in reads_in(d.values)), unit)
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
    left, right = operands_of(stage, m)
    check_terms(stage, (left, right), chosen.block[2])
    total = stage.schedule.state.program.func(stage.func).dtypes[0].name
    form: Form | None
    if unit:
        factor = None
        if unit == "wgmma" and chosen.stages > 1 and is_fetched_whole(stage, right, chosen.block[1:]):
            factor = register_factor(stage, left, chosen.block[2])
        form = group_form(
            left, right, total, chosen.warp[1], unit, tf32=chosen.tf32, in_registers=factor is not None
        )
    else:
        form = mma_of(left, right, total, machine, tf32=chosen.tf32)
    if form is None:
        raise no_instruction(left, right, total, unit, chosen.warp[1], tf32=chosen.tf32)
    _check_tiles(chosen.block, chosen.warp, form)
    if unit:
        _check_rows(chosen.block, (left, right))
    plan = TensorCoreMatmul(**_given(chosen), stage=whole.func, instruction=form.name)
    shared = machine.level("shared").bytes or 0
    _schedule(stage, (left, right), form, plan, reader if stage is whole else None, shared)
    if stage is not whole:
        add_parts(whole, reader)
    return plan


def _for_groups(choices: dict[str, Any], size: int, unit: str) -> TensorCoreChoices:
    """The choices for operands of so many bytes, by default the best of an instruction of 128 threads."""
    rows, columns = GROUP_TILES[unit]
    block = (*_GROUP_TILE, _GROUP_ROW_BYTES // size)
    chosen = choose(TensorCoreChoices(block=block, warp=(rows, columns), stages=_GROUP_STAGES), choices)
    if "warp" in choices:
        return chosen
    return replace(chosen, warp=(rows, min(columns, chosen.block[1])))


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
    extents, steps = m.extents(sizes), shape_of(form)
    rows, columns, terms = (n or _OPEN for n in extents)
    padding = prod(-(-n // step) * step / n for n, step in zip((rows, columns, terms), steps, strict=True))
    if padding > _MOST_PADDING:
        return None
    reader = reader_of(stage)
    result = stage.schedule.state.program.func((reader or stage).func).dtypes[0]
    outline_factors(stage, (m.rows[-1], m.columns[-1]), factors)
    in_registers = group_unit(machine) == "wgmma"
    left = _side(stage, m.rows, m.terms, form.left.bytes, in_registers=in_registers)
    right = _side(stage, m.columns, m.terms, form.left.bytes, in_registers=False)
    others = (v for v in definition_of(stage).free if v not in (*m.rows, *m.columns))
    return Product(
        rows, columns, terms, prod(sizes.get(v) or 1 for v in others), left, right, form.left.name,
        total.bytes, result.bytes, steps,
        groups=form.left in (f16, bf16) or (form.left.bytes < 4 and not left.turned and not right.turned),
        open=0 in extents,
    )  # fmt: skip


def _side(
    stage: Stage, names: tuple[str, ...], terms: tuple[str, ...], size: int, *, in_registers: bool
) -> Side:
    """An operand as tiles of it are fetched; what is gathered may be fetched 16 bytes at a time.

    A computed factor may be `in_registers`, where an instruction reads it from there.
    """
    x = plain_operand(stage, names, terms)
    if x is None:
        return Side(size, WIDEST, turned=False)
    access, plain = vector_width(stage, x) * size, x.axes[1] == len(x.read.index) - 1
    boxed = is_boxed(stage, x) or (in_registers and register_factor(stage, x, ROW_BYTES // size) is not None)
    return Side(
        size, access, x.transposed, x.computed, plain and not x.twice, boxed,
        source_of(stage, x).dtype.bytes, operations_of(stage, x),
    )  # fmt: skip


def _check_tiles(block: tuple[int, int, int], warp: tuple[int, int], form: Form) -> None:
    steps = shape_of(form)
    most = _MOST_WARPS if isinstance(form, Mma) else _MOST_WARPS // 4
    for what, size, step in (
        ("rows of a warp", warp[0], steps[0]), ("columns of a warp", warp[1], steps[1]),
        ("terms of a block", block[2], steps[2]), ("rows of a block", block[0], warp[0]),
        ("columns of a block", block[1], warp[1]),
    ):  # fmt: skip
        if size <= 0 or size % step:
            raise refused(
                f"{size} {what} are no multiple of {step}",
                f"{form.name} makes {' x '.join(map(str, steps))} products at once",
            )
    warps = block[0] // warp[0] * (block[1] // warp[1])
    if warps > most:
        raise refused(
            f"tiles of {warp} make {warps} warps of a block, which has {most} at most",
            "choose larger tiles of a warp",
        )


def _check_rows(block: tuple[int, int, int], operands: tuple[Operand, Operand]) -> None:
    """The rows of tiles that are read by descriptors are a multiple of a swizzle."""
    for x, along in zip(operands, block[:2], strict=True):
        elements, size, least = along if x.transposed else block[2], x.read.dtype.bytes, min(SWIZZLES)
        if elements * size % least:
            what = ("rows", "columns")[x is operands[1]] if x.transposed else "terms"
            raise refused(
                f"rows of {elements * size} bytes of tiles of {x.read.name!r} are no multiple of {least}",
                f"swizzled tiles are read: choose a multiple of {least // size} {what} of a block",
            )


def _schedule(
    stage: Stage, operands: tuple[Operand, Operand], form: Form, plan: TensorCoreMatmul,
    reader: Stage | None, shared: int,
) -> None:  # fmt: skip
    left, right = operands
    block, warp, stages = plan.block, plan.warp, plan.stages
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
    index = _index_in_memory(stage)
    out = following(stage, wj, FRAGMENT, reader)
    size = out.schedule.state.program.func(out.func).dtypes[0].bytes
    if not isinstance(form, Mma) and _is_stored_whole(
        out, stage.func, plan, index, operands, sizes, size, shared
    ):
        adjacent = WIDEST // size if form.unit == "tcgen05" else 2
        store_by_groups(out, size, adjacent, even_width(WIDEST // size, sizes.get(right.along)))
    else:
        out.cooperate(2 if index[-1] == Var(right.along) else 1)
    tiles = [block[:1] + block[2:], block[1:]]
    factor, whole = None, False
    if not isinstance(form, Mma):
        factor = register_factor(stage, left, block[2]) if form.a == "rk" else None
        boxed = (is_fetched_whole(stage, x, tile) for x, tile in zip(operands, tiles, strict=True))
        whole = factor is not None or (stages > 1 and all(boxed))
    for x, vector, (along, terms) in zip(operands, vectors, tiles, strict=True):
        if factor is not None and x is left:
            compute_in_registers(stage, x, ko, factor, terms)
            continue
        tile = copy_tile(stage, x, along if x.transposed else terms, (stage, ko), 0 if whole else vector)
        if isinstance(form, Mma):
            operand, rows = ("a", warp[0]) if x is left else ("b", warp[1])
            load_tile(stage, x, tile.func, (stage, ki), operand, rows)
    copied = any(n * x.read.dtype.bytes >= _COPIED for n, x in zip(vectors, operands, strict=True))
    if stages > 1 and (whole or copied):
        stage.pipeline(ko, stages, producer_warps=whole)


def _index_in_memory(stage: Stage) -> tuple[Expr, ...]:
    """The index of the results of a stage, the dimension with the largest stride first."""
    index, order = definition_of(stage).index, stage.schedule.state.plan(stage.func).order
    return index if order is None else tuple(index[axis] for axis in order)


def _is_stored_whole(
    out: Stage, name: str, plan: TensorCoreMatmul, index: tuple[Expr, ...],
    operands: tuple[Operand, Operand], sizes: Mapping[str, int | None], size: int, shared: int,
) -> bool:  # fmt: skip
    """True where tiles of a group have whole rows to store, and shared memory for them besides the ring's."""
    along, (rows, columns, terms) = [x.along for x in operands], plan.block
    filled = all((sizes.get(v) or 0) >= n for v, n in zip(along, plan.warp, strict=True))
    if plan.blocks:
        tiles = prod(-(-(sizes.get(v) or 1) // n) for v, n in zip(along, (rows, columns), strict=True))
        others = prod(sizes.get(e.name) or 1 for e in index if isinstance(e, Var) and e.name not in along)
        filled = filled and tiles * others % plan.blocks == 0
    copy = definition_of(out)
    same = all(r.index == copy.index for r in reads_in(copy.values) if r.name == name)
    bytes_ = sum(n * x.read.dtype.bytes for n, x in zip((rows, columns), operands, strict=True))
    rings = plan.stages * terms * bytes_
    tiles = prod(plan.block[:2]) // prod(plan.warp) * plan.warp[0] * (ROW_BYTES + PAD_BYTES)
    fits = plan.warp[1] * size % ROW_BYTES == 0 and rings + tiles + PHASE_BYTES <= shared
    return filled and same and fits and index[-2:] == tuple(map(Var, along))
