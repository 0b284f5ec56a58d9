"""Writes a tile tree with lanes as directives: reductions by the threads of a block, in parts."""

from __future__ import annotations

from math import prod

from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.recipes.block_rows import fused, reduce_by_lines, reduce_by_threads
from tdsl.autoschedule.recipes.elements import elements
from tdsl.autoschedule.recipes.stage_facts import definition_of, sizes_of
from tdsl.errors import ScheduleError
from tdsl.lang.regions import reads_in
from tdsl.schedule.fluent import Stage
from tdsl.schedule.state import REGISTER

_PART = 16  # turns of a thread in a part, where only a call tells how many terms there are
_TILE = 32  # registers for the tile of terms of a thread
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
    stage, tiles = _online(stage, columns.each)
    d = definition_of(stage)
    terms, free, parts = [v for v, _, _ in d.ranges], [*d.free], stage
    stage.reorder(*free, *terms)
    term = fused(stage, terms)
    if t.parts > 1:
        part, inner = (x.name for x in stage.split(term, nparts=t.parts))
        parts, term, free = stage.rfactor(part), inner, [part, *free]
        parts.reorder_storage(*free)
    reduced = reduce_by_lines(parts, free, term, columns.threads, lines.threads, columns.each)
    if tiles:
        _fill_tiles(reduced, tiles, columns.each)
    return None if parts is stage else stage


def _online(stage: Stage, vector: int) -> tuple[Stage, tuple[str, ...]]:
    """The reduction over tiles of a reduction and those that it reads, and these; itself if it reads none."""
    schedule, d = stage.schedule, definition_of(stage)
    (term, *others) = (v for v, _, _ in d.ranges)
    if others or not any(schedule.state.program.has_func(r.name) for r in reads_in(d.values)):
        return stage, ()
    try:
        with schedule.all_or_nothing():
            merged = stage.online(term, _TILE // vector)
    except ScheduleError:
        return stage, ()  # its terms need nothing, or nothing that can be corrected
    program = schedule.state.program
    for f in program.funcs:
        if merged.func not in f.definitions[0].sources or f.name == merged.func:
            continue
        if f.name in program.outputs:
            elements(schedule[f.name])
        else:
            schedule[f.name].inline()
    return merged, _tiles(merged)


def _tiles(merged: Stage) -> tuple[str, ...]:
    """The reductions over a tile, producers first."""
    program = merged.schedule.state.program
    read = {r.name for r in reads_in(program.func(merged.func).definitions[0].values)}
    return tuple(f.name for f in program.funcs if f.name in read and f.definitions[0].ranges)


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
        if vector > 1:
            copy.vectorize(copy.split(copy.loops[-1], vector)[1])
        for x in copy.loops[: -1 if vector > 1 else None]:
            copy.unroll(x)
