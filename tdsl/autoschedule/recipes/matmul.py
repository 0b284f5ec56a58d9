"""Products of matrices, and other sums of products, in register tiles.

    c[i, j] = sum of a[i, k] * b[k, j] over k, with

    for j in blocks of vectors (threads):
      copy the columns of b that the block reads: they are read for every row
      for i in tiles of rows:
        for k:  rows x vectors products, their sums in registers

Any operand may be transposed, and there may be further free variables (batches, images) and several
ranges (the window of a convolution). The operand whose elements lie side by side along the last dimension
gives the vectors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tdsl.autoschedule.patterns.contraction import (
    Contraction,
    RegisterTiles,
    is_contiguous_along,
    plan_tiles,
    recognize,
)
from tdsl.autoschedule.patterns.rows import SUMS
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe
from tdsl.core.node import transform
from tdsl.lang.affine import variables
from tdsl.lang.expr import Read, Var
from tdsl.lang.regions import reads_in
from tdsl.machine.instructions.dots import DOTS, Dot, declare
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.naming import Loop, LoopLike, name_of_loop
from tdsl.schedule.properties import root_boxes, stride_of, unplaced_at_root
from tdsl.target import as_target

# The side of blocks that are turned in registers; larger ones only take longer to compile.
SQUARE = 8


@recipe
def matmul(
    stage: Stage, *, machine: Machine | None = None, along: LoopLike | None = None, **choices: Any
) -> RegisterTiles:
    """Schedule a sum of products, or an element-wise func that alone reads one, in register tiles.

    `along` is the variable of the vectors: the operand that moves with it is loaded as vectors, the other is
    broadcast. Without it their layouts decide. `choices` replace what is chosen by shape; they are
    the fields of `RegisterTiles`. Sizes that the schedule does not know count as large. Returns the choices.

    >>> import tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> a, b = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.f32)
    >>> c = td.Func("c")
    >>> c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    >>> s = td.Schedule(c)
    >>> tiles = td.recipes.matmul(s[c], rows=6, vectors=4, lanes=16, terms=0, parallel="")
    >>> [loop.name for loop in s[c].loops]
    ['j_o', 'i_o', 'k', 'i_i', 'j_i_o', 'j_i_v']
    """
    schedule = stage.schedule
    names = [loop.name for loop in stage.loops]
    contraction = _find(schedule, stage.func, "" if along is None else name_of_loop(along, names))
    if isinstance(contraction, str):
        raise Unsuited(contraction)
    tiles = plan_tiles(contraction, machine or as_target(schedule.target).machine())
    tiles = choose(tiles, choices)
    tile(schedule, contraction, tiles)
    return tiles


def _find(schedule: BaseSchedule, func: str, along: str) -> Contraction | str:
    """The contraction that a func is, with the sizes that the schedule knows; or why there is none."""
    state = bind_state(schedule.state, schedule.sizes)
    read = [g.name for g in state.program.funcs if g.name != func]
    return recognize(state, func, read, root_boxes(unplaced_at_root(state)), along=along)


def tile(schedule: BaseSchedule, c: Contraction, tiles: RegisterTiles, *, threads: bool = True) -> None:
    """Write tiles as directives; without `threads` for loops inside of a parallel one."""
    owner = schedule[c.owner]
    across, along = c.names[c.across], c.names[c.along]
    others = [c.names[v] for v in c.others]
    rest: Loop | str = across
    band: list[Loop] = []
    if tiles.band:
        outer, rest = owner.split(across, tiles.band, tail="peel")
        band = [outer]
    row, i = owner.split(rest, tiles.rows, tail="peel")
    block, j = owner.split(along, tiles.width, tail="peel")
    # a panel serves all rows; windows share only what they read, and are computed along memory
    first, last = (row, block) if c.windowed else (block, row)
    if c.func == c.owner:
        place = _sum_here(owner, c, tiles, [*others, *band, first], last, (i, j))
    else:
        owner.reorder(*others, *band, first, last, i, j)
        _vectors(owner, i, j, tiles)
        if tiles.stream:
            owner.stream_stores()
        place = _sum_inside(schedule, c, tiles, owner, first, last)
    if tiles.parallel and threads:
        shared: Loop | str = block if tiles.parallel == along else tiles.parallel
        owner.parallel(band[0] if tiles.parallel == across and band else shared)
    summed, term = schedule[c.func], c.ranges[-1]
    if tiles.fetch:
        line, inner = summed.split(term, tiles.fetch, tail="peel")
        term = inner.name
        for name in dict.fromkeys(r.name for r in reads_in((c.value,)) if r != c.moving):
            summed.prefetch(name, line, of=row if c.func == c.owner else None)
    dot = _dot(tiles)
    if dot is not None and dot.right != c.moving.dtype:
        once = threads and c.sizes[c.along] > tiles.width
        c = _unsigned(schedule, c, tiles, owner, None if once else row)
    if dot is not None:
        _left_panel(schedule, c, tiles, owner, None if threads else row)
    if tiles.panel != "no":
        _panel(schedule, c, tiles, *place)
    elif tiles.ahead:
        summed.prefetch(c.moving.name, term, tiles.ahead)


def _sum_here(
    stage: Stage, c: Contraction, tiles: RegisterTiles, outer: list[Loop | str], row: Loop,
    inner: tuple[Loop, Loop],
) -> tuple[Stage, Loop]:  # fmt: skip
    """Sum in a buffer that is then copied to the result; the stage and loop around a panel."""
    terms: list[Loop | str] = list(c.ranges)
    some: list[Loop] = []
    if tiles.terms:
        part, left = stage.split(c.ranges[0], tiles.terms, tail="peel")
        some, terms = [part], [left]
    _products(stage, tiles, [*outer, *some, row], terms, *inner)
    block = outer[-1]
    assert isinstance(block, Loop)
    copy = stage.schedule.cache_write(stage, block if some else row)
    last = stage.schedule.state.program.func(copy.func).variables[-1]
    if last == c.along:
        if some:
            copy.vectorize(c.along, tiles.lanes)
        else:  # straight out of registers
            _vectors(copy, c.across, c.along, tiles)
    elif last == c.across and not some:  # turned in registers
        block_, lane = copy.split(c.along, tiles.lanes, tail="peel")
        copy.reorder(block_, c.across, lane)
        copy.unroll(c.across)
        copy.vectorize(lane)
    if tiles.stream:
        copy.stream_stores()
    _store_along(stage, c)
    return stage, some[0] if some else block


def _sum_inside(
    schedule: BaseSchedule, c: Contraction, tiles: RegisterTiles, owner: Stage, block: Loop, row: Loop
) -> tuple[Stage, Loop]:  # fmt: skip
    """Sum inside of the tiles of the func that reads the sums; the stage and loop around a panel."""
    summed = schedule[c.func]
    if not tiles.terms:
        summed.compute_at(owner, row)
        _products(summed, tiles, [*c.others], [*c.ranges], c.across, c.along)
        _store_along(summed, c)
        return owner, block
    summed.compute_at(owner, block)
    part, left = summed.split(c.ranges[0], tiles.terms, tail="peel")
    rows, i = summed.split(c.across, tiles.rows, tail="peel")
    _products(summed, tiles, [*c.others, part, rows], [left], i, c.along)
    _store_along(summed, c)
    return summed, part


def _products(
    stage: Stage, tiles: RegisterTiles, outer: list[Loop | str], terms: list[Loop | str], across: Loop | str,
    along: Loop | str,
) -> None:  # fmt: skip
    """The loops of a register tile: its products term by term, or several terms in one instruction."""
    dot = _dot(tiles)
    if dot is None:
        serial = [t for t in terms if t not in tiles.unroll]
        stage.reorder(*outer, *serial, *tiles.unroll, across, along)
        _vectors(stage, across, along, tiles)
        for name in tiles.unroll:
            stage.unroll(name)
        return
    step, term = stage.split(terms[-1], dot.terms, tail="peel")
    several, one = stage.split(along, dot.lanes, tail="peel")
    if dot.rows > 1:
        rows, i = stage.split(across, dot.rows, tail="peel")
        some, packed = stage.split(term, dot.packed, tail="peel")
        stage.reorder(*outer, *terms[:-1], step, rows, several, i, one, some, packed)
        first, across = i, rows
    else:
        stage.reorder(*outer, *terms[:-1], step, across, several, one, term)
        first = one
    stage.vectorize(one)
    stage.unroll(several)
    stage.unroll(across)
    stage.tensorize(first, declare(dot))


def _dot(tiles: RegisterTiles) -> Dot | None:
    return next((d for d in DOTS if d.name == tiles.dot), None)


def _left(c: Contraction) -> Read:
    """What is broadcast in a product of two reads."""
    return next(r for r in reads_in((c.value,)) if r != c.moving)


def _left_panel(
    schedule: BaseSchedule, c: Contraction, tiles: RegisterTiles, owner: Stage, row: Loop | None
) -> None:
    """Copy the broadcast operand so that its terms are contiguous, if they are not, or in tiles."""
    left, term, dot = _left(c), c.ranges[-1], _dot(tiles)
    copies, name = [], left.name
    if not is_contiguous_along(c, left, term):
        copies.append(_with_terms_last(schedule, c, left, name))
        name = copies[0].func
    if dot is not None and dot.rows > 1:
        # rows of a part begin anywhere: only those of a whole operand can be packed by tiles, too
        copies.append(_in_tiles(schedule, c, dot, left, name, tiles.rows if row is None else 0))
    for copy in reversed(copies):  # what is read must find the place of its reader
        _for_all(copy, tiles, owner, row)


def _with_terms_last(schedule: BaseSchedule, c: Contraction, left: Read, name: str) -> Stage:
    """A copy of what is broadcast with the terms of a sum side by side."""
    copy = schedule.cache_read(name, c.func, along=_copy_along(c, c.across))
    axis = left.index.index(Var(c.ranges[-1]))
    names, dims = [x.name for x in copy.loops], [n for n in range(len(left.index)) if n != axis]
    copy.reorder_storage(*dims, axis)
    copy.reorder(*(names[n] for n in (*dims, axis)))
    blocks, vectors = _transpose(copy, names[dims[-1]], names[axis], SQUARE)
    copy.reorder(vectors, blocks)  # for contiguous stores
    return copy


def _in_tiles(schedule: BaseSchedule, c: Contraction, dot: Dot, left: Read, name: str, rows: int) -> Stage:
    """A copy of what is broadcast, tile after tile of an instruction; `rows` of these come together."""
    rank = len(left.index)
    across, axis = (left.index.index(Var(v)) for v in (c.across, c.ranges[-1]))
    pack = {across: rows, axis: dot.terms} if rows else {axis: dot.terms}
    steps = schedule.cache_read(name, c.func, pack=pack, along=_copy_along(c, c.across))
    terms = rank + len(pack) - 1  # the axis of those of a step
    copy = schedule.cache_read(steps.func, c.func, pack={terms: dot.packed})
    steps.inline()
    names, outer = [x.name for x in copy.loops], [n for n in range(rank) if n not in (across, axis)]
    dims = [*outer, across, axis, rank] if rows else [*outer, axis, across]
    copy.reorder_storage(*dims, terms, terms + 1)
    several, one = copy.split(names[terms], dot.terms // dot.packed, tail="peel")
    copy.reorder(*(names[n] for n in dims), several, names[terms + 1], one)
    copy.unroll(names[terms + 1])
    copy.vectorize(one)
    return copy


def _for_all(stage: Stage, tiles: RegisterTiles, owner: Stage, row: Loop | None) -> None:
    """Compute a stage inside of a loop of `owner`, or at the root by all threads."""
    if row is not None:
        stage.compute_at(owner, row)
    elif tiles.parallel and stage.loops:
        stage.parallel(stage.loops[0])


def _unsigned(
    schedule: BaseSchedule, c: Contraction, tiles: RegisterTiles, owner: Stage, row: Loop | None
) -> Contraction:
    """Read what moves along as unsigned, and what the sums then have too much once, or inside of a loop."""
    copy, excess = schedule[c.func].unsigned(c.moving.name)
    copy.inline()
    state, lanes = schedule.state, SUMS * tiles.lanes
    summed = state.program.func(excess.func).definitions[0]
    if is_contiguous_along(c, _left(c), c.ranges[-1]):
        excess.vectorize(c.ranges[-1], lanes)
    elif summed.free:
        block, one = excess.split(summed.free[-1], lanes, tail="peel")
        excess.reorder(block, *c.ranges, one)
        excess.vectorize(one)
    _for_all(excess, tiles, owner, row)
    moving = replace(c.moving, name=copy.func, dtype=state.program.func(copy.func).dtypes[0])
    value = transform(c.value, lambda n: moving if n == c.moving else n)
    return replace(c, moving=moving, value=value)


def _vectors(stage: Stage, across: Loop | str, along: Loop | str, tiles: RegisterTiles) -> None:
    _along(stage, along, tiles)
    stage.unroll(across)


def _along(stage: Stage, along: Loop | str, tiles: RegisterTiles) -> None:
    """Vectors of a loop; where the last one is short it is a short vector, not one with a mask."""
    if not tiles.short:
        stage.vectorize(along, tiles.lanes)
        stage.unroll(along)
        return
    several, one = stage.split(along, tiles.lanes, tail="peel")
    stage.vectorize(one)
    stage.unroll(several)


def _store_along(stage: Stage, c: Contraction) -> None:
    """Keep the sums of a vector side by side."""
    variables_ = stage.schedule.state.program.func(stage.func).variables
    stage.reorder_storage(*(v for v in variables_ if v != c.along), c.along)


def _panel(schedule: BaseSchedule, c: Contraction, tiles: RegisterTiles, host: Stage, loop: Loop) -> None:
    """Copy what moves along, so that its vectors are adjacent, and those of a term next to the last one's."""
    if tiles.dot:
        _paired_panel(schedule, c, tiles, host, loop)
        return
    axis, outer, inner = _axes(c)
    rank = len(c.moving.index)
    whole = tiles.panel == "root"
    dims = [*outer, axis, *inner, rank] if whole else [*outer, *inner, axis]
    producer = None if whole else _open_producer(schedule, c)
    pack = {axis: tiles.width} if whole else {}
    copy = producer or _copy_moving(schedule, c, tiles, host, loop, pack)
    names = [loop.name for loop in copy.loops]
    copy.reorder_storage(*dims)
    copy.reorder(*(names[n] for n in dims))
    _place(copy, tiles, host, loop, names[(*outer, axis)[0]])
    if producer or stride_of(c.moving, c.along) == 1:
        copy.vectorize(names[dims[-1]], tiles.lanes)
    elif inner and inner[-1] == rank - 1:
        blocks, _ = _transpose(copy, names[inner[-1]], names[dims[-1]], min(tiles.lanes, SQUARE))
        # few rows at a time: the others may map to the same sets of the cache
        copy.reorder(blocks, *(names[n] for n in inner[:-1]))
    if tiles.ahead and inner and not producer:
        copy.prefetch(c.moving.name, names[inner[-1]], tiles.ahead)


