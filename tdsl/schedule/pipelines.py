"""The `pipeline` directive: tiles in shared memory are fetched some iterations before their use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tdsl.lang.expr import Binary, Const, Expr, Read, Select, Var
from tdsl.lang.program import FuncDef
from tdsl.schedule.loops import check_positive, find_loop
from tdsl.schedule.state import (
    PIPELINED,
    SERIAL,
    SHARED,
    At,
    Illegal,
    Level,
    Loop,
    State,
    fresh_nest,
)  # fmt: skip

BULK_ROW_BYTES = 16  # the rows of a bulk copy are a multiple of this number of bytes
LOADED_AHEAD_BYTES = 128  # of registers of a thread, for what tiles that are computed read
BULK_TILE_BYTES = 128  # the tiles of a bulk copy are a multiple of this number of bytes


def pipeline(
    state: State, func: str, definition: int, *, loop: str, stages: int,
    producer_warps: bool = False, overlap_mma: bool = False,
) -> State:  # fmt: skip
    """Fetch the shared-memory tiles of a loop's body ahead, with `stages` buffers for each tile.

    for ko:                             fetch tiles of the first stages - 1 iterations
      fetch tile(ko)              -->   for ko:
      use tile(ko)                        wait for tile(ko)
                                          begin to fetch tile(ko + stages - 1)
                                          use tile(ko)

    With `producer_warps` a warp of its own fetches the tiles, each by a bulk copy. With `overlap_mma`, MMAs
    of tiles and loop-invariant operands are issued before the consumers of the products of the previous
    iteration run.
    """
    if overlap_mma and not producer_warps:
        raise Illegal(
            "MMAs are issued early only where producer warps fetch the tiles", "producer_warps=True"
        )
    name = find_loop(state, func, definition, loop)
    if check_positive(stages, "the number of stages") < 2:
        raise Illegal(
            "a pipeline has 2 stages or more: what is used and what is fetched",
            "pipeline(loop, 2), or serial(loop) for none",
        )
    kind = state.plan(func).nests[definition].kind(name)
    if kind not in (SERIAL, PIPELINED):
        raise Illegal(f"loop {name!r} is {kind} already", "pipeline a serial loop")
    pipelined = Loop(name, PIPELINED, stages, producer_warps, overlap_mma)
    nest = state.plan(func).nests[definition].with_loop(pipelined)
    state = state.with_plan(func, replace(state.plan(func).with_nest(definition, nest), scheduled=True))
    check_pipelined(state, func)
    return state


def bulk_copy(state: State, func: str, definition: int) -> State:
    """Copy the box of a func by a bulk asynchronous copy (TMA) that one thread issues."""
    plan, f = state.plan(func), state.program.func(func)
    if plan.scope != SHARED:
        raise Illegal(f"{func!r} is not in shared memory", 'set_scope("shared") first')
    if not f.variables:
        raise Illegal(f"{func!r} has one element", "a copy as a whole is for rows of 16 bytes and more")
    d = f.definitions[0]
    if copied_read(state, f) is None:
        raise Illegal(f"{func!r} is no plain copy", "cache_read the tensor, or use cooperate()")
    if plan.order is not None or plan.fold or plan.nests[0] != fresh_nest(d):
        raise Illegal(
            f"the loops or the memory of {func!r} were changed before",
            "a copy as a whole has none of its own: leave those directives out",
        )
    return state.with_plan(func, replace(plan, bulk=True, scheduled=True))


def copied_read(state: State, f: FuncDef) -> Read | None:
    """The read of which a func is a plain copy, at the func's own variables; None if it is no copy.

    A `filled` copy is 0 beyond the edges of its source.
    """
    d, point = f.definitions[0], tuple(map(Var, f.variables))
    if len(f.definitions) > 1 or len(d.values) > 1 or d.index != point:
        return None
    match d.values[0]:
        case Read() as read:
            index = read.index
        case Select(_, Read() as read, Const()) if state.plan(f.name).filled:
            index = tuple(map(_unclamped, read.index, point))
        case _:
            return None
    return replace(read, index=index) if index == point else None


def _unclamped(e: Expr, variable: Var) -> Expr:
    """An index without its clamps; `variable` for a source of one element, where only the clamps are left."""
    while isinstance(e, Binary) and e.op in ("min", "max"):
        e = e.left
    return variable if isinstance(e, Const) else e


def bulk_row_extent(extents: Sequence[int], size: int) -> int:
    """The last extent, rounded up for bulk copies: rows of whole 16 bytes, tiles of whole 128 bytes.

    >>> bulk_row_extent((3, 5), 4), bulk_row_extent((8, 5), 4)
    (32, 8)
    """
    *outer, last = extents
    step = BULK_ROW_BYTES // size
    if prod(outer) * -(-last // step) * BULK_ROW_BYTES % BULK_TILE_BYTES:
        step = BULK_TILE_BYTES // size
    return -(-last // step) * step


def check_pipelined(state: State, func: str) -> None:
    """Raise Illegal for a pipelined loop without shared-memory tiles, or a bulk copy outside of one."""
    plan = state.plan(func)
    if plan.bulk:
        _check_bulk(state, func)
    for n, nest in enumerate(state.plan(func).nests):
        for x in nest.loops:
            if x.kind == PIPELINED and not _has_tiles(state, Level(func, n, x.name)):
                raise Illegal(
                    f"loop {x.name!r} of {func!r} is pipelined, but no stage in shared memory is computed "
                    "at it",
                    f'cache_read(..., at={x.name!r}, scope="shared") first',
                )
            if x.producer_warps:
                _check_producer_warps(state, Level(func, n, x.name))


def _check_producer_warps(state: State, level: Level) -> None:
    here = ((n, p) for n, p in state.plans if isinstance(p.place, At) and p.place.level == level)
    for name, plan in here:
        if plan.scope == SHARED and not plan.bulk:
            raise Illegal(
                f"a warp of its own fetches the tiles of {level.loop!r}, and {name!r} is copied by the "
                "threads that use it",
                f's["{name}"].bulk_copy()',
            )


def _check_bulk(state: State, func: str) -> None:
    plan, d = state.plan(func), state.program.func(func).definitions[0]
    if plan.scope != SHARED or plan.nests[0] != fresh_nest(d):
        raise Illegal(
            f"the loops or the memory of {func!r}, which is copied as a whole, were changed",
            "leave out bulk_copy(), or the directives after it",
        )
    at = plan.place.level if isinstance(plan.place, At) else None
    if at is None or state.plan(at.func).nests[at.definition].kind(at.loop) != PIPELINED:
        where = "outside of all loops" if at is None else f"at {at.loop!r}"
        raise Illegal(
            f"{func!r} is copied as a whole {where}, where nothing waits for it",
            "pipeline that loop: pipeline(loop, 2)",
        )


def _has_tiles(state: State, level: Level) -> bool:
    here = (p for _, p in state.plans if p.scope == SHARED and p.store in (None, level))
    return any(isinstance(p.place, At) and p.place.level == level for p in here)
