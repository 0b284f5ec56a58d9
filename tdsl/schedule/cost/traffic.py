"""The bytes that a schedule moves between levels of memory, and those that it keeps in one.

A cache holds what was used last. Of a nest of loops, it keeps what an iteration of the first loops touches
that fits into it; a tensor is then fetched once for each iteration of the loops around that move its box, and
again for each iteration of loops outside of those. What stands in loops whose bodies do not fit is looked at
by itself. Of a GPU's memory, each stage that reads or writes it moves the box that its threads and its loops
touch, once for each block and each iteration of the loops around: what is in shared memory and registers is
what the schedule put there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tdsl.schedule.cost.loopnests import Nests, NestSpot, remembered
from tdsl.schedule.cost.machine import MemoryLevel
from tdsl.schedule.nest import BLOCKS, PARALLEL, REGISTER, SHARED, Level
from tdsl.schedule.tree import ROOT

Bytes = dict[str, "Moved"]


@dataclass(frozen=True, slots=True)
class Moved:
    """The bytes of a tensor or func that a level of memory gets from further out, and gives there."""

    read: float = 0.0
    written: float = 0.0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.read + other.read, self.written + other.written)

    @property
    def total(self) -> float:
        """Both together."""
        return self.read + self.written


def total(moved: Mapping[str, Moved]) -> float:
    """All bytes together."""
    return sum(m.total for m in moved.values())


def beyond_cache(nests: Nests, level: MemoryLevel, threads: int) -> Bytes:
    """What a cache exchanges with the memory behind it, by tensor and func.

    `threads` run the parallel loops; a cache of its own for each fetches for itself what all of them read.
    """
    capacity = level.bytes
    assert capacity is not None
    spots = nests.roots()
    touched = [working_set(spot, 0) for spot in spots]
    near = _kept_between(nests, spots, touched, capacity)
    results = {*nests.state.program.outputs}
    moved: Bytes = {}
    for spot in spots:
        for name, m in beyond_cache_of(spot, level, threads).items():
            if name in near:  # a result is written at last, and read from the cache
                m = Moved(written=m.written if name in results else 0.0)
            if m.total:
                moved[name] = moved.get(name, Moved()) + m
    names = {name for sizes in touched for name in sizes}
    if sum(max(s.get(n, 0.0) for s in touched) for n in names) <= capacity:
        return {n: _once(nests, n, m) for n, m in moved.items()}
    return moved


def beyond_cache_of(spot: NestSpot, level: MemoryLevel, threads: int) -> Bytes:
    """What a cache exchanges with the memory behind it while one nest runs, by tensor and func."""
    assert level.bytes is not None
    return _of_nest(spot, level.bytes, min(threads, max(threads // level.shared_by, 1)))


def kept_between(nests: Nests, level: MemoryLevel) -> set[str]:
    """The funcs that a cache keeps from the nest at the root which makes them to the last that reads them.

    Results are not among them: they leave it at last.
    """
    assert level.bytes is not None
    spots = nests.roots()
    touched = [working_set(spot, 0) for spot in spots]
    return _kept_between(nests, spots, touched, level.bytes) - {*nests.state.program.outputs}


def _once(nests: Nests, name: str, m: Moved) -> Moved:
    """Each array once: all of them stay in the cache together."""
    whole = nests.bytes_of(name, nests.whole[name])
    return Moved(min(m.read, whole), min(m.written, whole))


def _kept_between(
    nests: Nests, spots: list[NestSpot], touched: list[dict[str, float]], capacity: float
) -> set[str]:
    kept = set()
    for name in {*nests.tree.stored.get(ROOT, ()), *nests.state.program.outputs}:
        at = [n for n, sizes in enumerate(touched) if name in sizes]
        if not at:
            continue
        between = touched[at[0] : at[-1] + 1]
        arrays = {x: max(sizes.get(x, 0.0) for sizes in between) for s in between for x in s}
        if sum(arrays.values()) <= capacity:
            kept.add(name)
    return kept


@remembered
def _sizes(spot: NestSpot, k: int) -> dict[str, float]:
    """The bytes of what an iteration of the first k loops needs, without the gaps between reads far apart."""
    nests = spot.nests
    found = {name: nests.bytes_of(name, box) for name, box in spot.boxes(k).items()}
    inner = spot.made(k) - {spot.func.name}
    for name, part in spot.filled(k).items():
        readers = {c.name for c, _ in nests.state.consumers(name)}
        if name in found and not readers & inner:
            found[name] *= part
    return found


@remembered
def working_set(spot: NestSpot, k: int) -> dict[str, float]:
    """The bytes that one iteration of the first k loops of a nest touches."""
    internal = spot.internal(k)
    found = {n: s for n, s in _sizes(spot, k).items() if n not in internal}
    return found | {n: spot.nests.stored[n] for n in internal if n in spot.nests.stored}


def kept_loops(spot: NestSpot, capacity: float) -> int:
    """How many loops stand around what fits into a cache."""
    depth = len(spot.nest.names())
    return next((k for k in range(depth) if sum(working_set(spot, k).values()) <= capacity), depth)


def _of_nest(spot: NestSpot, capacity: float, apart: int) -> Bytes:
    """What a nest, and what stands in its loops, moves."""
    k = kept_loops(spot, capacity)
    extents = list(spot.counts().items())
    internal = spot.internal(k)
    made = spot.made(k)
    sizes = [_sizes(spot, j) for j in range(k + 1)]
    moved: Bytes = {}
    for name, size in sizes[k].items():
        if name in internal:
            continue
        moving = False
        for j in range(k - 1, -1, -1):
            loop, count = extents[j]
            outer = sizes[j].get(name, size)
            if outer > sizes[j + 1].get(name, size):
                size = count * size if moving else min(count * size, outer)
                moving = True
            elif moving:
                size *= count
            elif spot.kind(loop) == PARALLEL:
                size *= min(count, apart)
        moved[name] = _direction(spot, name, size, made)
    for j in range(1, k):
        times = prod(count for _, count in extents[:j])
        for child in spot.children(j):
            for name, m in _of_nest(child, capacity, apart).items():
                more = Moved(times * m.read, times * m.written)
                moved[name] = moved.get(name, Moved()) + more
    return moved


def _direction(spot: NestSpot, name: str, size: float, made: set[str]) -> Moved:
    """What a nest writes is read again where it comes back to it."""
    if name not in made:
        return Moved(read=size)
    once = spot.nests.bytes_of(name, spot.box if name == spot.func.name else spot.boxes(0)[name])
    return Moved(max(size - once, 0.0), size)


def of_blocks(nests: Nests) -> Bytes:
    """What the kernels of a GPU load from its memory and store there, by tensor and func."""
    moved: Bytes = {}
    for spot in nests.roots():
        for name, m in of_block(spot).items():
            moved[name] = moved.get(name, Moved()) + m
    return moved


def of_block(spot: NestSpot) -> Bytes:
    """What one kernel loads and stores; not what lives in shared memory and registers."""
    nests, moved = spot.nests, dict[str, Moved]()
    inner = {n for n, plan in nests.state.plans if plan.scope in (SHARED, REGISTER)}
    inner |= {n for n, home in nests.tree.home.items() if _is_inside_threads(nests, n, home)}
    _of_block(spot, inner, moved)
    return moved


def _is_inside_threads(nests: Nests, name: str, home: Level) -> bool:
    """True for what a thread keeps for itself: it is stored in the loops of a kernel."""
    return home != ROOT and name not in nests.tree.stored.get(ROOT, ())


def _of_block(spot: NestSpot, inner: set[str], moved: Bytes) -> None:
    nests, extents = spot.nests, spot.counts()
    own = tuple(x for x in extents if spot.kind(x) in BLOCKS)
    count = spot.blocks * prod(extents[x] for x in own)
    for name, box in spot.own_reads(own).items():
        if name not in inner and name != spot.func.name:
            m = Moved(read=count * nests.bytes_of(name, box))
            moved[name] = moved.get(name, Moved()) + m
    if spot.func.name not in inner:
        size = count * nests.bytes_of(spot.func.name, spot.own_writes(own))
        moved[spot.func.name] = moved.get(spot.func.name, Moved()) + Moved(written=size)
    for k in range(1, len(extents) + 1):
        for child in spot.children(k):
            _of_block(child, inner, moved)


def kept_in_blocks(nests: Nests, scope: str) -> float:
    """The bytes of a scope that one block of a kernel holds, or one thread; the most of all kernels."""
    return max((_kept(spot, scope) for spot in nests.roots()), default=0.0)


def _kept(spot: NestSpot, scope: str) -> float:
    names = spot.internal(0)
    state, stored = spot.nests.state, spot.nests.stored
    return sum(stored.get(n, 0.0) for n in names if state.plan(n).scope == scope)
