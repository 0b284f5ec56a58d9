"""Folds the storage of a func that an update steps along one dimension, if only its latest planes are read.

u[t, y, x] = a[y, x]                       for p in range(0, 100):
u[r, y, x] = step(u[r - 1, ...])             u[p % 2, ...] = a[...]
out[y, x] = u[99, y, x]            -->       if p >= 1: u[p % 2, ...] = step(u[(p - 1) % 2, ...])

All definitions of a plane are computed before any of the next plane. The results do not change if the
update that steps reads no later plane, and every update before it writes and reads one plane only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tdsl.codegen.ir.loops import PARALLEL, SERIAL, For, If, Stmt, as_stmt
from tdsl.codegen.lowering.buffers import fits_in_ring, max_elements
from tdsl.codegen.lowering.context import FoldedAxis, LoopContext, Lowering
from tdsl.codegen.lowering.loop_nest import NestBuilder
from tdsl.errors import ScheduleError
from tdsl.lang.affine import constant_difference, variables
from tdsl.lang.bounds import Facts
from tdsl.lang.definition import has_effects
from tdsl.lang.expr import ONE, Binary, Expr, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, boxes_of, is_empty
from tdsl.lang.simplify import add, minimum, simplify, subtract
from tdsl.schedule.bounds_inference import definition_ranges
from tdsl.schedule.state import AUTO, AXES, HEAP, Nest
from tdsl.schedule.tree import ROOT


def find_planes(low: Lowering, f: FuncDef, box: Box, facts: Facts) -> FoldedAxis | None:
    """The planes of a root func whose last update steps along a dimension; None if it cannot be folded."""
    plan, last = low.state.plan(f.name), f.definitions[-1]
    shared_levels = {level.func for level in (*low.tree.after, *low.tree.joined)}
    if (
        low.tree.parent[f.name] != ROOT
        or plan.store is not None
        or plan.specializations
        or plan.scope not in (AUTO, HEAP)
        or f.name in shared_levels
        or any(x.kind in AXES for nest in plan.nests for x in nest.loops)
        or (len(f.variables) < 2 and not plan.fold)
        or len(f.definitions) < 2
        or not last.ranges
        or any(has_effects(d) for d in f.definitions)
    ):
        return None
    step, lo, hi = last.ranges[0]
    loop = plan.nests[-1].loops[0]
    axes = [a for a, e in enumerate(last.index) if step in variables(e)]
    if lo is None or hi is None or len(axes) != 1 or (loop.name, loop.kind) != (step, SERIAL):
        return None
    axis = axes[0]
    ahead = constant_difference(last.index[axis], Var(step))
    behind = [constant_difference(last.index[axis], r.index[axis]) for r in last.reads if r.name == f.name]
    first, end = box[axis]
    if ahead is None or first is None or end is None or not all(_stays_in_one_plane(f, axis)):
        return None
    last_plane = add(subtract(hi, ONE), const(ahead))
    read = _first_plane_read(low, f, axis, facts)
    window = None if read is None else max_elements(((read, end),), 0, facts)
    if window is None or constant_difference(end, last_plane) != 0 or any(n is None or n < 0 for n in behind):
        return None
    live = max(window, 1, *(n + 1 for n in behind if n is not None))
    return None if fits_in_ring(add(subtract(end, first), ONE), live) else FoldedAxis(axis, step, ahead, live)


def _stays_in_one_plane(f: FuncDef, axis: int) -> Iterable[bool]:
    """For each update but the last one: whether it writes one plane and reads only this one of its func."""
    for d in f.definitions[1:-1]:
        plane = d.index[axis]
        read = [r.index[axis] for r in d.reads if r.name == f.name]
        yield not variables(plane) and all(constant_difference(e, plane) == 0 for e in read)


def _first_plane_read(low: Lowering, f: FuncDef, axis: int, facts: Facts) -> Expr | None:
    """The first plane that other funcs read; None if no func reads one, or without a lower bound."""
    first: Expr | None = None
    for c, n in low.state.consumers(f.name):
        if c.name not in low.boxes:
            continue
        d = c.definitions[n]
        ranges = definition_ranges(d, low.boxes[c.name], facts)
        if any(is_empty(r, facts) for r in ranges.values()):
            continue
        lo, _ = boxes_of(d.indices, ranges, facts, d.where)[f.name][axis]
        if lo is None:
            return None
        first = lo if first is None else minimum(first, lo, facts)
    return first


def fold_planes(low: Lowering, f: FuncDef, folded: FoldedAxis) -> None:
    """Fold the buffer of a func to the planes in use at a time, or to the size of its fold_storage."""
    buffer, plan = low.buffers[f.name], low.state.plan(f.name)
    size = dict(plan.fold).get(folded.axis, folded.live)
    if size < folded.live:
        raise ScheduleError(
            f"fold_storage of {f.name!r}: dimension {f.variables[folded.axis]!r} needs {folded.live} "
            f"elements at a time, not {size}",
            loc=plan.loc,
            label="the last directive of this func",
            hint="fold to that number or more, or leave it out",
        )
    folds = tuple(const(size) if a == folded.axis else None for a in range(len(buffer.extents)))
    extents = tuple(fold or e for fold, e in zip(folds, buffer.extents, strict=True))
    low.buffers[f.name] = replace(buffer, folds=folds, extents=extents)


def lower_planes(low: Lowering, f: FuncDef, box: Box, ctx: LoopContext, folded: FoldedAxis) -> list[Stmt]:
    """The nests of all definitions of a func, interleaved plane by plane."""
    axis = folded.axis
    first, end = box[axis]
    assert first is not None and end is not None
    _, lo, _ = f.definitions[-1].ranges[0]
    assert lo is not None
    starts = minimum(add(lo, const(folded.ahead)), add(end, ONE), ctx.facts)

    def loop(begin: Expr, stop: Expr, *, steps: bool) -> list[Stmt]:
        extent = simplify(subtract(stop, begin), ctx.facts)
        name = low.names.fresh(f"{f.name}_{f.variables[axis]}")
        plane = Var(name)
        facts = ctx.facts.with_range(name, begin, subtract(stop, ONE))
        inner = replace(ctx, facts=facts, loop=name, first=begin, in_order=False)
        plane_box = (*box[:axis], (plane, plane), *box[axis + 1 :])
        body = NestBuilder(low, f, 0, _move_parallel_inwards(low.state.plan(f.name).nests[0])).build(
            plane_box, inner
        )
        for n, d in enumerate(f.definitions[1:-1], 1):
            update = NestBuilder(low, f, n).build(box, inner)
            body.append(If(Binary("eq", plane, d.index[axis]), as_stmt(update)))
        if steps:
            last = f.definitions[-1]
            at = subtract(plane, const(folded.ahead))
            ranges = ((folded.step, at, add(at, ONE)), *last.ranges[1:])
            stepped = replace(f, definitions=(*f.definitions[:-1], replace(last, ranges=ranges)))
            body += NestBuilder(low, stepped, len(f.definitions) - 1).build(box, inner)
        return [For(name, begin, extent, SERIAL, as_stmt(body))] if body else []

    return [*loop(first, starts, steps=False), *loop(starts, add(end, ONE), steps=True)]


def _move_parallel_inwards(nest: Nest) -> Nest:
    """The nest with its parallel outermost loop, of one iteration, serial and the next loop parallel."""
    if len(nest.loops) < 2 or nest.loops[0].kind != PARALLEL or nest.loops[1].kind != SERIAL:
        return nest
    return nest.with_kind(nest.loops[0].name, SERIAL).with_kind(nest.loops[1].name, PARALLEL)
