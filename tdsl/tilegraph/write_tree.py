"""Writes a tile tree as directives of the schedule language."""

from __future__ import annotations

from tdsl.autoschedule.problem import Access, Problem
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.naming import Loop, LoopLike
from tdsl.schedule.state import Illegal, levels_of
from tdsl.tilegraph.given_tile import GivenTile
from tdsl.tilegraph.tree import THREADS, Copy, Cut, Tree

SQUARE = 8  # the most rows and columns that are transposed in registers


def write_tree(schedule: BaseSchedule, op: Problem, tree: Tree, given: GivenTile | None = None) -> None:
    """Write a tree as directives of its func, inside of the tile that directives have cut, if there is one.

    ScheduleError or Illegal if directives cannot say this tree.

    >>> import tdsl as td
    >>> from tdsl.schedule.properties import root_boxes, unplaced_at_root
    >>> i, j, x, t = *td.vars("i j"), td.Tensor("x", (512, 512), td.f32), td.Func("t")
    >>> t[j, i] = x[i, j]
    >>> s = td.Schedule(t)
    >>> state = unplaced_at_root(s.state)
    >>> op = Problem.in_state(state, state.program.func("t"), root_boxes(state))
    >>> registers = (Cut("i", 8, "unroll"), Cut("j", 8, "lanes"))
    >>> write_tree(s, op, Tree("t", (Cut("j", 64, THREADS),), (), (Cut("j", 8),), registers))
    >>> [str(loop.name) for loop in s[t].loops]
    ['j_o', 'i_o', 'j_i_o', 'i_i', 'j_i_i_o', 'j_i_i_v']
    """
    tile = given or GivenTile.without_directives(op)
    stage = schedule[tree.func]
    for axis in tile.threads:
        stage.serial(*tile.loops[axis])
    rest: dict[str, list[LoopLike]] = {v: [*names] for v, names in tile.loops.items() if names}
    left = {a.name: a.extent for a in tile.op.axes}
    tiles: list[tuple[str, LoopLike]] = [*tile.outer]
    for cut in tree.tiles:
        if cut.size < left[cut.axis]:
            outer, rest[cut.axis][-1] = stage.split(rest[cut.axis][-1], _iterations(tile, cut), tail="peel")
            tiles.append((cut.axis, outer))
            left[cut.axis] = cut.size
    registers: list[LoopLike] = []
    by_default: list[LoopLike] = []
    for cut in tree.registers:
        if _iterations(tile, cut) > 1 and cut.axis in rest:
            whole = rest[cut.axis].pop()
            if left[cut.axis] > cut.size:
                outer, whole = stage.split(whole, _iterations(tile, cut), tail="peel")
                rest[cut.axis].append(outer)
            registers.append(whole)
            by_default.append(whole)
        registers += tile.registers.get(cut.axis, ())
    in_tile = [c.axis for c in tree.inner if rest.get(c.axis)]
    single = [v for v in rest if v not in in_tile]  # of one iteration in a tile
    terms = [
        x for v in tile.registers if v not in {c.axis for c in tree.registers} for x in tile.registers[v]
    ]
    order = [*tiles, *((v, x) for v in (*single, *in_tile) for x in rest[v])]
    stage.reorder(*(loop for _, loop in order), *terms, *registers)
    summed, lanes = {a.name for a in op.summed}, tree.registers[-1]
    has_buffer = any(level.func == stage.func for _, p in schedule.state.plans for level in levels_of(p))
    if summed and lanes.axis not in summed and not has_buffer:
        _sum_in_a_buffer(stage, op, tree, order)
    before = {f.name for f in schedule.state.program.funcs}
    if not tile.limits.lane:
        _vectorize(stage, by_default.pop(), lanes, summed=lanes.axis in summed)
    for loop in by_default:
        stage.unroll(loop)
    threads = [*tile.threads]
    if any(c.how == THREADS for c in tree.tiles):
        threads.append(order[len(tile.outer)][0])
    for name in dict.fromkeys(threads):
        shared = next((loop for v, loop in order[len(tile.outer) :] if v == name), None)
        if shared is None:
            raise Illegal(f"all of {name!r} is in registers, which threads cannot share")
        stage.parallel(shared)
    reader = stage
    for f in schedule.state.program.funcs:
        if f.name not in before:  # the lanes of a sum
            reader = schedule[f.name]
            _unroll_rows(reader, tree.registers[:-1])
    for copy in tree.copies:
        access = next(x for x in op.reads if x.array == copy.array and x.uses(copy.axis))
        around = [loop for axis, loop in tiles if access.uses(axis)]
        copied = _copy(reader, op, tree, access, copy)
        if around:
            place = around[-1].name if isinstance(around[-1], Loop) else around[-1]
            has_place = any(loop.name == place for loop in stage.loops)
            copied.compute_at(stage if has_place else reader, place)


