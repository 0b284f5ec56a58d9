"""The points of a stage distributed over threads by the layout of a fragment that it writes or reads."""

from __future__ import annotations

from tdsl.machine.instructions.layout import Digit, Layout
from tdsl.schedule.fragment_layouts import (
    fragment_funcs,
    known_layout,
    variables_by_axis,
    widest_read,
)
from tdsl.schedule.loops import fuse_loops, iterations_of, reorder, set_kind, split
from tdsl.schedule.state import (
    FRAGMENT,
    LANES,
    UNROLLED,
    Illegal,
    State,
    is_reduction,
    parts_of,
    roots_of,
)  # fmt: skip
from tdsl.schedule.vectorize import vectorize


def distribute_by_layout(state: State, func: str, vector: int) -> State | None:
    """The state in which each thread computes the points of a stage that its fragment registers store.

    None for a stage that uses no fragments. The loops become one loop over the threads of the group, and
    unrolled loops over tiles and registers.
    """
    assignment = _layout_for(state, func)
    if assignment is None:
        return None
    if len(state.plan(func).nests) > 1:
        raise Illegal(f"{func!r} has updates", "distribute a stage of one definition")
    layout, names = assignment
    digits: dict[Digit, str] = {}
    tiles: list[str] = []
    for axis, v in names.items():
        if layout.shape[axis] > 1:
            state, tile, parts = _split_into_digits(state, func, layout, axis, v)
            tiles += tile
            digits |= parts
    lanes = [digits[d] for d in sorted(digits, key=lambda d: -d.weight) if d.in_lane]
    registers = [digits[d] for d in sorted(digits, key=lambda d: -d.weight) if not d.in_lane]
    f, nest = state.program.func(func), state.plan(func).nests[0]
    reduced = [x for x in (*tiles, *registers) if is_reduction(f, 0, nest, x)]
    others = [x for x in nest.names() if x not in (*lanes, *registers, *tiles)]
    free = [x for x in (*tiles, *registers) if x not in reduced]
    if (
        f.definitions[0].init is not None
    ):  # values constant along an axis are computed outside of the loops of that axis
        roots = {x: roots_of(nest, x) for x in free}
        free.sort(key=lambda x: [v in roots[x] for v in names.values()], reverse=True)
    state = reorder(state, func, 0, loops=(*others, *lanes, *free, *reduced))
    lane_loop = lanes[0]
    for x in lanes[1:]:
        state = fuse_loops(state, func, 0, lane_loop, x)
        lane_loop = f"{lane_loop}_{x}"
    state = set_kind(state, func, 0, lane_loop, LANES)
    if vector > 1 and not reduced:
        state = vectorize(state, func, 0, loop=registers.pop(), factor=vector)
    for x in (*tiles, *registers):
        if x in state.plan(func).nests[0].names():
            state = set_kind(state, func, 0, x, UNROLLED)
    return state


def _split_into_digits(
    state: State, func: str, layout: Layout, axis: int, v: str
) -> tuple[State, list[str], dict[Digit, str]]:
    """Split the loop of an axis into a loop over tiles and a loop for each digit of the layout."""
    digits = sorted((d for d in layout.digits if d.axis == axis), key=lambda d: -d.step)
    nest = state.plan(func).nests[0]
    v = max(parts_of(nest, v), key=nest.position)  # the innermost loop of the variable
    state = split(state, func, 0, loop=v, factor=_tile_size(state, func, digits, v, layout.shape[axis]))
    tile, rest, parts = f"{v}_o", f"{v}_i", {}
    for n, d in enumerate(digits):
        if d.step > 1:
            names = (f"{v}_{len(digits) - n}", f"{v}_{len(digits) - n}_i")
            state = split(state, func, 0, loop=rest, factor=d.step, names=names)
            parts[d], rest = names
        else:
            parts[d] = rest
    return state, [tile], parts


def _tile_size(state: State, func: str, digits: list[Digit], loop: str, shape: int) -> int:
    """The number of elements of a loop per tile: a tile of the layout, or fewer that use all its lanes."""
    count = iterations_of(state, func, 0, loop) or shape
    lanes = max((d.step * d.radix for d in digits if d.in_lane), default=1)
    inside = all(d.step < count and count % d.step == 0 for d in digits)
    return count if count < shape and inside and count % lanes == 0 else shape


def _layout_for(state: State, func: str) -> tuple[Layout, dict[int, str]] | None:
    """The layout that assigns points to threads, and the variable of the stage along each of its axes.

    For a reduction in registers it is the layout of the terms.
    """
    d = state.program.func(func).definitions[0]
    if state.plan(func).scope == FRAGMENT and d.init is None:
        return known_layout(state, func), variables_by_axis(d.index)
    read = widest_read(state, func, frozenset())
    if read is not None:
        return known_layout(state, read.name), variables_by_axis(read.index)
    for name in fragment_funcs(state) & {func, *(r.name for r in d.reads)}:
        known_layout(state, name)
    return None
