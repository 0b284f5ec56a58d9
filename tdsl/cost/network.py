"""The network as outermost memory levels: what the busiest rank receives, and how long links take for it."""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdsl.core.node import frozen
from tdsl.machine.devices import reference_cpu
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.placement.grid import Grid

if TYPE_CHECKING:  # programs on one rank do not load it
    from tdsl.communication.totals import Volume


@frozen
class Received:
    """What the busiest of `ranks` ranks receives, in the longest `seconds` that links take for any rank.

    `moved` has for each link, outermost first, the bytes of each tensor; `messages` are those that the rank
    receives. `computed` has, for each func, the most elements of it that any rank computes.
    """

    rank: int
    ranks: int
    moved: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    messages: int
    seconds: float
    computed: tuple[tuple[str, float], ...] = ()

    @property
    def bytes(self) -> int:
        """Total bytes received."""
        return sum(size for _, tensors in self.moved for _, size in tensors)

    @staticmethod
    def of(volume: Volume, grid: Grid, machine: Machine) -> Received:
        """What the busiest rank of a grid receives over the links of a machine."""
        rank = int(np.argmax(volume.received))
        links = links_of(machine, len(grid.depths))
        moved: dict[str, dict[str, int]] = {link.name: {} for link in links}
        for tensor, levels in volume.moved.items():
            for link, level in zip(links, levels, strict=True):
                moved[link.name][tensor] = moved[link.name].get(tensor, 0) + int(level[rank])
        by_link = tuple(
            (name, tuple((tensor, size) for tensor, size in tensors.items() if size))
            for name, tensors in moved.items()
        )
        computed = tuple((name, float(counts.max())) for name, counts in volume.computed.items())
        seconds = float(np.max(seconds_of(volume, grid, machine)))
        return Received(rank, grid.size, by_link, int(volume.messages[rank]), seconds, computed)


def links_of(machine: Machine, levels: int) -> tuple[MemoryLevel, ...]:
    """The link of each level of a grid, outermost first: the outermost links of a machine.

    The innermost link serves all further levels. Links are the reference CPU's if the machine has none.
    """
    links = (machine.links or reference_cpu().links)[::-1]
    return tuple(links[min(n, len(links) - 1)] for n in range(levels))


def ports_of(grid: Grid, level: int, shared_by: int) -> NDArray[np.int64]:
    """The number of the port by which each rank reaches other groups of a level of a grid.

    A port serves `shared_by` ranks that follow each other, at most those of one group below the level.

    >>> ports_of(Grid.of([Grid(node=2), Grid(x=3)]), 0, 2).tolist()
    [0, 0, 1, 2, 2, 3]
    """
    size = prod(grid.shape[sum(grid.depths[: level + 1]) :])
    count = -(-size // min(shared_by, size))
    group, position = np.divmod(np.arange(grid.size), size)
    ports: NDArray[np.int64] = group * count + position // min(shared_by, size)
    return ports


def seconds_of(volume: Volume, grid: Grid, machine: Machine) -> NDArray[np.float64]:
    """The seconds in which links bring each rank what it receives, one level of the grid after the other.

    A link takes the bytes of all ranks that share it, in whole granules, over its bandwidth; each message the
    latency of the outermost link that any bytes of the rank cross.

    >>> from tdsl.communication.totals import Volume
    >>> link = MemoryLevel("network", None, 64, bandwidth=((1, 1e9),), latency=1e-6)
    >>> moved, none = np.array([6400, 0]), np.zeros(2, int)
    >>> volume = Volume(moved, moved[::-1], np.array([2, 0]), none, {"a": (moved,)}, {})
    >>> np.round(1e6 * seconds_of(volume, Grid(x=2), Machine(links=(link,))), 3).tolist()
    [8.4, 0.0]
    """
    total, latency = np.zeros(grid.size), np.zeros(grid.size)
    links = links_of(machine, len(grid.depths))
    for level, (link, crossing) in reversed(list(enumerate(zip(links, volume.crossing, strict=True)))):
        ports = ports_of(grid, level, link.shared_by)
        granules = np.bincount(ports, -(-crossing // link.line), minlength=1)
        total += link.line * granules[ports] / (link.bytes_per_second(link.shared_by) or inf)
        latency = np.where(crossing > 0, link.latency or 0.0, latency)
    return total + volume.messages * latency
