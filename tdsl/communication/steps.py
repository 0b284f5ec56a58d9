"""The steps of a rank on buffers, as plain data; `distribute/rank.py` generates them.

    Step = Allocate | Fill | Copy | Merge | Exchange | Start | Finish | Reduce | Route | Run | Free

A buffer holds a box of a tensor or func; the buffer with the name of the tensor is the block that the rank
owns. Buffers of inputs exist at the start, `Allocate` allocates others; those of outputs remain at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tdsl.core.node import frozen
from tdsl.placement.notation import Placement
from tdsl.placement.ownership import SpanBox, block, element_count, intersection

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


ROUTE_TAGS = 3  # tags of the messages of a route


@frozen
class Route:
    """Receive the rows of a tensor that indices select, by three all-to-alls among `ranks`.

    Stage `func` reads them as `source`; its func `key` computes the indices, row-major in the dimensions
    `axes` of the tensor, whose spans are `whole`. Each rank owns a box of `tensor`, its entry of `blocks`, in
    the buffer of that name, and reads its entry of `boxes`: a row for each index, with the `index_dims`
    dimensions of the indices first. Buffer `index` has the indices of this rank, which are within its entry
    of `spans`, and `target` receives the rows. Ranks send each other the numbers of different rows that they
    need (tag), their offsets in the block of the owner (tag + 1), then the rows (tag + 2), each of them once.
    """

    func: str
    source: str
    key: str
    tensor: str
    ranks: tuple[int, ...]
    tag: int
    index_dims: int
    axes: tuple[int, ...]
    whole: SpanBox
    blocks: tuple[SpanBox | None, ...]
    boxes: tuple[SpanBox | None, ...]
    spans: tuple[SpanBox, ...]
    index: str | None = None
    target: str | None = None

    def key_block(self, member: int) -> SpanBox | None:
        """The spans of the block of a member in the dimensions that are indexed; None without a block."""
        block = self.blocks[member]
        return None if block is None else tuple(block[a] for a in self.axes)

    def shared_rows(self, reader: int, owner: int) -> SpanBox | None:
        """The part of a row that a member reads and another one owns; None if there is none."""
        box, block = self.boxes[reader], self.blocks[owner]
        if box is None or block is None:
            return None
        rest = tuple(span for a, span in enumerate(block) if a not in self.axes)
        return intersection(rest, box[self.index_dims :])

    def index_count(self, member: int) -> int:
        """The number of indices of a member."""
        box = self.boxes[member]
        return 0 if box is None else element_count(box[: self.index_dims])


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


Step = Allocate | Fill | Copy | Merge | Exchange | Start | Finish | Reduce | Route | Run | Free


@frozen
class PlacedTensor:
    """A placed tensor: the bytes of an element, its whole box, and its placement.

    `points` are the ranges of its reduction, whose points each element combines; () without a reduction.
    `partial_axes` are the grid axes of which each coordinate computes from its own part of partial sources.
    `dims` are the variables of the dimensions of a func, None where each run writes all of the dimension;
    `read_boxes` maps ranges of its variables to the boxes of all sources that are read, some of which are
    `aliases` of a tensor. `routed` are the tensors of which data select elements that are read.
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
    routed: tuple[str, ...] = ()


@frozen
class RankPlan:
    """The steps of one rank. `owned` are its blocks of the inputs, which exist at the start."""

    rank: int
    owned: tuple[tuple[str, SpanBox], ...]
    steps: tuple[Step, ...]


def reduction_elements(step: Reduce, rank: int) -> tuple[int, int]:
    """The numbers of elements that a rank sends and receives in a reduction."""
    whole, members, n = element_count(step.box), len(step.ranks), step.ranks.index(rank)
    if step.collective == "all-reduce":
        return reduction_volume("all-reduce", members, whole, part_size(whole, members, n))
    part = step.parts[n]
    return reduction_volume(step.collective, members, whole, 0 if part is None else element_count(part))
