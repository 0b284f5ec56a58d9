"""Directives on the loops of one stage: each returns a new state or raises `Illegal`."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, combinations
from typing import TypeVar

from tdsl.errors import did_you_mean
from tdsl.lang.affine import constant_difference
from tdsl.schedule.dependence import check_dependences
from tdsl.schedule.state import (
    ALIGN,
    GUARD,
    PARALLEL,
    ROUND_UP,
    SERIAL,
    SHIFT,
    TAILS,
    UNROLLED,
    AfterProducer,
    At,
    FuncPlan,
    Fuse,
    Illegal,
    Level,
    Loop,
    Nest,
    PrefetchPlan,
    Rename,
    Rotate,
    Split,
    State,
    Tensorization,
    WithStage,
    is_ordered,
    is_reduction,
    parts_of,
    roots_of,
)  # fmt: skip

MAX_FACTOR = 1 << 30
_Placed = TypeVar("_Placed", PrefetchPlan, Tensorization)


def find_loop(state: State, func: str, definition: int, name: str) -> str:
    """The current loop of a name or alias; raises Illegal, with the most similar name, if there is none."""
    nest = state.plan(func).nests[definition]
    for alias, loop in nest.aliases:
        if name == alias:
            return find_loop(state, func, definition, loop)
    if name in nest.names():
        return name
    for r in nest.relations:
        match r:
            case Split(parent, outer, inner) if parent == name:
                raise Illegal(f"loop {name!r} was split into {outer!r} and {inner!r}", "name one of them")
            case Fuse(fused, outer, inner) if name in (outer, inner):
                raise Illegal(f"loop {name!r} was fused into {fused!r}", f"name {fused!r}")
            case Rename(old, new) if old == name:
                raise Illegal(f"loop {name!r} was renamed to {new!r}", f"name {new!r}")
            case Rotate(old, new) if old == name:
                raise Illegal(f"loop {name!r} was rotated, as {new!r}", f"name {new!r}")
    known = dict.fromkeys((*nest.names(), *(alias for alias, _ in nest.aliases)))
    hint = did_you_mean(name, known)
    reads = {r.name for d in state.program.func(func).definitions for r in d.reads}
    for part in state.program.funcs:  # rfactor and others move loops to a new stage
        if part.name in reads and name in state.plan(part.name).nests[-1].names():
            hint += f'; s["{part.name}"], which it reads, has a loop {name!r}'
    raise Illegal(f"there is no loop {name!r}", hint)


def replace_nest(
    state: State, func: str, definition: int, nest: Nest, moved: dict[str, str] | None = None
) -> State:
    """The state with another nest; places and prefetches at removed loops move to loops by `moved`."""
    plan = replace(state.plan(func).with_nest(definition, nest), scheduled=True)
    if moved is None:
        return state.with_plan(func, plan)
    names = moved

    def at(x: _Placed) -> _Placed:
        in_nest = x.definition == definition
        return replace(x, loop=names.get(x.loop, x.loop)) if in_nest else x

    ahead = tuple(
        replace(p, of=names.get(p.of, p.of)) if p.definition == definition else p
        for p in map(at, plan.prefetches)
    )
    plan = replace(
        plan,
        prefetches=ahead,
        tensorizations=tuple(map(at, plan.tensorizations)),
        communicated=tuple((t, names.get(loop, loop)) for t, loop in plan.communicated),
    )
    state = state.with_plan(func, plan)
    for name in dict.fromkeys(state.placed_in.get(func, ())):
        state = state.with_plan(name, _move_places(state.plan(name), func, definition, moved))
    return state


def _move_places(plan: FuncPlan, func: str, definition: int, moved: dict[str, str]) -> FuncPlan:
    def names_loop(level: Level) -> bool:
        return level.func == func and level.definition == definition

    def moved_level(level: Level) -> Level:
        return replace(level, loop=moved.get(level.loop, level.loop))

    match plan.place:
        case At(level) | AfterProducer(level) | WithStage(level) if names_loop(level):
            plan = replace(plan, place=replace(plan.place, level=moved_level(level)))
        case _:
            pass
    if plan.store is not None and names_loop(plan.store):
        plan = replace(plan, store=moved_level(plan.store))
    return plan


def new_loop_name(nest: Nest, name: str | None, default: str) -> str:
    """The name of a new loop: `name`, which must be unused, or an unused name derived from `default`."""
    if name is None:
        return nest.fresh_name(default)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise Illegal(f"{name!r} is not a name", "use letters, digits and _, as in Python")
    if name in nest.used_names():
        raise Illegal(f"there is already a loop {name!r}", "choose another name")
    return name


def check_positive(value: object, what: str) -> int:
    """`value` as an int; raises Illegal unless it is an integer from 1 to MAX_FACTOR."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise Illegal(f"{what} must be an integer, not {value!r}", "pass a positive int")
    number = value.__index__()
    if number <= 0:
        raise Illegal(f"{what} must be positive, not {number}", "pass 1 or more")
    if number > MAX_FACTOR:
        raise Illegal(f"{what} is too large: {number}", f"pass at most {MAX_FACTOR}")
    return int(number)


