"""Tiles inside of tiles: a program is cut and tiled for the outermost level of memory, a tile for the next.

A level at which all of a program, or all of a tile, has room needs no tiles of its own. The traffic of a
level depends on its own tiles only, so levels are decided one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from tdsl.core.node import frozen
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.properties import volume
from tdsl.tilegraph.cuts import Partition, Priced, partitions
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.tiling import FULL, Place, Shape

MOST = 3  # partitions at the outermost level that are followed inwards


@frozen
class Part:
    """Funcs that a level keeps together: tiles of their owner have a `shape`, inside of which are `parts`.

    A func by itself has no tiles here and no parts. `boxes` are what is needed of all of them, and `tile`
    what one tile needs.
    """

    owner: str
    members: tuple[str, ...]
    level: str
    shape: Shape
    boxes: dict[str, Box]
    tile: dict[str, Box]
    parts: tuple[Part, ...]


def nested_tiles(
    graph: TileGraph, machine: Machine, *, together: Callable[[str], bool] = lambda _: True
) -> list[tuple[Part, ...]]:
    """The best ways to cut and tile a program, the best first; parts in running order.

    None where it is not known how much of a func is needed.

    >>> import tdsl as td
    >>> i, j = td.vars("i j")
    >>> x, f, g = td.Tensor("x", (4096, 4096), td.f32), td.Func("f"), td.Func("g", shape=(4094, 4094))
    >>> f[i, j] = td.exp(x[i, j])
    >>> g[i, j] = f[i, j] + f[i + 1, j + 2] + f[i + 2, j]
    >>> best, *_ = nested_tiles(TileGraph.of(td.Schedule(g).program), Machine(vector_bytes=64))
    >>> [(p.owner, p.members, p.level) for p in best]
    [('g', ('f', 'g'), 'L3')]
    """
    if any(volume(box) is None for box in graph.boxes.values()):
        return []
    places = _places(machine)
    names = [f.name for f in graph.program.funcs if f.name in graph.boxes]
    size = sum(graph.bytes_moved(n, box) for n, box in graph.boxes.items())
    room = [FULL * (machine.capacity(p.level) or 0) for p in places]
    full = (n for n, p in enumerate(places) if p.level.managed or size > room[n])
    at = next(full, len(places) - 1)
    best, priced = partitions(graph, names, places[at], together=together)
    return [_parts(graph, p, priced, places[at], places[at + 1 :]) for p in best[:MOST]]


def _places(machine: Machine) -> list[Place]:
    """The levels that have tiles, each with the level behind it, the outermost first.

    Those of a GPU are shared memory of a block and registers of a thread; its cache serves all.

    >>> from tdsl.machine.devices import describe_gpu
    >>> [(p.level.name, p.behind.name) for p in _places(describe_gpu("sm_80"))]
    [('shared', 'global'), ('registers', 'shared')]
    """
    levels = machine.levels
    if machine.block_threads:
        levels = tuple(x for x in levels if x.managed)
    tiled_levels = levels[:-1] if machine.block_threads else machine.caches
    pairs = [(a, b) for a, b in pairwise(levels) if a in tiled_levels]
    return [Place(machine, level, behind, outermost=True) for level, behind in reversed(pairs)]


def _parts(
    graph: TileGraph,
    p: Partition,
    priced: dict[tuple[str, frozenset[str]], Priced | None],
    place: Place,
    inner: Sequence[Place],
) -> tuple[Part, ...]:
    """The groups of a partition, producers first, each tiled further for the levels within."""
    order = {f.name: n for n, f in enumerate(graph.program.funcs)}
    result = []
    for owner, members in sorted(p.groups, key=lambda g: order[g[0]]):
        entry = priced[owner, frozenset(members)]
        assert entry is not None
        group, tiling = entry
        parts: tuple[Part, ...] = ()
        tile: dict[str, Box] = {}
        if len(members) > 1:
            box = graph.tiles(owner, tiling.shape)[0][0]
            tile = dict(graph.propagate(group.members, {owner: box}).boxes)
            smaller = replace(graph, boxes=tile)
            parts = _within(smaller, group.members, tiling.footprint, inner)
        level = place.level.name
        boxes = {n: graph.boxes[n] for n in group.members}
        result.append(Part(owner, group.members, level, tiling.shape, boxes, tile, parts))
    return tuple(result)


def _within(
    tile: TileGraph, members: Iterable[str], footprint: float, inner: Sequence[Place]
) -> tuple[Part, ...]:
    """The parts of a tile at the next level that does not hold all of it."""
    for n, outer in enumerate(inner):
        place = replace(outer, outermost=False)
        if footprint > place.room or place.threads > 1:
            best, priced = partitions(tile, members, place, together=lambda _: True)
            if best:
                return _parts(tile, best[0], priced, place, inner[n + 1 :])
    return tuple(_alone(tile, n) for n in members)


def _alone(tile: TileGraph, name: str) -> Part:
    box = {name: tile.boxes[name]}
    return Part(name, (name,), "", tuple(1 for _ in tile.boxes[name]), box, {}, ())
