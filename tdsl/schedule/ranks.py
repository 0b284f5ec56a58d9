"""Directives of distribution: where a tensor lives, which ranks run which iterations, when data moves.

They say what `tdsl.distribute` makes a plan of. Loops that ranks share out stay loops of the nest, the
outermost ones: on one rank they run as they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tdsl.errors import did_you_mean
from tdsl.lang.regions import reads_in
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Unreadable, read_placement
from tdsl.schedule.loops import find_loop, reorder, split
from tdsl.schedule.nest import (
    SERIAL,
    Illegal,
    Loop,
    Nest,
    Root,
    Rotate,
    State,
    is_ordered,
    is_reduction,
)  # fmt: skip

Axes = tuple[tuple[str, int], ...]


def place(
    state: State, func: str, definition: int, *, tensor: str, notation: str, grid: Axes
) -> State:
    """Say where an input or a func lives; `func` is the program's first output."""
    state = _on_grid(state, grid)
    program = state.program
    names = [t.name for t in program.inputs] + [f.name for f in program.funcs]
    if tensor not in names:
        raise Illegal(f"there is no tensor or func {tensor!r}", did_you_mean(tensor, names))
    if tensor in dict(state.placed):
        raise Illegal(f"{tensor!r} is placed already", "place each tensor once")
    if program.has_func(tensor):
        ndim = len(program.func(tensor).variables)
    else:
        ndim = len(program.input(tensor).shape)
    assert state.grid is not None
    try:
        placement = read_placement(notation, ndim, state.grid)
    except Unreadable as error:
        raise Illegal(str(error), error.hint) from None
    return replace(state, placed=(*state.placed, (tensor, placement)))


def _on_grid(state: State, axes: Axes) -> State:
    """The state with its grid; there is one for all placements and loops."""
    grid = Grid(**dict(axes))
    if state.grid is not None and state.grid != grid:
        raise Illegal(
            f"another grid is in use: {state.grid}, not {grid}", "use one grid for a program"
        )
    return replace(state, grid=grid)


def distribute(
    state: State, func: str, definition: int, *, loops: tuple[str, ...], grid: Axes
) -> State:
    """for x  -->  for x_o: for x_i, where each rank runs the x_o of its coordinate on an axis."""
    state = _on_grid(state, grid)
    f, plan = state.program.func(func), state.plan(func)
    if len(f.definitions) > 1 or len(f.dtypes) > 1:
        what = "updates" if len(f.definitions) > 1 else "several values"
        raise Illegal(f"{func!r} has {what}", "distribute a func of one definition and one value")
    if plan.distributed:
        raise Illegal(f"{func!r} is distributed already", "distribute all of its loops at once")
    if len(loops) != len(grid):
        raise Illegal(
            f"{len(loops)} loops for the {len(grid)} axes of {state.grid}",
            "name one loop for each axis",
        )
    names = [find_loop(state, func, definition, x) for x in loops]
    if len(set(names)) < len(names):
        raise Illegal("a loop is named twice", "name each once")
    nest = plan.nests[definition]
    for name in names:
        _check_reduced(state, func, definition, nest, name)
    outer = []
    for name, (_, parts) in zip(names, grid, strict=True):
        before = state.plan(func).nests[definition].names()
        state = split(state, func, definition, loop=name, nparts=parts)
        nest = state.plan(func).nests[definition]
        first, inner = (x for x in nest.names() if x not in before)
        outer.append(first)
        nest = replace(nest, aliases=(*nest.aliases, (name, inner)))
        state = state.with_plan(func, state.plan(func).with_nest(definition, nest))
    rest = [x for x in state.plan(func).nests[definition].names() if x not in outer]
    state = reorder(state, func, definition, loops=(*outer, *rest))
    made = replace(state.plan(func), distributed=tuple(outer), place=Root())
    return state.with_plan(func, made)


def _check_reduced(state: State, func: str, definition: int, nest: Nest, name: str) -> None:
    """Raise Illegal where ranks would each make a part of a sum that cannot be put together."""
    f = state.program.func(func)
    d = f.definitions[definition]
    if not is_reduction(f, definition, nest, name):
        return
    if is_ordered(f, definition) or d.combine is None or not d.combine.associative:
        raise Illegal(
            f"{name!r} must run in order: {func!r} is reduced by what is not associative",
            "distribute free loops, or state associativity: td.reduce(..., associative=True)",
            ((d.loc, "this definition"),),
        )


