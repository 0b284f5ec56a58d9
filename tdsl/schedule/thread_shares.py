"""The points of a stage shared out among threads by the layout of a fragment that it makes or reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tdsl.lang.affine import as_sum, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Read, Var
from tdsl.lang.regions import reads_in
from tdsl.schedule.instructions.instruction import INSTRUCTIONS, Instruction
from tdsl.schedule.instructions.layout import Digit, Layout
from tdsl.schedule.loops import fused, iterations_of, mark, reorder, split, vectorize
from tdsl.schedule.nest import (
    FRAGMENT,
    LANES,
    UNROLLED,
    Illegal,
    Nest,
    State,
    Tensorization,
    is_reduction,
    parts_of,
    roots_of,
)  # fmt: skip


def by_layout(state: State, func: str, vector: int) -> State | None:
    """The state in which each thread makes the points of a stage that it has in its registers.

    None for a stage that has nothing to do with fragments. Its loops become one over the threads of the
    group, and unrolled ones over tiles and registers.
    """
    found = _layout_for(state, func)
    if found is None:
        return None
    if len(state.plan(func).nests) > 1:
        raise Illegal(f"{func!r} has updates", "share out a stage of one definition")
    layout, names = found
    digits: dict[Digit, str] = {}
    tiles: list[str] = []
    for axis, v in names.items():
        if layout.shape[axis] > 1:
            state, tile, parts = _in_digits(state, func, layout, axis, v)
            tiles += tile
            digits |= parts
    lanes = [digits[d] for d in sorted(digits, key=lambda d: -d.weight) if d.in_lane]
    own = [digits[d] for d in sorted(digits, key=lambda d: -d.weight) if not d.in_lane]
    f, nest = state.program.func(func), state.plan(func).nests[0]
    reduced = [x for x in (*tiles, *own) if is_reduction(f, 0, nest, x)]
    others = [x for x in nest.names() if x not in (*lanes, *own, *tiles)]
    free = [x for x in (*tiles, *own) if x not in reduced]
    if (
        f.definitions[0].init is not None
    ):  # what is made once for all of an axis is made outside of its loops
        roots = {x: roots_of(nest, x) for x in free}
        free.sort(key=lambda x: [v in roots[x] for v in names.values()], reverse=True)
    state = reorder(state, func, 0, loops=(*others, *lanes, *free, *reduced))
    whole = lanes[0]
    for x in lanes[1:]:
        state = fused(state, func, 0, whole, x)
        whole = f"{whole}_{x}"
    state = mark(state, func, 0, whole, LANES)
    if vector > 1 and not reduced:
        state = vectorize(state, func, 0, loop=own.pop(), factor=vector)
    for x in (*tiles, *own):
        if x in state.plan(func).nests[0].names():
            state = mark(state, func, 0, x, UNROLLED)
    return state


def _in_digits(
    state: State, func: str, layout: Layout, axis: int, v: str
) -> tuple[State, list[str], dict[Digit, str]]:
    """The loop of an axis as one over tiles and one for each digit of the layout."""
    own = sorted((d for d in layout.digits if d.axis == axis), key=lambda d: -d.step)
    nest = state.plan(func).nests[0]
    v = max(parts_of(nest, v), key=nest.position)  # tiles of a loop are around what is in them
    state = split(state, func, 0, loop=v, factor=_tile(state, func, own, v, layout.shape[axis]))
    tile, rest, parts = f"{v}_o", f"{v}_i", {}
    for n, d in enumerate(own):
        if d.step > 1:
            names = (f"{v}_{len(own) - n}", f"{v}_{len(own) - n}_i")
            state = split(state, func, 0, loop=rest, factor=d.step, names=names)
            parts[d], rest = names
        else:
            parts[d] = rest
    return state, [tile], parts


def _tile(state: State, func: str, digits: list[Digit], loop: str, shape: int) -> int:
    """How many elements of a loop are shared out at a time: a tile, or fewer that have all of its lanes."""
    count = iterations_of(state, func, 0, loop) or shape
    lanes = max((d.step * d.radix for d in digits if d.in_lane), default=1)
    inside = all(d.step < count and count % d.step == 0 for d in digits)
    return count if count < shape and inside and count % lanes == 0 else shape


def _layout_for(state: State, func: str) -> tuple[Layout, dict[int, str]] | None:
    """The layout that decides who makes a point, and the variable of the stage along each of its axes.

    Of what is reduced in registers it is the layout of the terms.
    """
    d = state.program.func(func).definitions[0]
    if state.plan(func).scope == FRAGMENT and d.init is None:
        return _known(state, func), _axes(d.index)
    read = _widest(state, func, frozenset())
    if read is not None:
        return _known(state, read.name), _axes(read.index)
    for name in _fragments(state) & {func, *(r.name for r in d.reads)}:
        _known(state, name)
    return None


def _widest(state: State, func: str, below: frozenset[str]) -> Read | None:
    """The read of a fragment by which the points of a stage are shared out: the one with most elements."""
    found: list[tuple[int, Read]] = []
    for r in state.program.func(func).definitions[0].reads:
        if r.name != func and r.name not in below and r.name in _fragments(state):
            layout = layout_of_fragment(state, r.name, below | {func})
            if layout is not None:
                found.append((prod(layout.shape), r))
    return max(found, key=lambda x: x[0])[1] if found else None


def _fragments(state: State) -> set[str]:
    return {name for name, plan in state.plans if plan.scope == FRAGMENT}


def _axes(index: tuple[Expr, ...]) -> dict[int, str]:
    """The variable along each axis: what an index moves with one by one."""
    found = {}
    for axis, e in enumerate(index):
        steps = as_sum(e).terms.items()
        moving = [x.name for x, step in steps if isinstance(x, Var) and step == 1]
        if len(moving) == 1:
            (found[axis],) = moving
    return found


def _known(state: State, name: str) -> Layout:
    found = layout_of_fragment(state, name)
    if found is None:
        raise Illegal(
            f"no instruction says yet how the fragment {name!r} is laid out",
            "tensorize the stage that computes with it first",
        )
    return found


def layout_of_fragment(
    state: State, name: str, below: frozenset[str] = frozenset()
) -> Layout | None:
    """How a fragment is laid out, over the axes of its func: as instructions say, or what it is made of."""
    return _by_instructions(state, name) or derived_layout(state, name, below)


def _by_instructions(state: State, name: str) -> Layout | None:
    for func, plan in state.plans:
        for t in plan.tensorizations:
            for layout in _layouts(state, func, t, name):
                return layout
    return None


def derived_layout(state: State, name: str, below: frozenset[str] = frozenset()) -> Layout | None:
    """The layout of a fragment that no instruction uses: that of what it is made of.

    What is reduced, and what a result does not differ along, is kept by all threads that have a part of it.
    """
    if _by_instructions(state, name) is not None:
        return None
    read = _widest(state, name, below)
    layout = None if read is None else layout_of_fragment(state, read.name, below | {name})
    if read is None or layout is None:
        return None
    index, names = state.program.func(name).definitions[0].index, _axes(read.index)
    axes = [
        index.index(Var(names[n])) if n in names and Var(names[n]) in index else None
        for n in range(len(read.index))
    ]
    return layout.along(axes, len(index))


def _layouts(state: State, func: str, t: Tensorization, name: str) -> Iterator[Layout]:
    """The layouts that one instruction in the loops of a func gives a fragment."""
    chosen = INSTRUCTIONS[t.instruction]
    d = state.program.func(func).definitions[t.definition]
    theirs = chosen.meaning.funcs[0].definitions[-1]
    nest = state.plan(func).nests[t.definition]
    matched = _matched(nest, t, theirs)
    if func == name:
        yield from _over_axes(chosen, chosen.operands()[0], theirs.index, d.index, matched)
    for r in reads_in(d.values):
        if r.name == name:
            for other in reads_in(theirs.values):
                yield from _over_axes(chosen, other.name, other.index, r.index, matched)


def _matched(nest: Nest, t: Tensorization, theirs: Definition) -> dict[str, str]:
    """The variable of a definition for each one of the instruction's meaning."""
    inner = nest.names()[nest.position(t.loop) :]
    found = {}
    for v, loop in zip((*theirs.free, *(r[0] for r in theirs.ranges)), inner, strict=False):
        roots = roots_of(nest, loop)
        if len(roots) == 1:
            (found[v],) = roots
    return found


def _over_axes(
    chosen: Instruction, operand: str, theirs: tuple[Expr, ...], mine: tuple[Expr, ...],
    matched: dict[str, str],
) -> Iterator[Layout]:  # fmt: skip
    """The layout of an operand over the axes of what is read or written there, if that moves along as it."""
    layout = dict(chosen.fragments).get(operand)
    wanted = [matched.get(e.name, "") for e in theirs if isinstance(e, Var)]
    along = [variables(e) & set(matched.values()) for e in mine]
    if layout is None or sorted(wanted) != sorted(v for used in along for v in used):
        return
    axes = [next(n for n, used in enumerate(along) if v in used) for v in wanted]
    shape = [1] * len(mine)
    for axis, extent in zip(axes, layout.shape, strict=True):
        shape[axis] = extent
    digits = tuple(replace(d, axis=axes[d.axis]) for d in layout.digits)
    yield Layout(tuple(shape), layout.threads, digits)
