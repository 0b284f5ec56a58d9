"""Iterations, bytes, operations and time of each loop of a schedule, as its prediction has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import cycle
from math import prod

from tdsl.core.text import in_bytes, in_seconds
from tdsl.cost.loopnests import NestSpot
from tdsl.cost.predict import Prediction
from tdsl.cost.seconds import time_of
from tdsl.cost.terms import Terms, bodies_of
from tdsl.lang.operations import operations_of
from tdsl.viewer.loops import loop_names, starting_loops

COLUMNS = ("iterations", "bytes of one", "operations", "time")
NOTE = (
    "bytes of one: what an iteration reads and writes of each array, once. operations: of all iterations. "
    "time: of outermost loops the predicted time, which the slowest resource takes; of loops inside, that of "
    "their arithmetic and of accesses to the nearest memory."
)


class LoopFigures:
    """The figures of the loops of a kernel, whose names there are of the func, of the loop, and a number."""

    def __init__(self, prediction: Prediction) -> None:
        self._of: dict[str, list[tuple[str, ...]]] = {}
        for spot, terms, time in zip(
            prediction.nests.roots(), prediction.terms, prediction.times, strict=True
        ):
            self._add(spot, prediction, terms, in_seconds(time.seconds))

    def _add(self, spot: NestSpot, p: Prediction, terms: Terms, whole: str = "") -> None:
        extents, inside = spot.extents(), {k: spot.children(k) for k in range(1, len(spot.nest.loops) + 1)}
        for k, loop in enumerate(spot.nest.names(), 1):
            deeper = [child for at, children in inside.items() if at >= k for child in children]
            operations = _operations(spot) + sum(map(_all_operations, deeper))
            bodies = [bodies_of(spot, p.machine)[0]]
            bodies += (body for child in deeper for body in bodies_of(child, p.machine))
            alone = Terms(terms.func, tuple(bodies), (), terms.workers, terms.reach)
            time = whole if whole and k == 1 else in_seconds(time_of(alone, p.machine).bodies)
            touched = sum(p.nests.bytes_of(name, box) for name, box in spot.boxes(k).items())
            row = (str(extents[loop]), in_bytes(touched), _count(operations), time)
            self._of.setdefault(f"{spot.func.name}_{loop}", []).append(row)
        for children in inside.values():
            for child in children:
                self._add(child, p, terms)

    def by_name(self, text: str) -> Mapping[str, tuple[str, ...]]:
        """The figures of the loops in the text of a kernel by their names there.

        A schedule that separates tails has copies of loops, which all have the figures of the loop.
        """
        loops: dict[str, list[str]] = {}
        starting = starting_loops(text)
        for name in loop_names(text):
            if name in starting:
                continue
            loops.setdefault(name if name in self._of else re.sub(r"_\d+$", "", name), []).append(name)
        rows: dict[str, tuple[str, ...]] = {}
        for base, same in loops.items():
            if figures := self._of.get(base):
                rows.update(zip(same, cycle(figures), strict=False))
        return rows


def _operations(spot: NestSpot) -> float:
    """The operations of a nest without those inside it."""
    d = spot.func.definitions[spot.definition]
    return spot.times * prod(spot.points()) * sum(x.count for x in operations_of(d))


def _all_operations(spot: NestSpot) -> float:
    inside = (c for k in range(1, len(spot.nest.loops) + 1) for c in spot.children(k))
    return _operations(spot) + sum(map(_all_operations, inside))


def _count(n: float) -> str:
    """A number with three digits.

    >>> _count(512), _count(2_097_152)
    ('512', '2.10 M')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}" if n / size >= 100 else f"{n / size:.2f} {unit}"
    return f"{n:.0f}"
