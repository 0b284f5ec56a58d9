"""`Cluster` and `Level`: the ranks that run a program, their links, and their memory."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import ShapeError, is_one_of
from tdsl.machine.devices import reference_cpu
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.placement.grid import Grid

LATENCY, BANDWIDTH = 1e-6, 10e9  # seconds, bytes a second: of a link for which none are stated
PORTS = ("rank", "group")


def _is_whole(x: Any, *, least: int) -> bool:
    return isinstance(x, int | np.integer) and not isinstance(x, bool) and int(x) >= least


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float | np.integer | np.floating) and not isinstance(x, bool)


@dataclass(frozen=True, slots=True)
class Level:
    """`count` groups of the next level (of ranks, in the last level), joined by links.

    A link takes `latency` seconds for a message and carries `bandwidth` bytes a second. `per` is "rank" if
    each rank has a link of its own, "group" if all ranks of one of the groups share one.
    """

    name: str
    count: int
    latency: float = LATENCY
    bandwidth: float = BANDWIDTH
    per: str = "rank"

    def __post_init__(self) -> None:
        wrong, hint = "", 'td.Level("node", 4, latency=2e-6, bandwidth=25e9, per="group")'
        count: object = self.count
        if isinstance(count, list | tuple):
            wrong = f"the groups of level {self.name!r} are of unequal sizes: {count!r}"
            hint = "plan for the smallest group: s.ranks(n) leaves the other ranks of a run idle"
        elif not (str(self.name).isidentifier()):
            wrong = f"a level is named by an identifier, not {self.name!r}"
        elif not _is_whole(self.count, least=1):
            wrong = f"level {self.name!r} has {self.count!r} groups or ranks"
        elif not (_is_number(self.latency) and 0 <= self.latency < math.inf):
            wrong = f"level {self.name!r} has a latency of {self.latency!r} seconds"
        elif not (_is_number(self.bandwidth) and self.bandwidth > 0):
            wrong = f"level {self.name!r} carries {self.bandwidth!r} bytes a second"
        elif not is_one_of(self.per, PORTS):
            wrong = f"level {self.name!r} has a link per {self.per!r}"
        if wrong:
            raise ShapeError(wrong, loc=here(), label="this level", hint=hint)


@dataclass(frozen=True, slots=True, init=False)
class Cluster:
    """The ranks of a run: `levels` of links, outermost first, and the `memory` of a rank in bytes.

    >>> Cluster(ranks=4).ranks, Cluster(Level("node", 2), Level("rank", 8)).ranks
    (4, 16)

    A rank does `operations` a second and reads `memory_bandwidth` bytes a second; by default as the machine
    of the schedule's target does. `memory=None` is no limit.
    """

    levels: tuple[Level, ...]
    memory: int | None
    operations: float | None
    memory_bandwidth: float | None

    def __init__(
        self, *levels: Level, ranks: int | None = None, latency: float | None = None,
        bandwidth: float | None = None, memory: int | None = None, operations: float | None = None,
        memory_bandwidth: float | None = None,
    ) -> None:  # fmt: skip
        wrong = ""
        if not all(isinstance(x, Level) for x in levels):
            wrong = f"a cluster consists of levels, not {levels!r}"
        elif bool(levels) == (ranks is not None):
            wrong = "a cluster has levels or a number of ranks"
        elif levels and (latency, bandwidth) != (None, None):
            wrong = "each level states its own latency and bandwidth"
        elif memory is not None and not _is_whole(memory, least=0):
            wrong = f"a memory of {memory!r} is no number of bytes"
        elif len({x.name for x in levels}) < len(levels):
            wrong = "two levels have one name"
        for name, rate in (("operations", operations), ("memory_bandwidth", memory_bandwidth)):
            if rate is not None and not (_is_number(rate) and rate > 0):
                wrong = f"{name} is a positive number a second, not {rate!r}"
        if wrong:
            raise ShapeError(
                wrong,
                loc=here(),
                label="this cluster",
                hint='td.Cluster(ranks=8), or td.Cluster(td.Level("node", 4), td.Level("rank", 8))',
            )
        if ranks is not None:
            one = Level("rank", ranks, LATENCY if latency is None else latency,
                        BANDWIDTH if bandwidth is None else bandwidth)  # fmt: skip
            levels = (one,)
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "memory", None if memory is None else operator.index(memory))
        object.__setattr__(self, "operations", operations)
        object.__setattr__(self, "memory_bandwidth", memory_bandwidth)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return math.prod(level.count for level in self.levels)

    def machine(self, machine: Machine) -> Machine:
        """A machine of one rank, with the links of this cluster."""
        links, below = [], 1
        for level in reversed(self.levels):
            links.append(
                MemoryLevel(
                    level.name, None, line=1, shared_by=below if level.per == "group" else 1,
                    bandwidth=((1, level.bandwidth),), latency=level.latency,
                )
            )  # fmt: skip
            below *= level.count
        return replace(machine, links=tuple(links))

    def rates(self, machine: Machine) -> tuple[float, float]:
        """The operations and the bytes of memory a second of a rank, where not stated those of a machine."""
        reference = reference_cpu()
        operations, memory = self.operations, self.memory_bandwidth
        if operations is None:
            rates = [r.per_second for r in machine.rates or reference.rates if r.unit in ("vector", "tensor")]
            operations = max(rates, default=1e10) * machine.threads
        if memory is None:
            level = machine.levels[-1]
            memory = level.bytes_per_second(machine.threads)
            memory = memory or reference.levels[-1].bytes_per_second(1) or BANDWIDTH
        return operations, memory

    def grids(self, axes: int) -> Iterator[Grid]:
        """The grids of this cluster, each level cut into at most `axes` axes, longer ones last.

        >>> [grid.shape for grid in Cluster(ranks=8).grids(3)]
        [(8,), (2, 4), (2, 2, 2)]
        """
        shapes = [list(_factorisations(level.count, axes)) for level in self.levels]
        for chosen in itertools.product(*shapes):
            grids = []
            for level, sizes in zip(self.levels, chosen, strict=True):
                numbers = [""] if len(sizes) == 1 else list(map(str, range(len(sizes))))
                named = {f"{level.name}{n}": size for n, size in zip(numbers, sizes, strict=True)}
                grids.append(Grid(**named))
            yield Grid.of(grids)

    def __repr__(self) -> str:
        limit = "" if self.memory is None else f", memory={self.memory}"
        return f"Cluster({', '.join(map(repr, self.levels))}{limit})"


def _factorisations(count: int, axes: int, least: int = 2) -> Iterator[tuple[int, ...]]:
    """The rising tuples of at most `axes` factors, each `least` or more, whose product is `count`."""
    yield (count,)
    if axes > 1:
        for first in range(least, math.isqrt(count) + 1):
            if count % first == 0:
                for rest in _factorisations(count // first, axes - 1, first):
                    yield (first, *rest)


def grid_argument(grid: Grid) -> Any:
    """A grid as `place` and `distribute` take it: one grid, or a list of one for each level."""
    levels = [Grid(**dict(axes)) for axes in grid.levels]
    return levels[0] if len(levels) == 1 else levels
