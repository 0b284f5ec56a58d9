"""Chains of row operations: softmax, layer norm, and others whose stages need one row of each other.

    for i in rows (threads):
      what a row needs, stage by stage, in the nearest cache:
      element-wise stages by vectors, reductions along memory by several vectors of partial results

A large result uses non-temporal stores. Reductions over the rows that read the same arrays run in these
loops, too, in parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod
from typing import Any

from tdsl.autoschedule.patterns.groups import boxes_of_rows, open_group
from tdsl.autoschedule.patterns.rows import SCANS, scanned_row, vectors_of
from tdsl.autoschedule.patterns.sibling_reductions import (
    SiblingReductions,
    find_sibling_reductions,
    write_sibling_reductions,
)
from tdsl.autoschedule.patterns.streaming import pays_to_stream
from tdsl.autoschedule.patterns.strips import Strips, plan_strips
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe
from tdsl.autoschedule.recipes.conv import known
from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.naming import Loop
from tdsl.schedule.properties import element_bytes, extents, lanes_for, volume
from tdsl.schedule.state import State, is_ordered
from tdsl.target import as_target

_MUCH = 16  # points of a row that are worth vectors


@frozen
class RowChain:
    """Funcs (consumers first) that are computed in the rows of an owner, inside its variables `outer`.

    `count` is the number of rows where it is known, `boxes` are those that one row needs of the owner, the
    funcs and what they read. `work` are the operations for a point of the owner with all that it needs.
    """

    owner: str
    outer: tuple[str, ...]
    row: str
    count: int | None
    inside: tuple[str, ...]
    boxes: Mapping[str, Box]
    work: float

    @staticmethod
    def of(state: State, owner: str, plan: Strips, boxes: dict[str, Box]) -> RowChain:
        """The chain that lines without strips are."""
        f, row = state.program.func(owner), plan.line
        count = extents(f, f.definitions[0], boxes[owner])[row]
        needed = boxes_of_rows(state, owner, row, list(plan.inside), boxes, 1, plan.outer)
        work = sum(_work(state.program.func(name), needed[name]) for name in (owner, *plan.inside))
        each = work / max(volume(needed[owner]) or 1, 1)
        return RowChain(owner, plan.outer, row, count, plan.inside, needed, each)


@frozen
class Rows:
    """The choices: rows at a time, the variable that threads share, and non-temporal stores.

    `beside` are reductions over the rows that run with them.
    """

    together: int
    parallel: str
    stream: bool
    beside: SiblingReductions | None = None


@recipe
def rows(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> Rows:
    """Schedule a func and what only its rows read, row by row.

    `choices` replace what is chosen; they are the fields of `Rows`. The schedule has to know what a row
    takes: `td.Schedule(f, sizes=...)`. Returns the choices.

    >>> import tdsl as td
    >>> i, j = td.vars("i j")
    >>> x = td.Tensor("x", ("R", "C"), td.f32)
    >>> total, y = td.Func("total"), td.Func("y")
    >>> total[i] = td.sum(x[i, j], axis=j)
    >>> y[i, j] = x[i, j] / total[i]
    >>> s = td.Schedule(y, sizes={"R": 500, "C": 500})
    >>> td.recipes.rows(s[y], machine=Machine(vector_bytes=64))
    Rows(together=1, parallel='i', stream=False, beside=None)
    >>> print(s)
    s["y"].reorder("i", "j")
    s["y"].vectorize("j", 16)
    s["total"].vectorize("j", 64)
    s["total"].compute_at(s["y"], "i")
    s["y"].parallel("i")
    """
    schedule = stage.schedule
    machine = machine or as_target(schedule.target).machine()
    state, boxes = known(schedule)
    strips = plan_strips(state, stage.func, open_group(state, stage.func), boxes, machine)
    if strips is None or strips.height:
        raise Unsuited(
            "nothing that it alone reads can be computed row by row, for rows of an extent that is known",
            "td.Schedule(f, sizes={...}) tells extents; td.recipes.strips slides windows along lines",
        )
    chain = RowChain.of(state, stage.func, strips, boxes)
    plan = choose(plan_rows(state, chain, boxes, machine), choices)
    write_rows(schedule, chain, plan, boxes, machine)
    return plan


def plan_rows(state: State, group: RowChain, boxes: dict[str, Box], machine: Machine) -> Rows:
    """Choose by shape; `boxes` are what the outputs need in all."""
    f = state.program.func(group.owner)
    lanes = lanes_for(f.definitions[0], group.count, machine.vector_bytes)
    across = any(_is_across(state.program.func(n), group, boxes, machine) for n in group.inside)
    size = sum((volume(group.boxes[n]) or 0) * element_bytes(state.program, n) for n in group.inside)
    together = lanes if across and lanes * size <= machine.l2_share else 1
    if together == 1 and _scans(state, group) and SCANS * size <= machine.l2_share:
        together = SCANS if (group.count or 0) >= 2 * SCANS else 1
    sizes = extents(f, f.definitions[0], boxes[group.owner])
    shared = [v for v in group.outer[:1] if (sizes[v] or 0) >= 2 * machine.threads] or [group.row]
    stream = pays_to_stream(state, f.name, boxes, group.work, machine, most=inf)
    alone = together > 1 or group.outer
    siblings = None if alone else find_sibling_reductions(state, f.name, group.row, boxes, machine)
    return Rows(together, shared[0], stream, siblings)


def _is_across(f: FuncDef, group: RowChain, boxes: dict[str, Box], machine: Machine) -> bool:
    """True when a func has vectors only across several rows, and enough to do in each."""
    for n, d in enumerate(f.definitions):
        here = extents(f, d, group.boxes[f.name])
        if vectors_of(f, n, here, machine.vector_bytes) or _points(here) < _MUCH:
            continue
        if vectors_of(f, n, extents(f, d, boxes[f.name]), machine.vector_bytes):
            return True
    return False


def _scans(state: State, group: RowChain) -> bool:
    """True when rows are scanned inside: several of them side by side do not wait for each other."""
    funcs = map(state.program.func, group.inside)
    return any(scanned_row(f, n) for f in funcs for n in range(len(f.definitions)))


def _work(f: FuncDef, box: Box) -> int:
    """Operations and reads for a box; those that stay the same along its innermost loop are not counted."""
    total = 0
    for d in f.definitions:
        sizes = extents(f, d, box)
        inner = next((v for v in reversed(d.variables) if sizes[v] != 1), None)
        reads = sum(any(inner in variables(e) for e in r.index) for r in reads_in(d.values))
        total += (arithmetic_of(d, inner) + reads) * _points(sizes) if inner is not None else 0
    return total


def _points(sizes: dict[str, int | None]) -> int:
    return prod(1000 if n is None else max(n, 0) for n in sizes.values())


def write_rows(
    schedule: BaseSchedule, group: RowChain, plan: Rows, boxes: dict[str, Box], machine: Machine
) -> None:
    """Write the choices as directives; `boxes` are what the outputs need in all."""
    looped = schedule[group.owner]
    state = inline_funcs(bind_state(schedule.state, schedule.sizes))  # the state in which `group` was matched
    inside, owner = list(group.inside), state.program.func(group.owner)
    first = (*group.outer, group.row)
    row_boxes = dict(group.boxes)
    if plan.together > 1:
        row_boxes = boxes_of_rows(state, owner.name, group.row, inside, row_boxes, plan.together, group.outer)
    looped.reorder(*first, *(v for v in owner.variables if v not in first))
    threads: Loop | str = group.row
    loop: Loop | str = group.row
    if plan.beside:
        threads, loop = looped.split(group.row, plan.beside.part)
    sizes = extents(owner, owner.definitions[0], row_boxes[owner.name])
    vectors = vectors_of(owner, 0, sizes, machine.vector_bytes)
    if plan.together > 1 and group.row in (owner.variables[-1], vectors[0] if vectors else ""):
        looped.vectorize(group.row, plan.together)
    else:
        if plan.together > 1:
            threads, _ = looped.split(group.row, plan.together, tail="peel")
            loop = threads
        write_vectors(looped, owner, 0, row_boxes[owner.name], machine)
    for name in group.inside:
        f = state.program.func(name)
        for n in range(len(f.definitions)):
            stage = schedule[name] if n == 0 else schedule[name].update(n - 1)
            write_vectors(stage, f, n, row_boxes[name], machine)
            _scan_side_by_side(stage, f, n, row_boxes[name], plan.together)
        schedule[name].compute_at(looped, loop)
    looped.parallel(threads if plan.parallel == group.row else plan.parallel)
    if plan.stream:
        looped.stream_stores()
    if plan.beside:
        write_sibling_reductions(looped, loop, plan.beside, boxes, machine.vector_bytes, far=plan.stream)


def _scan_side_by_side(stage: Stage, f: FuncDef, definition: int, box: Box, rows: int) -> None:
    """An element of each of some rows in turn, where a definition scans just these."""
    d, row = f.definitions[definition], scanned_row(f, definition)
    if row is not None and rows > 1 and extents(f, d, box)[row] == rows:
        stage.reorder(d.ranges[0][0], row)
        stage.unroll(row)


def write_vectors(stage: Stage, f: FuncDef, definition: int, box: Box, machine: Machine) -> None:
    """Vectors for a definition, with its reductions outside of them where their order is free."""
    d = f.definitions[definition]
    vectors = vectors_of(f, definition, extents(f, d, box), machine.vector_bytes)
    if vectors is None:
        return
    variable, lanes = vectors
    if variable in d.free and d.ranges and not is_ordered(f, definition):
        stage.reorder(*(v for v in d.variables if v != variable), variable)
    stage.vectorize(variable, lanes)
