"""The boxes of buffers that a step accesses, and steps with other buffers in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tdsl.communication.steps import (
    Allocate,
    Copy,
    Exchange,
    Fill,
    Finish,
    Free,
    Merge,
    Message,
    Reduce,
    Route,
    Run,
    Start,
    Step,
)
from tdsl.placement.ownership import SpanBox

Access = tuple[str, SpanBox | None]  # a buffer and a box of it, None for all of it
BoxesRead = Callable[[Run], Mapping[str, SpanBox]]  # by source


def accesses(step: Step, boxes_read: BoxesRead) -> Iterator[Access]:
    """The boxes that a step reads or writes; those of messages in flight from their start."""
    match step:
        case Fill(buffer):
            yield buffer, None
        case Copy(source, target, box) | Merge(source, target, box):
            yield source, box
            yield target, box
        case Exchange(sends, receives) | Start(Exchange(sends, receives)):
            for m in (*sends, *receives):
                yield m.buffer, m.box
        case Reduce(source=source, target=target):
            yield source, step.box
            yield from ((target, part) for part in step.parts if target is not None and part is not None)
        case Route(tensor=tensor, index=index, target=target):
            yield from ((buffer, None) for buffer in (tensor, index, target) if buffer is not None)
        case Run(reads=reads, target=target, box=box):
            needed = boxes_read(step)
            yield from ((buffer, needed[source]) for source, buffer in reads if source in needed)
            yield target, box
        case Allocate() | Free() | Finish():
            pass


def with_buffers(step: Step, name: Callable[[str, SpanBox | None], str], boxes_read: BoxesRead) -> Step:
    """A step that accesses the buffer `name(buffer, box)` in place of each buffer.

    The buffers of a reduction, of a route and of an allocation are given without a box.
    """

    def messages(parts: tuple[Message, ...]) -> tuple[Message, ...]:
        return tuple(replace(m, buffer=name(m.buffer, m.box)) for m in parts)

    match step:
        case Allocate(buffer) | Fill(buffer) | Free(buffer):
            return replace(step, buffer=name(buffer, None))
        case Copy(source, target, box) | Merge(source, target, box):
            return replace(step, source=name(source, box), target=name(target, box))
        case Exchange(sends, receives):
            return replace(step, sends=messages(sends), receives=messages(receives))
        case Start(exchange):
            sends, receives = messages(exchange.sends), messages(exchange.receives)
            return replace(step, exchange=replace(exchange, sends=sends, receives=receives))
        case Reduce(source=source, target=target):
            return replace(step, source=name(source, None), target=target and name(target, None))
        case Route(index=index, target=target):
            return replace(step, index=index and name(index, None), target=target and name(target, None))
        case Run(reads=reads, target=target, box=box):
            needed = boxes_read(step)
            renamed = tuple((source, name(buffer, needed.get(source))) for source, buffer in reads)
            return replace(step, reads=renamed, target=name(target, box))
        case Finish():
            return step
