"""Divides the points of a task into those that read local elements only and the others.

    f[i] = a[i - 1] + a[i + 1]    on the block 8:16    ->    interior 9:15, rim 8:9 and 15:16

The region function proves that the points of the interior, a box, read nothing but blocks that the rank owns:
they can be computed while messages bring the rest of what the task reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

from tdsl.communication.stages import Ranges, Stage
from tdsl.communication.steps import Run
from tdsl.distribute.buffer_contents import box_difference
from tdsl.placement.ownership import SpanBox, contains
from tdsl.placement.spans import Span


def interior_and_rim(
    stage: Stage, run: Run, pending: Mapping[str, SpanBox | None]
) -> tuple[list[Run], list[Run]]:
    """A run divided into one of the points that read local elements, or none, and those of all others.

    `pending` has this rank's block of each source of which other parts are yet to be received: the first run
    reads these blocks. Only the variables of the result's dimensions are divided, so that each element is
    computed by one run, from the same terms in the same order.
    """
    ranges = dict(run.ranges)
    names = [name for name in stage.dims if name is not None]

    def part_of(box: SpanBox) -> Ranges:
        return {**ranges, **dict(zip(names, box, strict=True))}

    def is_local(box: SpanBox) -> bool:
        reads = ((stage.box_of_ranges(source, part_of(box)), owned) for source, owned in pending.items())
        return all(owned is not None and (read is None or contains(owned, read)) for read, owned in reads)

    def run_of(box: SpanBox, reads: tuple[tuple[str, str], ...]) -> Run:
        part = part_of(box)
        return replace(run, ranges=tuple(part.items()), reads=reads, box=stage.box_written(part))

    whole = tuple(ranges[name] for name in names)
    interior = largest_box(whole, is_local)
    if interior is None:
        return [], [run]
    local_reads = tuple((s, stage.tensor_of(s) if s in pending else buffer) for s, buffer in run.reads)
    rim = box_difference(whole, interior)
    return [run_of(interior, local_reads)], [run_of(box, run.reads) for box in rim]


def largest_box(whole: SpanBox, holds: Callable[[SpanBox], bool]) -> SpanBox | None:
    """A box in `whole` for which `holds`, and that cannot be extended; None if no point tried has one.

    `holds` is true of each box in a box of which it is true. It is tried at the centre and at the corners.

    >>> largest_box(((0, 8), (0, 6)), lambda box: box[0][0] >= 1 and box[1][1] <= 4)
    ((1, 8), (0, 4))
    """
    if holds(whole):
        return whole
    points = itertools.product(*(dict.fromkeys(((lo + hi) // 2, lo, hi - 1)) for lo, hi in whole))
    seeds = (tuple((n, n + 1) for n in point) for point in points)
    box = next((seed for seed in seeds if holds(seed)), None)
    if box is None:
        return None
    for axis, (first, behind) in enumerate(whole):

        def extended(span: Span, box: SpanBox = box, axis: int = axis) -> SpanBox:
            return (*box[:axis], span, *box[axis + 1 :])

        lo, hi = box[axis]
        lo -= _largest(lo - first, lambda n, lo=lo, hi=hi: holds(extended((lo - n, hi))))  # type: ignore[misc]
        hi += _largest(behind - hi, lambda n, lo=lo, hi=hi: holds(extended((lo, hi + n))))  # type: ignore[misc]
        box = extended((lo, hi))
    return box


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which `holds`; `holds` is true of 0, and monotone."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