def extent_of(state: State, func: str, definition: int, variable: str) -> int | None:
    """The extent of a variable of a definition if it is constant, None if it depends on sizes."""
    f = state.program.func(func)
    d = f.definitions[definition]
    for name, lo, hi in d.ranges:
        if name == variable and lo is not None and hi is not None:
            return constant_difference(hi, lo)
    if func in state.program.outputs and variable in d.free:
        axis = next(n for n, e in enumerate(d.index) if getattr(e, "name", None) == variable)
        lo_, hi_ = f.natural[axis]
        if lo_ is not None and hi_ is not None:
            known = constant_difference(hi_, lo_)
            return None if known is None else known + 1
    return None


def iterations_of(
    state: State, func: str, definition: int, loop: str, sizes: Mapping[str, int | None] = {}
) -> int | None:
    """The number of iterations of a loop, None unless it follows from constant extents and factors.

    `sizes` are known extents of variables, in addition to constant ones of the program.
    """
    d = state.program.func(func).definitions[definition]
    known = {v: sizes.get(v) or extent_of(state, func, definition, v) for v in d.variables}
    for r in state.plan(func).nests[definition].relations:
        match r:
            case Split(parent, outer, inner, factor, parts, tail):
                whole, size = None if tail == ALIGN else known.get(parent), factor or parts or 1
                other = None if whole is None else -(-whole // size)
                known[inner], known[outer] = (factor, other) if factor else (other, parts)
            case Fuse(fused, outer, inner):
                a, b = known.get(outer), known.get(inner)
                known[fused] = None if a is None or b is None else a * b
            case Rename(old, new) | Rotate(old, new):
                known[new] = known.get(old)
    return known.get(loop)


def split(
    state: State, func: str, definition: int, *, loop: str, factor: int | None = None,
    nparts: int | None = None, tail: str = GUARD, names: tuple[str | None, str | None] = (None, None),
) -> State:  # fmt: skip
    """Split a loop: for x  -->  for x_o: for x_i, with x = x_o * factor + x_i."""
    name = find_loop(state, func, definition, loop)
    if (factor is None) == (nparts is None):
        raise Illegal("give a factor or nparts, one of them", "split(x, 16) or split(x, nparts=4)")
    if tail not in TAILS:
        raise Illegal(f"there is no tail strategy {tail!r}", did_you_mean(str(tail), TAILS))
    factor = None if factor is None else check_positive(factor, "the factor")
    nparts = None if nparts is None else check_positive(nparts, "nparts")
    nest = state.plan(func).nests[definition]
    if nest.kind(name) != SERIAL:
        raise Illegal(f"loop {name!r} is {nest.kind(name)} already", "split it before")
    _check_tail(state, func, definition, nest, name, tail, factor, nparts)
    outer = new_loop_name(nest, names[0], f"{name}_o")
    inner = new_loop_name(replace(nest, aliases=(*nest.aliases, (outer, outer))), names[1], f"{name}_i")
    fixed = nest.loops[nest.position(name)].fixed
    new_nest = nest.replaced(name, Loop(outer, fixed=fixed), Loop(inner, fixed=fixed))
    relation = Split(name, outer, inner, factor, nparts, tail)
    new_nest = replace(new_nest, relations=(*nest.relations, relation))
    return replace_nest(state, func, definition, new_nest, {name: inner})


def _check_tail(
    state: State, func: str, definition: int, nest: Nest, name: str, tail: str,
    factor: int | None, parts: int | None,
) -> None:  # fmt: skip
    f = state.program.func(func)
    d = f.definitions[definition]
    reduction = is_reduction(f, definition, nest, name)
    if tail == SHIFT:
        again = f"points of {name!r} near the end would be computed twice"
        if reduction or definition > 0:
            raise Illegal(f"{again}, which changes a reduction or update", "use tail='guard'")
        if name not in roots_of(nest, name):
            raise Illegal(f"{name!r} is itself part of a split or fuse", "use tail='guard'")
        if parts is not None:
            raise Illegal("tail='shift' needs a factor, not nparts", "use tail='guard'")
    if tail == ALIGN and (parts is not None or name not in d.variables):
        raise Illegal(
            f"blocks of {name!r} begin at multiples of a factor only if it is a variable, and has one",
            "split the variable first, by a factor",
        )
    if tail == ROUND_UP and (reduction or definition > 0 or func in state.program.outputs):
        extent = extent_of(state, func, definition, name) if name in d.variables else None
        step = factor or parts
        if extent is not None and step is not None and extent % step:
            raise Illegal(
                f"splitting {extent} by {step} leaves a tail, and rounding it up would "
                f"{'count points twice' if reduction else 'write outside of the output'}",
                "use tail='guard'",
            )


def fuse(
    state: State, func: str, definition: int, *, outer: str, inner: str, name: str | None = None
) -> State:
    """Fuse two loops: for a: for b  -->  for ab, with a, b = divmod(ab, extent of b)."""
    a, b = (find_loop(state, func, definition, x) for x in (outer, inner))
    f, nest = state.program.func(func), state.plan(func).nests[definition]
    if nest.position(b) != nest.position(a) + 1:
        raise Illegal(
            f"{b!r} is not directly inside {a!r}; the order is {', '.join(nest.names())}",
            f"reorder first, so that {b!r} follows {a!r}",
        )
    if is_reduction(f, definition, nest, a) != is_reduction(f, definition, nest, b):
        raise Illegal(f"one of {a!r} and {b!r} is reduced over, the other is not", "fuse loops of a kind")
    for x in (a, b):
        if nest.kind(x) != SERIAL:
            raise Illegal(f"loop {x!r} is {nest.kind(x)} already", "fuse before")
    return fuse_loops(state, func, definition, a, b, name)


def fuse_loops(state: State, func: str, definition: int, a: str, b: str, name: str | None = None) -> State:
    """The state with a loop fused with the loop directly inside of it."""
    nest = state.plan(func).nests[definition]
    both = new_loop_name(nest, name, f"{a}_{b}")
    new_nest = replace(nest.replaced(a, Loop(both)), relations=(*nest.relations, Fuse(both, a, b)))
    new_nest = replace(new_nest, loops=tuple(x for x in new_nest.loops if x.name != b))
    return replace_nest(state, func, definition, new_nest, {b: both})


def rename(state: State, func: str, definition: int, *, loop: str, name: str) -> State:
    """Give a loop another name."""
    old = find_loop(state, func, definition, loop)
    nest = state.plan(func).nests[definition]
    new = new_loop_name(nest, name, name)
    new_nest = nest.replaced(old, replace(nest.loops[nest.position(old)], name=new))
    new_nest = replace(new_nest, relations=(*nest.relations, Rename(old, new)))
    return replace_nest(state, func, definition, new_nest, {old: new})


def reorder(state: State, func: str, definition: int, *, loops: tuple[str, ...]) -> State:
    """Permute the named loops into this order, outermost first; other loops keep their positions."""
    names = [find_loop(state, func, definition, x) for x in loops]
    if len(set(names)) < len(names):
        raise Illegal("a loop is named twice", "name each once")
    plan = state.plan(func)
    nest = plan.nests[definition]
    by_name = {x.name: x for x in nest.loops}
    order = iter(names)
    new = tuple(by_name[next(order)] if x.name in names else x for x in nest.loops)
    reordered = replace(nest, loops=new)
    ordered = (*nest.ordered, *combinations(names, 2))
    position = {x: n for n, x in enumerate(reordered.names())}
    at = {x: [position[part] for part in parts_of(reordered, x)] for x in dict.fromkeys(chain(*ordered))}
    kept = tuple(p for p in dict.fromkeys(ordered) if all(a < b for a in at[p[0]] for b in at[p[1]]))
    return replace_nest(state, func, definition, replace(reordered, ordered=kept))


def set_kind(state: State, func: str, definition: int, name: str, kind: str) -> State:
    """Set the kind of a loop, given by its current name."""
    nest = state.plan(func).nests[definition]
    return replace_nest(state, func, definition, nest.with_kind(name, kind))


def serial(state: State, func: str, definition: int, *, loop: str) -> State:
    """Run a loop in order, undoing parallel, vectorize, unroll, bind or pipeline."""
    nest = state.plan(func).nests[definition]
    fixed = Loop(find_loop(state, func, definition, loop), fixed=True)
    return replace_nest(state, func, definition, nest.with_loop(fixed))


def parallel(state: State, func: str, definition: int, *, loop: str) -> State:
    """Run the iterations of a loop on several threads."""
    name = find_loop(state, func, definition, loop)
    check_concurrent(state, func, definition, name)
    return set_kind(state, func, definition, name, PARALLEL)


def check_concurrent(state: State, func: str, definition: int, name: str) -> None:
    """Raise Illegal unless the iterations of a loop may run concurrently."""
    plan, f = state.plan(func), state.program.func(func)
    d, nest = f.definitions[definition], plan.nests[definition]
    if not is_reduction(f, definition, nest, name) or definition in plan.atomic:
        return
    if d.init is None or is_ordered(f, definition):
        check_dependences(state, func, definition, nest.with_kind(name, PARALLEL))
        return
    raise Illegal(
        f"iterations of {name!r} add to the same elements of {func!r}",
        f"partial = rfactor({name!r}) and parallelise that, or allow it with atomic()",
        ((d.loc, "this definition"),),
    )


def unroll(state: State, func: str, definition: int, *, loop: str, factor: int | None = None) -> State:
    """Unroll a loop completely, or by a factor."""
    name = find_loop(state, func, definition, loop)
    if factor is None:
        return set_kind(state, func, definition, name, UNROLLED)
    return split_with_kind(state, func, definition, name, factor, "u", UNROLLED)


def split_with_kind(
    state: State, func: str, definition: int, name: str, factor: int, suffix: str, kind: str
) -> State:
    """Split a loop and set the kind of the inner loop; the old name then means the outer loop."""
    nest = state.plan(func).nests[definition]
    outer, inner = nest.fresh_name(f"{name}_o"), nest.fresh_name(f"{name}_{suffix}")
    state = split(state, func, definition, loop=name, factor=factor, names=(outer, inner))
    nest = state.plan(func).nests[definition]
    new_nest = replace(nest, aliases=(*nest.aliases, (name, outer)))
    state = replace_nest(state, func, definition, new_nest, {inner: outer})
    return set_kind(state, func, definition, inner, kind)
