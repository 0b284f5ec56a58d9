"""The bytes that a schedule moves between levels of memory, and those that it keeps in one.

What a cache moves follows from what is used again and when (`caches.py`). Of a GPU's memory, each stage that
reads or writes it moves the box that its threads and its loops touch, once for each block and each iteration
of the loops around: what is in shared memory and registers is what the schedule put there.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod

from tdsl.cost.caches import CacheModel, touch_of
from tdsl.cost.gathers import gathered_points
from tdsl.cost.loopnests import Nests, NestSpot
from tdsl.cost.moved import Moved, MovedByName, add_up
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.regions import Box, restrict_ranges
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.state import BLOCKS, COOPERATIVE, REGISTER, Level
from tdsl.schedule.tree import ROOT


def beyond_cache(nests: Nests, level: MemoryLevel, machine: Machine) -> MovedByName:
    """What a cache exchanges with the memory behind it, by tensor and func.

    Threads run the parallel loops; a cache of its own for each fetches for itself what all of them read.
    """
    moved: MovedByName = {}
    for of_nest in CacheModel.of(nests, level, machine).by_nest():
        add_up(moved, of_nest)
    return moved


def of_blocks(nests: Nests) -> MovedByName:
    """What the kernels of a GPU load from its memory and store there, by tensor and func."""
    moved: MovedByName = {}
    for spot in nests.roots():
        add_up(moved, of_block(spot))
    return moved


def of_block(spot: NestSpot, granule: int = 1) -> MovedByName:
    """What one kernel loads and stores; not what lives in shared memory and registers.

    Bytes come in runs of whole granules.
    """
    moved: MovedByName = {}
    for _, of_stage in _of_stages(spot, granule):
        add_up(moved, of_stage)
    return moved


def of_stages(nests: Nests) -> dict[str, MovedByName]:
    """What each stage of the kernels of a GPU loads from its memory and stores there, by name."""
    by_stage: dict[str, MovedByName] = {}
    for spot in nests.roots():
        for name, of_stage in _of_stages(spot):
            add_up(by_stage.setdefault(name, {}), of_stage)
    return by_stage


def _of_stages(spot: NestSpot, granule: int = 1) -> Iterator[tuple[str, MovedByName]]:
    yield from _of_block(spot, not_in_memory(spot.nests), granule)


def not_in_memory(nests: Nests) -> set[str]:
    """The funcs that are in shared memory and registers."""
    inner = {n for n, plan in nests.state.plans if plan.scope in (REGISTER, *COOPERATIVE)}
    return inner | {n for n, home in nests.tree.parent.items() if _is_inside_threads(nests, n, home)}


def _is_inside_threads(nests: Nests, name: str, home: Level) -> bool:
    """True for what a thread keeps for itself: it is stored in the loops of a kernel."""
    return home != ROOT and name not in nests.tree.stored.get(ROOT, ())


def _of_block(spot: NestSpot, inner: set[str], granule: int) -> Iterator[tuple[str, MovedByName]]:
    nests, extents, moved = spot.nests, spot.counts(), dict[str, Moved]()
    block_loops = tuple(x for x in extents if spot.kind(x) in BLOCKS)
    count = spot.blocks * prod(extents[x] for x in block_loops)
    points, d = spot.times * prod(spot.points()), spot.func.definitions[spot.definition]
    for name, box in spot.definition_reads(block_loops).items():
        if name not in inner and name != spot.func.name:
            size = count * _read(spot, block_loops, name, box, granule)
            each = points * sum(_of_point(spot, d, name, granule))
            add_up(moved, {name: Moved(read=min(size, each))})
    if spot.func.name not in inner:
        size = count * _in_lines(nests, spot.func.name, spot.definition_writes(block_loops), granule)
        each = points * nests.element_bytes(spot.func.name)
        add_up(moved, {spot.func.name: Moved(written=min(size, each))})
    yield spot.func.name, moved
    for k in range(1, len(extents) + 1):
        for child in spot.children(k):
            yield from _of_block(child, inner, granule)


def _of_point(spot: NestSpot, d: Definition, name: str, granule: int) -> Iterator[float]:
    """The bytes of the rows that a point reads of an array: neighbours share those along memory."""
    size, last = spot.nests.element_bytes(name), d.free[-1:]
    for index in {r.index[:-1]: r.index for r in d.reads if r.name == name}.values():
        along = bool(index) and {*last} <= {*variables(index[-1])}
        yield size if along else max(size, granule)


def _read(spot: NestSpot, loops: tuple[str, ...], name: str, box: Box, granule: int) -> float:
    """The bytes of a box that a stage reads in an iteration of some loops; of a table the rows asked for."""
    nests, d = spot.nests, spot.func.definitions[spot.definition]
    box_bytes = _in_lines(nests, name, box, granule)
    gathered = gathered_points(d, name, restrict_ranges(spot.ranges(loops, wide=True), d.where))
    if gathered is None:
        return box_bytes
    there = prod(nests.extents_in_memory(name, box))
    return min(box_bytes, float(min(gathered, there) * nests.element_bytes(name)))


def _in_lines(nests: Nests, name: str, box: Box, granule: int) -> float:
    """The bytes of a box, with `granule` above 1 those of the lines of so many bytes that it touches."""
    size = nests.bytes_of(name, box)
    return size if granule == 1 or not 0 < size < inf else touch_of(nests, name, box, granule).size


def kept_in_blocks(nests: Nests, scope: str) -> float:
    """The bytes of a scope that one block of a kernel holds, or one thread; the most of all kernels."""
    return max((_kept(spot, scope) for spot in nests.roots()), default=0.0)


def _kept(spot: NestSpot, scope: str) -> float:
    names = spot.internal(0)
    nests = spot.nests
    return sum(nests.stored(n) or 0.0 for n in names if nests.state.plan(n).scope == scope)
