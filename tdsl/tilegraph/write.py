"""Nested tiles as directives: loops over tiles of an owner, and in them what each tile needs.

for tiles of the owner (threads):
  [for smaller tiles of a member:]
    what a tile needs of each member: products in register tiles, the rest by vectors
  the owner's tile, by vectors
"""

from __future__ import annotations

from dataclasses import replace

from tdsl.autoschedule.patterns.bands import Chain
from tdsl.autoschedule.patterns.cache_conflicts import conflict_free_extent
from tdsl.autoschedule.patterns.contraction import (
    find_contraction,
    find_window,
    plan_tiles,
    share,
)
from tdsl.autoschedule.patterns.rows import vectors_of
from tdsl.autoschedule.recipes.bands import tile_product, write_parts
from tdsl.autoschedule.recipes.matmul import tile
from tdsl.core.node import frozen
from tdsl.lang.expr import Var
from tdsl.lang.regions import Box, Interval
from tdsl.lang.simplify import add
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.naming import Loop
from tdsl.schedule.properties import extent, extents
from tdsl.schedule.state import is_ordered
from tdsl.tilegraph.levels import Part

EVEN = 0.8  # of the threads that are busy on average, from which a loop is shared out by itself


@frozen
class _Open:
    """A stage in tiles: its loops over tiles so far, and the loop of each variable within."""

    stage: Stage
    tiles: tuple[Loop, ...]
    inner: dict[str, Loop | str]


def write_tiles(schedule: BaseSchedule, part: Part, machine: Machine) -> None:
    """Write a part at the root, its outermost loop over tiles shared by threads."""
    owner = schedule[part.owner]
    variables = schedule.state.program.func(part.owner).variables
    open_ = _Open(owner, (), {v: v for v in variables})
    tiled = _write(schedule, part, machine, open_)
    if machine.threads > 1 and tiled.tiles:
        _share_out(owner, tiled.tiles, part, machine)


def _write(schedule: BaseSchedule, part: Part, machine: Machine, open_: _Open) -> _Open:
    """The tiles of a part in an open stage, which is its owner, and all that is in them."""
    open_ = _split(part, open_, schedule)
    owner = open_.stage
    inside = [p for p in part.parts if p.owner != part.owner]
    smaller = next((p for p in part.parts if p.owner == part.owner and len(p.members) > 1), None)
    boxes = _moving(part, part.tile)
    for p in inside:
        _pad_storage(schedule, p.owner, part.tile[p.owner])
    queue = list(reversed(inside))  # consumers first
    while queue:
        p = queue.pop(0)
        within = [n for n in p.members if n != p.owner]
        if within and not _ends_sum(schedule, p.owner, within, boxes):
            stage = schedule[p.owner].compute_at(owner, open_.tiles[-1])
            variables = schedule.state.program.func(p.owner).variables
            _write(schedule, p, machine, _Open(stage, (), {v: v for v in variables}))
            continue
        others = within or [q.owner for q in queue if len(q.members) == 1]
        summed = _member(schedule, p.owner, others, Chain(part.owner, part.members, boxes), machine)
        queue = [q for q in queue if q.owner != summed]
        schedule[p.owner].compute_at(owner, open_.tiles[-1])
    if smaller is not None:
        return _Open(owner, open_.tiles, _write(schedule, smaller, machine, open_).inner)
    if not _register_tiles(schedule, open_, part, machine, boxes):
        _vectors(schedule, open_, part, machine)
    return open_


def _pad_storage(schedule: BaseSchedule, name: str, box: Box) -> None:
    """Pad the storage of a func in a tile if terms that a reduction reads of it share few sets of a cache."""
    state = inline_funcs(schedule.state)
    f, shape = state.program.func(name), [extent(box, axis) or 1 for axis in range(len(box))]
    for reader, n in state.consumers(name):
        terms = {Var(v) for v, _, _ in reader.definitions[n].ranges}
        for index in [r.index for r in reader.definitions[n].reads if r.name == name]:
            for axis in [axis for axis, e in enumerate(index) if e in terms]:
                padded = conflict_free_extent(shape, axis, f.dtypes[0].bytes)
                if padded is not None:
                    schedule[name].align_storage(*padded)
                    return


def _ends_sum(schedule: BaseSchedule, name: str, within: list[str], boxes: dict[str, Box]) -> bool:
    """True for the epilogue of one sum, whose register tiles need no smaller tiles around them."""
    state = inline_funcs(bind_state(schedule.state, schedule.sizes))
    total = find_contraction(state, name, within, boxes) or find_window(state, name, within, boxes)
    return total is not None and [total.func] == within


