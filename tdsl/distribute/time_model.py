"""A discrete-event model of the time of a plan: its steps, its messages and the links that they occupy.

A message takes a latency plus its bytes over a bandwidth (the alpha-beta model). A rank sends one message at
a time and receives one at a time; if the grid has levels, all ranks of a node share the node's link for the
messages that leave it, and latency and bandwidth are those of the outermost level that a message crosses. A
message begins when both sides are ready and their links free; among several, the one that became ready first,
or comes first in the plans. Broadcasts and reductions to one rank are trees, other reductions rings. Tasks
take their operations over a rate, copies their bytes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tdsl.core.node import frozen
from tdsl.distribute.plan import Plan
from tdsl.distribute.steps import (
    Copy,
    Drop,
    Exchange,
    Fill,
    Finish,
    Make,
    Merge,
    Message,
    Reduce,
    Run,
    Start,
    carried,
)
from tdsl.placement.grid import Grid
from tdsl.placement.ownership import element_count

COMPUTE, SEND, RECEIVE = "compute", "send", "receive"
Key = tuple[int, int, int]  # of a message: source, target, tag


@frozen
class Slice:
    """An activity of a rank on a track, with its begin and end in seconds; `flow` is the key of a message."""

    rank: int
    track: str
    name: str
    begin: float
    end: float
    bytes: int = 0
    flow: Key | None = None


@frozen
class Port:
    """A link in one direction, of a rank or of a node; `of` identifies the rank or node, as in `ports`."""

    track: str
    of: tuple[int, ...]


@frozen
class Machine:
    """Latency in s and bandwidth in bytes/s by level of the grid; operations/s; `memory`: copied bytes/s."""

    latency: tuple[float, ...]
    bandwidth: tuple[float, ...]
    operations: float
    memory: float


@dataclass(slots=True)
class Link:
    """A message: its tensor and bytes, when each side is ready with which handle, and its priority."""

    tensor: str
    bytes: int
    ready: dict[int, tuple[float, int]] = field(default_factory=dict)
    order: tuple[float, int, int] = (0.0, 0, 0)


@dataclass(slots=True)
class Meeting:
    """A broadcast or reduction, which begins when all of its members are ready."""

    name: str
    ranks: tuple[int, ...]
    hops: int  # the depth of its tree; 0 for a ring
    bytes: dict[int, tuple[int, int]]  # sent and received by each member
    ready: dict[int, tuple[float, int]] = field(default_factory=dict)


class Clock:
    """Simulates the steps of all ranks without data; `operations` is the number for a point of each func."""

    def __init__(self, plan: Plan, machine: Machine, operations: Mapping[str, float]) -> None:
        self.plan, self.machine, self.operations = plan, machine, operations
        self.sizes = plan.sizes
        ranks = range(plan.grid.size)
        self.steps = [iter(plan.rank(r).steps) for r in ranks]
        self.tensors = [{name: name for name, _ in plan.rank(r).owned} for r in ranks]
        self.now = [0.0] * len(ranks)
        self.left: dict[tuple[int, int], int] = {}  # incomplete communications, by handle
        self.ends: dict[tuple[int, int], float] = {}
        self.blocked: dict[int, int] = {}  # the handle that a rank waits for
        self.links: dict[Key, Link] = {}
        self.meetings: dict[tuple[int, tuple[int, ...]], Meeting] = {}
        self.posted = [0] * len(ranks)  # messages started so far by each rank
        self.free: dict[Port, float] = {}  # the time at which a link becomes free
        self.waiting: dict[
            Port, set[Key]
        ] = {}  # messages with both sides ready that wait for free links
        self.slices: list[Slice] = []
        self._due: list[tuple[float, int, Key | tuple[int, tuple[int, ...]] | Port]] = []
        self._count = itertools.count()

    def run(self) -> list[Slice]:
        """Simulate the plan; returns all slices, those of a track in the order of time."""
        for rank in range(self.plan.grid.size):
            self._advance(rank)
        while self._due:
            now, touched = self._due[0][0], set[Port]()
            while self._due and self._due[0][0] == now:
                _, _, what = heapq.heappop(self._due)
                if isinstance(what, Port):
                    touched.add(what)
                elif len(what) == 3:
                    touched.update(self._wait(what))
                else:
                    self._meet(what, now)
            ready = set[Key]().union(*(self.waiting.get(p, ()) for p in touched))
            for key in sorted(ready, key=lambda k: self.links[k].order):
                if all(self.free.get(p, 0.0) <= now for p in self._ports(key)):
                    self._carry(key, now)
        assert not self.blocked, f"ranks {sorted(self.blocked)} wait for what never comes"
        return self.slices

    # -- one rank

    def _advance(self, rank: int) -> None:
        """Execute the steps of a rank until it blocks or ends."""
        for step in self.steps[rank]:
            match step:
                case Make(buffer, tensor, _):
                    self.tensors[rank][buffer] = tensor
                case Fill(buffer):
                    pass  # negligible
                case Copy(source, _, box) | Merge(source, _, box):
                    size = element_count(box) * self.sizes[self.tensors[rank][source]]
                    what = f"{type(step).__name__.lower()} {self.tensors[rank][source]}"
                    self._busy(rank, what, size / self.machine.memory, size)
                case Run(func, ranges):
                    points = math.prod(hi - lo for _, (lo, hi) in ranges)
                    self._busy(rank, func, points * self.operations[func] / self.machine.operations)
                case Exchange():
                    self._post(rank, step, -1)
                    if self._waits(rank, -1):
                        return
                case Start(exchange, handle):
                    self._post(rank, exchange, handle)
                case Finish(handle):
                    if self._waits(rank, handle):
                        return
                case Reduce():
                    self._post_reduction(rank, step)
                    if self._waits(rank, -1):
                        return
                case Drop():
                    pass

    def _busy(self, rank: int, name: str, seconds: float, size: int = 0) -> None:
        begin = self.now[rank]
        self.now[rank] = begin + seconds
        self.slices.append(Slice(rank, COMPUTE, name, begin, self.now[rank], size))

    def _waits(self, rank: int, handle: int) -> bool:
        """True if a rank must wait for a handle; otherwise the handle is retired."""
        if self.left.get((rank, handle), 0):
            self.blocked[rank] = handle
            return True
        self.now[rank] = max(self.now[rank], self.ends.pop((rank, handle), 0.0))
        self.left.pop((rank, handle), None)
        return False

    def _post(self, rank: int, step: Exchange, handle: int) -> None:
        """Mark the messages of an exchange as ready on this side; a broadcast joins its collective."""
        if step.collective == "broadcast":
            m = (step.sends or step.receives)[0]
            root = rank if step.sends else m.rank
            size = self._size(rank, m)
            given = dict.fromkeys(step.ranks, (0, size)) | {root: (size * (len(step.ranks) - 1), 0)}
            name = f"broadcast {self.tensors[rank][m.buffer]}"
            hops = math.ceil(math.log2(len(step.ranks)))
            self._join(rank, m.tag, Meeting(name, step.ranks, hops, given), handle)
            return
        self.left[rank, handle] = len(step.sends) + len(step.receives)
        sides = [((rank, m.rank, m.tag), m) for m in step.sends]
        sides += [((m.rank, rank, m.tag), m) for m in step.receives]
        for key, m in sides:
            if key not in self.links:
                self.links[key] = Link(self.tensors[rank][m.buffer], self._size(rank, m))
            link = self.links[key]
            link.ready[rank] = (self.now[rank], handle)
            self.posted[rank] += 1
            link.order = (0.0, max(link.order[1], self.posted[rank]), 0)
            if len(link.ready) == 2:
                at = max(at for at, _ in link.ready.values())
                link.order = (at, link.order[1], next(self._count))
                self._schedule(at, key)

    def _post_reduction(self, rank: int, step: Reduce) -> None:
        tensor = self.tensors[rank][step.source]
        sent = {r: carried(step, r) for r in step.ranks}
        each = self.sizes[tensor]
        given = {r: (out * each, into * each) for r, (out, into) in sent.items()}
        tree = math.ceil(math.log2(len(step.ranks))) if step.collective == "reduce" else 0
        self._join(
            rank, step.tag, Meeting(f"{step.collective} {tensor}", step.ranks, tree, given), -1
        )

    def _join(self, rank: int, tag: int, meeting: Meeting, handle: int) -> None:
        """Mark a member of a collective as ready; the last one schedules the collective."""
        found = self.meetings.setdefault((tag, meeting.ranks), meeting)
        self.left[rank, handle] = 1
        found.ready[rank] = (self.now[rank], handle)
        if len(found.ready) == len(found.ranks):
            self._schedule(max(at for at, _ in found.ready.values()), (tag, meeting.ranks))

    def _size(self, rank: int, m: Message) -> int:
        return element_count(m.box) * self.sizes[self.tensors[rank][m.buffer]]

    def _schedule(self, at: float, key: Key | tuple[int, tuple[int, ...]] | Port) -> None:
        heapq.heappush(self._due, (at, next(self._count), key))

    # -- links

    def _ports(self, key: Key) -> list[Port]:
        """The links that a message occupies: of its source for sending, of its target for receiving."""
        source, target, _ = key
        level = crossed(self.plan.grid, (source, target))
        out = [Port(SEND, p) for p in ports(self.plan.grid, source, level)]
        return out + [Port(RECEIVE, p) for p in ports(self.plan.grid, target, level)]

    def _wait(self, key: Key) -> list[Port]:
        """Queue a message at its links, and return these links."""
        needed = self._ports(key)
        for p in needed:
            self.waiting.setdefault(p, set()).add(key)
        return needed

    def _carry(self, key: Key, begin: float) -> None:
        """Transfer a message whose links are free."""
        source, target, _ = key
        link = self.links.pop(key)
        level = crossed(self.plan.grid, (source, target))
        latency, seconds = self.machine.latency[level], link.bytes / self.machine.bandwidth[level]
        for p in self._ports(key):
            self.waiting[p].discard(key)
            self._use(p, begin + seconds)
        end = begin + latency + seconds
        name = f"{link.tensor} from {source} to {target}"
        self.slices.append(Slice(source, SEND, name, begin, begin + seconds, link.bytes, key))
        self.slices.append(Slice(target, RECEIVE, name, begin + latency, end, link.bytes, key))
        for rank, done in ((source, begin + seconds), (target, end)):
            self._done(rank, link.ready[rank][1], done)

    def _use(self, port: Port, until: float) -> None:
        self.free[port] = until
        self._schedule(until, port)

    def _meet(self, key: tuple[int, tuple[int, ...]], at: float) -> None:
        """Execute a collective whose members are all ready, from the time at which their links are free."""
        meeting = self.meetings.pop(key)
        level = crossed(self.plan.grid, meeting.ranks)
        latency, bandwidth = self.machine.latency[level], self.machine.bandwidth[level]
        used = [Port(track, (r,)) for r in meeting.ranks for track in (SEND, RECEIVE)]
        begin = max(at, *(self.free.get(p, 0.0) for p in used))
        most = max(max(pair) for pair in meeting.bytes.values())
        rounds = len(meeting.ranks) - 1
        hops = meeting.hops or rounds
        seconds = hops * latency + most * hops / rounds / bandwidth
        end = begin + seconds
        for p in used:
            self._use(p, end)
        for rank, (sent, received) in meeting.bytes.items():
            for track, size in ((SEND, sent), (RECEIVE, received)):
                if size:
                    self.slices.append(Slice(rank, track, meeting.name, begin, end, size))
        for rank, (_, handle) in meeting.ready.items():
            self._done(rank, handle, end)

    def _done(self, rank: int, handle: int, at: float) -> None:
        """Record that a message or collective of a handle is complete; the last one resumes the rank."""
        self.left[rank, handle] -= 1
        self.ends[rank, handle] = max(self.ends.get((rank, handle), 0.0), at)
        if self.left[rank, handle] == 0 and self.blocked.get(rank) == handle:
            del self.blocked[rank]
            self._waits(rank, handle)
            self._advance(rank)


def crossed(grid: Grid, ranks: tuple[int, ...]) -> int:
    """The outermost level of a grid in which the coordinates of some ranks differ.

    >>> machine = Grid.of([Grid(node=2), Grid(x=2)])
    >>> crossed(machine, (0, 1)), crossed(machine, (1, 2))
    (1, 0)
    """
    stands = [grid.coordinates(r) for r in ranks]
    apart = next((n for n, along in enumerate(zip(*stands, strict=True)) if len(set(along)) > 1), 0)
    return next(n for n, behind in enumerate(itertools.accumulate(grid.depths)) if apart < behind)


def ports(grid: Grid, rank: int, level: int) -> Iterator[tuple[int, ...]]:
    """The links of a rank for a message that crosses `level`: its own, and those of the nodes around it.

    A rank is `(rank,)`; a node is the number of its coordinates, followed by these coordinates.
    """
    at = grid.coordinates(rank)
    yield (rank,)
    for behind in list(itertools.accumulate(grid.depths))[level:-1]:
        yield (behind, *at[:behind])
