"""Finds how much stays in each cache from the bandwidth of working sets of rising size.

Within a cache the bandwidth is about constant, and it falls where a working set no longer fits. Other load
only makes a run slower, so a bandwidth is at least that of any larger working set. Its logarithm is
approximated by constant pieces, at most one for each cache and one for memory, with the least sum of squared
errors; pieces that differ little are one. The ends of pieces are assigned to
the caches whose reported sizes are nearest. A cache without an end has no bandwidth of its own: a virtual
machine may report the last cache of its host. An end far from what is reported is no size, but noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import median

from tdsl.core.node import frozen
from tdsl.machine.model import MemoryLevel

LARGER = 2  # times the reported size can be what stays in a cache
SMALLER = 4  # times what stays in one that is not shared by all can be the reported size
STEP = 1.15  # pieces whose bandwidth differs by less are one
SHORTEST = 2  # working sets in a piece
Curve = Sequence[tuple[int, float]]  # (bytes of the working set of a thread, bytes per second), sizes rising


@frozen
class LevelFigures:
    """The bandwidth of a level, and the bytes of an instance that stay there, None if no end was seen."""

    bandwidth: float
    effective: int | None


def level_figures(curve: Curve, caches: Sequence[MemoryLevel], threads: int) -> list[LevelFigures]:
    """The figures of each cache, innermost first, and of memory, from the bandwidth of `threads` threads.

    >>> caches = MemoryLevel("L1", 1 << 15), MemoryLevel("L2", 1 << 20)
    >>> curve = [(1 << n, 9e10 if n <= 15 else 4e10 if n <= 19 else 1e10) for n in range(12, 25)]
    >>> [(x.bandwidth, x.effective) for x in level_figures(curve, caches, 1)]
    [(90000000000.0, 32768), (40000000000.0, 524288), (10000000000.0, None)]
    """
    curve = _falling(curve)
    pieces = _pieces(curve, len(caches) + 1)
    speeds = [median(speed for _, speed in piece) for piece in pieces]
    ends = [_end(a, b, math.sqrt(x * y)) for (a, x), (b, y) in pairwise(zip(pieces, speeds, strict=True))]
    sizes = [[end * min(threads, cache.shared_by) for cache in caches] for end in ends]
    assigned = min(
        combinations(range(len(caches)), len(ends)),
        key=lambda at: sum(abs(math.log2(sizes[n][c] / (caches[c].bytes or 1))) for n, c in enumerate(at)),
    )
    effective = {c: sizes[n][c] for n, c in enumerate(assigned) if _is_size(sizes[n][c], caches, c)}
    return [
        LevelFigures(speeds[sum(c < level for c in assigned)], effective.get(level))
        for level in range(len(caches) + 1)
    ]


def _falling(curve: Curve) -> Curve:
    """The curve with the bandwidth of a larger working set where it is higher."""
    best, points = 0.0, []
    for size, speed in reversed(curve):
        best = max(best, speed)
        points.append((size, best))
    return points[::-1]


def _is_size(size: int, caches: Sequence[MemoryLevel], at: int) -> bool:
    """True if so many bytes can stay in a cache."""
    reported = caches[at].bytes or size
    return size <= LARGER * reported and (at == len(caches) - 1 or size * SMALLER >= reported)


def _end(inner: Curve, outer: Curve, least: float) -> int:
    """The largest working set with a bandwidth of at least `least`, among those of two pieces."""
    return max((size for size, speed in (*inner, *outer) if speed >= least), default=inner[-1][0])


def _pieces(curve: Curve, most: int) -> list[Curve]:
    """At most `most` pieces of falling bandwidth."""
    best: list[Curve] = [curve]
    for count in range(2, most + 1):
        pieces = _split([math.log(speed) for _, speed in curve], count)
        if pieces is None:
            break
        parts = [curve[a:b] for a, b in pairwise(pieces)]
        speeds = [median(speed for _, speed in part) for part in parts]
        if all(x >= STEP * y for x, y in pairwise(speeds)):
            best = parts
    return best


def _split(values: Sequence[float], count: int) -> list[int] | None:
    """The bounds of `count` pieces with the least sum of squared differences from their means."""
    n = len(values)
    if n < SHORTEST * count:
        return None
    sums, squares = [0.0], [0.0]
    for v in values:
        sums.append(sums[-1] + v)
        squares.append(squares[-1] + v * v)

    def error(a: int, b: int) -> float:
        return squares[b] - squares[a] - (sums[b] - sums[a]) ** 2 / (b - a)

    best: list[tuple[float, list[int]] | None] = [
        (error(0, b), [0, b]) if b >= SHORTEST else None for b in range(n + 1)
    ]
    for _ in range(count - 1):
        following: list[tuple[float, list[int]] | None] = [None] * (n + 1)
        for b in range(n + 1):
            options = [
                (old[0] + error(a, b), [*old[1], b])
                for a in range(b - SHORTEST + 1)
                if (old := best[a]) is not None
            ]
            following[b] = min(options, default=None)
        best = following
    last = best[n]
    return None if last is None else last[1]


def rounded(x: float) -> float:
    """A figure with two digits on a grid of eight per octave, so that measuring again rarely changes it.

    >>> [rounded(x) for x in (103e9, 108e9, 3.1e-6)]
    [110000000000.0, 110000000000.0, 3.2e-06]
    """
    return float(f"{2 ** (round(8 * math.log2(x)) / 8):.2g}")