def _member(schedule: BaseSchedule, name: str, others: list[str], chain: Chain, machine: Machine) -> str:
    """The loops of a func in a tile; that of the others which it takes into its register tiles, or ""."""
    state = inline_funcs(bind_state(schedule.state, schedule.sizes))
    boxes = dict(chain.boxes)
    product = find_contraction(state, name, others, boxes)
    if product is not None:
        tile_product(schedule, product, chain, machine)
        return product.func
    window = find_window(state, name, others, boxes)
    if window is not None:
        tiles = replace(plan_tiles(window, machine), band=0, panel="no")
        tile(schedule, window, tiles, threads=False)
        return window.func
    write_parts(schedule, state, name, boxes, machine)
    return ""


def _split(part: Part, open_: _Open, schedule: BaseSchedule) -> _Open:
    """Split the loops whose tiles are smaller than what is needed, tiles outside."""
    owner, tiles, inner = open_.stage, list(open_.tiles), dict(open_.inner)
    f = schedule.state.program.func(part.owner)
    box = part.boxes[part.owner]
    for axis, v in enumerate(f.variables):
        if part.shape[axis] < (extent(box, axis) or 1):
            outer, inner[v] = owner.split(inner[v], part.shape[axis])
            tiles.append(outer)
    ranges = [name for name, _, _ in f.definitions[0].ranges]
    if not tiles:  # one tile: a loop of one iteration around the others
        v = f.variables[0]
        outer, inner[v] = owner.split(inner[v], part.shape[0])
        tiles.append(outer)
    owner.reorder(*tiles, *(inner[v] for v in f.variables), *ranges)
    return _Open(owner, tuple(tiles), inner)


def _register_tiles(
    schedule: BaseSchedule, open_: _Open, part: Part, machine: Machine, boxes: dict[str, Box]
) -> bool:
    """Register tiles in what is left of the loops of an owner that is a sum of products."""
    state, owner = inline_funcs(bind_state(schedule.state, schedule.sizes)), part.owner
    product = find_contraction(state, owner, [], boxes) or find_window(state, owner, [], boxes)
    if product is None:
        return False
    names = {v: x if isinstance(x, str) else x.name for v, x in open_.inner.items()}
    product = replace(product, names=names)
    if product.windowed:
        tiles = replace(plan_tiles(product, machine), band=0, panel="no")
        tile(schedule, product, tiles, threads=False)
    else:
        tile_product(schedule, product, Chain(owner, part.members, boxes), machine)
    return True


def _vectors(schedule: BaseSchedule, open_: _Open, part: Part, machine: Machine) -> None:
    """Vectors for the points of a tile."""
    f = bind_state(schedule.state, schedule.sizes).program.func(part.owner)
    d = f.definitions[0]
    vectors = vectors_of(f, 0, extents(f, d, part.tile[part.owner]), machine.vector_bytes)
    if vectors is None:
        return
    variable, lanes = vectors
    loop = open_.inner.get(variable, variable)
    if variable in d.free and d.ranges and not is_ordered(f, 0):
        others = [open_.inner[v] for v in f.variables if v != variable]
        ranges = [name for name, _, _ in d.ranges]
        open_.stage.reorder(*open_.tiles, *others, *ranges, loop)
    open_.stage.vectorize(loop, lanes)


def _moving(part: Part, tile: dict[str, Box]) -> dict[str, Box]:
    """The boxes of a tile in terms of its position: those that are not all of a func move with it."""
    boxes = {}
    for name, box in tile.items():
        whole = part.boxes.get(name)
        if whole is not None:
            box = tuple(
                i if extent((i,), 0) == extent((w,), 0) or None in i else _moved(i)
                for i, w in zip(box, whole, strict=True)
            )
        boxes[name] = box
    return boxes


def _moved(interval: Interval) -> Interval:
    lo, hi = interval
    assert lo is not None and hi is not None
    return add(lo, Var("row")), add(hi, Var("row"))


def _share_out(owner: Stage, tiles: tuple[Loop, ...], part: Part, machine: Machine) -> None:
    """Threads over the first loop over tiles, or over the first two together where that is not even."""
    box = part.boxes[part.owner]
    counts = [
        -(-(extent(box, axis) or 1) // n) for axis, n in enumerate(part.shape) if n < (extent(box, axis) or 1)
    ]
    if len(counts) > 1 and share(counts[0], machine.threads) < EVEN:
        owner.parallel(owner.fuse(tiles[0], tiles[1]))
    elif counts:
        owner.parallel(tiles[0])
