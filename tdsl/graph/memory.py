"""Where results lie while they are needed: places in one block of memory, used again and again.

Every result has a first and a last step in which its memory is needed. The largest gets its place first; each
goes to the lowest place that no other of its time has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tdsl.codegen.runtime.signature import ALIGN

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that are needed from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Memory(Generic[Key]):
    """The offset in bytes of each result, a multiple of 64, and the size of the block.

    `least` is what no placement can do without: the most that is needed in one step. `apart` would be the
    size if every result had memory of its own.
    """

    offsets: Mapping[Key, int]
    peak: int
    least: int
    apart: int

    def __str__(self) -> str:
        return (
            f"{self.peak:,} bytes for {len(self.offsets)} results "
            f"({self.apart:,} with memory for each, {self.least:,} in the fullest step)"
        )


def place(needs: Mapping[Key, Need]) -> Memory[Key]:
    """Places for what is needed.

    >>> made = place({"a": Need(100, 0, 1), "b": Need(64, 1, 2), "c": Need(128, 2, 3)})
    >>> dict(made.offsets), made.peak, made.apart
    ({'c': 0, 'a': 0, 'b': 128}, 192, 320)
    """
    offsets: dict[Key, int] = {}
    order = sorted(needs, key=lambda key: (-needs[key].nbytes, needs[key].first))
    for key in order:
        need = needs[key]
        taken = sorted(
            (offset, offset + _rounded(needs[other].nbytes))
            for other, offset in offsets.items()
            if needs[other].first <= need.last and need.first <= needs[other].last
        )
        start = 0
        for lo, hi in taken:
            if start + _rounded(need.nbytes) <= lo:
                break
            start = max(start, hi)
        offsets[key] = start
    steps = {need.first for need in needs.values()}
    alive = [
        sum(_rounded(n.nbytes) for n in needs.values() if n.first <= s <= n.last) for s in steps
    ]
    peak = max((offsets[key] + _rounded(needs[key].nbytes) for key in offsets), default=0)
    apart = sum(_rounded(n.nbytes) for n in needs.values())
    return Memory(offsets, peak, max(alive, default=0), apart)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN
