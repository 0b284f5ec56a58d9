"""The schedule of what the user left open: correct for every program, and decent.

1. Funcs that are cheap, or read in one place only, are inlined.
2. A contraction (a sum over products, with reuse in two directions) gets register tiles.
3. Row-wise chains and stencils are computed inside the outer loop of their last stage.
4. The rest is computed at the root.
Then every nest gets vectors along memory and threads outside.

Nothing here changes results: float sums keep their order. Stages that a directive has mentioned are left
as they are.
"""

from __future__ import annotations

from dataclasses import replace

from tdsl.lang.affine import variables
from tdsl.lang.bounds import NOTHING
from tdsl.lang.expr import Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, boxes_of, is_empty, reads_in, union_box
from tdsl.lang.simplify import subtract
from tdsl.schedule import loops
from tdsl.schedule.contraction import find_contraction, plan_tiles
from tdsl.schedule.facts import cost, extents, has_effects, rest_at_root, root_boxes, volume
from tdsl.schedule.fluent import Schedule
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.legality import levels_of
from tdsl.schedule.machine import Machine
from tdsl.schedule.nest import At, Inline, Level, State
from tdsl.schedule.recipes.conv import convolve
from tdsl.schedule.recipes.matmul import tile
from tdsl.schedule.required import definition_ranges
from tdsl.schedule.rows import ROW_BLOCK, needs_row_block, shape_nest

NEAR = 1 << 20  # bytes of intermediates that are worth keeping near
LONGEST = 32  # funcs of a chain that are tried together; what is left starts a group of its own
STRIP = 64  # rows of a strip of a stencil


def complete(state: State, machine: Machine) -> State:
    """The state with a place and loops for every func, and inlined funcs put into their readers."""
    state = inline_funcs(_choose_inline(state))
    open_ = {name for name, plan in state.plans if not plan.touched} - _hosts(state)
    if not machine.vector_bytes:
        return rest_at_root(state)
    boxes = root_boxes(rest_at_root(state))
    done: set[str] = set()
    for name in reversed([f.name for f in state.program.funcs]):
        if name not in open_ or name in done or name not in boxes:
            continue
        group = _group(state, name, open_ - done)
        state, scheduled = _schedule_group(state, name, group, boxes, machine)
        done |= scheduled
    return rest_at_root(state)


def _hosts(state: State) -> set[str]:
    """Funcs whose loops are the places of others: a directive has mentioned them, too."""
    return {level.func for _, plan in state.plans for level in levels_of(plan)}


def _choose_inline(state: State) -> State:
    hosts = _hosts(state)
    for f in state.program.funcs:
        plan = state.plan(f.name)
        if (
            plan.touched
            or f.name in hosts
            or plan.place is not None
            or f.name in state.program.outputs
        ):
            continue
        if len(f.definitions) == 1 and f.definitions[0].init is None and _worth_inlining(state, f):
            state = state.with_plan(f.name, replace(plan, place=Inline()))
    return state


def _worth_inlining(state: State, f: FuncDef) -> bool:
    d = f.definitions[0]
    if has_effects(d):
        return False
    sites = 0
    for c, n in state.consumers(f.name):
        reader = c.definitions[n]
        found = {r.index for r in reads_in(reader.expressions()) if r.name == f.name}
        sites += len(found)
        for index in found:
            used = {v for e in index for v in variables(e)}
            if any(v not in used for v in reader.variables) and cost(d) > 1:
                return False  # it would be computed again for each value of the other variables
    return cost(d) <= 1 or sites <= 1


def _group(state: State, owner: str, open_: set[str]) -> list[str]:
    """The open funcs that are read by `owner` and each other only, consumers first."""
    group: list[str] = []
    for f in reversed(state.program.funcs):
        if f.name == owner or f.name not in open_ or f.name in state.program.outputs:
            continue
        readers = {c.name for c, _ in state.consumers(f.name)}
        if readers and readers <= {owner, *group}:
            group.append(f.name)
    return group


