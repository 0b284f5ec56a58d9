"""Directives of distribution: the placement of tensors, loops distributed over ranks, communication.

`tdsl.distribute` turns them into a plan. Distributed loops are the outermost loops of a nest; a program that
runs on one rank runs them as ordinary loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tdsl.errors import did_you_mean
from tdsl.lang.access_boxes import data_axes
from tdsl.lang.definition import has_effects
from tdsl.lang.expr import Read, Var
from tdsl.lang.program import FuncDef
from tdsl.placement.grid import Axes, Grid
from tdsl.placement.notation import Copies, Fixed, Partial, Placement, PlacementSyntaxError, read_placement
from tdsl.schedule.loops import find_loop, reorder, split
from tdsl.schedule.state import (
    SERIAL,
    AxisEntry,
    FuncPlan,
    Illegal,
    Loop,
    Nest,
    Root,
    Rotate,
    State,
    is_ordered,
    is_reduction,
    roots_of,
)  # fmt: skip

Levels = tuple[Axes, ...]


def place(
    state: State, func: str, definition: int, *, tensor: str, notation: str | tuple[str, ...], grid: Levels
) -> State:  # fmt: skip
    """Set the placement of an input or a func on a grid of ranks; `func` is the program's first output."""
    state = _with_grid(state, grid)
    program = state.program
    if not (program.has_func(tensor) or program.has_input(tensor)):
        names = [t.name for t in program.inputs] + [f.name for f in program.funcs]
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
    except PlacementSyntaxError as error:
        raise Illegal(str(error), error.hint) from None
    _check_partial(state, tensor, placement)
    return state.with_placements(state.grid, (*state.placed, (tensor, placement)))


def _check_partial(state: State, tensor: str, placement: Placement) -> None:
    """Raise Illegal for a partial placement whose parts cannot be combined into the tensor."""
    for op in (e.op for e in placement.entries if isinstance(e, Partial)):
        f = state.program.func(tensor) if state.program.has_func(tensor) else None
        combine = f.definitions[-1].combine if f is not None else None
        if f is not None and f.definitions[-1].combine is None and op == "sum" and len(f.dtypes) == 1:
            continue  # a sum of what ranks compute from partial sources
        if f is None or combine is None or combine.kind != op:
            kind = "an input" if f is None else "not reduced" if combine is None else combine.kind
            raise Illegal(
                f"{tensor!r} cannot be placed as partial({op}): it is {kind}",
                "only partial results are placed so, combined by its own operator: partial(sum)",
            )
        if combine.scalars() or len(f.dtypes) > 1:
            raise Illegal(
                f"what combines {tensor!r} has several values, or depends on scalars of a call",
                "place it whole: a dimension, * or a coordinate",
            )


def _with_grid(state: State, levels: Levels) -> State:
    """The state with its grid; raises Illegal if another grid is in use."""
    grid = Grid.of([Grid(**dict(axes)) for axes in levels])
    if state.grid is not None and state.grid != grid:
        raise Illegal(f"another grid is in use: {state.grid}, not {grid}", "use one grid for a program")
    return state.with_placements(grid, state.placed)


def ranks(state: State, func: str, definition: int, *, count: int) -> State:
    """Set the number of ranks of a run; ranks beyond the grid are idle."""
    if state.grid is None:
        raise Illegal("nothing is placed on a grid yet", "place or distribute first")
    if type(count) is not int or count < state.grid.size:
        raise Illegal(f"a run of {count!r} ranks cannot have {state.grid}", f"{state.grid.size} or more")
    if state.ranks is not None:
        raise Illegal(f"a run has {state.ranks} ranks already", "say it once")
    return replace(state, ranks=count)


