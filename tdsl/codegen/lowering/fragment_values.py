"""Initialises register fragments, and reduces them over the threads of a group by warp shuffles.

Each thread first reduces the elements in its own registers; a butterfly reduction then combines the threads.

for t in threads:
  for each row of which thread t has elements:
    sum = initial value
    for its elements of the row:       sum = sum + ...
    for distances to the other threads that have elements of the row:
      sum = sum + (sum of the thread at this distance)
    result[row] = sum                  stored by each of these threads
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tdsl.codegen.ir.loops import (
    LANES,
    REGISTER,
    UNROLLED,
    WARP,
    Alloc,
    For,
    Shuffle,
    Stmt,
    Store,
    as_stmt,
)
from tdsl.codegen.lowering.context import LoopContext
from tdsl.codegen.lowering.definition_nest import DefinitionNest
from tdsl.codegen.lowering.position import NestPosition
from tdsl.codegen.lowering.values import ValueWriter
from tdsl.lang.expr import ZERO, Load, Var, const
from tdsl.lang.simplify import add
from tdsl.machine.instructions.layout import Layout
from tdsl.schedule.state import FRAGMENT

MakeStatements = Callable[[NestPosition, LoopContext], list[Stmt]]


def is_thread_reduction(builder: DefinitionNest, loop: str) -> bool:
    """True if `loop` is a reduction loop over the threads of a group, in a stage stored in a fragment."""
    nest = builder.nest
    return builder.plan.scope == FRAGMENT and nest.kind(loop) == LANES and loop in builder.reduced


def reduce_over_threads(
    builder: DefinitionNest, pos: NestPosition, ctx: LoopContext, lower_local: MakeStatements
) -> list[Stmt]:
    """Reduces one point over the threads of a group and stores the result in each thread that owns a copy.

    All loops but the reduction loops are open. `lower_local` emits the reduction of a thread's own elements.
    """
    low, f, d = builder.low, builder.f, builder.d
    assert d.init is not None and d.combine is not None
    buffer = low.buffers[f.name]
    partial, received = (
        tuple(low.names.fresh(f"{name}_{what}") for name in buffer.names) for what in ("own", "other")
    )
    writer = ValueWriter(low, f, builder.free_values(pos), ctx.facts)
    steps: list[Stmt] = [Store(name, (), writer.convert(e)) for name, e in zip(partial, d.init, strict=True)]
    builder.partial_results = partial
    steps += lower_local(pos, ctx)
    received_values = tuple(Load(name, (), t) for name, t in zip(received, f.dtypes, strict=True))
    layout = builder.low.layouts[f.name]
    for distance in layout.distances():
        for name, accumulator in zip(received, partial, strict=True):
            value = Load(accumulator, (), f.dtypes[partial.index(accumulator)])
            steps.append(Shuffle(name, value, distance, min(layout.threads, WARP)))
        steps += writer.accumulate(d, partial, received_values)
    at = tuple(writer.convert(e) for e in d.index)
    for n, (name, accumulator, t) in enumerate(zip(buffer.names, partial, f.dtypes, strict=True)):
        steps.append(Store(name, buffer.index(at, n), Load(accumulator, (), t)))
    body = as_stmt(steps)
    for name, t in zip((*partial, *received), (*f.dtypes, *f.dtypes), strict=True):
        body = Alloc(name, t, (), REGISTER, body)
    return [body]


def initialise_tile(
    builder: DefinitionNest, pos: NestPosition, ctx: LoopContext, layout: Layout, loops: tuple[str, ...],
    lower_point: MakeStatements,
) -> list[Stmt]:  # fmt: skip
    """Initialises a fragment tile before a reduction: each thread initialises the elements that it owns.

    `lower_point` emits the initialisation of one point.
    """
    low, name = builder.low, builder.f.name
    lane, register = (low.names.fresh(f"{name}_{n}") for n in ("lane", "register"))
    facts = ctx.facts.with_range(lane, ZERO, const(layout.threads - 1))
    facts = facts.with_range(register, ZERO, const(layout.count - 1))
    element = layout.element(Var(lane), Var(register), facts)
    first = builder.active(pos).first_of
    at = {x: add(first(x), e) for x, e in zip(loops, element, strict=True)}
    pos = replace(pos, opened={**pos.opened, **at})
    body = as_stmt(lower_point(pos, replace(ctx, facts=facts)))
    registers = For(register, ZERO, const(layout.count), UNROLLED, body)
    return [For(lane, ZERO, const(layout.threads), LANES, registers)]
