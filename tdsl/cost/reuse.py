"""What a cache still holds of an array when it is used again, in steps that follow each other.

A cache holds what was used last. A step finds those points of an array that an earlier one has touched, if
all that is touched meanwhile fits: of these two steps themselves what comes after a point, and before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import inf, prod

from tdsl.core.node import frozen
from tdsl.cost.moved import Moved, MovedByName

RARE = 0.5  # of the iterations of a loop, below which a step is seldom between others
PLACES = 8  # along each of two orders in which an array is gone through
Points = tuple[tuple[float, float], ...]  # of each axis the first, and the first that is not there
Shift = tuple[float, ...]


@frozen
class Touch:
    """The points of an array that are touched, and their bytes in whole lines.

    Where that is done in `part` of the iterations of a loop, the bytes are those of the mean. Points of a
    `ring` take turns in less memory. Of a cache with sets the lines take `room` bytes, more than `size` where
    they fall into few sets.
    """

    points: Points
    size: float
    part: float = 1.0
    ring: bool = False
    room: float = 0.0


Touched = dict[str, Touch]


@frozen
class Sweep:
    """A pass over what is touched of an array along `axes`, while `other_bytes` of others are touched.

    It is the only one of `once`; otherwise others follow.
    """

    other_bytes: float
    axes: frozenset[int] = frozenset()
    once: bool = True


Sweeps = Callable[[str], Sweep]


@frozen
class Step:
    """What is done at a time: what it touches, and what it moves where nothing of that is in the cache.

    `sweeps` says how it goes through an array. In a loop it is done in `part` of the iterations.
    """

    touched: Touched
    moved: MovedByName
    sweeps: Sweeps = field(default=lambda _: Sweep(inf))
    part: float = 1.0


def reused(
    steps: Sequence[Step],
    name: str,
    capacity: float,
    shift: Shift | None = None,
    new: Mapping[str, float] | None = None,
) -> tuple[list[tuple[int, Moved]], bool]:
    """What steps move of an array, each by its number; and whether anything went out between two uses.

    `shift` is by how much its points lie further on in the next iteration of a loop of these steps; None
    where nothing has run before.

    >>> line = {"a": Touch(((0, 16),), 64.0)}
    >>> steps = [Step(line, {"a": Moved(written=64.0)}), Step(line, {"a": Moved(read=64.0)})]
    >>> reused(steps, "a", 64.0)
    ([(0, Moved(read=0.0, written=64.0)), (1, Moved(read=0.0, written=0.0))], False)
    >>> reused(steps, "a", 63.0)[0][1]
    (1, Moved(read=64.0, written=0.0))
    """
    uses = [n for n, s in enumerate(steps) if name in s.touched]
    there = {n: _there(steps, uses, n, name, capacity, shift, new or {}) for n in uses}
    dirty = dict.fromkeys(uses, 0.0)  # the part of what a step touches that has to go out one day
    for n in (*uses, *uses):
        known = sum(part * dirty[m] for m, part in there[n][0])
        dirty[n] = 1.0 if steps[n].moved.get(name, Moved()).written else known
    bytes_moved = []
    for n in uses:
        m, size = steps[n].moved.get(name, Moved()), steps[n].touched[name].size
        hits = there[n][0]
        read = max(m.read - size * sum(part for _, part in hits), 0.0)
        written = max(m.written - size * sum(part * dirty[k] for k, part in hits), 0.0)
        bytes_moved.append((n, Moved(read, written).times(steps[n].part)))
    return bytes_moved, any(lost for _, lost in there.values())


def all_of(steps: Sequence[Step]) -> dict[str, float]:
    """The bytes that steps touch of each array."""
    sizes: dict[str, float] = {}
    for s in steps:
        for n, t in s.touched.items():
            sizes[n] = max(sizes.get(n, 0.0), t.size)
    return sizes


def _there(
    steps: Sequence[Step], uses: Sequence[int], at: int, name: str, capacity: float,
    shift: Shift | None, new: Mapping[str, float],
) -> tuple[list[tuple[int, float]], bool]:  # fmt: skip
    """Which part of what a step touches of an array others have left in the cache; whether some has gone."""
    here, lost = steps[at], False
    left, hits = [here.touched[name].points], list[tuple[int, float]]()
    whole = volume(left[0]) or 1.0
    for n, back in _before(steps, uses, at):
        points = steps[n].touched[name].points
        if back and shift is None:
            continue
        if back and shift is not None:
            one = 1 / here.part if n == at and here.part < RARE else 1.0
            points = tuple((lo - one * d, hi - one * d) for (lo, hi), d in zip(points, shift, strict=True))
        same = sum(volume(_common(x, points)) for x in left)
        if same:
            kept = _kept(steps, (n, at), name, capacity, new if back else None)
            hits.append((n, kept * same / whole))
            lost = lost or kept < 1
            left = [y for x in left for y in _without(x, points)]
        if not left:
            break
    return hits, lost


def _kept(
    steps: Sequence[Step], uses: tuple[int, int], name: str, capacity: float,
    new: Mapping[str, float] | None,
) -> float:  # fmt: skip
    """The part of an array that is still there when it is used for the second time, without any use between.

    In the next iteration if it has `new` bytes. Elements that come first have all else that the first use
    touches before the second one, those that come last all else that the second one touches. Two uses that go
    through it along different axes bring together any two of their times.
    """
    n, at = uses
    tail, head = steps[n], steps[at]
    old, young = (steps[n + 1 : at], []) if new is None else (steps[n + 1 :], steps[:at])
    seldom, new = head.part < RARE, new or {}
    sizes = all_of([s for s in (*old, *young) if seldom or s.part >= RARE])
    sizes[name] = max(sizes.get(name, 0.0), tail.touched[name].size, head.touched[name].size)
    twice = all_of(old).keys() & all_of(young).keys()
    room = capacity - sum(sizes.values()) - sum(new.get(x, 0.0) for x in twice)
    if room + sizes[name] <= 0:
        return 0.0
    between = _Between(tail, head, name, sizes, {n: x for n, x in new.items() if n not in twice})
    if between.most <= room:
        return 1.0
    first, last = between.size(1.0, 0.0), between.size(0.0, 1.0)
    if between.crosses:
        size, none, both = sizes[name], between.size(0.0, 0.0), between.size(1.0, 1.0)
        return _within(room + size, none, first + size, last + size, both + size)
    low, high = min(first, last), max(first, last)
    return float(high <= room) if high <= room or low > room else (room - low) / (high - low)


@frozen
class _Between:
    """The other arrays that two steps touch between the last use of an array and its next one.

    `sizes` are counted already, but for what is `new` of them.
    """

    tail: Step
    head: Step
    name: str
    sizes: Mapping[str, float]
    new: Mapping[str, float]

    @property
    def others(self) -> set[str]:
        """The names of these arrays."""
        return (self.tail.touched.keys() | self.head.touched.keys()) - {self.name}

    @property
    def most(self) -> float:
        """No less than they touch."""
        return sum(self._size(x) + self.new.get(x, 0.0) for x in self.others)

    @property
    def crosses(self) -> bool:
        """Whether they go through the array along different axes."""
        one, other = (s.sweeps(self.name).axes for s in (self.tail, self.head))
        return bool(one and other) and not one & other

    def size(self, left: float, done: float) -> float:
        """The bytes of so much of the last sweep of the one and of the first sweep of the other."""
        total, once = 0.0, [_once(s, self.name) for s in (self.tail, self.head)]
        for x in self.others:
            part = once[0] * _part(self.tail, x, left) + once[1] * _part(self.head, x, done)
            here, again = self._size(x), self.new.get(x, 0.0)
            if x in self.sizes:
                total += min(part, 1.0) * again
            else:
                total += min(part, 1.0) * here + max(part - 1.0, 0.0) * again
        return total

    def _size(self, x: str) -> float:
        if x in self.sizes:
            return 0.0
        return max(s.touched[x].size for s in (self.tail, self.head) if x in s.touched)


def _once(step: Step, name: str) -> float:
    """The part of the other arrays of a step that it touches in one sweep over an array."""
    others = sum(t.size for n, t in step.touched.items() if n != name)
    return min(step.sweeps(name).other_bytes / others, 1.0) if others else 0.0


def _part(step: Step, name: str, time: float) -> float:
    """The part of an array that a step touches in such a part of its time."""
    if name not in step.touched:
        return 0.0
    return time if step.sweeps(name).once else 1.0


def _within(room: float, none: float, first: float, last: float, both: float) -> float:
    """In which part of a unit square what lies between its corners fits into some room.

    >>> _within(0.5, 0.0, 1.0, 1.0, 2.0), _within(1.5, 0.0, 1.0, 1.0, 1.0)
    (0.15625, 1.0)
    """
    twist = both - first - last + none
    at = [(n + 0.5) / PLACES for n in range(PLACES)]
    sizes = (none + x * (first - none) + y * (last - none) + x * y * twist for x in at for y in at)
    return sum(size <= room for size in sizes) / PLACES**2


def _before(steps: Sequence[Step], uses: Sequence[int], at: int) -> Iterator[tuple[int, bool]]:
    """The steps that use an array before one does, the last first; whether in the iteration before.

    Those that are done seldom come at the end.
    """
    order = [
        *((n, False) for n in reversed(uses) if n < at),
        *((n, True) for n in reversed(uses) if n >= at),
    ]
    rare = [n for n in uses if n != at and steps[n].part < RARE <= steps[at].part]
    yield from (x for x in order if x[0] not in rare)
    yield from (x for x in order if x[0] in rare)


def volume(points: Points) -> float:
    """How many points there are."""
    return prod(max(hi - lo, 0.0) for lo, hi in points)


def _common(a: Points, b: Points) -> Points:
    return tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))


def _without(a: Points, b: Points) -> list[Points]:
    """The boxes of what is in one and not in the other.

    >>> _without(((0, 4), (0, 2)), ((1, 9), (0, 9)))
    [((0, 1), (0, 2))]
    """
    common, pieces = _common(a, b), list[Points]()
    if not volume(common):
        return [a]
    for axis, (lo, hi) in enumerate(common):
        first, last = a[axis]
        pieces += [
            (*a[:axis], part, *a[axis + 1 :]) for part in ((first, lo), (hi, last)) if part[0] < part[1]
        ]
        a = (*a[:axis], (lo, hi), *a[axis + 1 :])
    return pieces
