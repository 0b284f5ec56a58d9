"""Plans: for each rank a list of steps on buffers, and what they cost. Plain data, made by `rank.py`.

    Step = Make | Fill | Copy | Merge | Exchange | Start | Finish | Reduce | Run | Drop

A buffer holds a box of a tensor or func; the one named like the tensor itself is what the rank owns of it.
Buffers of inputs are there at the start, all others are made; those of outputs are left at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdsl.placement.notation import Placement
from tdsl.placement.ownership import Box, block, elements

if TYPE_CHECKING:
    pass

Ranges = tuple[tuple[str, tuple[int, int]], ...]  # variables, each with where it runs


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
    """Start all messages, then wait for all of them.

    A `collective` is what all messages among `ranks` with one tag are together: "broadcast", "all-gather" or
    "all-to-all".
    """

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    collective: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Start all messages of an exchange; until its `Finish` nobody touches what they carry."""

    exchange: Exchange
    handle: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Wait for all messages that were started with a handle."""

    handle: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Combine a box of what each of `ranks` has in its buffer `source`.

    Each of them gets the part of the result that `parts` says into its buffer `target`, None for nothing.
    """

    ranks: tuple[int, ...]
    tag: int
    source: str
    target: str | None
    box: Box
    parts: tuple[Box | None, ...]

    @property
    def collective(self) -> str:
        """What this is called."""
        given = [part for part in self.parts if part is not None]
        if len(given) == 1:
            return "reduce"
        return "all-reduce" if given[0] == self.box else "reduce-scatter"


def reduced(kind: str, members: int, whole: int, part: int) -> tuple[int, int]:
    """What a member of a reduction sends and receives, if `whole` is reduced and it gets `part` of it.

    That of point to point messages; but an all-reduce is counted as reduce-scatter and all-gather of parts
    as even as can be, `part` that of the member.

    >>> reduced("reduce", 4, 100, 100), reduced("reduce", 4, 100, 0)
    ((0, 300), (100, 0))
    >>> reduced("all-reduce", 4, 100, 25)
    (150, 150)
    """
    if kind == "all-reduce":
        both = (members - 1) * part + whole - part
        return both, both
    return whole - part, (members - 1) * part


def share(whole: int, members: int, n: int) -> int:
    """The part of member n where something is shared out evenly."""
    first, behind = block((0, whole), members, n)
    return behind - first


@dataclass(frozen=True, slots=True)
class Run:
    """Compute a func where its variables have the spans of `ranges`; the result is the box of `target`.

    `reads` gives the buffer to read for each tensor.
    """

    func: str
    ranges: Ranges
    reads: tuple[tuple[str, str], ...]
    target: str
    box: Box


@dataclass(frozen=True, slots=True)
class Drop:
    """Give the memory back."""

    buffer: str


Step = Make | Fill | Copy | Merge | Exchange | Start | Finish | Reduce | Run | Drop


@dataclass(frozen=True, slots=True)
class Home:
    """A tensor that is placed: the bytes of an element, the box of the whole of it, and where it lives.

    `points` are the ranges of a reduction whose points each element combines; none for what is not reduced.
    `dims` are the variables that run along the dimensions of a func when it is made, None where each run
    makes all; `needs` gives the boxes of all that is read where its variables have some ranges.
    """

    name: str
    bytes: int
    whole: Box
    placement: Placement
    points: Ranges = ()
    dims: tuple[str | None, ...] = ()
    needs: Callable[[Ranges], Mapping[str, Box]] | None = None


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank does. `owned` is what it has at the start: its boxes of the inputs."""

    rank: int
    owned: tuple[tuple[str, Box], ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a rank sends and receives in bytes, the messages it receives, the most memory that it holds.

    A collective that gives it something is one message. `peak_step` is the step from which on it holds most,
    counted from 1; 0 is the start.
    """

    sent: int
    received: int
    messages: int
    peak_memory: int
    moved: tuple[tuple[str, int], ...]
    peak_step: int = 0


def carried(step: Reduce, rank: int) -> tuple[int, int]:
    """The elements that a rank sends and receives in a reduction."""
    whole, members, n = elements(step.box), len(step.ranks), step.ranks.index(rank)
    if step.collective == "all-reduce":
        return reduced("all-reduce", members, whole, share(whole, members, n))
    part = step.parts[n]
    return reduced(step.collective, members, whole, 0 if part is None else elements(part))


def cost(plan: RankPlan, sizes: dict[str, int]) -> Cost:
    """The cost of a rank's steps; `sizes` has the bytes of an element of each tensor."""
    held = {name: elements(box) * sizes[name] for name, box in plan.owned}
    tensors = {name: name for name, _ in plan.owned}
    peak, peak_step = sum(held.values()), 0
    sent = received = messages = 0
    moved: dict[str, int] = {}
    for number, step in enumerate(plan.steps, 1):
        match step:
            case Make(buffer, tensor, box):
                tensors[buffer] = tensor
                held[buffer] = elements(box) * sizes[tensor]
                if sum(held.values()) > peak:
                    peak, peak_step = sum(held.values()), number
            case Drop(buffer):
                del held[buffer]
            case Exchange(sends, receives, collective) | Start(
                Exchange(sends, receives, collective)
            ):
                sent += sum(elements(m.box) * sizes[tensors[m.buffer]] for m in sends)
                messages += min(len(receives), 1) if collective else len(receives)
                for m in receives:
                    size = elements(m.box) * sizes[tensors[m.buffer]]
                    moved[tensors[m.buffer]] = moved.get(tensors[m.buffer], 0) + size
                    received += size
            case Reduce():
                tensor = tensors[step.source]
                out, into = carried(step, plan.rank)
                sent, received = sent + out * sizes[tensor], received + into * sizes[tensor]
                moved[tensor] = moved.get(tensor, 0) + into * sizes[tensor]
                messages += min(into, 1)
            case _:
                pass
    return Cost(sent, received, messages, peak, tuple(sorted(moved.items())), peak_step)
