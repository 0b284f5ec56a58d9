"""The network as outermost memory level: what a rank receives, and how long the network takes for it."""

from __future__ import annotations

from math import ceil, inf

from tdsl.core.node import frozen
from tdsl.machine.devices import reference_cpu
from tdsl.machine.model import Machine, MemoryLevel


@frozen
class Received:
    """What one of `ranks` ranks receives: `moved` has the bytes of each tensor, `messages` is a lower bound.

    `computed` has, for each func, the most points of it that any rank computes.
    """

    rank: int
    ranks: int
    moved: tuple[tuple[str, float], ...]
    messages: int
    computed: tuple[tuple[str, int], ...] = ()

    @property
    def bytes(self) -> float:
        """Total bytes received."""
        return sum(size for _, size in self.moved)


def link_of(machine: Machine) -> MemoryLevel:
    """The outermost link of a machine, or the reference CPU's if it has none."""
    return (machine.links or reference_cpu().links)[-1]


def network_seconds(received: Received, link: MemoryLevel) -> float:
    """The latency of all messages, plus the bytes, in whole granules, divided by the bandwidth of a link.

    >>> link = MemoryLevel("network", None, 64, bandwidth=((1, 1e9),), latency=1e-6)
    >>> round(1e6 * network_seconds(Received(0, 4, (("a", 6400.0),), 2), link), 3)
    8.4
    """
    whole = link.line * ceil(received.bytes / link.line)
    speed = link.bytes_per_second(link.shared_by) or inf
    return received.messages * (link.latency or 0.0) + whole / speed
