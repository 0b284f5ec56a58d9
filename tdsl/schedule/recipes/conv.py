"""Convolutions: sums of products over windows, alone or one after the other in one nest.

    for others (images, rows of pixels):             one of them by threads
      the convolution that the next one reads: the row that it needs
      for blocks of vectors, tiles:                  as any sum of products, see `matmul`

1. What is read beyond the edges is copied, so that the tiles have no tests.
2. The last convolution gets tiles of sums in registers.
3. A sum that it alone reads, and of which each iteration of the outer loops needs a part of its own, is
   made inside them: its values stay near. Sums without reuse across channels (depthwise) have the terms
   of a window unrolled.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tdsl.lang.expr import Read, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.bind import bind_state
from tdsl.schedule.contraction import (
    UNKNOWN,
    Contraction,
    Tiles,
    find_contraction,
    has_window,
    plan_tiles,
    window_variable,
)
from tdsl.schedule.facts import extents, rest_at_root, root_boxes, widest
from tdsl.schedule.fluent import Schedule
from tdsl.schedule.machine import Machine, machine_for
from tdsl.schedule.nest import State, is_ordered
from tdsl.schedule.padding import padded_reads
from tdsl.schedule.recipes.matmul import tile
from tdsl.schedule.rows import vector_variable
from tdsl.schedule.stage import Stage
from tdsl.target import as_target

NEAR = 0.25  # of the cache next to the first, that a row of values may fill which stays until it is read
WINDOW = 32  # terms of a window that are unrolled
PIXELS = 6  # sums side by side in a window without reuse across channels


def conv(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> Tiles | None:
    """Schedule a convolution, and the one that it alone reads, in register tiles.

    `choices` replace what is chosen by shape for the last of them; they are the fields of `Tiles`. Sizes
    that the schedule does not know count as large. Returns the choices that were made, or None where no
    window, no padding and no other sum is read: such a stage is left as it is.

    >>> import tdsl as td
    >>> n, i, f, c, r = td.vars("n i f c r")
    >>> x, w = td.Tensor("x", ("N", "W", 16), td.f32), td.Tensor("w", (3, 16, 32), td.f32)
    >>> around = td.pad(x)
    >>> out = td.Func("out", shape=("N", "W", 32))
    >>> out[n, i, f] = td.sum(around[n, i + r - 1, c] * w[r, c, f], axis=(r, c))
    >>> s = td.Schedule(out)
    >>> tiles = td.recipes.conv(s[out], rows=6, vectors=2, lanes=16, parallel="n")
    >>> [loop.name for loop in s[out].loops]
    ['n', 'f_o', 'i_o', 'r', 'c', 'i_i', 'f_i_o', 'f_i_v']
    >>> [loop.name for loop in s["x_cache"].loops]
    ['d0', 'd1', 'd2_o', 'd2_v']
    """
    schedule = stage.schedule
    machine = machine or machine_for(as_target(schedule.target))
    found = contraction_of(schedule, stage.func)
    return None if found is None else convolve(schedule, found, machine, **choices)


def convolve(schedule: Schedule, c: Contraction, machine: Machine, **choices: Any) -> Tiles | None:
    """Write the tiles of a convolution as directives; None, and nothing, where it is a plain product."""
    tiles = replace(plan_tiles(c, machine), **choices)
    inner = _inner(schedule, c, tiles, machine)
    if not inner and not has_window(schedule.state.program.func(c.func)):
        return None
    if _copy_paddings(schedule, c.func, machine):
        c = contraction_of(schedule, c.owner) or c
    if c.moving.name in inner:
        tiles = replace(tiles, panel="no", ahead=0)
    tile(schedule, c, tiles)
    for name in inner:
        make_inside(schedule, name, schedule[c.owner], c.names[c.others[-1]], machine)
    return tiles


def known(schedule: Schedule) -> tuple[State, dict[str, Box]]:
    """The state for the sizes that the schedule knows, and what is needed of every func."""
    state = bind_state(schedule.state, schedule.sizes)
    return state, root_boxes(rest_at_root(state))


def _sizes(f: FuncDef, box: Box) -> dict[str, int]:
    """The extent of each variable, those that are not known being large."""
    found = extents(f, f.definitions[0], box)
    return {name: UNKNOWN if e is None else e for name, e in found.items()}


def contraction_of(schedule: Schedule, func: str) -> Contraction | None:
    """The contraction that a func is, with the sizes that the schedule knows."""
    state, boxes = known(schedule)
    read = [g.name for g in state.program.funcs if g.name != func]
    return find_contraction(state, func, read, boxes)


def _copy_paddings(schedule: Schedule, func: str, machine: Machine) -> bool:
    """Copy what a func reads beyond the edges of tensors; True if there is any."""
    d = schedule.state.program.func(func).definitions[0]
    names = dict.fromkeys(r.name for r in reads_in(d.values))
    padded = [name for name in names if padded_reads(d, name)]
    for name in padded:
        copy = schedule.cache_read(name, func, padded=True)
        state, boxes = known(schedule)
        f = state.program.func(copy.func)
        sizes = _sizes(f, boxes[copy.func])
        lanes = machine.vector_bytes // f.dtypes[0].bytes
        several = [v for v in f.variables if sizes[v] > 1]
        if len(several) > 1 and machine.threads > 1:
            copy.parallel(several[0])
        if several and lanes > 1 and sizes[several[-1]] >= lanes:
            copy.vectorize(several[-1], lanes)
    return bool(padded)


def _inner(schedule: Schedule, c: Contraction, tiles: Tiles, machine: Machine) -> list[str]:
    """The sums that are read here only, and of which every iteration of the outer loops needs its own."""
    if not c.others or tiles.parallel not in ("", *(c.names[v] for v in c.others)):
        return []
    state, _ = known(schedule)
    d = state.program.func(c.func).definitions[0]
    reads = dict.fromkeys(reads_in(d.values))
    return [r.name for r in reads if is_inner(state, r.name, c.func) and _follows(r, c, machine)]


def is_inner(state: State, name: str, reader: str) -> bool:
    """True for a sum that is read by one func only, and has no schedule yet."""
    if not state.program.has_func(name) or name in state.program.outputs:
        return False
    plan, readers = state.plan(name), {g.name for g, _ in state.consumers(name)}
    return (
        readers == {reader}
        and not plan.touched
        and plan.place is None
        and _is_sum(state.program.func(name))
    )


def _is_sum(f: FuncDef) -> bool:
    d = f.definitions[0]
    return (
        len(f.definitions) == 1 and bool(d.ranges) and d.init is not None and not is_ordered(f, 0)
    )


def _follows(r: Read, c: Contraction, machine: Machine) -> bool:
    """True where no value is read in two iterations of the outer loops, and those of one are few."""
    names = [e.name for e in r.index if isinstance(e, Var)]
    if len(names) < len(r.index) or len({*names}) < len(names) or not {*c.others} <= {*names}:
        return False
    size = c.element * prod(c.sizes[v] for v in names if v not in c.others)
    return size <= NEAR * machine.near_bytes


def make_inside(schedule: Schedule, name: str, host: Stage, loop: str, machine: Machine) -> None:
    """Compute a sum inside a loop that runs on threads, or in one that does."""
    _copy_paddings(schedule, name, machine)
    c = contraction_of(schedule, name)
    if c is not None:
        tiles = plan_tiles(c, machine)
        tile(schedule, c, replace(tiles, band=0), threads=False)
    else:
        _window(schedule, name, machine)
    schedule[name].compute_at(host, loop)


def _window(schedule: Schedule, name: str, machine: Machine) -> None:
    """Vectors of sums over a window, of several pixels side by side, with its terms unrolled."""
    state, boxes = known(schedule)
    f = state.program.func(name)
    d = f.definitions[0]
    sizes = _sizes(f, boxes[name])
    along = vector_variable(d)
    if along is None or machine.vector_bytes == 0:
        return
    lanes = max(machine.vector_bytes // widest(d), 1)
    while lanes > 1 and lanes > sizes[along]:
        lanes //= 2
    pixel = window_variable(d)
    across = pixel if pixel not in (None, along) else None
    stage = schedule[name]
    block, j = stage.split(along, lanes, tail="peel")
    ranges = [n for n, _, _ in d.ranges]
    others = [v for v in d.free if v not in (along, across)]
    if across is None:
        stage.reorder(*others, block, *ranges, j)
        row = block
    else:
        row, i = stage.split(across, min(PIXELS, sizes[across]), tail="peel")
        stage.reorder(*others, block, row, *ranges, i, j)
        stage.unroll(i)
    stage.vectorize(j)
    if prod(sizes[n] for n in ranges) <= WINDOW:
        for n in ranges:
            stage.unroll(n)
    copy = schedule.cache_write(stage, row)
    copy.vectorize(along, lanes)
    if across is not None:
        copy.unroll(across)
