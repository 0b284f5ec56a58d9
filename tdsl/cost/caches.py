"""The bytes that a cache exchanges with the memory behind it.

A cache holds the bytes used last (LRU). For a nest of loops, the model takes the first k loops whose
iteration touches no more than fits. A tensor is then fetched once for each iteration of the loops around
that change its box, and again for each iteration of loops outside of these. If the body of a loop does not
fit, the nests inside it, and the rest of the loop's own body, are steps that run in turn in every
iteration: `reuse.py` predicts what a step finds in the cache of what earlier steps touched. The nests at
the root are steps, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from math import ceil, gcd, prod

from tdsl.core.node import frozen
from tdsl.cost.branches import Branches, branches_of
from tdsl.cost.loopnests import Nests, NestSpot, memoised
from tdsl.cost.moved import Moved, MovedByName, bytes_in_lines
from tdsl.cost.reuse import Shift, Step, Sweeps, Touch, Touched, all_of, reused, volume
from tdsl.cost.sweeps import SAME, passes, sweep
from tdsl.lang.bounds import NO_FACTS, lower, upper
from tdsl.lang.regions import Box, Interval, reads_in, union_box
from tdsl.machine.model import PAGE_BYTES, Machine, MemoryLevel
from tdsl.schedule.bounds_inference import definition_ranges
from tdsl.schedule.state import PARALLEL, Level
from tdsl.schedule.tree import ROOT

KNOWN_PAGES = 64  # whose addresses a core finds at once: the entries of the first TLB of current CPUs


@frozen
class Body:
    """What one iteration of a loop touches, and what it moves the first time and in later iterations.

    A tensor in `steady` is used throughout: it stays in the cache while its box is the same. `inner` is what
    an iteration of the next inner loop touches; `again` is what moves if the whole body has just run.
    """

    touched: Touched
    first: MovedByName
    later: MovedByName
    steady: Mapping[str, float]
    inner: Touched
    again: MovedByName = field(default_factory=dict)


@frozen
class CacheModel:
    """A cache of `capacity` bytes in lines; threads of a parallel loop have `instances` such caches.

    With `sets` a line has a place in few sets only; otherwise anywhere, as in an ideal cache.
    """

    nests: Nests
    capacity: float
    line: int
    instances: int
    sets: bool = False

    @staticmethod
    def of(nests: Nests, level: MemoryLevel, machine: Machine, *, sets: bool = False) -> CacheModel:
        """The model of a cache level of a machine.

        Written lines arrive only when the next inner cache evicts them: its room for them is added.
        """
        size = machine.capacity(level)
        assert size is not None
        instances = min(machine.threads, max(machine.threads // level.shared_by, 1))
        at = [x.name for x in machine.caches].index(level.name)
        nearer = machine.capacity(machine.caches[at - 1]) or 0 if at else 0
        room = size + (nearer and nearer * _written(nests, level.line))
        return CacheModel(nests, room, level.line, instances, sets)

    @staticmethod
    def of_pages(nests: Nests, machine: Machine) -> CacheModel:
        """The model of the first TLB, a cache of addresses whose lines are pages."""
        return CacheModel(nests, KNOWN_PAGES * PAGE_BYTES, PAGE_BYTES, machine.threads)

    def by_nest(self, *, freed: bool = True) -> list[MovedByName]:
        """The bytes that each nest at the root moves, in execution order.

        With `freed`, written bytes that are still in the cache when their memory is freed are not moved.
        """
        steps = [self._nest(spot) for spot in self.nests.roots()]
        by_step = [dict[str, Moved]() for _ in steps]
        program = self.nests.state.program
        inner = {f.name for f in program.funcs} - {*program.outputs}
        for name in dict.fromkeys(n for s in steps for n in s.touched):
            moved, _ = reused(steps, name, self.capacity)
            left = self._freed(steps, name, moved) if freed and name in inner else 0.0
            for at, m in reversed(moved):
                by_step[at][name] = Moved(m.read, max(m.written - left, 0.0))
                left = max(left - m.written, 0.0)
        return by_step

    def _freed(self, steps: Sequence[Step], name: str, moved: Sequence[tuple[int, Moved]]) -> float:
        """The bytes of a func still cached when its memory is freed, after all nests or after its own."""
        last, _ = moved[-1]
        read, written = (sum(x) for x in zip(*((m.read, m.written) for _, m in moved), strict=True))
        lost = read / written if written else 0.0
        end, after = steps[last], 0.0
        if name in self.nests.tree.stored.get(ROOT, ()):
            after = sum(all_of(steps[last + 1 :]).values())
        most = min(end.sweeps(name).other_bytes + end.touched[name].size, _size(end.touched))
        stays = min(max((self.capacity - after) / most, 0.0), 1.0) if most else 1.0
        return end.touched[name].size * stays * max(1 - lost, 0.0)

    def peak_bytes(self) -> float:
        """The most bytes at a time that the cache holds to be read again."""
        return max((_size(self._levels(spot)[-1]) for spot in self.nests.roots()), default=0.0)

    def _nest(self, spot: NestSpot) -> Step:
        """The bytes that a nest and the nests inside its loops touch and move."""
        names, counts, inner = spot.nest.names(), spot.counts(), self._levels(spot)
        innermost = len(inner) - 1
        touched, moved = inner[innermost], _visited(spot, inner[innermost], innermost)
        all_ = _size(touched)
        steady, again = {n: all_ - t.size for n, t in touched.items()}, dict[str, Moved]()
        for k in range(innermost - 1, -1, -1):
            outer, count = self._rest(spot, k), counts[names[k]]
            within = inner[k + 2] if k + 2 <= innermost else {}
            body = Body(touched, moved, moved, steady, within, again)
            children = spot.children(k + 1) if k + 1 < innermost else []
            if children:
                rest = Step(touched, moved, self._sweeps(spot, k + 1, touched))
                steps = self._steps(spot, k + 1, rest, children)
                whole = {n: t for s in steps for n, t in s.touched.items()} | inner[k + 1]
                outer = {n: inner[k].get(n, t) for n, t in whole.items()} | outer
                body = Body(whole, *self._together(spot, k + 1, steps, whole, outer, count), within)
            instances = self.instances if spot.kind(names[k]) == PARALLEL else 1
            moved, steady = _in_loop(body, outer, count, instances, self.capacity)
            again = _again(body.touched, outer, moved, count, self.capacity)
            touched = outer
        return Step(touched, _with_sums(spot, moved, touched), self._sweeps(spot, 0, touched))

    def _levels(self, spot: NestSpot) -> list[Touched]:
        """What an iteration of the first k loops touches, for k = 0, 1, ... until it stays in the cache."""
        levels, depth = [self._touched(spot, 0)], len(spot.nest.loops)
        while len(levels) <= depth and _size(levels[-1]) > self.capacity:
            levels.append(self._touched(spot, len(levels)))
        counts = list(spot.counts().values())
        while 1 < len(levels) <= depth:
            at, (around, body) = len(levels) - 1, levels[-2:]
            left, new = self.capacity - _size(body), _new(around, body, counts[at - 1])
            if sum(new.values()) <= left:
                break
            if sum(x for n, x in new.items() if not self._passes(spot, at, n)) <= left:
                break
            levels.append(self._touched(spot, at + 1))
        return levels

    def _touched(self, spot: NestSpot, k: int) -> Touched:
        """What one iteration of the first k loops touches."""
        touched = _in_lines(spot, k, "all", self.line, self.sets)
        if k and _size(touched) > self.capacity and spot.windows(k):
            return _in_lines(spot, k, "new", self.line, self.sets)
        return touched

    def _rest(self, spot: NestSpot, k: int) -> Touched:
        """What the body of the k-th loop touches, without the nests inside it."""
        if k == 0 or not spot.children(k):
            return self._touched(spot, k)
        return _in_lines(spot, k, "rest", self.line, self.sets)

    def _passes(self, spot: NestSpot, k: int, name: str) -> bool:
        return passes(self._touched, self._rest, spot, k, name)

    def _sweeps(self, spot: NestSpot, k: int, touched: Touched) -> Sweeps:
        """How the first k loops, which touch `touched`, go through each array."""
        return partial(sweep, self._touched, spot, k, touched)

    def _steps(self, spot: NestSpot, k: int, rest: Step, children: Sequence[NestSpot]) -> list[Step]:
        """The steps in the body of the k-th loop, in execution order: nests inside it, and the `rest`."""
        names, counts, tree = spot.nest.names(), spot.counts(), self.nests.tree
        here = Level(spot.func.name, spot.definition, names[k - 1])
        behind = {*tree.after.get(here, ()), *tree.joined.get(here, ())}
        times = spot.times * prod(counts[x] for x in names[:k])
        before, after = list[Step](), list[Step]()
        for child in children:
            step = replace(self._nest(child), part=child.times / times if times else 1.0)
            (after if child.func.name in behind else before).append(step)
        return [*before, rest, *after]

    def _together(
        self, spot: NestSpot, k: int, steps: list[Step], touched: Touched, outer: Touched, count: float,
    ) -> tuple[MovedByName, MovedByName, dict[str, float]]:  # fmt: skip
        """What the body of the k-th loop moves the first time and in later iterations; what is `steady`."""
        first, later, steady = dict[str, Moved](), dict[str, Moved](), dict[str, float]()
        inside, new = spot.internal(k), _new(outer, touched, count)
        for name in dict.fromkeys(n for s in steps for n in s.touched):
            same_memory = name in inside or _is_same_memory(touched[name], outer[name])
            shift = _shift(touched[name], None if same_memory else outer[name], count)
            moved, lost = reused(steps, name, self.capacity, shift, new)
            later[name] = _sum(moved)
            computed = any(s.moved[name].written for s in steps if name in s.moved)
            first[name] = later[name] if computed else _sum(reused(steps, name, self.capacity)[0])
            if not lost and not later[name].total:
                steady[name] = _size(touched) - touched[name].size
        return first, later, steady


@memoised
def _written(nests: Nests, line: int) -> float:
    """The fraction of the bytes touched by nests that belongs to the funcs they compute."""
    written = all_ = 0.0
    for spot in nests.roots():
        computed = spot.computed(0)
        for name, touch in _in_lines(spot, 0, "all", line).items():
            all_ += touch.size
            written += touch.size if name in computed else 0.0
    return written / all_ if all_ else 0.0


def _new(around: Touched, body: Touched, count: float) -> dict[str, float]:
    """The bytes that the next iteration of a loop touches newly, of each tensor whose box changes."""
    return {
        n: min((around[n].size - t.size) / (count - 1), t.size)
        for n, t in body.items()
        if n in around and count > 1 and around[n].size > SAME * t.size
    }


@memoised
def _in_lines(spot: NestSpot, k: int, part: str, line: int, sets: bool = False) -> Touched:
    """What one iteration of the first k loops touches; gaps between distant reads do not count.

    `part` is "all" (the boxes needed), "new" (of sliding windows only the part not yet computed), or "rest"
    (without the nests inside the k-th loop).
    """
    nests = spot.nests
    boxes = spot.boxes(k) if part == "all" else dict(spot.rest_boxes(k))
    for child in spot.children(k) if part == "new" else ():
        for name, box in child.boxes(0).items():
            boxes[name] = union_box(boxes.get(name), box)
    touched = {n: touch_of(nests, n, box, line, sets) for n, box in boxes.items()}
    filled = spot.filled(k, boxes)
    inner = spot.computed(k) - {spot.func.name} if filled else set()
    for name, full in filled.items():
        readers = {c.name for c, _ in nests.state.consumers(name)}
        if name in touched and not readers & inner:
            touched[name] = replace(touched[name], size=full * touched[name].size)
    return touched | _chosen(spot, k, boxes, line)


def _chosen(spot: NestSpot, k: int, boxes: Mapping[str, Box], line: int) -> Touched:
    """What only branches read, and so only some iterations of the first k loops: the mean over all."""
    nests, always = spot.nests, set[str]()
    by_name: dict[str, list[tuple[float, Touch]]] = {}
    for name in spot.computed(k) & boxes.keys() & nests.whole.keys():
        f, is_owner = nests.state.program.func(name), name == spot.func.name
        for n in [spot.definition] if is_owner else range(len(f.definitions)):
            d, branches = f.definitions[n], _branches(nests, name, n)
            always |= d.indices.keys() - branches.keys()
            if branches:
                box = boxes[name]
                runs = spot.ranges(spot.first(k), wide=True) if is_owner else None
                ranges = runs or definition_ranges(d, box, NO_FACTS)
                for read, several in branches.items():
                    if read not in boxes:
                        continue  # loops over empty ranges read nothing
                    weighted = [(b.part(ranges), touch_of(nests, read, b.box(ranges), line)) for b in several]
                    by_name.setdefault(read, []).extend(weighted)
    means = dict[str, Touch]()
    for name, weighted in by_name.items():
        part = sum(p for p, _ in weighted)
        if name in boxes and name not in always and part < 1:
            _, touch = weighted[0]
            means[name] = Touch(touch.points, sum(p * t.size for p, t in weighted), part)
    return means


@memoised
def _branches(nests: Nests, name: str, definition: int) -> Branches:
    """What a definition reads in branches, over the box that the whole program needs of its func."""
    f = nests.state.program.func(name)
    d = f.definitions[definition]
    return branches_of(d, definition_ranges(d, nests.whole[name], NO_FACTS))


def touch_of(nests: Nests, name: str, box: Box, line: int, sets: bool = False) -> Touch:
    """The points of a box, and its bytes in whole lines, at most those of the func's memory."""
    program, whole = nests.state.program, nests.extents_in_memory(name, box)
    points = tuple(_ends(i, n) for i, n in zip(box, whole, strict=True))
    is_func = program.has_func(name)
    types = program.func(name).dtypes if is_func else (program.input(name).dtype,)
    order = (nests.state.plan(name).order if is_func else None) or range(len(box))
    shape = [min(int(points[a][1] - points[a][0]), whole[a]) for a in order]
    memory = [whole[a] for a in order]
    first = [_first(nests, name, a, points[a]) for a in order]
    ring = any(int(hi - lo) > n for (lo, hi), n in zip(points, whole, strict=True))
    if order:  # lines are touched as a whole
        n = max(line // types[0].bytes, 1)
        lo, hi = points[order[-1]]
        whole_lines = (lo // n * n, -(-hi // n) * n)
        points = tuple(whole_lines if a == order[-1] else p for a, p in enumerate(points))
    most = [-(-prod(memory) * t.bytes // line) * line for t in types]
    sizes = (bytes_in_lines(first, shape, memory, t.bytes, line) for t in types)
    size = sum(map(min, sizes, most))
    return Touch(points, size, ring=ring, room=_room(shape, memory, types[0].bytes, line) if sets else 0.0)


def _room(shape: Sequence[int], memory: Sequence[int], size: int, line: int) -> float:
    """The bytes of a cache that the rows of a box block, if these begin at few places of a page.

    A cache has as many lines for a place in a page as pages fill it, wherever the pages are.

    >>> _room((64, 16), (4096, 4096), 4, 64), _room((64, 16), (4096, 4112), 4, 64)
    (262144.0, 4096.0)
    """
    axis = len(shape) - 1
    while axis > 0 and shape[axis] >= memory[axis]:
        axis -= 1
    rows = [n for n in range(axis) if shape[n] > 1]
    if not rows:
        return 0.0
    places = 1
    for n in rows:
        stride = gcd(prod(memory[n + 1 :]) * size, PAGE_BYTES)
        places *= min(PAGE_BYTES // stride, shape[n])
    return float(-(-prod(shape[n] for n in rows) // min(places, PAGE_BYTES // line)) * PAGE_BYTES)


def _first(nests: Nests, name: str, axis: int, points: tuple[float, float]) -> int:
    """The first element of a box in memory; 0, at a line, for a func that is stored inside loops."""
    lo, _ = map(int, points)
    if not nests.state.program.has_func(name):
        return lo
    if name not in nests.tree.stored.get(ROOT, ()) or name not in nests.whole:  # nothing of it is needed
        return 0
    begin, _ = nests.whole[name][axis]
    return lo - ((None if begin is None else lower(begin)) or 0)


def _in_loop(
    body: Body, outer: Touched, count: float, instances: int, capacity: float
) -> tuple[MovedByName, dict[str, float]]:
    """What all iterations of a loop move together, and what is steady in them (see `Body`)."""
    moved, steady = dict[str, Moved](), dict[str, float]()
    for name, first in body.first.items():
        grown = max(outer[name].size / (body.touched[name].size or 1.0), 1.0)
        if name not in body.steady:
            still = _times(body.touched, outer, name) <= SAME
            chosen = body.touched[name].part < outer[name].part
            times = ceil(count) if still and not chosen else count  # a short last one touches all, too
            later = body.again.get(name, body.later[name]) if still else body.later[name]
            all_ = first + later.times(max(times - 1, 0))
            disjoint = _times(body.touched, outer, name) * SAME >= count  # but for lines at ends
            goes_on = disjoint and _size(body.touched) <= capacity
            goes_on = goes_on or _goes_on(body, outer, name, count, capacity)
            most = grown if instances == 1 and goes_on else times
            moved[name] = min(all_, first.times(most), key=lambda m: m.total)
        elif grown <= SAME:
            moved[name] = first if first.written else first.times(min(count, instances))
            steady[name] = body.steady[name]
        elif first.written and outer[name].ring:
            if _stays(body.touched, outer, name, count, capacity):
                steady[name] = _size(body.touched) - body.touched[name].size
            else:
                grown = _times(body.touched, outer, name)
            moved[name] = first.times(min(count, grown))
        else:
            moved[name] = first.times(min(count, grown))
    return moved, steady


def _again(body: Touched, outer: Touched, moved: MovedByName, count: float, capacity: float) -> MovedByName:
    """What a loop moves if it has just run: parts that several iterations touch may still be cached."""
    new, beyond = _new(outer, body, count), _size(outer) - capacity
    all_, moved_again = sum(new.values()), dict[str, Moved]()
    for name, n in new.items():
        before = ceil(beyond / all_) if all_ else 0  # iterations back, in which it was touched last
        if name in moved and 0 < before < count and not moved[name].written:
            stays = (count - before) * min(max(body[name].size - before * n, 0.0), n)
            moved_again[name] = Moved(max(moved[name].read - stays, 0.0))
    return moved_again


def _times(body: Touched, outer: Touched, name: str) -> float:
    """The points that a loop touches, divided by those that one iteration touches."""
    return volume(outer[name].points) / (volume(body[name].points) or 1.0)


def _goes_on(body: Body, outer: Touched, name: str, count: float, capacity: float) -> bool:
    """True if an iteration of a loop begins where the previous one ended, with their overlap still cached.

    That is so if the next inner loop moves along the same axis.
    """
    if name not in body.inner:
        return False
    touch, wide, narrow = body.touched[name], outer[name], body.inner[name]
    axes = [n for n, (a, b) in enumerate(zip(wide.points, touch.points, strict=True)) if a != b]
    same = [n for n, (a, b) in enumerate(zip(touch.points, narrow.points, strict=True)) if a != b]
    if len(axes) != 1 or axes != same or count <= 1 or not touch.size:
        return False
    both = 1 - (wide.size - touch.size) / (count - 1) / touch.size
    return 2 * both * _size(body.touched) <= capacity


def _stays(body: Touched, outer: Touched, name: str, count: float, capacity: float) -> bool:
    """True if a ring buffer stays cached until it is reused: all that is touched meanwhile fits."""
    size, ring = body[name].size, outer[name].size
    new = size * (_times(body, outer, name) - 1) / max(count - 1, 1)
    around = (ring - size) / new if new else 1.0  # or the next iteration touches the same
    more = _new(outer, body, count)
    sizes = (min(t.size + around * more.get(n, 0.0), outer[n].size) for n, t in body.items())
    return sum(sizes) <= capacity


def _is_same_memory(inner: Touch, outer: Touch) -> bool:
    """True if all iterations use the same memory: a ring buffer with room for one iteration only."""
    return outer.ring and outer.size <= SAME * inner.size


def _shift(inner: Touch, outer: Touch | None, count: float) -> Shift:
    """The distance per axis from the points of an iteration to those of the next, averaged over all."""
    if outer is not None and inner.part < outer.part:
        count *= inner.part / outer.part
        if count <= 1:  # what is touched in one iteration is not in the next
            return tuple(last - first for first, last in inner.points)
    if outer is None or count <= 1:
        return tuple(0.0 for _ in inner.points)
    return tuple(
        max(hi - lo - (last - first), 0.0) / (count - 1)
        for (lo, hi), (first, last) in zip(outer.points, inner.points, strict=True)
    )


def _visited(spot: NestSpot, touched: Touched, k: int) -> MovedByName:
    """What an iteration of the first k loops moves with a cold cache; computed funcs are only written."""
    inner, owner = spot.computed(k), spot.func.name
    moved = {n: Moved(written=t.size) if n in inner else Moved(t.size) for n, t in touched.items()}
    if _updates(spot):
        moved[owner] = Moved(touched[owner].size, touched[owner].size)
    return moved


def _with_sums(spot: NestSpot, moved: MovedByName, touched: Touched) -> MovedByName:
    """What a nest moves, with the partial results that it reads again when loops return to them."""
    total, owner = dict(moved), spot.func.name
    if spot.func.definitions[spot.definition].combine is not None and not _updates(spot):
        m = total[owner]
        total[owner] = Moved(m.read + max(m.written - touched[owner].size, 0.0), m.written)
    return total


def _updates(spot: NestSpot) -> bool:
    """True if a definition reads values of its func that an earlier definition wrote."""
    d = spot.func.definitions[spot.definition]
    reads = any(r.name == spot.func.name for r in reads_in(d.expressions()))
    return spot.definition > 0 and (reads or d.combine is not None)


def _ends(interval: Interval, extent: int) -> tuple[float, float]:
    """The first point and the one behind the last; 0 and the extent for an unbounded interval."""
    lo, hi = interval
    first, last = None if lo is None else lower(lo), None if hi is None else upper(hi)
    if first is None or last is None:
        return 0.0, float(extent)
    return float(first), float(max(last + 1, first))


def _size(touched: Touched) -> float:
    return sum(max(t.size, t.room) for t in touched.values())


def _sum(moved: list[tuple[int, Moved]]) -> Moved:
    return Moved(sum(m.read for _, m in moved), sum(m.written for _, m in moved))
