"""Convolutions: sums of products over windows, alone or one after the other in one nest.

    for others (images, rows of pixels):             one of them by threads
      the convolution that the next one reads: the row that it needs
      for blocks of vectors, tiles:                  as any sum of products, see `matmul`

1. What is read beyond the edges is copied, so that the tiles have no tests.
2. The last convolution gets tiles of sums in registers. Sums without reuse across channels (depthwise) have
   the terms of a window unrolled, and some windows side by side share what they read: no copy would pay.
3. A sum that it alone reads, and of which each iteration of the outer loops needs another part, is computed
   inside them: its values stay in a cache, with those of element-wise funcs of it (relu).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from math import prod
from typing import Any

from tdsl.autoschedule.patterns.contraction import (
    Contraction,
    RegisterTiles,
    find_contraction,
    find_window,
    plan_tiles,
)
from tdsl.autoschedule.patterns.windows import UNKNOWN, has_window
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe
from tdsl.autoschedule.recipes.matmul import tile
from tdsl.lang.expr import Read, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.mapping import mapped_reads
from tdsl.schedule.padding import padded_reads
from tdsl.schedule.properties import extents, root_boxes, unplaced_at_root
from tdsl.schedule.state import State, is_ordered
from tdsl.target import as_target

Tiled = tuple[Contraction, RegisterTiles]

ROW_SHARE = 0.25  # of the cache next to the first, that a row of values may fill which stays until it is read


@recipe
def conv(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> RegisterTiles:
    """Schedule a convolution, and the one that it alone reads, in register tiles.

    `choices` replace what is chosen by shape for the last of them; they are the fields of `RegisterTiles`.
    Sizes that the schedule does not know count as large. Returns the choices. A window,
    padding or another sum is read: else it is a product, for `matmul`.

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
    machine = machine or as_target(schedule.target).machine()
    convolution = _find(*known(schedule), stage.func)
    tiled = [] if convolution is None else convolve(schedule, convolution, machine, **choices)
    if not tiled:
        raise Unsuited(
            "it is no sum of products that reads a window, padding or another sum",
            "td.recipes.matmul is for products of matrices",
        )
    return tiled[0][1]


def convolve(schedule: BaseSchedule, c: Contraction, machine: Machine, **choices: Any) -> list[Tiled]:
    """Write the tiles of a convolution, and of what is inside, as directives; none for a plain product."""
    tiles = choose(plan_tiles(c, machine), choices)
    inner = _inner(schedule, c, tiles, machine)
    if not inner and not has_window(schedule.state.program.func(c.func)):
        return []
    if not c.windowed and _copy_paddings(schedule, c.func, machine):
        c = _find(*known(schedule), c.owner) or c
    if c.moving.name in inner:
        tiles = replace(tiles, panel="no", ahead=0)
    tile(schedule, c, tiles)
    tiled = [(c, tiles)]
    for name in inner:
        tiled += compute_inside(
            schedule, name, c.func, c.others, schedule[c.owner], c.names[c.others[-1]], machine
        )
    return tiled


def known(schedule: BaseSchedule) -> tuple[State, dict[str, Box]]:
    """The state for the sizes that the schedule knows, and what is needed of every func."""
    state = bind_state(schedule.state, schedule.sizes)
    return state, root_boxes(unplaced_at_root(state))


def _sizes(f: FuncDef, box: Box) -> dict[str, int]:
    """The extent of each variable, those that are not known being large."""
    sizes = extents(f, f.definitions[0], box)
    return {name: UNKNOWN if e is None else e for name, e in sizes.items()}


def contraction_of(schedule: BaseSchedule, func: str) -> Contraction | None:
    """The contraction that a func is, with the sizes that the schedule knows."""
    contraction = _find(*known(schedule), func)
    return None if contraction is None or contraction.windowed else contraction


def _find(state: State, boxes: dict[str, Box], func: str) -> Contraction | None:
    """The contraction that a func is, or the sum over a window without reuse."""
    read = [g.name for g in state.program.funcs if g.name != func]
    return find_contraction(state, func, read, boxes) or find_window(state, func, read, boxes)


