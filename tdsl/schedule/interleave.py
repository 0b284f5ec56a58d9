"""`interleave`: the steps of loops of several distributed funcs run in one order across the funcs."""

from __future__ import annotations

from dataclasses import replace

from tdsl.schedule.loops import find_loop
from tdsl.schedule.ranks import check_local_updates, distributed_loops
from tdsl.schedule.state import SERIAL, Illegal, Interleaving, State

Items = tuple[tuple[tuple[str, str], ...], ...]


def interleave(
    state: State, func: str, definition: int, *, items: Items, order: tuple[tuple[int, int], ...] | None
) -> State:  # fmt: skip
    """for x: f; for y: g  -->  f(0); g(0); f(1); g(1); ..., or the steps in the order that is given.

    Raises Illegal unless each loop is the first one inside of the distributed loops of a func of its own.
    """
    known = {name for x in state.interleaved for name in x.loops}
    named: list[tuple[tuple[str, str], ...]] = []
    for item in items:
        pairs: list[tuple[str, str]] = []
        for name, loop in item:
            if not state.program.has_func(name) or not state.plan(name).distributed:
                raise Illegal(f"{name!r} is not distributed", "distribute its loops first")
            if name in known:
                raise Illegal(f"a loop of {name!r} is interleaved already", "name one loop of each func")
            known.add(name)
            n = state.plan(name).distributed_definition
            pairs.append((name, find_loop(state, name, n, loop)))
            check_local_updates(state.program.func(name), n, state.plan(name).nests[n], pairs[-1][1])
        named.append(tuple(pairs))
    if sum(map(len, named)) < 2 or () in named:
        raise Illegal("one loop has one order of its steps", "name loops of two funcs or more")
    new = Interleaving(tuple(named), order)
    for name in new.loops:
        check_steps(state, new, name)
    return replace(state, interleaved=(*state.interleaved, new))


def check_interleaved(state: State, func: str) -> None:
    """Raise Illegal unless the loop of a func that is interleaved is the first inside of distributed ones."""
    for x in state.interleaved:
        if func in x.loops:
            check_steps(state, x, func)


def check_steps(state: State, interleaving: Interleaving, func: str) -> None:
    """Raise Illegal unless the steps of a func are the serial iterations of its first loop of each rank."""
    plan, loop = state.plan(func), interleaving.loops[func]
    nest, outer = plan.nests[plan.distributed_definition], distributed_loops(plan)
    if nest.names()[len(outer) : len(outer) + 1] != (loop,):
        raise Illegal(
            f"{loop!r} of {func!r} is not the first loop inside of those distributed",
            "reorder the loops before, and change the loops inside of it afterwards",
        )
    if nest.kind(loop) != SERIAL:
        raise Illegal(
            f"loop {loop!r} is {nest.kind(loop)}, but ranks step through it", "interleave serial loops"
        )
