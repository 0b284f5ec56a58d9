"""Reductions over all partners of an element, where each pair is a reduction itself: the nearest of centres.

    best[p] = argmin over q of distance[p, q], where distance[p, q] = sum over d of (a[p, d] - b[q, d]) ** 2

    for blocks of p (threads):
      copy the block of a, so that the p of a vector lie side by side
      for tiles of q:
        for d:  tile x vector terms, their sums in registers
        merge the tile into the best of each p, by vectors of p

The pairs are recognised by what they read: something that moves with p alone, and something with q alone.
"""

from __future__ import annotations

from typing import Any

from tdsl.autoschedule.patterns.groups import open_group
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe
from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Read, Var
from tdsl.lang.program import FuncDef
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.properties import lanes_for
from tdsl.schedule.state import State, is_ordered
from tdsl.target import as_target

TILE = 16  # partners at a time: each has a vector of sums in a register
SQUARE = 8  # the side of blocks that are turned in registers


@frozen
class PairReduction:
    """`best`, which the owner reads at its row, reduces over `partner` what `pair` is for it and `row`.

    `moving` is what a pair reads that moves with the row; it has an axis for each of the pair's ranges at
    most.
    """

    owner: str
    best: str
    row: str
    partner: str
    pair: str
    pair_row: str
    pair_partner: str
    moving: Read


@frozen
class Pairs:
    """The choices: rows of a block, partners of a tile, lanes of a vector."""

    rows: int
    partners: int
    lanes: int