def distribute(
    state: State, func: str, definition: int, *, loops: tuple[str | int, ...], grid: Levels
) -> State:  # fmt: skip
    """for x  -->  for x_o: for x_i, where each rank runs the x_o of its coordinate on an axis.

    In place of a loop "*": every coordinate computes the func; a number: that coordinate does; "partial":
    each coordinate computes it from its own part of partial sources, and has a part of its sum.
    """
    state = _with_grid(state, grid)
    axes = [axis for level in grid for axis in level]
    f, plan = state.program.func(func), state.plan(func)
    if plan.distributed:
        raise Illegal(f"{func!r} is distributed already", "distribute all of its loops at once")
    if len(loops) != len(axes):
        raise Illegal(
            f"{len(loops)} loops for the {len(axes)} axes of {state.grid}",
            "name one loop for each axis, or *, a coordinate, or partial",
        )
    if definition:
        _check_update(f, definition)
    entries = [_axis_entry(plan.nests[definition], x, *axis) for x, axis in zip(loops, axes, strict=True)]
    _check_entries(f, definition, entries)
    for name in (find_loop(state, func, definition, x) for x in entries if isinstance(x, str)):
        _check_associative(state, func, definition, plan.nests[definition], name)
        check_local_updates(f, definition, plan.nests[definition], name)
    outer: list[str] = []
    distributed: list[AxisEntry] = []
    for loop, (_, parts) in zip(entries, axes, strict=True):
        if not isinstance(loop, str):
            distributed.append(loop)
            continue
        name = find_loop(state, func, definition, loop)
        before = state.plan(func).nests[definition].names()
        state = split(state, func, definition, loop=name, nparts=parts)
        nest = state.plan(func).nests[definition]
        first, inner = (x for x in nest.names() if x not in before)
        outer.append(first)
        distributed.append(first)
        kept = ((x, inner if target == name else target) for x, target in nest.aliases)
        nest = replace(nest, aliases=(*kept, (name, inner)))
        state = state.with_plan(func, state.plan(func).with_nest(definition, nest))
    rest = [x for x in state.plan(func).nests[definition].names() if x not in outer]
    state = reorder(state, func, definition, loops=(*outer, *rest))
    new_plan = replace(
        state.plan(func), distributed=tuple(distributed), distributed_definition=definition, place=Root()
    )
    return state.with_plan(func, new_plan)


def _axis_entry(nest: Nest, entry: str | int, axis: str, size: int) -> AxisEntry:
    """What `distribute` says of an axis: the name of a loop, or what takes the place of a loop."""
    if isinstance(entry, int):
        if not 0 <= entry < size:
            raise Illegal(f"axis {axis!r} has no coordinate {entry}", f"it has 0 to {size - 1}")
        return Fixed(entry)
    if entry == "*":
        return Copies()
    return Partial("sum") if entry == "partial" and entry not in nest.names() else entry


def _check_entries(f: FuncDef, definition: int, entries: list[AxisEntry]) -> None:
    """Raise Illegal for a repeated func with effects, and for partial results of several definitions."""
    d = f.definitions[definition]
    if any(isinstance(e, Copies) for e in entries) and any(map(has_effects, f.definitions)):
        raise Illegal(
            f"every coordinate would repeat the checks and prints of {f.name!r}",
            "compute it at one coordinate: a number in place of *",
            ((d.loc, "this definition"),),
        )
    if any(isinstance(e, Partial) for e in entries) and (len(f.definitions) > 1 or len(f.dtypes) > 1):
        raise Illegal(
            f"{f.name!r} has updates or several values, and is no sum of partial results",
            "compute what is linear in the partial sources in a func of its own",
            ((d.loc, "this definition"),),
        )


def distributed_loops(plan: FuncPlan) -> tuple[str, ...]:
    """The distributed loops of a func: the entries of the axes that have one."""
    return tuple(x for x in plan.distributed if isinstance(x, str))


def _check_associative(state: State, func: str, definition: int, nest: Nest, name: str) -> None:
    """Raise Illegal if ranks would compute partial results of a reduction that is not associative."""
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


def _check_update(f: FuncDef, definition: int) -> None:
    """Raise Illegal if ranks that run parts of an update would race, or have no identity to start from."""
    d, first = f.definitions[definition], f.definitions[0]
    reads = any(r.name == f.name for r in d.reads)
    if d.combine is None or not d.combine.associative or reads:
        raise Illegal(
            f"ranks would race: several of them may update one element of {f.name!r}",
            "distribute the first definition, which its updates follow, or update by what is associative",
            ((d.loc, "this update"),),
        )
    if len(f.definitions) > 2 or first.values != d.combine.init:
        raise Illegal(
            f"{f.name!r} does not start at the identity of this update, or has other updates",
            "each rank starts at the identity: give a func of its own one update, add the rest in another",
            ((first.loc, "the first definition"),),
        )


