"""The steps of a rank on buffers, as plain data, and their costs; `rank.py` generates them.

    Step = Allocate | Fill | Copy | Merge | Exchange | Start | Finish | Reduce | Run | Free

A buffer holds a box of a tensor or func; the buffer with the name of the tensor is the block that the rank
owns. Buffers of inputs exist at the start, `Allocate` allocates others; those of outputs remain at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdsl.core.node import frozen
from tdsl.placement.notation import Placement
from tdsl.placement.ownership import SpanBox, block, element_count

if TYPE_CHECKING:
    pass

Count = TypeVar("Count", int, NDArray[np.int64])
Ranges = tuple[tuple[str, tuple[int, int]], ...]  # variables, each with a half-open interval


@frozen
class Allocate:
    """Allocate a buffer for a box of a tensor, or take the memory of the buffer `over` for it.

    What is written to the buffer then replaces the elements of `over` at the same positions.
    """

    buffer: str
    tensor: str
    box: SpanBox
    over: str | None = None


@frozen
class Fill:
    """Set all elements of a buffer to the identity of its func's combine."""

    buffer: str


@frozen
class Copy:
    """Copy a box from one buffer to another."""

    source: str
    target: str
    box: SpanBox


@frozen
class Merge:
    """Combine a box of `target` with that of `source`, which comes later in the order of the reduction."""

    source: str
    target: str
    box: SpanBox


@frozen
class Message:
    """A box of a buffer, sent to or received from `rank`; a send and its receive have the same tag."""

    rank: int
    tag: int
    buffer: str
    box: SpanBox


@frozen
class Exchange:
    """Start all messages, then wait for all of them.

    `collective` is "broadcast", "all-gather" or "all-to-all" if all messages among `ranks` with one tag
    together are that collective, else "". `bound` is a number of elements that all members of an all-to-all
    know, and that none of them exceeds in what it sends or receives.
    """

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    collective: str = ""
    ranks: tuple[int, ...] = ()
    bound: int = 0


@frozen
class Start:
    """Start all messages of an exchange; no step may access their boxes until its `Finish`."""

    exchange: Exchange
    handle: int


@frozen
class Finish:
    """Wait for all messages that were started with a handle."""

    handle: int


@frozen
class Reduce:
    """Combine a box of the buffers `source` of all `ranks`.

    Each rank receives its entry of `parts`, a box of the result or None, in its buffer `target`.
    """

    ranks: tuple[int, ...]
    tag: int
    source: str
    target: str | None
    box: SpanBox
    parts: tuple[SpanBox | None, ...]

    @property
    def collective(self) -> str:
        """The kind: "reduce", "all-reduce" or "reduce-scatter"."""
        parts = [part for part in self.parts if part is not None]
        if len(parts) == 1:
            return "reduce"
        return "all-reduce" if parts[0] == self.box else "reduce-scatter"


def reduction_volume(kind: str, members: int, whole: int, part: Count) -> tuple[Count, Count]:
    """The volume that a member of a reduction of `whole` sends and receives, if it gets `part` of the result.

    Counted as point-to-point messages; but an all-reduce as a reduce-scatter and an all-gather of parts that
    are as even as possible, `part` being that of the member.

    >>> reduction_volume("reduce", 4, 100, 100), reduction_volume("reduce", 4, 100, 0)
    ((0, 300), (100, 0))
    >>> reduction_volume("all-reduce", 4, 100, 25)
    (150, 150)
    """
    if kind == "all-reduce":
        each_way = (members - 1) * part + whole - part
        return each_way, each_way
    return whole - part, (members - 1) * part


def part_size(whole: int, members: int, n: int) -> int:
    """The size of the part of member `n` if `whole` is divided evenly."""
    first, behind = block((0, whole), members, n)
    return behind - first


@frozen
class Run:
    """Run a task: compute a func for the `ranges` of its variables, and store it in `box` of `target`.

    `reads` has the buffer to read for each source of the func: a tensor, or an alias of one.
    """

    func: str
    ranges: Ranges
    reads: tuple[tuple[str, str], ...]
    target: str
    box: SpanBox


