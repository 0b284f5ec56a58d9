"""Static memory planning: offsets of intermediate results in one block, shared by results not live at once.

Every result is live from a first to a last step. Offsets are assigned greedily, largest result first: each
gets the lowest offset at which it overlaps no result that is live at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from tdsl.codegen.runtime.signature import ALIGN
from tdsl.core.node import frozen

Key = TypeVar("Key")


@frozen
class Need:
    """The size in bytes of a result, and its live range: steps `first` to `last`, both inclusive."""

    nbytes: int
    first: int
    last: int


@frozen
class Memory(Generic[Key]):
    """The offset in bytes of each result, a multiple of 64, and the size `peak` of the block.

    `least` is a lower bound of the size: the maximum over all steps of the bytes live in the step. `apart`
    is the size without sharing, the sum over all results.
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
    """Assigns an offset to each result such that results with overlapping live ranges do not overlap.

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