def check_local_updates(f: FuncDef, definition: int, nest: Nest, name: str) -> None:
    """Raise Illegal if an update accesses elements of another iteration of the first definition's loop."""
    if definition or len(f.definitions) == 1:
        return
    for v in roots_of(nest, name):
        free = v in f.variables
        dim = f.variables.index(v) if free else 0
        for d in f.definitions[1:]:
            indices = [d.index, *(r.index for r in d.reads if r.name == f.name)]
            alone = free and d.index[dim] in [Var(x) for x in d.free]
            if not alone or len({i[dim] for i in indices}) > 1:
                raise Illegal(
                    f"an update of {f.name!r} needs more than one iteration of {name!r} makes",
                    "distribute loops whose variable stands alone in every update, the update itself, "
                    "or a func of its own",
                    ((d.loc, "this update"),),
                )


def communicate(
    state: State, func: str, definition: int, *, tensors: tuple[str, ...], at: str, prefetch: int = 0,
    deterministic: bool = False, overlap: bool = False, routed: bool | None = None, since: str | None = None,
    until: str | None = None, behind: str | None = None,
) -> State:  # fmt: skip
    """Receive the tensors that a loop's body reads when an iteration starts; send its results at its end.

    With `prefetch`, receives start that many iterations ahead and overlap with computation; with `overlap`,
    the points that read local elements only are computed meanwhile. With `routed`, elements that data select
    are received by an all-to-all of their rows; if it is False, by that of their box. With `since`, messages
    are in flight from the begin of that func on, after those of `behind`; with `until`, those of results are,
    until that func begins.
    """
    plan = state.plan(func)
    if not plan.distributed:
        raise Illegal(f"{func!r} is not distributed", "distribute its loops first")
    name = find_loop(state, func, definition, at)
    nest = plan.nests[definition]
    outer = distributed_loops(plan)
    if definition != plan.distributed_definition:
        raise Illegal("another definition is distributed", "communicate at a loop of that one")
    for x in nest.names()[: nest.position(name) + 1]:
        check_local_updates(state.program.func(func), definition, nest, x)
    if name in outer[:-1]:
        raise Illegal(
            f"{name!r} is fixed by the rank, and {outer[-1]!r} inside of it, too",
            f"communicate at {outer[-1]!r} or a loop inside of it",
        )
    reads = _funcs_read(state, func)
    done = dict(plan.communicated)
    for tensor in tensors:
        if tensor not in reads:
            raise Illegal(f"{func!r} does not read {tensor!r}", did_you_mean(tensor, sorted(reads)))
        if tensor in done:
            raise Illegal(f"{tensor!r} is communicated at {done[tensor]!r}", "name each once")
    if deterministic and (
        func not in tensors or state.program.func(func).definitions[definition].combine is None
    ):
        raise Illegal("none of these is combined over ranks", "communicate the func that is reduced")
    if type(prefetch) is not int or prefetch < 0 or (prefetch and (func in tensors or name in outer)):
        raise Illegal(
            f"there is nothing to fetch {prefetch!r} iterations of {name!r} ahead",
            "prefetch what is read, a number of iterations of a loop inside of those distributed",
        )
    if overlap and (func in tensors or prefetch):
        raise Illegal(
            "nothing is received during this computation",
            "overlap what is read, without prefetch, which overlaps with iterations before",
        )
    if overlap and (definition or len(state.program.func(func).definitions) > 1):
        raise Illegal(f"{func!r} has updates, which are not computed in parts", "update a func of its own")
    if routed and (func in tensors or prefetch or overlap):
        raise Illegal(
            "ranks learn which elements they receive when the iteration starts",
            "route what is read, without prefetch and overlap",
        )
    if since is not None and (func in tensors or prefetch or overlap or routed):
        raise Illegal(
            "messages with two times to start",
            "name what is read with since, without prefetch, overlap and routed",
        )
    _check_windows(state, func, tensors, at, since, until, behind)
    for tensor in tensors if routed else ():
        if not any(data_axes(r.index) for r in _reads_of(state, reads, tensor)):
            raise Illegal(
                f"{func!r} reads {tensor!r} at no index that depends on data",
                "communicate it without routed: its box is what is read",
            )
    overlapped = (*plan.overlapped, *(dict.fromkeys(tensors) if overlap else ()))
    communicated = (*plan.communicated, *((tensor, name) for tensor in dict.fromkeys(tensors)))
    ahead = (*plan.ahead, *((tensor, prefetch) for tensor in dict.fromkeys(tensors) if prefetch))
    said = () if routed is None else tuple((tensor, routed) for tensor in dict.fromkeys(tensors))
    plan = replace(
        plan, communicated=communicated, ahead=ahead, overlapped=overlapped, routed=(*plan.routed, *said),
        since=(*plan.since, *((tensor, since) for tensor in dict.fromkeys(tensors) if since is not None)),
        behind=(*plan.behind, *((tensor, behind) for tensor in dict.fromkeys(tensors) if behind is not None)),
        until=until or plan.until,
    )  # fmt: skip
    in_order = plan.deterministic or deterministic
    if until is not None and state.program.func(func).definitions[definition].combine is not None:
        in_order = True  # by messages, which can be in flight
    return state.with_plan(func, replace(plan, deterministic=in_order))


