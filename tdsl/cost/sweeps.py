"""In which order loops go through arrays, and what else is touched meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tdsl.cost.loopnests import NestSpot
from tdsl.cost.reuse import Sweep, Touched, volume

SAME = 1.001  # times as much is no more
TouchedIn = Callable[[NestSpot, int], Touched]  # what an iteration of so many first loops touches


def sweep(touched: TouchedIn, spot: NestSpot, k: int, own: Touched, name: str) -> Sweep:
    """How loops within the first k ones, which touch their `own`, go through an array.

    The outermost one that moves it goes through it, those around it come back to it.
    """
    names, found = spot.nest.names(), own
    for at in range(k, len(names)):
        if at > k and spot.children(at):
            break
        inner = touched(spot, at + 1)
        if name not in inner or own[name].size > SAME * inner[name].size:
            ends = inner[name].points if name in inner else own[name].points
            pairs = enumerate(zip(own[name].points, ends, strict=True))
            axes = frozenset(axis for axis, (a, b) in pairs if a != b)
            if own[name].ring and name in inner:
                found = _once_around(found, inner, name)
            return _sweep(own, found, name, axes)
        found = inner
    return _sweep(own, found, name, frozenset())


def _once_around(around: Touched, body: Touched, name: str) -> Touched:
    """What a loop touches until it comes back to the same memory of a ring."""
    times = volume(around[name].points) / (volume(body[name].points) or 1.0)
    part = min(around[name].size / (times * body[name].size or 1.0), 1.0)
    return {
        n: replace(t, size=max(part * t.size, body[n].size if n in body else 0.0))
        for n, t in around.items()
    }


def _sweep(own: Touched, found: Touched, name: str, axes: frozenset[int]) -> Sweep:
    beside = sum(t.size for n, t in found.items() if n != name)
    all_ = sum(t.size for n, t in own.items() if n != name)
    return Sweep(beside, axes, bool(axes) and beside * SAME >= all_)


def passes(touched: TouchedIn, rest: TouchedIn, spot: NestSpot, k: int, name: str) -> bool:
    """Whether an iteration of the first k loops uses each part of an array in a part of its time alone."""
    own = rest(spot, k)
    using = [c for c in (spot.children(k) if k else ()) if name in touched(c, 0)]
    if using:
        return len(using) == 1 and name not in own and passes(touched, rest, using[0], 0, name)
    return name in own and sweep(touched, spot, k, own, name).once
