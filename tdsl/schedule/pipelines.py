"""Software pipelines: tiles in shared memory that are fetched some iterations before they are used."""

from __future__ import annotations

from tdsl.schedule.loops import find_loop, mark, positive
from tdsl.schedule.nest import PIPELINED, SERIAL, SHARED, At, Illegal, Level, State


def pipeline(state: State, func: str, definition: int, *, loop: str, stages: int) -> State:
    """Fetch the tiles that a loop's body computes in shared memory ahead; `stages` of each are held.

    for ko:                             fetch tiles of the first stages - 1 iterations
      fetch tile(ko)              -->   for ko:
      use tile(ko)                        wait for tile(ko)
                                          begin to fetch tile(ko + stages - 1)
                                          use tile(ko)
    """
    name = find_loop(state, func, definition, loop)
    if positive(stages, "the number of stages") < 2:
        raise Illegal(
            "a pipeline has 2 stages or more: what is used and what is fetched",
            "pipeline(loop, 2), or serial(loop) for none",
        )
    kind = state.plan(func).nests[definition].kind(name)
    if kind not in (SERIAL, PIPELINED):
        raise Illegal(f"loop {name!r} is {kind} already", "pipeline a serial loop")
    state = mark(state, func, definition, name, PIPELINED, stages)
    check_pipelined(state, func)
    return state


def check_pipelined(state: State, func: str) -> None:
    """Raise Illegal where nothing is fetched in the iterations of a pipelined loop."""
    for n, nest in enumerate(state.plan(func).nests):
        for x in nest.loops:
            if x.kind == PIPELINED and not _has_tiles(state, Level(func, n, x.name)):
                raise Illegal(
                    f"loop {x.name!r} of {func!r} is pipelined, but no stage in shared memory is computed "
                    "at it",
                    f'cache_read(..., at={x.name!r}, scope="shared") first',
                )


def _has_tiles(state: State, level: Level) -> bool:
    here = (p for _, p in state.plans if p.scope == SHARED and p.store in (None, level))
    return any(isinstance(p.place, At) and p.place.level == level for p in here)
