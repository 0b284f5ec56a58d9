"""Plans: for each rank a list of steps on buffers, and what they cost. Plain data, made by `rank.py`.

    Step = Make | Fill | Copy | Merge | Exchange | Run | Drop

A buffer holds a box of a tensor or func; the one named like the tensor itself is what the rank owns of it.
Buffers of inputs are there at the start, all others are made; those of outputs are left at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tdsl.placement.grid import Grid
from tdsl.placement.notation import Placement
from tdsl.placement.ownership import Box, elements, owned


@dataclass(frozen=True, slots=True)
class Make:
    """Get memory for a box of a tensor."""

    buffer: str
    tensor: str
    box: Box


@dataclass(frozen=True, slots=True)
class Fill:
    """Set all elements to the identity of the combiner of the func that the buffer holds."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Take over a box from one buffer into another."""

    source: str
    target: str
    box: Box


@dataclass(frozen=True, slots=True)
class Merge:
    """Combine a box of `target` with that of `source`, which comes later in the order of the reduction."""

    source: str
    target: str
    box: Box


@dataclass(frozen=True, slots=True)
class Message:
    """A box of a buffer, to or from a rank; the two messages of a pair have one tag."""

    rank: int
    tag: int
    buffer: str
    box: Box


@dataclass(frozen=True, slots=True)
class Exchange:
    """Start all messages, then wait for all of them."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Compute a func where its variables have the spans of `ranges`; the result is the box of `target`.

    `reads` gives the buffer to read for each tensor.
    """

    func: str
    ranges: tuple[tuple[str, tuple[int, int]], ...]
    reads: tuple[tuple[str, str], ...]
    target: str
    box: Box


@dataclass(frozen=True, slots=True)
class Drop:
    """Give the memory back."""

    buffer: str


Step = Make | Fill | Copy | Merge | Exchange | Run | Drop


@dataclass(frozen=True, slots=True)
class Home:
    """A tensor that is placed: the bytes of an element, the box of the whole of it, and where it lives.

    `points` is how many points of a reduction each element combines; 1 for what is not reduced. `dims` are
    the variables that run along the dimensions of a func when it is made, None where each run makes all.
    """

    name: str
    bytes: int
    whole: Box
    placement: Placement
    points: int = 1
    dims: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank does. `owned` is what it has at the start: its boxes of the inputs."""

    rank: int
    owned: tuple[tuple[str, Box], ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a rank sends and receives in bytes, the messages it receives, the most memory that it holds."""

    sent: int
    received: int
    messages: int
    peak_memory: int
    moved: tuple[tuple[str, int], ...]


def cost(plan: RankPlan, sizes: dict[str, int]) -> Cost:
    """The cost of a rank's steps; `sizes` has the bytes of an element of each tensor."""
    held = {name: elements(box) * sizes[name] for name, box in plan.owned}
    tensors = {name: name for name, _ in plan.owned}
    peak = sum(held.values())
    sent = received = messages = 0
    moved: dict[str, int] = {}
    for step in plan.steps:
        match step:
            case Make(buffer, tensor, box):
                tensors[buffer] = tensor
                held[buffer] = elements(box) * sizes[tensor]
                peak = max(peak, sum(held.values()))
            case Drop(buffer):
                del held[buffer]
            case Exchange(sends, receives):
                sent += sum(elements(m.box) * sizes[tensors[m.buffer]] for m in sends)
                for m in receives:
                    size = elements(m.box) * sizes[tensors[m.buffer]]
                    moved[tensors[m.buffer]] = moved.get(tensors[m.buffer], 0) + size
                    received, messages = received + size, messages + 1
            case _:
                pass
    return Cost(sent, received, messages, peak, tuple(sorted(moved.items())))


class Plan:
    """The plans of all ranks, each made when it is asked for.

    `received`, `sent`, `messages` and `peak_memory` have a number for each rank; bytes, but for messages.
    `bound` is how many bytes the busiest rank receives at least in any plan that shares everything out
    evenly, where that is known.
    """

    def __init__(
        self, name: str, grid: Grid, homes: tuple[Home, ...], outputs: tuple[str, ...],
        notes: tuple[str, ...], make: Callable[[int], RankPlan], bound: float | None = None,
    ) -> None:  # fmt: skip
        self.name, self.grid, self.homes, self.notes = name, grid, homes, notes
        self.outputs, self.bound = outputs, bound
        self._make = make
        self._ranks: dict[int, RankPlan] = {}

    def rank(self, rank: int) -> RankPlan:
        """The plan of one rank."""
        if rank not in self._ranks:
            self._ranks[rank] = self._make(rank)
        return self._ranks[rank]

    def __iter__(self) -> Iterator[RankPlan]:
        return (self.rank(r) for r in range(self.grid.size))

    def owned(self, name: str, rank: int) -> Box | None:
        """The box of a tensor that a rank owns; None for no elements."""
        home = next(h for h in self.homes if h.name == name)
        return owned(home.placement, self.grid, home.whole, self.grid.coordinates(rank))

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of an element of each tensor."""
        return {h.name: h.bytes for h in self.homes}

    @functools.cached_property
    def costs(self) -> tuple[Cost, ...]:
        """What each rank's steps cost."""
        return tuple(cost(p, self.sizes) for p in self)

    @property
    def received(self) -> tuple[int, ...]:
        """The bytes that each rank receives."""
        return tuple(c.received for c in self.costs)

    @property
    def sent(self) -> tuple[int, ...]:
        """The bytes that each rank sends."""
        return tuple(c.sent for c in self.costs)

    @property
    def messages(self) -> tuple[int, ...]:
        """The messages that each rank receives."""
        return tuple(c.messages for c in self.costs)

    @property
    def peak_memory(self) -> tuple[int, ...]:
        """The most bytes of buffers that each rank has at a time, those that it owns included."""
        return tuple(c.peak_memory for c in self.costs)

    @property
    def total_received(self) -> int:
        """The bytes that all ranks receive."""
        return sum(self.received)

    def moved(self, tensor: str) -> int:
        """The bytes of a tensor or func that all ranks receive."""
        return sum(dict(c.moved).get(tensor, 0) for c in self.costs)

    def summary(self) -> str:
        """One line: grid, bytes, messages and memory of the ranks."""
        from tdsl.distribute.show import summary

        return summary(self)

    def __str__(self) -> str:
        from tdsl.distribute.show import show_plan

        return show_plan(self)

    __repr__ = __str__