@frozen
class Free:
    """Free a buffer."""

    buffer: str


Step = Allocate | Fill | Copy | Merge | Exchange | Start | Finish | Reduce | Run | Free


@frozen
class PlacedTensor:
    """A placed tensor: the bytes of an element, its whole box, and its placement.

    `points` are the ranges of its reduction, whose points each element combines; () without a reduction.
    `partial_axes` are the grid axes of which each coordinate computes from its own part of partial sources.
    `dims` are the variables of the dimensions of a func, None where each run writes all of the dimension;
    `read_boxes` maps ranges of its variables to the boxes of all sources that are read, some of which are
    `aliases` of a tensor.
    """

    name: str
    bytes: int
    whole: SpanBox
    placement: Placement
    points: Ranges = ()
    dims: tuple[str | None, ...] = ()
    read_boxes: Callable[[Ranges], Mapping[str, SpanBox]] | None = None
    partial_axes: tuple[int, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)


@frozen
class RankPlan:
    """The steps of one rank. `owned` are its blocks of the inputs, which exist at the start."""

    rank: int
    owned: tuple[tuple[str, SpanBox], ...]
    steps: tuple[Step, ...]


@frozen
class Cost:
    """The bytes that a rank sends and receives, the number of messages received, its peak memory in bytes.

    A collective in which it receives data counts as one message. `moved` has the bytes received by tensor.
    `peak_step` is the step, counted from 1, at which the peak is first reached; 0 is the start.
    """

    sent: int
    received: int
    messages: int
    peak_memory: int
    moved: tuple[tuple[str, int], ...]
    peak_step: int = 0


def reduction_elements(step: Reduce, rank: int) -> tuple[int, int]:
    """The numbers of elements that a rank sends and receives in a reduction."""
    whole, members, n = element_count(step.box), len(step.ranks), step.ranks.index(rank)
    if step.collective == "all-reduce":
        return reduction_volume("all-reduce", members, whole, part_size(whole, members, n))
    part = step.parts[n]
    return reduction_volume(step.collective, members, whole, 0 if part is None else element_count(part))


def cost(plan: RankPlan, sizes: dict[str, int]) -> Cost:
    """The cost of a rank's steps; `sizes` has the bytes of an element of each tensor."""
    buffer_bytes = {name: element_count(box) * sizes[name] for name, box in plan.owned}
    tensors = {name: name for name, _ in plan.owned}
    peak, peak_step = sum(buffer_bytes.values()), 0
    sent = received = messages = 0
    moved: dict[str, int] = {}
    for number, step in enumerate(plan.steps, 1):
        match step:
            case Allocate(buffer, tensor, box, over):
                tensors[buffer] = tensor
                buffer_bytes[buffer] = element_count(box) * sizes[tensor]
                if over is not None:
                    buffer_bytes[over] = 0
                if sum(buffer_bytes.values()) > peak:
                    peak, peak_step = sum(buffer_bytes.values()), number
            case Free(buffer):
                del buffer_bytes[buffer]
            case Exchange(sends, receives, collective) | Start(Exchange(sends, receives, collective)):
                sent += sum(element_count(m.box) * sizes[tensors[m.buffer]] for m in sends)
                messages += min(len(receives), 1) if collective else len(receives)
                for m in receives:
                    size = element_count(m.box) * sizes[tensors[m.buffer]]
                    moved[tensors[m.buffer]] = moved.get(tensors[m.buffer], 0) + size
                    received += size
            case Reduce():
                tensor = tensors[step.source]
                out, into = reduction_elements(step, plan.rank)
                sent, received = sent + out * sizes[tensor], received + into * sizes[tensor]
                moved[tensor] = moved.get(tensor, 0) + into * sizes[tensor]
                messages += min(into, 1)
            case _:
                pass
    return Cost(sent, received, messages, peak, tuple(sorted(moved.items())), peak_step)
