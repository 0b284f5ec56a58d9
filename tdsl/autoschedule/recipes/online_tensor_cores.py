"""Flash attention on tensor cores: scores, weights and results stay in registers.

for batches, blocks of rows:                   on blocks
  for warps, or warpgroups:                    16 rows of the block or more, 64 of a group; fetched once
    for tiles of terms:                        both operands in shared memory, fetched ahead
      scores, by tensor cores                  in fragments
      row maxima, weights, row sums            each thread for its elements, then by shuffles
      for parts of the columns:
        weights times values, by tensor cores
        results, rescaled when the maxima grow
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tdsl.autoschedule.recipes.choices import Unsuited, choose, gpu_of, recipe
from tdsl.autoschedule.recipes.grid import fused
from tdsl.autoschedule.recipes.online_blocks import (
    INNER,
    ROW,
    TERM,
    TILE,
    OnlineChain,
    Roles,
    check_shared,
    find_online_chain,
    first_suited,
    inside_tiles,
    reduce_tiles,
)  # fmt: skip
from tdsl.autoschedule.recipes.operand_tiles import Place, copy_tile, load_tile, multiply_tiles
from tdsl.autoschedule.recipes.operands import Operand, plain_operands
from tdsl.autoschedule.recipes.stage_facts import definition_of, load_width, sizes_of
from tdsl.autoschedule.recipes.tensor_forms import Form, group_form, mma_of
from tdsl.core.node import frozen, post_order
from tdsl.cost.sectors import WIDEST
from tdsl.errors import ScheduleError, counted
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Cast, Read, Select
from tdsl.lang.regions import reads_in
from tdsl.machine.instructions.tensor_cores import ROWS, Mma
from tdsl.machine.instructions.warpgroups import ROWS as GROUP_ROWS
from tdsl.machine.model import Machine
from tdsl.schedule.factor_out import scales_of
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.inlining import is_inlined
from tdsl.schedule.legality import depends_on
from tdsl.schedule.mapping import narrow_operand
from tdsl.schedule.state import FRAGMENT, GROUP, SHARED, SWIZZLES
from tdsl.target import as_target

_STEP = 16  # divisor of columns and terms
_ROWS = 128  # of a block's tile, at most
_TERMS = (64, 32, 16)  # of a tile, the most that shared memory holds
_AT_ONCE = 128  # columns of the result multiplied before they are accumulated
_FEWER = 32  # the same, if the result has more than _AT_ONCE columns
_IN_REGISTERS = 64  # columns; up to this registers also hold the rows' operand
_GROUPS = range(1, 8)  # consumer warpgroups per block
_GROUP_TERMS = (128, 64)  # terms of a warpgroup's tile for up to _AT_ONCE columns, and for more
_GROUP_PART = 64  # columns multiplied at once by a warpgroup, if there are more than _AT_ONCE
_GROUP_COLUMNS = 256  # columns; registers of a warpgroup hold no more
_MOST_AXES = 5  # axes of an array from which the GPU copies tiles in bulk
_GROUP_EARLY = 96  # columns; up to this registers of two warpgroups also hold the next scores
_WARPS = {"warp", "held"}  # choices for warps without wgmma


@frozen
class OnlineTensorCores:
    """Blocks of `rows`, `warp` of them per warp or warpgroup, loop over tiles of `terms`.

    `stages` tiles of terms are in shared memory at a time. Weights are multiplied with `columns` at once.
    With `held` the rows' operand stays in registers; otherwise each tile loads it from shared memory.
    With `warpgroups`, products are by `wgmma`, with operands in shared memory but weights in registers;
    another warpgroup, of producer warps, loads the tiles of terms. With `early` the scores of the next tile
    are computed during the softmax of the current tile.
    """

    rows: int
    warp: int
    terms: int
    columns: int
    stages: int = 2
    held: bool = True
    warpgroups: bool = False
    early: bool = False


@recipe
def online_tensor_cores(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> OnlineTensorCores:
    """Schedule an online-softmax weighted sum with tensor cores, on a GPU (from sm_80 on).

    `stage` is a sum of products of weights and values, with rows and columns as the last two of its
    variables; weights and values are both f16 or both bf16, and weights come from a sum of products of such
    operands. The schedule has to know all sizes. `choices` override fields of `OnlineTensorCores`.
    `warpgroups=True`, on sm_90a, multiplies by `wgmma`; by default `wgmma` is used if its blocks keep half of
    the GPU busy and the operands can be fetched in tiles for `wgmma`.
    Returns the choices; ScheduleError for a stage of another kind. The order of float sums changes.

    >>> import tdsl as td
    >>> i, j, d, e = td.vars("i j d e")
    >>> q, k, v = (td.Tensor(n, (4096, 64), td.f16) for n in "qkv")
    >>> score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    >>> score[i, j] = td.sum(td.cast(q[i, d], td.f32) * td.cast(k[j, d], td.f32), axis=d)
    >>> top[i] = td.max(score[i, j], axis=j)
    >>> p[i, j] = td.exp(score[i, j] - top[i])
    >>> total[i] = td.sum(p[i, j], axis=j)
    >>> weight = td.cast(td.cast(p[i, j], td.f16), td.f32)
    >>> out[i, e] = td.sum(weight * td.cast(v[j, e], td.f32), axis=j) / total[i]
    >>> s = td.Schedule(out, target="cuda:sm_80")
    >>> plan = td.recipes.online_tensor_cores(s["out_sum"])
    >>> plan.rows, plan.warp, plan.terms, plan.columns, plan.stages, plan.held, plan.warpgroups
    (32, 16, 64, 64, 2, True, False)
    """
    machine = gpu_of(stage, machine)
    chain = find_online_chain(stage)
    columns = chain.sizes[chain.column]
    if columns % _STEP:
        raise Unsuited(
            f"its results have {columns} columns, which are no multiple of {_STEP}",
            f"pad the values to a multiple of {_STEP}, or take online_blocks",
        )
    if choices.get("warpgroups") is True and "wgmma" not in machine.features:
        raise Unsuited(
            f"wgmma needs sm_90a, and the schedule is for {as_target(stage.schedule.target).arch}",
            'leave warpgroups= out, or td.Schedule(..., target="cuda:sm_90a")',
        )
    plans = _plans(chain, machine, choices)
    return first_suited(stage, plans, lambda plan: _write(stage, chain, plan, machine))


def _plans(chain: OnlineChain, machine: Machine, choices: Mapping[str, Any]) -> Iterator[OnlineTensorCores]:
    """With wgmma, if it exists and blocks of 64 rows fill half of the SMs; then without, with fewer terms."""
    columns, groups = chain.sizes[chain.column], choices.get("warpgroups")
    blocks = chain.sizes[chain.row] // GROUP_ROWS * chain.batches
    fills = "wgmma" in machine.features and 2 * blocks >= machine.threads and columns <= _GROUP_COLUMNS
    if groups is True or (groups is None and fills and _WARPS.isdisjoint(choices)):
        yield _plan_of_groups(chain, machine, choices)
    if groups is not True:
        for terms in _TERMS:
            yield choose(_plan(chain, terms, machine), choices)


def _plan_of_groups(chain: OnlineChain, machine: Machine, choices: Mapping[str, Any]) -> OnlineTensorCores:
    """Two warpgroups per block if all SMs then have work, one otherwise; terms that fit in registers."""
    columns = chain.sizes[chain.column]
    if columns > _GROUP_COLUMNS:
        raise Unsuited(
            f"its results have {columns} columns, and registers hold {_GROUP_COLUMNS} at most",
            "leave warpgroups= out",
        )
    blocks = -(-chain.sizes[chain.row] // (2 * GROUP_ROWS)) * chain.batches
    groups = 2 if blocks >= machine.threads else 1
    wide = columns > _AT_ONCE
    parts = [n for n in range(_STEP, columns + 1, _STEP) if columns % n == 0]
    best = OnlineTensorCores(
        groups * GROUP_ROWS, GROUP_ROWS, _GROUP_TERMS[wide],
        max(n for n in parts if n <= (_GROUP_PART if wide else _AT_ONCE)), held=False, warpgroups=True,
    )  # fmt: skip
    plan = choose(
        best, choices, rows=[n * GROUP_ROWS for n in _GROUPS], warp=[GROUP_ROWS], held=[False],
        terms=range(_STEP, _GROUP_COLUMNS + 1, _STEP), columns=parts,
    )  # fmt: skip
    if "early" in choices:
        return plan
    few = plan.rows == GROUP_ROWS or plan.columns <= _GROUP_EARLY
    return replace(plan, early=few and plan.stages > 1)


def _plan(chain: OnlineChain, terms: int, machine: Machine) -> OnlineTensorCores:
    """The largest blocks of rows that give work to all SMs."""
    rows, columns = _ROWS, chain.sizes[chain.column]
    while rows > ROWS and (
        chain.sizes[chain.row] <= rows // 2
        or -(-chain.sizes[chain.row] // rows) * chain.batches < machine.threads
    ):
        rows //= 2
    at_once = columns if columns <= _AT_ONCE else _FEWER
    return OnlineTensorCores(rows, ROWS, terms, at_once, held=columns <= _IN_REGISTERS)


def _write(stage: Stage, chain: OnlineChain, plan: OnlineTensorCores, machine: Machine) -> None:
    schedule = stage.schedule
    if not plan.early:  # else the scale frees the registers of the product for the next tile
        _factor_scales_out(schedule, chain.lead.name)
    running, owner, tile = reduce_tiles(stage, chain, plan.terms)
    outside, part = chain.outside, tile
    block, rows = owner.split(chain.row, plan.rows)
    warp, row = owner.split(rows, plan.warp)
    owner.reorder(*outside, block, warp, row, chain.column)
    owner.bind(fused(owner, [*outside, block.name]), "blockIdx.x").bind(warp, "threadIdx.y")
    running.compute_at(owner, warp).set_scope(FRAGMENT)
    running.reorder(*outside, tile, chain.row, chain.column)
    if plan.columns < chain.sizes[chain.column]:
        outer, _ = running.split(chain.column, plan.columns)
        running.reorder(outer, chain.row)
        running.unroll(outer)
        part = outer.name
    for name in _rounded(definition_of(schedule[chain.tile_func])):
        schedule.cache_read(name, chain.tile_func, mapped=True)
    inside = inside_tiles(schedule.state, running.func, chain.row, tile)
    products = []
    for name, roles in inside.items():
        d = definition_of(schedule[name])
        lead = name == chain.tile_func
        if is_inlined(schedule.state, name):
            continue
        if d.init is None and TERM not in roles.values():
            schedule[name].inline()
            continue
        schedule[name].compute_at(running, part if lead else tile).set_scope(FRAGMENT)
        if d.init is not None and (lead or TERM in roles.values()):
            products.append(name)
    for name in reversed(products):  # producers first
        _multiply(schedule[name], inside, plan, (owner, warp.name), (running, tile))
    for name in reversed(list(inside)):
        if not schedule.state.plan(name).tensorizations and schedule.state.plan(name).scope == FRAGMENT:
            schedule[name].cooperate()
    running.cooperate()
    owner.cooperate(2)
    if plan.stages > 1:
        running.pipeline(tile, plan.stages, producer_warps=plan.warpgroups, overlap_mma=plan.early)
    check_shared(schedule, machine)


def _factor_scales_out(schedule: BaseSchedule, lead: str) -> None:
    """Multiply the largest score of a row, and the score in each exponent, by the constants of each score.

    An exponent is then one fused multiply-add of a score and the largest one.
    """
    state = schedule.state
    for f in state.program.funcs:
        d = f.definitions[0]
        if d.combine is None or d.combine.kind not in ("max", "min") or not depends_on(state, lead, f.name):
            continue
        read = [state.program.func(r.name) for r in reads_in(d.values) if state.program.has_func(r.name)]
        scores = [g for g in read if g.definitions[0].init is None]
        values = [g.definitions[0].values[0] for g in scores] or d.values
        if any(op == "div" for e in values for op, _ in scales_of(e)[0]):
            continue  # a quotient is rounded before the largest one is subtracted
        with suppress(ScheduleError), schedule.all_or_nothing():
            for g in scores:
                if isinstance(g.definitions[0].values[0], Select):
                    schedule[g.name].factor_out()
                schedule[g.name].inline()
            schedule[f.name].factor_out()


def _rounded(d: Definition) -> list[str]:
    """The funcs whose elements a sum rounds to a narrower type before it multiplies them."""
    casts = (n for n in post_order(*d.values) if isinstance(n, Cast) and narrow_operand(n) != n)
    return [x.name for n in casts for x in post_order(n) if isinstance(x, Read)]


def _multiply(
    stage: Stage, inside: Mapping[str, Roles], plan: OnlineTensorCores, rows: Place, tiles: Place
) -> None:  # fmt: skip
    """Write a product by tensor cores; `rows` and `tiles` are the places of the operands' tiles.

    The rows' operand is on the left. Unsuited if no instruction fits.
    """
    d, roles = definition_of(stage), inside[stage.func]
    if len(d.ranges) != 1:
        raise Unsuited(f"{stage.func!r} sums over {counted(len(d.ranges), 'variable')}")
    operands = plain_operands(replace(d, where=TRUE))
    left, right = sorted(operands, key=lambda x: roles.get(x.along) != ROW)
    form: Form | None
    if plan.warpgroups:
        columns = plan.terms if roles.get(right.along) == TERM else plan.columns
        form = group_form(left, right, "f32", columns, in_registers=left.read.name in inside)
    else:
        form = mma_of(left, right, "f32")
    if roles.get(left.along) != ROW or form is None:
        types = f"{left.read.dtype.name} and {right.read.dtype.name}"
        raise Unsuited(
            f"{stage.func!r} multiplies {types}, for which there is no instruction with sums in f32",
            "round weights to the type of the values, f16 or bf16: td.cast(td.cast(p, td.f16), td.f32)",
        )
    others = [v for v in d.free if v not in (left.along, right.along)]
    ko = multiply_tiles(stage, form, (left.along, right.along, d.ranges[0][0]), others)
    if left.read.name not in inside:
        shared = _fetched(stage, roles, left, plan, rows)
        if isinstance(form, Mma):
            load_tile(stage, left, shared.func, rows if plan.held else (stage, ko), "a", plan.warp)
    elif d.where != TRUE:
        weights = stage.schedule.cache_read(left.read.name, stage.func, scope=FRAGMENT, filled=True)
        weights.compute_at(*tiles).cooperate()
    shared = _fetched(stage, roles, right, plan, tiles)
    if isinstance(form, Mma):
        load_tile(stage, right, shared.func, (stage, ko), "b", _STEP)


def _fetched(stage: Stage, roles: Roles, x: Operand, plan: OnlineTensorCores, place: Place) -> Stage:
    """A tile of an operand in shared memory; with warpgroups, the rows' tile is per warpgroup."""
    of_rows, size = roles.get(x.along) == ROW, x.read.dtype.bytes
    counts = {ROW: plan.warp if plan.warpgroups else plan.rows, TERM: plan.terms, INNER: plan.terms}
    moving = next(v for v in variables(x.read.index[x.axes[1]]) if roles.get(v) != TILE)
    row = counts.get(roles.get(moving, "")) or sizes_of(stage)[moving] or 0
    vector = load_width(stage, x.read.name, x.copy_along)
    whole = plan.warpgroups and plan.stages > 1 and not of_rows
    refused = plan.warpgroups and (size * row % min(SWIZZLES) or x.axes[1] + 1 < len(x.read.index))
    if refused or (whole and (vector * size < WIDEST or len(x.read.index) > _MOST_AXES)):
        raise Unsuited(
            f"{x.read.name!r} cannot be fetched in tiles that wgmma reads",
            f"leave warpgroups= out, or let rows of it be a multiple of {min(SWIZZLES)} bytes",
        )
    scope = GROUP if plan.warpgroups and of_rows else SHARED
    return copy_tile(stage, x, row, place, 0 if whole else vector, scope=scope)
