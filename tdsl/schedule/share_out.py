"""The points of a stage shared out among threads by the layout of a fragment that it makes or reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Var
from tdsl.lang.regions import reads_in
from tdsl.schedule.instruction import INSTRUCTIONS, Instruction
from tdsl.schedule.layout import Digit, Layout
from tdsl.schedule.loops import fuse, mark, reorder, split, vectorize
from tdsl.schedule.nest import (
    FRAGMENT,
    LANES,
    UNROLLED,
    Illegal,
    Nest,
    State,
    Tensorization,
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
    layout, names = found
    digits: dict[Digit, str] = {}
    tiles: list[str] = []
    for axis, v in names.items():
        state, tile, parts = _in_digits(state, func, layout, axis, v)
        tiles += tile
        digits |= parts
    lanes = [digits[d] for d in sorted(digits, key=lambda d: -d.weight) if d.in_lane]
    own = [digits[d] for d in sorted(digits, key=lambda d: -d.weight) if not d.in_lane]
    others = [x for x in state.plan(func).nests[0].names() if x not in (*lanes, *own, *tiles)]
    state = reorder(state, func, 0, loops=(*lanes, *others, *tiles, *own))
    whole = lanes[0]
    for x in lanes[1:]:
        state = fuse(state, func, 0, outer=whole, inner=x)
        whole = f"{whole}_{x}"
    state = mark(state, func, 0, whole, LANES)
    if vector > 1:
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
    state = split(state, func, 0, loop=v, factor=layout.shape[axis])
    tile, rest, parts = f"{v}_o", f"{v}_i", {}
    for n, d in enumerate(own):
        if d.step > 1:
            names = (f"{v}_{len(own) - n}", f"{v}_{len(own) - n}_i")
            state = split(state, func, 0, loop=rest, factor=d.step, names=names)
            parts[d], rest = names
        else:
            parts[d] = rest
    return state, [tile], parts


def _layout_for(state: State, func: str) -> tuple[Layout, dict[int, str]] | None:
    """The layout that decides who makes a point, and the variable of the stage along each of its axes."""
    d = state.program.func(func).definitions[0]
    if state.plan(func).scope == FRAGMENT:
        return _known(state, func), _axes(d.index)
    reads = [r for r in reads_in(d.expressions()) if r.name in _fragments(state)]
    return (_known(state, reads[0].name), _axes(reads[0].index)) if reads else None


def _fragments(state: State) -> set[str]:
    return {name for name, plan in state.plans if plan.scope == FRAGMENT}


def _axes(index: tuple[Expr, ...]) -> dict[int, str]:
    found = {}
    for axis, e in enumerate(index):
        if variables(e):
            (found[axis],) = variables(e)
    return found


def _known(state: State, name: str) -> Layout:
    found = layout_of_fragment(state, name)
    if found is None:
        raise Illegal(
            f"no instruction says yet how the fragment {name!r} is laid out",
            "tensorize the stage that computes with it first",
        )
    return found


def layout_of_fragment(state: State, name: str) -> Layout | None:
    """How the instructions of a schedule lay a fragment out, over the axes of its func."""
    for func, plan in state.plans:
        for t in plan.tensorizations:
            for layout in _layouts(state, func, t, name):
                return layout
    return None


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