def _copy_paddings(schedule: BaseSchedule, func: str, machine: Machine) -> bool:
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


def _inner(schedule: BaseSchedule, c: Contraction, tiles: RegisterTiles, machine: Machine) -> list[str]:
    """The sums that are read here only, of which every iteration of the outer loops needs another part."""
    if not c.others or tiles.parallel not in ("", *(c.names[v] for v in c.others)):
        return []
    state, _ = known(schedule)
    return [r.name for r in inner_reads(state, c.func) if _follows(r, c, machine)]


def inner_reads(state: State, reader: str) -> list[Read]:
    """The reads of sums that one func reads, each at one index, and that have no schedule yet."""
    reads = dict.fromkeys(reads_in(state.program.func(reader).definitions[0].values))
    places = Counter(r.name for r in reads)
    return [r for r in reads if places[r.name] == 1 and _is_inner(state, r.name, reader)]


def _is_inner(state: State, name: str, reader: str) -> bool:
    """True for a sum that is read by one func only, and has no schedule yet."""
    if not state.program.has_func(name) or name in state.program.outputs:
        return False
    plan, readers = state.plan(name), {g.name for g, _ in state.consumers(name)}
    return (
        readers == {reader}
        and not plan.scheduled
        and plan.place is None
        and _is_sum(state.program.func(name))
    )


def _is_sum(f: FuncDef) -> bool:
    d = f.definitions[0]
    return len(f.definitions) == 1 and bool(d.ranges) and d.init is not None and not is_ordered(f, 0)


def _follows(r: Read, c: Contraction, machine: Machine) -> bool:
    """True where no value is read in two iterations of the outer loops, and those of one are few."""
    names = [e.name for e in r.index if isinstance(e, Var)]
    if len(names) < len(r.index) or len({*names}) < len(names) or not {*c.others} <= {*names}:
        return False
    size = c.element * prod(c.sizes[v] for v in names if v not in c.others)
    return size <= ROW_SHARE * machine.l2_share


def compute_inside(
    schedule: BaseSchedule, name: str, reader: str, outer: Collection[str], host: Stage, loop: str,
    machine: Machine,
) -> list[Tiled]:  # fmt: skip
    """Compute a sum that a func reads inside a loop of `host` that runs on threads, or in one that does.

    That loop and those around it run over `outer`, variables of the func. Returns its tiles, if it has any.
    """
    d = schedule.state.program.func(reader).definitions[0]
    index = next(r.index for r in reads_in(d.values) if r.name == name)
    fixed = [n for n, e in enumerate(index) if isinstance(e, Var) and e.name in outer]
    stage, c = schedule[name], _sum_inside(schedule, name, name, fixed)
    if (c is None or not c.windowed) and _copy_paddings(schedule, name, machine):
        c = _sum_inside(schedule, name, name, fixed)
    if c is not None and c.along == schedule.state.program.func(name).variables[-1]:
        values = {e.value for e in mapped_reads(d, name).values()}
        if len(values) == 1 and not any(isinstance(v, Read) for v in values):
            stage = schedule.cache_read(name, reader, mapped=True)
            c = _sum_inside(schedule, stage.func, name, fixed)
    tiled: list[Tiled] = []
    if c is not None:
        tiles = replace(plan_tiles(c, machine), band=0)
        whole = _sum_inside(schedule, stage.func, name, ())
        if whole is not None and not tiles.dot:  # what all iterations read may come from memory
            tiles = replace(tiles, fetch=plan_tiles(whole, machine).fetch)
        tile(schedule, c, tiles, threads=False)
        tiled = [(c, replace(tiles, parallel=""))]
    stage.compute_at(host, loop)
    return tiled


def _sum_inside(schedule: BaseSchedule, owner: str, name: str, fixed: Collection[int]) -> Contraction | None:
    """The sum `name` that an owner is or reads, each axis in `fixed` being one value wide."""
    state, boxes = known(schedule)
    if name in boxes:  # else none of its values is needed
        one = ((lo, lo if axis in fixed else hi) for axis, (lo, hi) in enumerate(boxes[name]))
        boxes[name] = tuple(one)
    return _find(state, boxes, owner)
