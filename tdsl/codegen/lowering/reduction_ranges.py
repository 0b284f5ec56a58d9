"""Shrinks reduction loops to the iterations whose terms contribute, by the masks and predicates of the terms.

A term whose mask is false contributes nothing and may be left out: reduction loops of any kind get shorter.

for k in range(0, n):                      for k in range(0, row + 1):
  s[row] += where(k <= row, x[k], 0)         s[row] += where(k <= row, x[k], 0)

A predicate selects the terms. A loop in which other stages are computed, too, skips iterations without terms.

for o in range(0, 32):                     for o in range(0, row // 64 + 1):
  tile = ...                                 tile = ...
  if 64 * o <= row: s[row] += tile           if 64 * o <= row: s[row] += tile
"""

from __future__ import annotations

from dataclasses import replace

from tdsl.codegen.ir.loops import PIPELINED, SERIAL
from tdsl.codegen.lowering.context import LoopContext
from tdsl.codegen.lowering.definition_nest import DefinitionNest
from tdsl.codegen.lowering.guards import with_new_guards
from tdsl.codegen.lowering.position import INIT, NestPosition
from tdsl.core.node import children, pre_order
from tdsl.lang.expr import ONE, TRUE, Const, Expr, Read, Select
from tdsl.lang.regions import interval_of, restrict_ranges
from tdsl.lang.simplify import add, simplify, subtract
from tdsl.schedule.state import Level, parts_of, roots_of


def _skips_iterations(builder: DefinitionNest, pos: NestPosition, loop: str) -> bool:
    """True for a reduction loop with other stages inside, if a predicate excludes some of its terms."""
    inside = builder.low.tree.has_funcs_at(Level(builder.f.name, builder.n, loop))
    plain = loop in pos.bounds and builder.nest.kind(loop) in (SERIAL, PIPELINED)
    terms = pos.mode != INIT and loop in builder.reduced and builder.d.where != TRUE
    return plain and terms and inside


def is_unreachable(builder: DefinitionNest, pos: NestPosition) -> bool:
    """True if a func that each point reads has no buffer, since the guards of the points are never true."""
    low, values = builder.low, builder.d.values
    if pos.components is not None:
        values = tuple(values[n] for n in pos.components)
    always = pre_order(*values, inside=lambda n: (n.cond,) if isinstance(n, Select) else children(n))
    funcs = {n.name for n in always if isinstance(n, Read) and low.program.has_func(n.name)}
    return not funcs <= low.buffers.keys()


def contributing_iterations(
    builder: DefinitionNest,
    pos: NestPosition,
    ctx: LoopContext,
    loop: str,
    iterations: tuple[Expr, Expr],
) -> tuple[Expr, Expr]:
    """(first, extent) of a loop: the iterations in which the predicate may be true for one of the threads.

    `iterations` is the pair without a predicate; it is returned if no other stages are inside the loop.
    """
    is_empty = isinstance(iterations[1], Const) and iterations[1].value <= 0
    if is_empty or not _skips_iterations(builder, pos, loop):
        return iterations
    ranges = builder.active(pos).ranges(ctx.facts)
    lo, hi = restrict_ranges(ranges, builder.d.where, ctx.facts)[loop]
    for _, name, threads in ctx.threads:
        lo = None if lo is None else interval_of(lo, {name: threads}, ctx.facts)[0]
        hi = None if hi is None else interval_of(hi, {name: threads}, ctx.facts)[1]
    if lo is None or hi is None:
        return iterations
    return lo, simplify(add(subtract(hi, lo), ONE), ctx.facts)


def narrow_reductions(builder: DefinitionNest, pos: NestPosition, ctx: LoopContext) -> NestPosition:
    """The position before the next loop, with reduction bounds narrowed to the terms whose mask may be true.

    The bounds of each variable are narrowed once, before the first of its loops opens.
    """
    if builder.d.mask == TRUE or pos.mode == INIT:
        return pos
    nest = builder.nest
    here = roots_of(nest, nest.loops[pos.depth].name)
    for name in [n for n, _, _ in builder.d.ranges if n in here]:
        if parts_of(nest, name).isdisjoint(pos.opened):
            lo, hi = builder.active(pos).ranges(ctx.facts)[name]
            if lo is not None and hi is not None:
                extent = simplify(add(subtract(hi, lo), ONE), ctx.facts)
                pos = replace(pos, bounds={**pos.bounds, name: (lo, extent)})
                pos = with_new_guards(builder, pos, ctx.facts)
    return pos