def communicate(
    state: State, func: str, definition: int, *, tensors: tuple[str, ...], at: str
) -> State:
    """Fetch what the body of a loop reads when an iteration starts; send what it made when that ends."""
    plan = state.plan(func)
    if not plan.distributed:
        raise Illegal(f"{func!r} is not distributed", "distribute its loops first")
    name = find_loop(state, func, definition, at)
    nest = plan.nests[definition]
    last = plan.distributed[-1]
    if nest.position(name) < nest.position(last):
        raise Illegal(
            f"{name!r} is fixed by the rank, and {last!r} inside of it, too",
            f"communicate at {last!r} or a loop inside of it",
        )
    own = _reached(state, func)
    done = dict(plan.communicated)
    for tensor in tensors:
        if tensor not in own:
            raise Illegal(f"{func!r} does not read {tensor!r}", did_you_mean(tensor, sorted(own)))
        if tensor in done:
            raise Illegal(f"{tensor!r} is communicated at {done[tensor]!r}", "name each once")
    made = (*plan.communicated, *((tensor, name) for tensor in dict.fromkeys(tensors)))
    return state.with_plan(func, replace(plan, communicated=made))


def _reached(state: State, func: str) -> set[str]:
    """A func, and all that it reads, directly or through others."""
    found = {func}
    for f in reversed(state.program.funcs):
        if f.name in found:
            found |= {r.name for d in f.definitions for r in reads_in(d.expressions())}
    return found


def rotate(
    state: State, func: str, definition: int, *, loop: str, by: tuple[str, ...]
) -> State:  # fmt: skip
    """for x  -->  for x_r, with x = (x_r + the loops of `by`) modulo the extent: each starts elsewhere."""
    name = find_loop(state, func, definition, loop)
    turns = tuple(find_loop(state, func, definition, x) for x in by)
    plan, f = state.plan(func), state.program.func(func)
    nest = plan.nests[definition]
    if name in plan.distributed:
        raise Illegal(f"{name!r} is fixed by the rank", "rotate a loop inside of those distributed")
    if nest.kind(name) != SERIAL:
        raise Illegal(f"loop {name!r} is {nest.kind(name)} already", "rotate it before")
    for x in turns:
        if nest.position(x) >= nest.position(name):
            raise Illegal(f"{x!r} is not outside of {name!r}", "rotate by loops around it")
    if is_reduction(f, definition, nest, name) and is_ordered(f, definition):
        raise Illegal(f"the points of {name!r} must run in order", "rotate a free loop")
    if name in f.definitions[definition].variables:
        raise Illegal(
            f"{name!r} is a variable of the definition, not a part of one",
            f"divide({name!r}, n) first, and rotate the outer loop",
        )
    new = nest.fresh(f"{name}r")
    made = replace(
        nest.replaced(name, Loop(new)), relations=(*nest.relations, Rotate(name, new, turns))
    )
    plan = plan.with_nest(definition, made)
    moved = tuple((t, new if at == name else at) for t, at in plan.communicated)
    return state.with_plan(func, replace(plan, communicated=moved, touched=True))


def check_distributed(state: State, func: str) -> None:
    """Raise Illegal where another directive moved or marked the loops that ranks share or step through."""
    plan = state.plan(func)
    if not plan.distributed:
        return
    nest = plan.nests[0]
    count = len(plan.distributed)
    if nest.names()[:count] != plan.distributed:
        raise Illegal(
            f"the distributed loops {', '.join(plan.distributed)} are no longer the outermost ones",
            "change the loops inside of them only",
        )
    depth = max((nest.position(loop) + 1 for _, loop in plan.communicated), default=count)
    for x in nest.loops[: max(count, depth)]:
        if x.kind != SERIAL:
            raise Illegal(
                f"loop {x.name!r} is {x.kind}, but ranks step through it",
                "change loops inside of the innermost communicate only",
            )


RANK_DIRECTIVES: dict[str, Callable[..., State]] = {
    "place": place, "distribute": distribute, "communicate": communicate, "rotate": rotate,
}  # fmt: skip
