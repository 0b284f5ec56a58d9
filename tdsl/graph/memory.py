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
class LiveBuffer:
    """The size in bytes of a result, and its live range: steps `first` to `last`, both inclusive."""

    nbytes: int
    first: int
    last: int


@frozen
class MemoryPlan(Generic[Key]):
    """The offset in bytes of each result, a multiple of the alignment, and the size `peak` of the block.

    `lower_bound` of the size is the maximum over all steps of the bytes live in the step. `unshared_bytes` is
    the size without sharing, the sum over all results. `buffers` has the size and live range of each result.
    """

    offsets: Mapping[Key, int]
    peak: int
    lower_bound: int
    unshared_bytes: int
    buffers: Mapping[Key, LiveBuffer]

    def __str__(self) -> str:
        return (
            f"{self.peak:,} bytes for {len(self.offsets)} results "
            f"({self.unshared_bytes:,} with memory for each, {self.lower_bound:,} in the fullest step)"
        )


def assign_offsets(buffers: Mapping[Key, LiveBuffer], align: int = ALIGN) -> MemoryPlan[Key]:
    """Assigns an offset to each result such that results with overlapping live ranges do not overlap.

    Offsets are multiples of `align`.

    >>> a, b, c = LiveBuffer(100, 0, 1), LiveBuffer(64, 1, 2), LiveBuffer(128, 2, 3)
    >>> plan = assign_offsets({"a": a, "b": b, "c": c})
    >>> dict(plan.offsets), plan.peak, plan.unshared_bytes
    ({'c': 0, 'a': 0, 'b': 128}, 192, 320)
    """
    offsets: dict[Key, int] = {}
    sizes = {key: -(-buffer.nbytes // align) * align for key, buffer in buffers.items()}
    by_size = sorted(buffers, key=lambda key: (-buffers[key].nbytes, buffers[key].first))
    for key in by_size:
        buffer = buffers[key]
        live_intervals = sorted(
            (offset, offset + sizes[other])
            for other, offset in offsets.items()
            if buffers[other].first <= buffer.last and buffer.first <= buffers[other].last
        )
        offset = 0
        for lo, hi in live_intervals:
            if offset + sizes[key] <= lo:
                break
            offset = max(offset, hi)
        offsets[key] = offset
    first_steps = {buffer.first for buffer in buffers.values()}
    live_bytes = [
        sum(sizes[key] for key, n in buffers.items() if n.first <= s <= n.last) for s in first_steps
    ]
    peak = max((offsets[key] + sizes[key] for key in offsets), default=0)
    return MemoryPlan(offsets, peak, max(live_bytes, default=0), sum(sizes.values()), dict(buffers))
