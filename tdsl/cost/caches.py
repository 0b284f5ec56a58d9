"""The bytes that a cache exchanges with the memory behind it.

A cache holds what was used last. Of a nest of loops, it keeps what an iteration of the first loops touches
that fits into it; a tensor is then fetched once for each iteration of the loops around that move its box, and
again for each iteration of loops outside of those. In a loop whose body does not fit, the nests that stand
there and what is left of its own are steps, one after another, and in the next iteration again: `reuse.py`
says what a step finds of what others have touched. So are the nests at the root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from math import ceil, prod

from tdsl.core.node import frozen
from tdsl.cost.branches import Branches, branches_of
from tdsl.cost.loopnests import Nests, NestSpot, memoised
from tdsl.cost.moved import Bytes, Moved, bytes_in_lines
from tdsl.cost.reuse import Shift, Step, Sweeps, Touch, Touched, all_of, reused, volume
from tdsl.cost.sweeps import SAME, passes, sweep
from tdsl.lang.bounds import NO_FACTS, lower, upper
from tdsl.lang.regions import Box, Interval, reads_in, union_box
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.bounds_inference import definition_ranges
from tdsl.schedule.state import PARALLEL, Level
from tdsl.schedule.tree import ROOT


@frozen
class Body:
    """What the body of a loop touches, and moves the first time and later on.

    What is `steady` is used all the time: it stays from one iteration to the next where its box does.
    `inner` is what an iteration of the next loop touches, `again` what is moved if all of it has just run.
    """

    touched: Touched
    first: Bytes
    later: Bytes
    steady: Mapping[str, float]
    inner: Touched
    again: Bytes = field(default_factory=dict)


@frozen
class CacheModel:
    """A cache of some bytes in lines; threads that run parallel loops have so many of them."""

    nests: Nests
    capacity: float
    line: int
    instances: int

    @staticmethod
    def of(nests: Nests, level: MemoryLevel, machine: Machine) -> CacheModel:
        """That of a level of a machine.

        What is written comes here when the nearer cache gives it up: it has room for so much more.
        """
        assert level.bytes is not None
        instances = min(machine.threads, max(machine.threads // level.shared_by, 1))
        at = [x.name for x in machine.caches].index(level.name)
        nearer = machine.caches[at - 1].bytes or 0 if at else 0
        room = level.bytes + (nearer and nearer * _written(nests, level.line))
        return CacheModel(nests, room, level.line, instances)

    def by_nest(self, *, freed: bool = True) -> list[Bytes]:
        """What each nest at the root moves, in running order.

        What is left in the cache when memory is freed at the end never goes out, but for calls that follow.
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
        """The bytes of memory that are still there when it is freed: at the end of all, or of its nest."""
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
        """The most bytes that the cache holds at a time of what is read from it again."""
        return max((_size(self._levels(spot)[-1]) for spot in self.nests.roots()), default=0.0)

    def _nest(self, spot: NestSpot) -> Step:
        """The bytes that a nest, and the nests in its loops, move."""
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
        """What an iteration of the first loops touches, from none of them to so many that it stays."""
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
        touched = _in_lines(spot, k, "all", self.line)
        if k and _size(touched) > self.capacity and spot.windows(k):
            return _in_lines(spot, k, "new", self.line)
        return touched

    def _rest(self, spot: NestSpot, k: int) -> Touched:
        """What is touched in the body of the k-th loop without the nests that stand there."""
        if k == 0 or not spot.children(k):
            return self._touched(spot, k)
        return _in_lines(spot, k, "rest", self.line)

    def _passes(self, spot: NestSpot, k: int, name: str) -> bool:
        return passes(self._touched, self._rest, spot, k, name)

    def _sweeps(self, spot: NestSpot, k: int, touched: Touched) -> Sweeps:
        """How the first k loops, which touch `touched`, go through each array."""
        return partial(sweep, self._touched, spot, k, touched)

    def _steps(self, spot: NestSpot, k: int, rest: Step, children: Sequence[NestSpot]) -> list[Step]:
        """What stands in the body of the k-th loop, in running order."""
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
    ) -> tuple[Bytes, Bytes, dict[str, float]]:  # fmt: skip
        """What the body of the k-th loop moves the first time and later on, and what is steady in it."""
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
    """The part of the bytes that nests touch which they compute themselves."""
    written = all_ = 0.0
    for spot in nests.roots():
        computed = spot.computed(0)
        for name, touch in _in_lines(spot, 0, "all", line).items():
            all_ += touch.size
            written += touch.size if name in computed else 0.0
    return written / all_ if all_ else 0.0


def _new(around: Touched, body: Touched, count: float) -> dict[str, float]:
    """The bytes that the next iteration of a loop touches beyond those of one, of what moves."""
    return {
        n: min((around[n].size - t.size) / (count - 1), t.size)
        for n, t in body.items()
        if n in around and count > 1 and around[n].size > SAME * t.size
    }


@memoised
def _in_lines(spot: NestSpot, k: int, part: str, line: int) -> Touched:
    """What is touched in one iteration of the first k loops.

    "all" is what is needed, of which what slides is computed already but for its "new" part; the "rest" is
    without the nests in the body of the k-th loop. Gaps between reads far apart do not count.
    """
    nests = spot.nests
    boxes = spot.boxes(k) if part == "all" else dict(spot.rest_boxes(k))
    for child in spot.children(k) if part == "new" else ():
        for name, box in child.boxes(0).items():
            boxes[name] = union_box(boxes.get(name), box)
    touched = {n: _touch(nests, n, box, line) for n, box in boxes.items()}
    filled = spot.filled(k, boxes)
    inner = spot.computed(k) - {spot.func.name} if filled else set()
    for name, full in filled.items():
        readers = {c.name for c, _ in nests.state.consumers(name)}
        if name in touched and not readers & inner:
            touched[name] = replace(touched[name], size=full * touched[name].size)
    return touched | _chosen(spot, k, boxes, line)


