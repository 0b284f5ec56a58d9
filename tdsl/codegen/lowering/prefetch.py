"""Emits prefetches of the box that a later iteration of a loop reads, one for each cache line."""

from __future__ import annotations

from dataclasses import replace

from tdsl.codegen.ir.loops import SERIAL, UNROLLED, For, Prefetch, Stmt
from tdsl.codegen.lowering.context import LoopContext, Lowering
from tdsl.lang.bounds import upper
from tdsl.lang.expr import ONE, Binary, Const, Expr, Var, const, dtype_of
from tdsl.lang.regions import box_of, reads_in, union_box
from tdsl.lang.simplify import add, ceildiv, multiply, simplify, substitute, subtract
from tdsl.schedule.bounds_inference import OpenNest
from tdsl.schedule.state import PrefetchPlan

LINE = 64  # bytes
MAX_LINES = 1024  # lines; a larger box would evict its own lines
MAX_UNROLLED_LINES = 16  # lines up to which the loops are unrolled


def prefetch_box(low: Lowering, active: OpenNest, plan: PrefetchPlan, ctx: LoopContext) -> list[Stmt]:
    """Loops over the cache lines of the box that the body of a loop reads some iterations later."""
    source, counter = plan.source, active.opened.get(plan.of)
    if not isinstance(counter, Var):
        return []  # a later directive has moved that loop inwards, or it has one iteration
    later: dict[str, Expr] = {counter.name: Binary("add", counter, const(plan.offset))}
    opened = {name: substitute(e, later) for name, e in active.opened.items()}
    ranges = replace(active, opened=opened).ranges(ctx.facts)
    box = None
    size = 1
    for r in reads_in(active.d.expressions()):
        if r.name == source:
            box = union_box(box, box_of(r.index, ranges, ctx.facts), ctx.facts)
            size = dtype_of(r).bytes
    if box is None or any(lo is None or hi is None for lo, hi in box):
        return []
    index: list[Expr] = []
    loops: list[tuple[str, Expr]] = []
    lines = 1
    for axis, (lo, hi) in enumerate(box):
        assert lo is not None and hi is not None
        step = max(LINE // size, 1) if axis == len(box) - 1 else 1
        extent = simplify(add(subtract(hi, lo), ONE), ctx.facts)
        count = ceildiv(extent, const(step), ctx.facts)
        if upper(count, ctx.facts) == 1:
            count = ONE  # if it is 0, the prefetch of an address out of bounds has no effect
        lines *= int(count.value) if isinstance(count, Const) else 1
        name = low.names.fresh(f"{source}_line_{axis}")
        loops.append((name, count))
        index.append(add(lo, multiply(Var(name), const(step))))
    if lines > MAX_LINES:
        return []
    buffer = low.buffers.get(source)
    if buffer is None and low.program.has_func(source):
        return []  # its buffer is allocated inside the loop
    at = tuple(index) if buffer is None else buffer.index(index)
    prefetch: Stmt = Prefetch(source if buffer is None else buffer.names[0], at)
    unrolled = lines <= MAX_UNROLLED_LINES and all(isinstance(count, Const) for _, count in loops)
    for name, count in reversed(loops):
        prefetch = For(name, const(0), count, UNROLLED if unrolled else SERIAL, prefetch)
    return [prefetch]
