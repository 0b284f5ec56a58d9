"""In which order loops go through arrays, and what else is touched meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tdsl.cost.loopnests import NestSpot
from tdsl.cost.reuse import Sweep, Touched, volume

SAME = 1.001  # times as much is no more
TouchedIn = Callable[[NestSpot, int], Touched]  # what an iteration of so many first loops touches


def sweep(touched: TouchedIn, spot: NestSpot, k: int, outer: Touched, name: str) -> Sweep:
    """How loops within the first k ones, which touch `outer`, go through an array.

    The outermost one that moves it goes through it, those around it come back to it.
    """
    names, current = spot.nest.names(), outer
    for at in range(k, len(names)):
        if at > k and spot.children(at):
            break
        inner = touched(spot, at + 1)
        if name not in inner or outer[name].size > SAME * inner[name].size:
            ends = inner[name].points if name in inner else outer[name].points
            pairs = enumerate(zip(outer[name].points, ends, strict=True))
            axes = frozenset(axis for axis, (a, b) in pairs if a != b)
            if outer[name].ring and name in inner:
                current = _once_around(current, inner, name)
            return _sweep(outer, current, name, axes)
        current = inner
    return _sweep(outer, current, name, frozenset())


def _once_around(around: Touched, body: Touched, name: str) -> Touched:
    """What a loop touches until it comes back to the same memory of a ring."""
    times = volume(around[name].points) / (volume(body[name].points) or 1.0)
    part = min(around[name].size / (times * body[name].size or 1.0), 1.0)
    return {
        n: replace(t, size=max(part * t.size, body[n].size if n in body else 0.0)) for n, t in around.items()
    }


def _sweep(outer: Touched, current: Touched, name: str, axes: frozenset[int]) -> Sweep:
    other_bytes = sum(t.size for n, t in current.items() if n != name)
    all_ = sum(t.size for n, t in outer.items() if n != name)
    return Sweep(other_bytes, axes, bool(axes) and other_bytes * SAME >= all_)


def passes(touched: TouchedIn, rest: TouchedIn, spot: NestSpot, k: int, name: str) -> bool:
    """Whether an iteration of the first k loops uses each part of an array in a part of its time alone."""
    left = rest(spot, k)
    using = [c for c in (spot.children(k) if k else ()) if name in touched(c, 0)]
    if using:
        return len(using) == 1 and name not in left and passes(touched, rest, using[0], 0, name)
    return name in left and sweep(touched, spot, k, left, name).once
