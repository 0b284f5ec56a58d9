"""Writes a tile tree with lanes as directives: reductions by the threads of a block, in parts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.recipes.elements import elements
from tdsl.autoschedule.recipes.epilogue import in_vectors
from tdsl.autoschedule.recipes.grid import fused, on_threads
from tdsl.autoschedule.recipes.partial_sums import in_parts
from tdsl.autoschedule.recipes.stage_facts import added_funcs, definition_of, sizes_of
from tdsl.core.node import post_order
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.schedule.fluent import Stage
from tdsl.schedule.state import GUARD, REGISTER, SHARED

_PART = 16  # turns of a thread in a part, where only a call tells how many terms there are
_TILE = 32  # registers for the tile of terms of a thread
_LONG_CODE = 64  # distinct operations of a combiner that is not worth copies for lanes
MERGING = 256  # threads that combine the values of parts


def write_rows(stage: Stage, t: BlockTree) -> Stage | None:
    """Reduce by threads along neighbouring terms; the stage that combines parts, if another tree has to.

    for results, for parts of the terms (blocks):
      for terms of a part (threads, some neighbours each): values, combined by shuffles
    """
    (lanes,), d = t.lanes, definition_of(stage)
    names, vector = [v for v, _, _ in d.ranges], lanes.each
    if t.parts == 1 and not stage.definition:
        _reduce_in_blocks(stage, names, lanes.threads, vector)
        return None
    lane = None
    if vector > 1:
        outer, loop = stage.split(names[-1], vector)
        names, lane = [*names[:-1], outer.name], loop.name
    sizes = sizes_of(stage)
    turns = prod(sizes.get(v) or 0 for v, _, _ in d.ranges) // vector
    each = -(-max(turns, 1) // (t.parts * lanes.threads)) if t.parts else _PART
    block, _ = stage.split(fused(stage, names), each * lanes.threads)
    partial = stage.rfactor(block)
    inside = [x.name for x in partial.loops if x.name not in (*d.free, block.name, lane)]
    _reduce_in_blocks(partial, inside, lanes.threads, vector, lane)
    if d.free and not stage.definition:
        return stage
    rows = [x.name for x in stage.loops if x.name != block.name]
    if rows:
        stage.bind(fused(stage, rows), "blockIdx.x")
    _, part = stage.split(block, MERGING)
    stage.bind(part, "threadIdx.x")
    return None


def _reduce_in_blocks(
    stage: Stage, names: list[str], threads: int, vector: int, lane: str | None = None
) -> None:
    results = [x.name for x in stage.loops if x.name not in (*names, lane)]
    if results:
        whole = fused(stage, results)
        stage.bind(whole, "blockIdx.x")
        stage.schedule.cache_write(stage, at=whole)
    reduce_by_threads(stage, names, threads, vector, lanes=lane)


def write_columns(stage: Stage, t: BlockTree) -> Stage | None:
    """Reduce by lines of threads along neighbouring results; the stage that combines parts, if there are any.

        for parts of the terms, for some neighbouring results (blocks):
          for results (threads, some neighbours each), for every few terms (threads): values
          combined in shared memory

    A reduction that reads others of its columns is computed in one pass with these (`online`): a thread
    reduces a tile of terms by each of them, and corrects what it has for the new values.
    """
    (columns,), (lines,) = t.cuts, t.lanes
    stage, tiles = reduce_online(stage, _TILE // columns.each)
    for name in _readers(stage) if tiles else ():
        if name in stage.schedule.state.program.outputs:
            elements(stage.schedule[name])
    d = definition_of(stage)
    terms, free, parts = [v for v, _, _ in d.ranges], [*d.free], stage
    stage.reorder(*free, *terms)
    term = fused(stage, terms)
    if t.parts > 1:
        parts, part, term = in_parts(stage, term, nparts=t.parts)
        free = [part, *free]
    reduced = reduce_by_lines(parts, free, term, columns.threads, lines.threads, columns.each)
    if tiles:
        _fill_tiles(reduced, tiles, columns.each)
    return None if parts is stage else stage


def reduce_online(stage: Stage, terms: int) -> tuple[Stage, tuple[str, ...]]:
    """Reduce tiles of terms in one pass with the reductions that a reduction reads; those of a tile.

    Returns the stage that merges tiles, and the reductions of a tile, producers first; the stage as it is,
    and none, if it reads no reduction or one that cannot be corrected. Readers but outputs are inlined.
    """
    schedule, d = stage.schedule, definition_of(stage)
    (term, *others) = (v for v, _, _ in d.ranges)
    if others or not any(schedule.state.program.has_func(r.name) for r in reads_in(d.values)):
        return stage, ()
    try:
        with schedule.all_or_nothing():
            merged = stage.online(term, terms)
    except ScheduleError:
        return stage, ()  # its terms need nothing, or nothing that can be corrected
    for f in _readers(merged):
        if f not in schedule.state.program.outputs:
            schedule[f].inline()
    program = schedule.state.program
    read = {r.name for r in reads_in(program.func(merged.func).definitions[0].values)}
    return merged, tuple(f.name for f in program.funcs if f.name in read and f.definitions[0].ranges)


def _readers(stage: Stage) -> list[str]:
    """The other funcs that read a stage."""
    funcs = stage.schedule.state.program.funcs
    return [f.name for f in funcs if f.name != stage.func and stage.func in f.definitions[0].sources]


def _fill_tiles(lines: Stage, tiles: tuple[str, ...], vector: int) -> None:
    """Compute the reductions over a tile, and load what they read, where a thread merges it."""
    schedule, at = lines.schedule, lines.loops[-2 if vector > 1 else -1]
    for name in tiles:
        f = schedule.state.program.func(name)
        last = f.variables[-2]  # before the number of the tile
        tile = schedule[name].compute_at(lines, at).set_scope(REGISTER)
        tile.reorder(*(x.name for x in tile.loops if x.name != last), last)
        for x in tile.loops:
            tile.unroll(x)
    reads = [r for n in tiles for r in reads_in(schedule.state.program.func(n).definitions[0].values)]
    names = [r.name for r in reads if r.name not in tiles]
    for name in dict.fromkeys(n for n in names if names.count(n) > 1):
        copy = schedule.cache_read(name, lines, at=at, inside=True, scope=REGISTER)
        in_vectors(copy, vector)


def share_row(
    stage: Stage, names: list[str], threads: int, vector: int, *, unrolled: bool = False, tail: str = GUARD
) -> None:
    """Share the points of a row out among threads, `vector` neighbours at a time, the last ones by `tail`."""
    stage.reorder(*(x.name for x in stage.loops if x.name not in names), *names)
    turn, _ = on_threads(stage, names, threads, vector, tail=tail)
    if unrolled:
        stage.unroll(turn)


def reduce_by_threads(
    stage: Stage, names: list[str], threads: int, vector: int, *, unrolled: bool = False,
    lanes: str | None = None,
) -> Stage:  # fmt: skip
    """A part of a reduction over `names` for each thread, in `vector` lanes, and the results of all.

    `lanes` names the loop over lanes, if there is one already. Returns the stage of the parts.
    """
    schedule = stage.schedule
    if vector > 1 and lanes is None:
        outer, lane = stage.split(names[-1], vector)
        names, lanes = [*names[:-1], outer.name], lane.name
    with added_funcs(schedule) as added:
        turn, _ = on_threads(stage, names, threads)
    parts = schedule[added[0]]
    if unrolled:
        parts.unroll(turn)
    if lanes is not None and is_heavy(parts.schedule.state.program.func(parts.func)):
        _load_once(parts, vector)
        parts.unroll(lanes)
    elif lanes is not None:
        with added_funcs(schedule) as added:
            parts.vectorize(lanes)
        if len(schedule.state.program.func(parts.func).dtypes) > 1:
            _load_once(schedule[added[0]], vector)
    return parts


def is_heavy(f: FuncDef) -> bool:
    """True for a reduction whose combiner is long code, such as that of sorted lists: one result a thread."""
    combine = f.definitions[0].combine
    return combine is not None and len({*post_order(*combine.exprs)}) > _LONG_CODE


def _load_once(terms: Stage, count: int) -> None:
    """Registers for the vectors from which several values of a term are computed."""
    for name in _sources_along(terms, terms.loops[-1].name):
        copy = terms.schedule.cache_read(name, terms, at=terms.loops[-2], scope="register")
        copy.vectorize(copy.loops[-1], count)


def _sources_along(stage: Stage, loop: str) -> list[str]:
    values = stage.schedule.state.program.func(stage.func).definitions[0].values
    return [*dict.fromkeys(r.name for r in reads_in(values) if loop in variables(r.index[-1]))]


def reduce_by_lines(
    stage: Stage, free: Sequence[str], term: str, columns: int, lines: int, vector: int = 1
) -> Stage:
    """Reduce across rows: a block has `columns` threads for neighbours, `vector` each, and `lines` of these.

    A thread reduces every few terms; the first line puts together what all lines have, by shared memory.
    Returns the stage of the lines, whose last loops are those over terms and neighbours.
    """
    *outer, last = free
    stage.reorder(*outer, last, term)
    block, column = (x.name for x in stage.split(last, columns * vector))
    each = ""
    if vector > 1:
        column, each = (x.name for x in stage.split(column, vector))
    copy, last_of_copy = stage.schedule.cache_write(stage, at=column), last
    _, line = stage.split(term, lines)
    parts = stage.rfactor(line)
    parts.reorder_storage(line.name, *free)
    stage.bind(fused(stage, [*outer, block]), "blockIdx.x").bind(column, "threadIdx.x")
    parts.compute_at(stage, column).set_scope(SHARED)
    parts.reorder(line.name, last, *(x.name for x in parts.loops if x.name not in (line.name, last)))
    if vector > 1:
        last, lanes = (x.name for x in parts.split(last, vector))
        parts.reorder(*(x.name for x in parts.loops if x.name != lanes), lanes)
        parts.vectorize(lanes)
        stage.vectorize(each)
        copy.vectorize(copy.split(last_of_copy, vector)[1])
    parts.bind(line.name, "threadIdx.y").bind(last, "threadIdx.x")
    return parts