def _iterations(tile: GivenTile, cut: Cut) -> int:
    """The iterations of a loop in a tile that go through the values of a cut."""
    return -(-cut.size // tile.limits.size(cut.axis))


def _vectorize(stage: Stage, loop: LoopLike, lanes: Cut, *, summed: bool) -> None:
    if summed:  # partial sums in all lanes of all vectors
        stage.vectorize(loop, lanes.size)
        return
    stage.vectorize(loop, lanes.size // lanes.vectors)
    if lanes.vectors > 1:
        stage.unroll(loop)


def _unroll_rows(lanes: Stage, rows: tuple[Cut, ...]) -> None:
    """Unroll rows of a func with the lanes of a sum inside of its loop over terms."""
    *outer, lane = [loop.name for loop in lanes.loops]
    blocks, inner = dict(zip(outer, outer, strict=True)), list[Loop]()
    for cut in rows:
        if cut.axis in blocks:
            block, row = lanes.split(cut.axis, cut.size, tail="peel")
            blocks[cut.axis] = block.name
            inner.append(row)
    if inner:
        lanes.reorder(*blocks.values(), *inner, lane)
        for row in inner:
            lanes.unroll(row)


def _sum_in_a_buffer(stage: Stage, op: Problem, tree: Tree, order: list[tuple[str, LoopLike]]) -> None:
    """Sum in memory of the tile, in registers if the sums are inside all other loops, and copy that out."""
    summed, lanes = {a.name for a in op.summed}, tree.registers[-1]
    first = next((n for n, (axis, _) in enumerate(order) if axis in summed), 0)
    if not first:
        return
    copy = stage.schedule.cache_write(stage, order[first - 1][1])
    variables = [a.name for a in op.free]
    if variables[-1] != lanes.axis:
        stage.reorder_storage(*(v for v in variables if v != lanes.axis), lanes.axis)
    names = [loop.name for loop in copy.loops]
    last, rows = variables[-1], [c.axis for c in tree.registers[:-1] if c.axis in names]
    if any(axis not in summed for axis, _ in order[first:]):  # a tile in a cache
        copy.reorder(*(n for n in names if n != lanes.axis), lanes.axis)
        copy.vectorize(lanes.axis, lanes.size // lanes.vectors)
    elif last == lanes.axis:
        _vectorize(copy, last, lanes, summed=False)
        for axis in rows:
            copy.unroll(axis)
    elif last in rows and lanes.axis in names:
        block, lane = copy.split(lanes.axis, lanes.size // lanes.vectors, tail="peel")
        copy.reorder(*(n for n in names if n not in (lanes.axis, last)), block, last, lane)
        copy.unroll(last)
        copy.vectorize(lane)


def _copy(reader: Stage, op: Problem, tree: Tree, access: Access, copied: Copy) -> Stage:
    """Copy what is read of an array: in the order of the loops, with the lanes last. Returns the copy."""
    twice = sum(x.array == access.array for x in op.reads) > 1
    copy = reader.schedule.cache_read(access.array, reader, along=copied.axis if twice else None)
    names, loops = [x.name for x in copy.loops], [c.axis for c in tree.inner]
    depth = [max((loops.index(v) for v, _ in dim if v in loops), default=-1) for dim in access.dims]
    last = next(n for n, dim in enumerate(access.dims) if any(v == copied.axis for v, _ in dim))
    others = sorted((n for n in range(len(names)) if n != last), key=lambda n: depth[n])
    copy.reorder_storage(*others, last)
    lanes, row = tree.registers[-1], len(names) - 1
    width = lanes.size // lanes.vectors
    if last == row:
        copy.reorder(*(names[n] for n in (*others, last)))
        copy.vectorize(names[last], width)
        return copy
    square = min(width, SQUARE)
    rows, one = copy.split(names[last], square, tail="peel")
    columns, lane = copy.split(names[row], square, tail="peel")
    copy.reorder(*(names[n] for n in others if n != row), columns, rows, one, lane)
    copy.vectorize(lane)
    copy.unroll(one)
    return copy
