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
    Run,
    Start,
    reduction_elements,
)
from tdsl.core.node import frozen
from tdsl.distribute.plan import Plan
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
class PendingMessage:
    """A message: its tensor and bytes, when each side is ready with which handle, and its priority."""

    tensor: str
    bytes: int
    ready: dict[int, tuple[float, int]] = field(default_factory=dict)
    order: tuple[float, int, int] = (0.0, 0, 0)


@dataclass(slots=True)
class PendingCollective:
    """A broadcast or reduction, which begins when all of its members are ready."""

    name: str
    ranks: tuple[int, ...]
    hops: int  # the depth of its tree; 0 for a ring
    bytes: dict[int, tuple[int, int]]  # sent and received by each member
    ready: dict[int, tuple[float, int]] = field(default_factory=dict)


class TimeModel:
    """Simulates the steps of all ranks without data; `operations` is the number for a point of each func."""

    def __init__(self, plan: Plan, machine: Machine, operations: Mapping[str, float]) -> None:
        self.plan, self.machine, self.operations = plan, machine, operations
        self.sizes = plan.sizes
        ranks = range(plan.grid.size)
        self.steps = [iter(plan.rank(r).steps) for r in ranks]
        self.tensors = [{name: name for name, _ in plan.rank(r).owned} for r in ranks]
        self.now = [0.0] * len(ranks)
        self.incomplete: dict[tuple[int, int], int] = {}  # incomplete communications, by handle
        self.end_times: dict[tuple[int, int], float] = {}
        self.blocked: dict[int, int] = {}  # the handle that a rank waits for
        self.pending: dict[Key, PendingMessage] = {}
        self.collectives: dict[tuple[int, tuple[int, ...]], PendingCollective] = {}
        self.posted = [0] * len(ranks)  # messages started so far by each rank
        self.free_at: dict[Port, float] = {}  # the time at which a link becomes free
        self.waiting: dict[Port, set[Key]] = {}  # messages with both sides ready that wait for free links
        self.slices: list[Slice] = []
        self._events: list[tuple[float, int, Key | tuple[int, tuple[int, ...]] | Port]] = []
        self._count = itertools.count()

    def run(self) -> list[Slice]:
        """Simulate the plan; returns all slices, those of a track in the order of time."""
        for rank in range(self.plan.grid.size):
            self._advance(rank)
        while self._events:
            now, touched = self._events[0][0], set[Port]()
            while self._events and self._events[0][0] == now:
                _, _, what = heapq.heappop(self._events)
                if isinstance(what, Port):
                    touched.add(what)
                elif len(what) == 3:
                    touched.update(self._enqueue(what))
                else:
                    self._run_collective(what, now)
            ready = set[Key]().union(*(self.waiting.get(p, ()) for p in touched))
            for key in sorted(ready, key=lambda k: self.pending[k].order):
                if all(self.free_at.get(p, 0.0) <= now for p in self._ports(key)):
                    self._transfer(key, now)
        assert not self.blocked, f"ranks {sorted(self.blocked)} wait for what never comes"
        return self.slices

    # -- one rank

    def _advance(self, rank: int) -> None:
        """Execute the steps of a rank until it blocks or ends."""
        for step in self.steps[rank]:
            match step:
                case Allocate(buffer, tensor, _):
                    self.tensors[rank][buffer] = tensor
                case Fill(buffer):
                    pass  # negligible
                case Copy(source, _, box) | Merge(source, _, box):
                    size = element_count(box) * self.sizes[self.tensors[rank][source]]
                    what = f"{type(step).__name__.lower()} {self.tensors[rank][source]}"
                    self._compute(rank, what, size / self.machine.memory, size)
                case Run(func, ranges):
                    points = math.prod(hi - lo for _, (lo, hi) in ranges)
                    self._compute(rank, func, points * self.operations[func] / self.machine.operations)
                case Exchange():
                    self._post(rank, step, -1)
                    if self._must_wait(rank, -1):
                        return
                case Start(exchange, handle):
                    self._post(rank, exchange, handle)
                case Finish(handle):
                    if self._must_wait(rank, handle):
                        return
                case Reduce():
                    self._post_reduction(rank, step)
                    if self._must_wait(rank, -1):
                        return
                case Free():
                    pass

    def _compute(self, rank: int, name: str, seconds: float, size: int = 0) -> None:
        begin = self.now[rank]
        self.now[rank] = begin + seconds
        self.slices.append(Slice(rank, COMPUTE, name, begin, self.now[rank], size))

    def _must_wait(self, rank: int, handle: int) -> bool:
        """True if a rank must wait for a handle; otherwise the handle is retired."""
        if self.incomplete.get((rank, handle), 0):
            self.blocked[rank] = handle
            return True
        self.now[rank] = max(self.now[rank], self.end_times.pop((rank, handle), 0.0))
        self.incomplete.pop((rank, handle), None)
        return False

    def _post(self, rank: int, step: Exchange, handle: int) -> None:
        """Mark the messages of an exchange as ready on this side; a broadcast joins its collective."""
        if step.collective == "broadcast":
            m = (step.sends or step.receives)[0]
            root = rank if step.sends else m.rank
            size = self._size(rank, m)
            volumes = dict.fromkeys(step.ranks, (0, size)) | {root: (size * (len(step.ranks) - 1), 0)}
            name = f"broadcast {self.tensors[rank][m.buffer]}"
            hops = math.ceil(math.log2(len(step.ranks)))
            self._join(rank, m.tag, PendingCollective(name, step.ranks, hops, volumes), handle)
            return
        self.incomplete[rank, handle] = len(step.sends) + len(step.receives)
        sides = [((rank, m.rank, m.tag), m) for m in step.sends]
        sides += [((m.rank, rank, m.tag), m) for m in step.receives]
        for key, m in sides:
            if key not in self.pending:
                self.pending[key] = PendingMessage(self.tensors[rank][m.buffer], self._size(rank, m))
            link = self.pending[key]
            link.ready[rank] = (self.now[rank], handle)
            self.posted[rank] += 1
            link.order = (0.0, max(link.order[1], self.posted[rank]), 0)
            if len(link.ready) == 2:
                at = max(at for at, _ in link.ready.values())
                link.order = (at, link.order[1], next(self._count))
                self._schedule(at, key)

    def _post_reduction(self, rank: int, step: Reduce) -> None:
        tensor = self.tensors[rank][step.source]
        counts = {r: reduction_elements(step, r) for r in step.ranks}
        each = self.sizes[tensor]
        volumes = {r: (out * each, into * each) for r, (out, into) in counts.items()}
        tree = math.ceil(math.log2(len(step.ranks))) if step.collective == "reduce" else 0
        self._join(
            rank,
            step.tag,
            PendingCollective(f"{step.collective} {tensor}", step.ranks, tree, volumes),
            -1,
        )

    def _join(self, rank: int, tag: int, new: PendingCollective, handle: int) -> None:
        """Mark a member of a collective as ready; the last one schedules the collective."""
        collective = self.collectives.setdefault((tag, new.ranks), new)
        self.incomplete[rank, handle] = 1
        collective.ready[rank] = (self.now[rank], handle)
        if len(collective.ready) == len(collective.ranks):
            self._schedule(max(at for at, _ in collective.ready.values()), (tag, new.ranks))

    def _size(self, rank: int, m: Message) -> int:
        return element_count(m.box) * self.sizes[self.tensors[rank][m.buffer]]

    def _schedule(self, at: float, key: Key | tuple[int, tuple[int, ...]] | Port) -> None:
        heapq.heappush(self._events, (at, next(self._count), key))

    # -- links

    def _ports(self, key: Key) -> list[Port]:
        """The links that a message occupies: of its source for sending, of its target for receiving."""
        source, target, _ = key
        level = self.plan.grid.crossed_level((source, target))
        out = [Port(SEND, p) for p in ports(self.plan.grid, source, level)]
        return out + [Port(RECEIVE, p) for p in ports(self.plan.grid, target, level)]

    def _enqueue(self, key: Key) -> list[Port]:
        """Queue a message at its links, and return these links."""
        needed = self._ports(key)
        for p in needed:
            self.waiting.setdefault(p, set()).add(key)
        return needed

    def _transfer(self, key: Key, begin: float) -> None:
        """Transfer a message whose links are free."""
        source, target, _ = key
        link = self.pending.pop(key)
        level = self.plan.grid.crossed_level((source, target))
        latency, seconds = self.machine.latency[level], link.bytes / self.machine.bandwidth[level]
        for p in self._ports(key):
            self.waiting[p].discard(key)
            self._occupy(p, begin + seconds)
        end = begin + latency + seconds
        name = f"{link.tensor} from {source} to {target}"
        self.slices.append(Slice(source, SEND, name, begin, begin + seconds, link.bytes, key))
        self.slices.append(Slice(target, RECEIVE, name, begin + latency, end, link.bytes, key))
        for rank, done in ((source, begin + seconds), (target, end)):
            self._complete(rank, link.ready[rank][1], done)

    def _occupy(self, port: Port, until: float) -> None:
        self.free_at[port] = until
        self._schedule(until, port)

    def _run_collective(self, key: tuple[int, tuple[int, ...]], at: float) -> None:
        """Execute a collective whose members are all ready, from the time at which their links are free."""
        collective = self.collectives.pop(key)
        level = self.plan.grid.crossed_level(collective.ranks)
        latency, bandwidth = self.machine.latency[level], self.machine.bandwidth[level]
        used = [Port(track, (r,)) for r in collective.ranks for track in (SEND, RECEIVE)]
        begin = max(at, *(self.free_at.get(p, 0.0) for p in used))
        most = max(max(pair) for pair in collective.bytes.values())
        rounds = len(collective.ranks) - 1
        hops = collective.hops or rounds
        seconds = hops * latency + most * hops / rounds / bandwidth
        end = begin + seconds
        for p in used:
            self._occupy(p, end)
        for rank, (sent, received) in collective.bytes.items():
            for track, size in ((SEND, sent), (RECEIVE, received)):
                if size:
                    self.slices.append(Slice(rank, track, collective.name, begin, end, size))
        for rank, (_, handle) in collective.ready.items():
            self._complete(rank, handle, end)

    def _complete(self, rank: int, handle: int, at: float) -> None:
        """Record that a message or collective of a handle is complete; the last one resumes the rank."""
        self.incomplete[rank, handle] -= 1
        self.end_times[rank, handle] = max(self.end_times.get((rank, handle), 0.0), at)
        if self.incomplete[rank, handle] == 0 and self.blocked.get(rank) == handle:
            del self.blocked[rank]
            self._must_wait(rank, handle)
            self._advance(rank)


def ports(grid: Grid, rank: int, level: int) -> Iterator[tuple[int, ...]]:
    """The links of a rank for a message that crosses `level`: its own, and those of the nodes around it.

    A rank is `(rank,)`; a node is the number of its coordinates, followed by these coordinates.
    """
    at = grid.coordinates(rank)
    yield (rank,)
    for behind in list(itertools.accumulate(grid.depths))[level:-1]:
        yield (behind, *at[:behind])