def _schedule_group(
    state: State, owner: str, group: list[str], boxes: dict[str, Box], machine: Machine
) -> tuple[State, set[str]]:
    contraction = find_contraction(state, owner, group, boxes)
    if contraction is not None:
        schedule = Schedule.of_state(state)
        if convolve(schedule, contraction, machine) is None:
            tile(schedule, contraction, plan_tiles(contraction, machine))
        return schedule.state, {name for name, plan in schedule.state.plans if plan.touched}
    f = state.program.func(owner)
    if len(f.definitions) == 1 and f.definitions[0].init is None:
        near = group[:LONGEST]
        while near:
            made, inner = _fuse_group(state, owner, near, boxes, machine)
            if inner:
                return made, {owner, *inner}
            near = near[: len(near) // 2]
    for n in range(len(f.definitions)):
        state = shape_nest(state, owner, n, boxes[owner], machine.vector_bytes, outer=True)
    return state, {owner}


def _fuse_group(
    state: State, owner: str, group: list[str], boxes: dict[str, Box], machine: Machine
) -> tuple[State, set[str]]:
    """Compute a group inside the outer loop of its owner: row by row, or in strips with a window."""
    f = state.program.func(owner)
    row = next(
        (v for v in f.variables if (extents(f, f.definitions[0], boxes[owner])[v] or 2) > 1), None
    )
    if row is None:
        return state, set()
    near = _boxes_of_row(state, owner, row, group, boxes, 1)
    inside = [name for name in group if name in near and name in boxes and _moves(near[name])]
    # a func that the rest reads from outside would be read before it is made
    inside = [n for n in inside if {c.name for c, _ in state.consumers(n)} <= {owner, *inside}]
    if not inside:
        return state, set()
    rows = extents(f, f.definitions[0], boxes[owner])[row]
    size, again = _price(state, inside, near, boxes, rows)
    if size is None or size > NEAR:
        return state, set()
    if again <= 1.1:
        return _by_rows(state, owner, row, inside, boxes, rows, machine), set(inside)
    if again <= 16 and rows is not None and rows >= 16:
        return _by_strips(state, owner, row, inside, boxes, rows, machine), set(inside)
    return state, set()


def _boxes_of_row(
    state: State, owner: str, row: str, group: list[str], boxes: dict[str, Box], rows: int
) -> dict[str, Box]:
    """What is needed of a group for some rows of its owner, in terms of the first of them."""
    f = state.program.func(owner)
    axis = f.variables.index(row)
    box = list(boxes[owner])
    first = Var("row")
    box[axis] = (first, subtract(first, const(1 - rows)))
    found: dict[str, Box] = {owner: tuple(box)}
    for name in [owner, *group]:
        if name not in found:
            continue
        g = state.program.func(name)
        for d in g.definitions:
            ranges = definition_ranges(g, d, found[name], NOTHING)
            if any(is_empty(r) for r in ranges.values()):
                continue
            for source, touched in boxes_of(d.expressions(), ranges, NOTHING, d.where).items():
                if source != name:
                    found[source] = union_box(found.get(source), touched)
    return found


def _moves(box: Box) -> bool:
    return any(
        lo is not None and hi is not None and ("row" in variables(lo) or "row" in variables(hi))
        for lo, hi in box
    )


def _price(
    state: State, inside: list[str], near: dict[str, Box], boxes: dict[str, Box], rows: int | None
) -> tuple[int | None, float]:
    """(bytes of a row of all funcs inside, how often each point is computed if each row is apart)."""
    size, points, whole = 0, 0, 0
    for name in inside:
        f = state.program.func(name)
        n, total = volume(near[name]), volume(boxes[name])
        if n is None:
            return None, 0.0
        size += n * sum(t.bytes for t in f.dtypes)
        points += n * (rows or 1)
        whole += total if total is not None else n * (rows or 1)
    return size, points / max(whole, 1)


def _by_rows(
    state: State, owner: str, row: str, inside: list[str], boxes: dict[str, Box], rows: int | None,
    machine: Machine,
) -> State:  # fmt: skip
    sums = any(needs_row_block(state.program.func(n)) for n in inside)
    loop = row
    if sums and (rows is None or rows >= ROW_BLOCK):
        names = (f"{row}_o", f"{row}_i")
        state = loops.split(state, owner, 0, loop=row, factor=ROW_BLOCK, tail="peel", names=names)
        order = (names[0], names[1], *(v for v in state.program.func(owner).variables if v != row))
        state = loops.reorder(state, owner, 0, loops=order)
        loop = names[0]
    else:
        rest = tuple(v for v in state.program.func(owner).variables if v != row)
        state = loops.reorder(state, owner, 0, loops=(row, *rest))
    return _place_inside(state, owner, loop, None, inside, boxes, machine)


def _by_strips(
    state: State,
    owner: str,
    row: str,
    inside: list[str],
    boxes: dict[str, Box],
    rows: int,
    machine: Machine,
) -> State:
    strip = max(8, min(STRIP, -(-rows // (2 * machine.threads))))
    names = (f"{row}_o", f"{row}_i")
    rest = tuple(v for v in state.program.func(owner).variables if v != row)
    state = loops.reorder(state, owner, 0, loops=(row, *rest))
    state = loops.split(state, owner, 0, loop=row, factor=strip, names=names)
    return _place_inside(state, owner, names[1], names[0], inside, boxes, machine)


def _place_inside(
    state: State, owner: str, loop: str, store: str | None, inside: list[str], boxes: dict[str, Box],
    machine: Machine,
) -> State:  # fmt: skip
    state = shape_nest(state, owner, 0, boxes[owner], machine.vector_bytes, outer=False)
    # vectors along the row itself have split it
    loop = loops.find_loop(state, owner, 0, loop)
    state = loops.parallel(state, owner, 0, loop=store or loop)
    for name in inside:
        f = state.program.func(name)
        for n in range(len(f.definitions)):
            state = shape_nest(state, name, n, boxes[name], machine.vector_bytes, outer=False)
        plan = state.plan(name)
        kept = None if store is None else Level(owner, 0, store)
        state = state.with_plan(name, replace(plan, place=At(Level(owner, 0, loop)), store=kept))
    return state