def _chosen(spot: NestSpot, k: int, boxes: Mapping[str, Box], line: int) -> Touched:
    """What branches alone read in some iterations of the first k loops, in the mean of all."""
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
                ranges = runs or definition_ranges(f, d, box, NO_FACTS)
                for read, several in branches.items():
                    if read not in boxes:
                        continue  # loops over empty ranges read nothing
                    weighted = [(b.part(ranges), _touch(nests, read, b.box(ranges), line)) for b in several]
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
    """What a definition reads in branches, of all that is needed of its func."""
    f = nests.state.program.func(name)
    d = f.definitions[definition]
    return branches_of(d, definition_ranges(f, d, nests.whole[name], NO_FACTS))


def _touch(nests: Nests, name: str, box: Box, line: int) -> Touch:
    """The points of a box, and its bytes in lines: no more than there is memory."""
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
    return Touch(points, size, ring=ring)


def _first(nests: Nests, name: str, axis: int, points: tuple[float, float]) -> int:
    """Where points begin in memory; of what is stored in loops, at a line."""
    lo, _ = map(int, points)
    if not nests.state.program.has_func(name):
        return lo
    if name not in nests.tree.stored.get(ROOT, ()):
        return 0
    begin, _ = nests.whole[name][axis]
    return lo - ((None if begin is None else lower(begin)) or 0)


def _in_loop(
    body: Body, outer: Touched, count: float, instances: int, capacity: float
) -> tuple[Bytes, dict[str, float]]:
    """What a loop moves, all iterations together; and what is used in all of them where it is."""
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


def _again(body: Touched, outer: Touched, moved: Bytes, count: float, capacity: float) -> Bytes:
    """What a loop moves that has just run: parts that several of its iterations touch may still be there."""
    new, beyond = _new(outer, body, count), _size(outer) - capacity
    all_, moved_again = sum(new.values()), dict[str, Moved]()
    for name, n in new.items():
        before = ceil(beyond / all_) if all_ else 0  # iterations back, in which it was touched last
        if name in moved and 0 < before < count and not moved[name].written:
            stays = (count - before) * min(max(body[name].size - before * n, 0.0), n)
            moved_again[name] = Moved(max(moved[name].read - stays, 0.0))
    return moved_again


def _times(body: Touched, outer: Touched, name: str) -> float:
    """How many times as many points a loop touches as its body."""
    return volume(outer[name].points) / (volume(body[name].points) or 1.0)


def _goes_on(body: Body, outer: Touched, name: str, count: float, capacity: float) -> bool:
    """Whether iterations of a loop begin where those before have ended, and what both touch is still there.

    They do where the loops within go the same way.
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
    """Whether a ring stays until it has come around: all that is touched meanwhile fits."""
    size, ring = body[name].size, outer[name].size
    new = size * (_times(body, outer, name) - 1) / max(count - 1, 1)
    around = (ring - size) / new if new else 1.0  # or the next iteration touches the same
    more = _new(outer, body, count)
    sizes = (min(t.size + around * more.get(n, 0.0), outer[n].size) for n, t in body.items())
    return sum(sizes) <= capacity


def _is_same_memory(inner: Touch, outer: Touch) -> bool:
    """Whether all iterations use the same memory for an array: a ring that holds no more than one of them."""
    return outer.ring and outer.size <= SAME * inner.size


def _shift(inner: Touch, outer: Touch | None, count: float) -> Shift:
    """How far points lie from those of the next iteration: forwards, by what all of them reach beyond one."""
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


def _visited(spot: NestSpot, touched: Touched, k: int) -> Bytes:
    """What an iteration of the first k loops moves with a cold cache; what it computes it only writes."""
    inner, owner = spot.computed(k), spot.func.name
    moved = {n: Moved(written=t.size) if n in inner else Moved(t.size) for n, t in touched.items()}
    if _updates(spot):
        moved[owner] = Moved(touched[owner].size, touched[owner].size)
    return moved


def _with_sums(spot: NestSpot, moved: Bytes, touched: Touched) -> Bytes:
    """What a nest moves, with the partial sums that it reads again where loops come back to them."""
    total, owner = dict(moved), spot.func.name
    if spot.func.definitions[spot.definition].combine is not None and not _updates(spot):
        m = total[owner]
        total[owner] = Moved(m.read + max(m.written - touched[owner].size, 0.0), m.written)
    return total


def _updates(spot: NestSpot) -> bool:
    """Whether a definition reads what one before it has written of the same func."""
    d = spot.func.definitions[spot.definition]
    reads = any(r.name == spot.func.name for r in reads_in(d.expressions()))
    return spot.definition > 0 and (reads or d.combine is not None)


def _ends(interval: Interval, extent: int) -> tuple[float, float]:
    """The first point, and the first beyond; all there are where it has no bounds."""
    lo, hi = interval
    first, last = None if lo is None else lower(lo), None if hi is None else upper(hi)
    if first is None or last is None:
        return 0.0, float(extent)
    return float(first), float(max(last + 1, first))


def _size(touched: Touched) -> float:
    return sum(t.size for t in touched.values())


def _sum(moved: list[tuple[int, Moved]]) -> Moved:
    return Moved(sum(m.read for _, m in moved), sum(m.written for _, m in moved))