def _paired_panel(
    schedule: BaseSchedule, c: Contraction, tiles: RegisterTiles, host: Stage, loop: Loop
) -> None:
    """Copy what moves along, with the terms of an instruction side by side for each lane."""
    dot = _dot(tiles)
    assert dot is not None
    axis, outer, inner = _axes(c)
    rank = len(c.moving.index)
    paired = c.moving.index.index(Var(c.ranges[-1]))
    pack = {axis: tiles.width, paired: dot.packed}
    copy = _copy_moving(schedule, c, tiles, host, loop, pack)
    names = [loop.name for loop in copy.loops]
    along, term = names[rank], names[rank + 1]
    copy.reorder_storage(*outer, axis, *inner, rank, rank + 1)
    copy.reorder(*(names[n] for n in (*outer, axis, *inner, rank, rank + 1)))
    _place(copy, tiles, host, loop, names[(*outer, axis)[0]])
    copy.unroll(term)
    if stride_of(c.moving, c.along) == 1:
        several, one = copy.split(along, dot.lanes * dot.packed, tail="peel")
        copy.reorder(several, term, one)
        copy.vectorize(one)
    elif dot.packed == 2 and stride_of(c.moving, c.ranges[-1]) == 1:
        # four bytes side by side are copied as words instead
        steps, lane = copy.split(names[paired], SQUARE, tail="peel")
        several, one = copy.split(along, SQUARE // dot.packed, tail="peel")
        copy.reorder(steps, several, one, term, lane)
        copy.unroll(one)
        copy.vectorize(lane)


def _axes(c: Contraction) -> tuple[int, list[int], list[int]]:
    """The axis of the moving operand that moves along, those of other free variables, those of terms."""
    index = c.moving.index
    axis = next(n for n, e in enumerate(index) if c.along in variables(e))
    outer = [n for n, e in enumerate(index) if n != axis and not variables(e) & {*c.ranges}]
    return axis, outer, [n for n in range(len(index)) if n != axis and n not in outer]


def _copy_moving(
    schedule: BaseSchedule,
    c: Contraction,
    tiles: RegisterTiles,
    host: Stage,
    loop: Loop,
    pack: dict[int, int],
) -> Stage:
    """A copy of the operand of the vectors; at once in the loop of the sum if it may be nowhere else."""
    here = tiles.panel != "root" and host.func == c.func
    return schedule.cache_read(
        c.moving.name, c.func, at=loop if here else None, pack=pack, along=_copy_along(c, c.along)
    )


def _copy_along(c: Contraction, variable: str) -> str | None:
    """The variable that distinguishes two operands of one array, else None."""
    twice = any(r.name == c.moving.name for r in reads_in((c.value,)) if r != c.moving)
    return variable if twice else None


def _place(copy: Stage, tiles: RegisterTiles, host: Stage, loop: Loop, outermost: str) -> None:
    """Copy in the loop that uses the panel, or all of it first, by all threads."""
    if tiles.panel != "root":
        copy.compute_at(host, loop)
    elif tiles.parallel:
        copy.parallel(outermost)


def _transpose(copy: Stage, along: str, across: str, lanes: int) -> tuple[Loop, Loop]:
    """Copy square blocks: vectors of what is read side by side, as many as they have lanes."""
    blocks, one = copy.split(across, lanes, tail="peel")
    vectors, lane = copy.split(along, lanes, tail="peel")
    copy.reorder(blocks, vectors, one, lane)
    copy.vectorize(lane)
    copy.unroll(one)
    return blocks, vectors


def _open_producer(schedule: BaseSchedule, c: Contraction) -> Stage | None:
    """The unscheduled func that only this product reads, as its moving operand: computed in the panel."""
    name, state = c.moving.name, schedule.state
    if not state.program.has_func(name) or name in state.program.outputs:
        return None
    f, readers = state.program.func(name), {g.name for g, _ in state.consumers(name)}
    pure = len(f.definitions) == 1 and not f.definitions[0].ranges
    if not pure or readers != {c.func} or state.plan(name).scheduled:
        return None
    reads = reads_in(state.program.func(c.func).definitions[0].values)
    if any(r.index != c.moving.index for r in reads if r.name == name):
        return None  # a block needs all of it, not the panel alone
    return schedule[name]