def _check_windows(
    state: State, func: str, tensors: tuple[str, ...], at: str,
    since: str | None, until: str | None, behind: str | None,
) -> None:  # fmt: skip
    """Raise Illegal unless each bound of a window is another func, and of what it may be a bound."""
    if behind is not None and (since is None or behind in tensors):
        raise Illegal(
            f"{', '.join(map(repr, tensors))} cannot be received behind {behind!r}",
            "name another tensor that is received in a window, and with since when this one starts",
        )
    if until is not None and (tensors != (func,) or state.plan(func).until is not None):
        raise Illegal(
            "only results of a func are sent until another one begins",
            f"name them alone, once: communicate({func!r}, at={at!r}, until={until!r})",
        )
    for other in (since, until):
        if other is not None and (other == func or not state.program.has_func(other)):
            raise Illegal(
                f"{other!r} is no other func", did_you_mean(other, [f.name for f in state.program.funcs])
            )


def _reads_of(state: State, funcs: set[str], tensor: str) -> Iterator[Read]:
    """The reads of a tensor in some funcs."""
    for f in (f for f in state.program.funcs if f.name in funcs):
        yield from (r for d in f.definitions for r in d.reads if r.name == tensor)


def _funcs_read(state: State, func: str) -> set[str]:
    """The names of a func and of all tensors and funcs that it reads, directly or indirectly."""
    names = {func}
    for f in reversed(state.program.funcs):
        if f.name in names:
            names |= {r.name for d in f.definitions for r in d.reads}
    return names


def rotate(
    state: State, func: str, definition: int, *, loop: str, by: tuple[str, ...]
) -> State:  # fmt: skip
    """for x  -->  for xr, with x = (xr + the loops of `by`) modulo the extent, for systolic communication."""
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
    if name in f.definitions[definition].variables:
        raise Illegal(
            f"{name!r} is a variable of the definition, not a part of one",
            f"divide({name!r}, n) first, and rotate the outer loop",
        )
    new = nest.fresh_name(f"{name}r")
    new_nest = replace(nest.replaced(name, Loop(new)), relations=(*nest.relations, Rotate(name, new, turns)))
    plan = plan.with_nest(definition, new_nest)
    moved = tuple((t, new if at == name else at) for t, at in plan.communicated)
    return state.with_plan(func, replace(plan, communicated=moved, scheduled=True))


def check_distributed(state: State, func: str) -> None:
    """Raise Illegal unless distributed loops are outermost and all loops around communication are serial."""
    plan = state.plan(func)
    if not plan.distributed:
        return
    nest, outer = plan.nests[plan.distributed_definition], distributed_loops(plan)
    count = len(outer)
    if nest.names()[:count] != outer:
        raise Illegal(
            f"the distributed loops {', '.join(outer)} are no longer the outermost ones",
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
    "place": place, "ranks": ranks, "distribute": distribute, "communicate": communicate, "rotate": rotate,
}  # fmt: skip
