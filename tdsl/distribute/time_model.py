"""A discrete-event model of the time of a plan: its steps, its messages and the links that they occupy.

A message takes a latency plus its bytes over a bandwidth (the alpha-beta model), those of the outermost level
of the grid that it crosses. A rank sends one message at a time and receives one at a time; what leaves or
enters a group of ranks shares the links of that group with what else does (`contention.py`). A message begins
when both sides are ready and their ports free; among several, the one that became ready first, or comes first
in the plans.

Collectives are transfers of all members together, by the algorithm of `collective_algorithms.py` that takes
the least time if no other transfer uses its links. An all-to-all is its messages, of expected bytes if data
select them. Tasks take their operations over a rate, copies their bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tdsl.communication.expected_rows import expected_rows
from tdsl.communication.steps import (
    ROUTE_TAGS,
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
    reduction_elements,
)
from tdsl.core.node import frozen
from tdsl.cost.network import ports_of
from tdsl.distribute.collective_algorithms import Collective, Edge, rounds_of
from tdsl.distribute.contention import Links, Port, Transfer
from tdsl.distribute.plan import Plan
from tdsl.placement.ownership import element_count

COMPUTE, SEND, RECEIVE = "compute", "send", "receive"
NEGLIGIBLE = 1e-9  # the part of a time by which another algorithm must be faster
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
class Machine:
    """Latency in s and bandwidth in bytes/s by level of the grid; operations/s; `memory`: copied bytes/s.

    `shared_by` is, for each level, the number of ranks that share a link to other groups of the level; 0 for
    all ranks of a group. `in_switch` says for each level if its switches combine and copy; `algorithm` is the
    one of all collectives that have it, None for the best of each.
    """

    latency: tuple[float, ...]
    bandwidth: tuple[float, ...]
    operations: float
    memory: float
    shared_by: tuple[int, ...]
    in_switch: tuple[bool, ...] = ()
    algorithm: str | None = None


@dataclass(slots=True)
class PendingMessage:
    """A message: its tensor and bytes, when each side is ready with which handle, and its priority."""

    tensor: str
    bytes: int
    ready: dict[int, tuple[float, int]] = field(default_factory=dict)
    posted: int = 0


@dataclass(slots=True)
class PendingCollective:
    """A collective of a tensor, which begins when all of its members are ready."""

    tensor: str
    what: Collective
    volumes: dict[int, tuple[int, int]]  # bytes sent and received by each member, by the plan
    ready: dict[int, tuple[float, int]] = field(default_factory=dict)


@frozen
class RoutePhase:
    """An all-to-all of a route: 0 of numbers of rows, 1 of their offsets, 2 of rows."""

    step: Route
    number: int


def with_phases(steps: Iterable[Step]) -> Iterator[Step | RoutePhase]:
    """The steps with the all-to-alls of each route in its place."""
    for step in steps:
        yield from (RoutePhase(step, n) for n in range(ROUTE_TAGS)) if isinstance(step, Route) else (step,)


class TimeModel:
    """Simulates the steps of all ranks without data; `operations` is the number for a point of each func."""

    def __init__(self, plan: Plan, machine: Machine, operations: Mapping[str, float]) -> None:
        self.plan, self.machine, self.operations = plan, machine, operations
        self.sizes = plan.sizes
        ranks = range(plan.grid.size)
        self.steps = [with_phases(plan.rank(r).steps) for r in ranks]
        self.tensors = [{name: name for name, _ in plan.rank(r).owned} for r in ranks]
        self.now = [0.0] * len(ranks)
        self.incomplete: dict[tuple[int, int], int] = {}  # incomplete communications, by handle
        self.end_times: dict[tuple[int, int], float] = {}
        self.blocked: dict[int, int] = {}  # the handle that a rank waits for
        self.pending: dict[Key, PendingMessage] = {}
        self.collectives: dict[tuple[int, tuple[int, ...]], PendingCollective] = {}
        self.posted = [0] * len(ranks)  # messages started so far by each rank
        self.slices: list[Slice] = []
        self.links = Links(lambda port: machine.bandwidth[port.level])
        levels = range(len(plan.grid.depths) - 1)
        self.shared = [ports_of(plan.grid, level, machine.shared_by[level] or len(ranks)) for level in levels]
        self._count = itertools.count()

    def run(self) -> list[Slice]:
        """Simulate the plan; returns all slices, those of a track in the order of time."""
        for rank in range(self.plan.grid.size):
            self._advance(rank)
        self.links.run()
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
                case RoutePhase():
                    self._post_phase(rank, step)
                    if self._must_wait(rank, -1):
                        return
                case Free() | Route():
                    pass  # a route is its phases

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
        """Mark the messages of an exchange as ready on this side, or the rank as a member of a collective."""
        if step.collective in ("broadcast", "all-gather"):
            self._join(rank, (step.sends or step.receives)[0].tag, self._gather(rank, step), handle)
            return
        sides = [(rank, m.rank, m) for m in step.sends] + [(m.rank, rank, m) for m in step.receives]
        tensors = self.tensors[rank]
        self._post_messages(
            rank, [((a, b, m.tag), tensors[m.buffer], self._size(rank, m)) for a, b, m in sides], handle
        )

    def _post_messages(self, rank: int, sides: list[tuple[Key, str, int]], handle: int) -> None:
        """Mark messages as ready on this side: the key, the tensor and the bytes of each."""
        self.incomplete[rank, handle] = len(sides)
        for key, tensor, size in sides:
            if key not in self.pending:
                self.pending[key] = PendingMessage(tensor, size)
            message = self.pending[key]
            message.ready[rank] = (self.now[rank], handle)
            self.posted[rank] += 1
            message.posted = max(message.posted, self.posted[rank])
            if len(message.ready) == 2:
                self._transfer(key, self.pending.pop(key))

    def _gather(self, rank: int, step: Exchange) -> PendingCollective:
        """The broadcast or all-gather that an exchange of a rank belongs to."""
        parts = {m.rank: self._size(rank, m) for m in step.receives}
        if step.sends:
            parts[rank] = self._size(rank, step.sends[0])
        tensor = self.tensors[rank][(step.sends or step.receives)[0].buffer]
        total, others = sum(parts.values()), len(step.ranks) - 1
        volumes = {r: (parts.get(r, 0) * others, total - parts.get(r, 0)) for r in step.ranks}
        root = next(iter(parts)) if step.collective == "broadcast" else -1
        return _collective(step.collective, tensor, volumes, total, root)

    def _post_reduction(self, rank: int, step: Reduce) -> None:
        tensor = self.tensors[rank][step.source]
        each = self.sizes[tensor]
        counts = {r: reduction_elements(step, r) for r in step.ranks}
        volumes = {r: (out * each, into * each) for r, (out, into) in counts.items()}
        root = next(r for r, part in zip(step.ranks, step.parts, strict=True) if part is not None)
        size = each * element_count(step.box)
        self._join(rank, step.tag, _collective(step.collective, tensor, volumes, size, root), -1)

    def _post_phase(self, rank: int, phase: RoutePhase) -> None:
        """Mark the messages of an all-to-all of a route as ready on this side, with their expected bytes."""
        step, me, tag = phase.step, phase.step.ranks.index(rank), phase.step.tag + phase.number
        rows, elements = expected_rows(step)
        key_bytes, sent = self.sizes[step.key], rows.T * elements.T * self.sizes[step.tensor]
        if phase.number < ROUTE_TAGS - 1:
            sent = key_bytes * (rows if phase.number else np.ones_like(rows))
        tensor = step.tensor if phase.number == ROUTE_TAGS - 1 else step.key
        sides = []
        for n, other in ((n, r) for n, r in enumerate(step.ranks) if r != rank):
            sides.append(((rank, other, tag), tensor, round(float(sent[me, n]))))
            sides.append(((other, rank, tag), tensor, round(float(sent[n, me]))))
        self._post_messages(rank, sides, -1)

    def _join(self, rank: int, tag: int, new: PendingCollective, handle: int) -> None:
        """Mark a member of a collective as ready; the last one starts the collective."""
        ranks = new.what.ranks
        collective = self.collectives.setdefault((tag, ranks), new)
        self.incomplete[rank, handle] = 1
        collective.ready[rank] = (self.now[rank], handle)
        if len(collective.ready) == len(ranks):
            self._start_collective(self.collectives.pop((tag, ranks)))

    def _size(self, rank: int, m: Message) -> int:
        return element_count(m.box) * self.sizes[self.tensors[rank][m.buffer]]

    # -- links

    def _loads(self, edges: Iterable[Edge], total: float, switch: int = 0) -> dict[Port, float]:
        """The bytes that some messages send over each shared link, for each byte of `total`.

        A message of a rank to itself goes through a switch of level `switch`.
        """
        grid, loads = self.plan.grid, dict[Port, float]()
        for source, target, size in edges:
            first = switch if source == target else grid.crossed_level((source, target))
            for level in range(first, len(self.shared)):
                if self.machine.shared_by[level] == 1:
                    continue  # the link is the port of the rank
                for track, rank in ((SEND, source), (RECEIVE, target)):
                    port = Port(track, level, int(self.shared[level][rank]))
                    loads[port] = loads.get(port, 0.0) + size / total
        return loads

    def _transfer(self, key: Key, message: PendingMessage) -> None:
        """Start the transfer of a message that both sides are ready for."""
        source, target, _ = key
        level = self.plan.grid.crossed_level((source, target))
        latency, limit, size = self.machine.latency[level], self.machine.bandwidth[level], message.bytes
        name = f"{message.tensor} from {source} to {target}"

        def complete(begin: float, end: float) -> None:
            self.slices.append(Slice(source, SEND, name, begin, end, size, key))
            self.slices.append(Slice(target, RECEIVE, name, begin + latency, end + latency, size, key))
            for rank, at in ((source, end), (target, end + latency)):
                self._complete(rank, message.ready[rank][1], at)

        at = max(at for at, _ in message.ready.values())
        links = (rank_port(SEND, source), rank_port(RECEIVE, target))
        loads = self._loads([(source, target, 1.0)], 1.0)
        order = at, message.posted, next(self._count)
        self.links.add(at, Transfer(order, links, loads, float(size), limit, 0.0, complete))

    def _start_collective(self, collective: PendingCollective) -> None:
        """Start a collective whose members are all ready, by the algorithm that takes the least time."""
        what = collective.what
        level = self.plan.grid.crossed_level(what.ranks)
        limit, switch = self.machine.bandwidth[level], any(self.machine.in_switch[level : level + 1])
        best, loads, least = None, dict[Port, float](), math.inf
        for rounds in rounds_of(what, switch=switch, only=self.machine.algorithm):
            loads_of_it = self._loads(rounds.edges, max(rounds.bytes, 1.0), level)
            rates = (self.machine.bandwidth[port.level] / load for port, load in loads_of_it.items())
            seconds = rounds.hops * self.machine.latency[level] + rounds.bytes / min(limit, *rates, limit)
            if best is None or seconds < least * (1 - NEGLIGIBLE):
                best, loads, least = rounds, loads_of_it, seconds
        assert best is not None, "each kind of collective has an algorithm"
        latency = best.hops * self.machine.latency[level]
        name = f"{what.kind} {collective.tensor}, {best.algorithm}"

        def complete(begin: float, end: float) -> None:
            end += latency
            for rank, (sent, received) in collective.volumes.items():
                for track, size in ((SEND, sent), (RECEIVE, received)):
                    if size:
                        self.slices.append(Slice(rank, track, name, begin, end, size))
            for rank, (_, handle) in collective.ready.items():
                self._complete(rank, handle, end)

        at = max(at for at, _ in collective.ready.values())
        links = tuple(rank_port(track, r) for r in what.ranks for track in (SEND, RECEIVE))
        order = at, 0, next(self._count)
        self.links.add(at, Transfer(order, links, loads, best.bytes, limit, latency, complete))

    def _complete(self, rank: int, handle: int, at: float) -> None:
        """Record that a message or collective of a handle is complete; the last one resumes the rank."""
        self.incomplete[rank, handle] -= 1
        self.end_times[rank, handle] = max(self.end_times.get((rank, handle), 0.0), at)
        if self.incomplete[rank, handle] == 0 and self.blocked.get(rank) == handle:
            del self.blocked[rank]
            self._must_wait(rank, handle)
            self._advance(rank)


def _collective(
    kind: str, tensor: str, volumes: dict[int, tuple[int, int]], size: int, root: int
) -> PendingCollective:
    """A collective of `size` bytes, whose members send and receive `volumes` by the plan."""
    most = max(received for _, received in volumes.values())
    return PendingCollective(
        tensor, Collective(kind, tuple(volumes), float(size), float(most), root), volumes
    )


def rank_port(track: str, rank: int) -> Port:
    """The port of a rank itself, for one direction."""
    return Port(track, -1, rank)
