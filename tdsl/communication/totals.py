"""Communications of a program, and their sums: bytes and messages of every rank, and its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdsl.communication.collective import Layout
from tdsl.communication.rank_boxes import Numbers


@dataclass(frozen=True, slots=True)
class Communication:
    """One communication of a program, that of `tensor` in an iteration of a stage.

    `received` and `sent` are the elements, `messages` the messages received, for each rank. `crossing` are
    the elements received from other groups of each level of the grid, outermost level first. `tag` numbers
    the communications of a program.
    """

    tag: int
    func: str
    tensor: str
    received: Numbers
    sent: Numbers
    messages: Numbers
    crossing: tuple[Numbers, ...]


@dataclass(frozen=True, slots=True)
class Volume:
    """The bytes that each rank receives and sends, the messages that it receives, its peak memory in bytes.

    `moved` has, for each tensor, the bytes received from other groups of each level of the grid, outermost
    level first. `computed` has the elements of each func that each rank computes; of a reduction that ranks
    share, its part of them. Bytes of rows that data select are expected ones (`expected_rows.py`).
    """

    received: Numbers
    sent: Numbers
    messages: Numbers
    peak_memory: Numbers
    moved: Mapping[str, tuple[Numbers, ...]]
    computed: Mapping[str, NDArray[np.float64]]

    @property
    def crossing(self) -> tuple[Numbers, ...]:
        """The bytes that each rank receives from other groups of each level of the grid, outermost first."""
        levels = zip(*self.moved.values(), strict=True)
        return tuple(np.sum(level, axis=0) for level in levels)


class Totals:
    """Sums of communications, and the memory in use, for each rank."""

    def __init__(
        self, layout: Layout, sizes: Mapping[str, int], record: Callable[[Communication], None]
    ) -> None:
        self.layout, self.sizes, self.record = layout, sizes, record
        self.received, self.sent, self.messages, self.memory, self.peak = (self.zeros() for _ in range(5))
        self.moved = {
            t: tuple(self.zeros() for _ in layout.grid.depths)
            for t in layout.wholes
            if t not in layout.aliases
        }
        self.computed: dict[str, NDArray[np.float64]] = {}
        self.tag = 0

    def zeros(self) -> Numbers:
        """A zero for each rank."""
        return np.zeros(self.layout.grid.size, np.int64)

    def allocate(self, tensor: str, elements: Numbers) -> None:
        """Add a buffer of a tensor to the memory of each rank."""
        self.memory = self.memory + elements * self.sizes[self.layout.tensor_of(tensor)]
        self.peak = np.maximum(self.peak, self.memory)

    def free(self, tensor: str, elements: Numbers) -> None:
        """Remove a buffer from the memory of each rank."""
        self.memory = self.memory - elements * self.sizes[self.layout.tensor_of(tensor)]

    def communicate(self, c: Communication) -> None:
        """Add a communication, and count it."""
        size = self.sizes[c.tensor]
        self.received += size * c.received
        self.sent += size * c.sent
        self.messages += c.messages
        levels = zip(self.moved[c.tensor], c.crossing, strict=True)
        self.moved[c.tensor] = tuple(a + size * b for a, b in levels)
        self.record(c)
        self.tag += 1

    def volume(self) -> Volume:
        """The sums."""
        return Volume(self.received, self.sent, self.messages, self.peak, self.moved, self.computed)
