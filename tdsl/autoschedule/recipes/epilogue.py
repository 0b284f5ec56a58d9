"""What is made of a stage's values alone, as soon as these are there."""

from __future__ import annotations

from tdsl.autoschedule.recipes.stage_facts import definition_of
from tdsl.errors import ScheduleError
from tdsl.machine.instructions.warpgroups import THREADS as WARPGROUP
from tdsl.schedule.fluent import Stage
from tdsl.schedule.inlining import readers_of
from tdsl.schedule.naming import LoopLike
from tdsl.schedule.state import GROUP, GUARD

ROW_BYTES = 128  # of a row of a tile in which threads of a group pass results to each other
PAD_BYTES = 32  # between such rows, at most


def reader_of(stage: Stage, at: LoopLike | None = None) -> Stage | None:
    """The only reader of a stage, if it can follow what a loop makes and no directive has mentioned it."""
    schedule = stage.schedule
    readers = {f.name for f in readers_of(schedule.state, stage.func)}
    if stage.func in schedule.state.program.outputs or len(readers) != 1 or not stage.loops:
        return None
    reader = schedule[min(readers)]
    if schedule.state.plan(reader.func).scheduled:
        return None
    before = schedule.state, schedule.origins, schedule.directives
    try:
        stage.compute_root()
        reader.reverse_compute_at(stage, stage.loops[0] if at is None else at)
    except ScheduleError:
        return None
    finally:
        schedule.state, schedule.origins, schedule.directives = before
    return reader


def following(stage: Stage, at: LoopLike, scope: str, reader: Stage | None = None) -> Stage:
    """What takes the values of a loop's body out of their memory: the only reader, or a copy.

    A `reader` that is given may have been mentioned by directives.
    """
    reader = reader or reader_of(stage, at)
    if reader is None:
        return stage.schedule.cache_write(stage.func, at=at, scope=scope)
    stage.compute_root()
    reader.reverse_compute_at(stage, at)
    stage.store_at(stage, at).set_scope(scope)
    return reader


def store_by_groups(out: Stage, size: int, adjacent: int, vector: int) -> None:
    """Take values of `size` bytes out of a fragment through shared memory, to write `vector` at a time.

    The threads of a group, each of which has `adjacent` columns of a row next to each other, put some columns
    of their rows there, ROW_BYTES of each, wait for each other, and write them row by row. A swizzle spreads
    rows over the banks by 16 bytes; four lanes of 8 bytes fill 32 of a row, by which the next row is shifted.
    """
    if order := out.schedule.state.plan(out.func).order:
        out.reorder(*(out.loops[axis] for axis in order))
    rows, columns = out.loops[-2:]
    part, inner = out.split(columns, ROW_BYTES // size)
    out.reorder(part, rows, inner)
    out.cooperate(adjacent)
    copy = out.schedule.cache_write(out.func, at=part, scope=GROUP)
    if order:
        out.reorder_storage(*order)
        copy.reorder(*(copy.loops[axis] for axis in order))
    if size * adjacent == 8:
        axis = order[-1] if order else len(definition_of(out).index) - 1
        out.align_storage(axis, (ROW_BYTES + PAD_BYTES) // size)
    else:
        out.swizzle(ROW_BYTES)
    out.unroll(part)
    rows, columns = copy.loops[-2:]
    pieces, lanes = copy.split(columns, vector)
    turns, threads = copy.split(copy.fuse(rows, pieces), WARPGROUP)
    copy.bind(threads, "threadIdx.x").unroll(turns)
    if vector > 1:
        copy.vectorize(lanes)


def in_vectors(stage: Stage, width: int, *, first: int = 0, tail: str = GUARD) -> None:
    """Unroll loops of values in registers, from the `first` on, with vectors of `width` along the last one.

    Loops that an edge cuts short become copies with tests: indices of registers are constant.
    """
    last = stage.loops[-1]
    if width == 1:
        stage.unroll(last)
    elif tail == GUARD:
        stage.vectorize(last, width)
    else:
        stage.vectorize(stage.split(last, width, tail=tail)[1])
    for x in stage.loops[first:-1]:
        stage.unroll(x)
