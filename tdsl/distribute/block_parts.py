"""Stores a block in parts, each of which is allocated and freed on its own.

allocate f[0:4]; run f[0:2]; read f[0:2]; run f[2:4]; ...; free f[0:4]
-> allocate part 0; run f[0:2]; read f[0:2]; free part 0; allocate part 1; run f[2:4]; ...; free part 1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tdsl.communication.steps import Allocate, Finish, Free, Start, Step
from tdsl.distribute.step_buffers import BoxesRead, accesses, with_buffers
from tdsl.placement.ownership import SpanBox, contains, intersection, is_contiguous


def with_parts(steps: list[Step], blocks: Iterable[str], boxes_read: BoxesRead) -> list[Step]:
    """Steps in which each of some blocks is a buffer for each part that is accessed on its own.

    A part is allocated before the step that accesses it first, and freed after the one that does so last.
    """
    allocated = {s.buffer: s for s in steps if isinstance(s, Allocate) and s.over is None}
    parts = {b: list[SpanBox]() for b in blocks if b in allocated and is_contiguous(allocated[b].box)}
    for buffer, box in (x for step in steps for x in accesses(step, boxes_read)):
        if buffer not in parts:
            continue
        if box is None or not is_contiguous(box):
            del parts[buffer]
        else:
            parts[buffer] = _with_box(parts[buffer], box)
    parts = {buffer: boxes for buffer, boxes in parts.items() if len(boxes) > 1}
    return _rewritten(steps, parts, boxes_read) if parts else steps


def _with_box(parts: list[SpanBox], box: SpanBox) -> list[SpanBox]:
    """Parts that do not intersect, one of which contains `box`; those that it joins become one."""
    while joined := [part for part in parts if intersection(part, box) is not None]:
        if joined == [box]:
            return parts
        parts = [part for part in parts if part not in joined]
        box = tuple(
            (min(a[0] for a in spans), max(a[1] for a in spans)) for spans in zip(box, *joined, strict=True)
        )
    return [*parts, box]


def _rewritten(steps: list[Step], parts: Mapping[str, list[SpanBox]], boxes_read: BoxesRead) -> list[Step]:
    """The steps with a buffer for each of the parts of some blocks."""

    def part(buffer: str, box: SpanBox | None) -> str:
        if buffer not in parts or box is None:
            return buffer
        return f"{buffer} part {next(n for n, p in enumerate(parts[buffer]) if contains(p, box))}"

    boxes = {part(name, box): (name, box) for name, each in parts.items() for box in each}
    kept = [s for s in steps if not (isinstance(s, Allocate | Free) and s.buffer in parts)]
    renamed = [with_buffers(step, part, boxes_read) for step in kept]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    in_flight: dict[int, list[str]] = {}
    for n, (old, new) in enumerate(zip(kept, renamed, strict=True)):
        touched = [part(buffer, box) for buffer, box in accesses(old, boxes_read) if buffer in parts]
        match new:
            case Start(handle=handle):
                in_flight[handle] = touched
            case Finish(handle):
                touched = in_flight.pop(handle)
            case _:
                pass
        for buffer in touched:
            first.setdefault(buffer, n)
            last[buffer] = n
    starts: dict[int, list[Step]] = {}
    ends: dict[int, list[Step]] = {}
    for buffer, n in first.items():
        starts.setdefault(n, []).append(Allocate(buffer, *boxes[buffer]))
        ends.setdefault(last[buffer], []).append(Free(buffer))
    return [x for n, step in enumerate(renamed) for x in (*starts.get(n, ()), step, *ends.get(n, ()))]