@recipe
def pairs(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> Pairs:
    """Schedule a reduction over reductions of pairs, such as the nearest of some centres.

    `choices` replace what is chosen by shape; they are the fields of `Pairs`. Returns the choices.

    >>> import tdsl as td
    >>> p, q, d = td.vars("p q d")
    >>> a, b = td.Tensor("a", ("P", 32), td.f32), td.Tensor("b", (64, 32), td.f32)
    >>> distance, best = td.Func("distance"), td.Func("best")
    >>> distance[p, q] = td.sum((a[p, d] - b[q, d]) ** 2, axis=d)
    >>> best[p] = td.argmin(distance[p, q], axis=q)
    >>> s = td.Schedule(best)
    >>> td.recipes.pairs(s[best], machine=Machine(vector_bytes=64, registers=32))
    Pairs(rows=16, partners=16, lanes=16)
    """
    schedule = stage.schedule
    if not _is_choice(schedule.state.program.func(stage.func)):
        raise Unsuited("it has not one variable, updates, or sums of its own")
    machine = machine or as_target(schedule.target).machine()
    state = bind_state(schedule.state, schedule.sizes)
    reduction = find_pairs(state, stage.func, open_group(state, stage.func))
    plan = None if reduction is None else plan_pairs(state, reduction, machine)
    if reduction is None:
        raise Unsuited("it takes no result, for each of its points, of a reduction over reductions of pairs")
    if plan is None:
        raise Unsuited("the target has no vectors of what a pair is reduced to")
    plan = choose(plan, choices)
    write_pairs(schedule, reduction, plan)
    return plan


def _is_choice(f: FuncDef) -> bool:
    """True for a func of one dimension, which may read the result of a reduction over pairs."""
    return len(f.definitions) == 1 and not f.definitions[0].ranges and len(f.variables) == 1


def find_pairs(state: State, owner: str, group: list[str]) -> PairReduction | None:
    """The reduction over pairs that a func of one dimension reads at its own index."""
    f = state.program.func(owner)
    for name in group:
        best = state.program.func(name)
        at = _only_read(f.definitions[0], name)
        if at is None or at.index != (Var(f.variables[0]),) or not _reduces(best):
            continue
        d = best.definitions[0]
        read = list(d.reads)
        if len(d.free) != 1 or len(d.ranges) != 1 or len({(r.name, r.index) for r in read}) != 1:
            continue
        if read[0].name not in group or not _reduces(state.program.func(read[0].name)):
            continue
        pair = state.program.func(read[0].name)
        matched = _pair(pair, read[0], d)
        if matched is not None and {c.name for c, _ in state.consumers(pair.name)} == {name}:
            row, partner, moving = matched
            partners = d.ranges[0][0]
            return PairReduction(owner, name, d.free[0], partners, pair.name, row, partner, moving)
    return None


def _only_read(d: Definition, name: str) -> Read | None:
    reads = [r for r in d.reads if r.name == name]
    return reads[0] if len({r.index for r in reads}) == 1 else None


def _reduces(f: FuncDef) -> bool:
    d = f.definitions[0]
    return len(f.definitions) == 1 and d.init is not None and not is_ordered(f, 0)


def _pair(pair: FuncDef, read: Read, best: Definition) -> tuple[str, str, Read] | None:
    """(row, partner, what moves with the row) of a pair; None where an operand moves with both."""
    names = {e.name: v for e, v in zip(read.index, pair.variables, strict=True) if isinstance(e, Var)}
    if set(names) != {best.free[0], best.ranges[0][0]} or len(read.index) != 2:
        return None
    row, partner = names[best.free[0]], names[best.ranges[0][0]]
    d = pair.definitions[0]
    if len(pair.dtypes) > 1 or d.index != tuple(map(Var, pair.variables)):
        return None
    used = {(r.name, r.index): r for r in d.reads}
    moving = [r for r in used.values() if any(row in variables(e) for e in r.index)]
    others = [r for r in used.values() if any(partner in variables(e) for e in r.index)]
    if len(moving) != 1 or not others or moving[0] in others or Var(row) not in moving[0].index:
        return None
    return row, partner, moving[0]


def plan_pairs(state: State, reduction: PairReduction, machine: Machine) -> Pairs | None:
    """Choose by the machine's vectors; None where there are none."""
    d = state.program.func(reduction.pair).definitions[0]
    lanes = lanes_for(d, None, machine.vector_bytes)
    if lanes < 2:
        return None
    return Pairs(lanes, min(TILE, machine.registers - 4), lanes)


def write_pairs(schedule: BaseSchedule, p: PairReduction, plan: Pairs) -> None:
    """Write the choices as directives."""
    owner, best, pair = (schedule[name] for name in (p.owner, p.best, p.pair))
    (row,) = schedule.state.program.func(p.owner).variables
    block, some = owner.split(row, plan.rows)
    owner.vectorize(some, plan.lanes)
    owner.parallel(block)
    best.compute_at(owner, block)
    tile, one = best.split(p.partner, plan.partners, tail="peel")
    best.reorder(tile, one, p.row)
    best.vectorize(p.row, plan.lanes)
    pair.compute_at(best, tile)
    ranges = [n for n, _, _ in schedule.state.program.func(p.pair).definitions[0].ranges]
    pair.reorder(*ranges, p.pair_partner, p.pair_row)
    pair.vectorize(p.pair_row, plan.lanes)
    pair.unroll(p.pair_row)
    pair.unroll(p.pair_partner)
    pair.reorder_storage(p.pair_partner, p.pair_row)
    index = p.moving.index
    axis = index.index(Var(p.pair_row))
    if axis != len(index) - 1:
        _transpose_block(schedule, p, axis, owner, block)


def _transpose_block(schedule: BaseSchedule, p: PairReduction, axis: int, owner: Stage, block: Any) -> None:
    """Copy a block of the operand that moves with the rows, so that the rows are contiguous."""
    copy = schedule.cache_read(p.moving.name, p.pair)
    names = [loop.name for loop in copy.loops]
    dims = [n for n in range(len(names)) if n != axis]
    copy.reorder_storage(*dims, axis)
    copy.compute_at(owner, block)
    rows, one = copy.split(names[axis], SQUARE, tail="peel")
    vectors, lane = copy.split(names[-1], SQUARE, tail="peel")
    copy.reorder(*(names[n] for n in dims[:-1]), rows, vectors, one, lane)
    copy.vectorize(lane)
    copy.unroll(one)
