"""Verification of a plan, from the plan alone, by executing all ranks without data.

A buffer is abstracted to a list of boxes with the points of the reduction that their elements have combined
so far, themselves as boxes: none after a fill; a run gives the points of its ranges, a merge adds those of
its source, which must be disjoint from those of its target. It is verified that

1. every send matches one receive, of the same box of the same tensor, with the same tag and collective;
2. exchanges do not deadlock, even if every send is synchronous and a collective is a barrier of its ranks,
   all of which must name the same ranks;
3. steps access allocated buffers only, inside of their boxes; tasks read complete values only, from buffers
   that contain all that they read; the blocks from which data select rows are all of a tensor; between a
   start and its finish no step accesses the boxes that are received, nor writes those that are sent;
4. at the end each owner of an output has every point of every element exactly once;
5. the peak memory of each rank is what the plan states.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from tdsl.communication.steps import (
    Allocate,
    Copy,
    Exchange,
    Fill,
    Finish,
    Free,
    Merge,
    Message,
    PlacedTensor,
    RankPlan,
    Reduce,
    Route,
    Run,
    Start,
    Step,
)
from tdsl.distribute.buffer_contents import (
    BufferContents,
    Piece,
    PlanFault,
    Points,
    point_count,
    reduction_points,
)
from tdsl.distribute.plan import Plan
from tdsl.placement.ownership import (
    SpanBox,
    contains,
    element_count,
    intersection,
    is_empty,
)


def check(plan: Plan) -> None:
    """Raise PlanFault unless a plan is correct and its ranks have the peak memory that its costs state."""
    points = {h.name: reduction_points(h) for h in plan.tensors}
    sizes = {h.name: h.bytes for h in plan.tensors}
    tensors = {h.name: h for h in plan.tensors}
    ranks = [RankCheck(p, points, sizes, dict(p.owned), tensors) for p in plan]
    MessageMatcher(ranks).run()
    whole = {h.name for h in plan.tensors if not h.placement.partial}
    for rank in ranks:
        outputs = {name: plan.owned(name, rank.plan.rank) for name in plan.outputs}
        rank.check_end(outputs, whole)
    for name in set(plan.outputs) - whole:
        blocks = {}
        for r in (r for r in ranks if name in r.buffers):
            box = r.buffers[name].box
            blocks[r.plan.rank] = BufferContents(name, box, r.values(name, box))
        _check_parts(plan, tensors[name], tensors[name].placement.partial, blocks)
    for key in dict.fromkeys(key for rank in ranks for key in rank.parts_read):
        reader, name, _ = key
        parts = {r.plan.rank: r.parts_read[key] for r in ranks if key in r.parts_read}
        _check_parts(plan, tensors[name], tensors[reader].partial_axes, parts)
    for rank in ranks:
        stated = plan.volume.peak_memory[rank.plan.rank]
        if rank.peak != stated:
            raise PlanFault(f"rank {rank.plan.rank} holds {rank.peak} bytes, the plan says {stated}")


def _check_gather(tag: int, members: Mapping[int, Exchange | Reduce | Route]) -> None:
    """Raise PlanFault unless the messages of all ranks of a collective have the pattern of its kind."""
    ranks, kinds = set(members), {x.collective for x in members.values() if not isinstance(x, Route)}
    given: dict[int, list[Message]] = {}
    for rank, x in members.items():
        if not isinstance(x, Exchange) or kinds != {x.collective}:
            raise PlanFault(f"ranks see different collectives with tag {tag}")
        given[rank] = list(x.sends)
        if {m.rank for m in x.sends + x.receives} - ranks:
            raise PlanFault(f"a message with tag {tag} leaves its collective")
        if len({m.rank for m in x.sends}) < len(x.sends):
            raise PlanFault(f"rank {rank} sends twice to one rank with tag {tag}")
    senders = [rank for rank, sends in given.items() if sends]
    (kind,) = kinds
    to_all = all(
        len(given[r]) == len(ranks) - 1 and len({(m.buffer, m.box) for m in given[r]}) == 1 for r in senders
    )
    matches = {
        "broadcast": len(senders) == 1 and to_all,
        "all-gather": len(senders) > 1 and to_all,
        "all-to-all": all(len(sends) == len(ranks) - 1 for sends in given.values()),
    }
    if not matches.get(kind, False):
        raise PlanFault(f"the messages of ranks {sorted(ranks)} with tag {tag} are no {kind}")


def _check_parts(
    plan: Plan, placed: PlacedTensor, axes: tuple[int, ...], parts: Mapping[int, BufferContents]
) -> None:
    """Raise PlanFault unless partial results of a tensor together have every point once.

    `parts` has those of each rank; ranks whose coordinates differ only along `axes` have parts of one box.
    """
    blocks: dict[tuple[int, ...], BufferContents] = {}
    for rank, contents in parts.items():
        at = plan.grid.coordinates(rank)
        key = tuple(0 if n in axes else p for n, p in enumerate(at))
        if key in blocks:
            blocks[key].add(contents.pieces)
        else:
            blocks[key] = BufferContents(placed.name, contents.box, list(contents.pieces))
    for contents in blocks.values():
        for box, points in contents.pieces:
            if point_count(points) != point_count(reduction_points(placed)):
                raise PlanFault(f"the parts of {placed.name!r}{box} have the points {points} only")


BLOCKING = -1  # the handle of a blocking step
PostedSide = tuple[bool, Message, tuple[Exchange, int]]  # is it a send; exchange, handle
JoinedStep = tuple[
    Exchange | Reduce | Route, int
]  # the step by which a rank joins a collective, and its handle


class MessageMatcher:
    """Matches sends with receives, and tracks the handle that each rank waits for."""

    def __init__(self, ranks: list[RankCheck]) -> None:
        self.ranks = ranks
        self.posted: dict[tuple[int, int, int], PostedSide] = {}
        self.done: set[tuple[int, int, int]] = set()
        self.open: dict[tuple[int, int], int] = {}  # messages in flight, by rank and handle
        self.blocked: dict[int, int] = {}  # the handle that a rank waits for
        self.collectives: dict[tuple[int, tuple[int, ...]], dict[int, JoinedStep]] = {}

    def run(self) -> None:
        """Execute all ranks to their end; PlanFault for unmatched messages and incomplete collectives."""
        ready = list(range(len(self.ranks)))
        while ready:
            rank = ready.pop()
            step = self.ranks[rank].advance()
            if step is None:
                continue
            match step:
                case Reduce(tag=tag) | Route(tag=tag):
                    ready += self._join_collective(rank, tag, (step, BLOCKING))
                case Exchange():
                    self.blocked[rank] = BLOCKING
                    ready += self._start_exchange(rank, step, BLOCKING)
                case Start(exchange, handle):
                    ready += [rank, *self._start_exchange(rank, exchange, handle)]
                case Finish(handle):
                    if (rank, handle) not in self.open:
                        raise PlanFault(f"rank {rank} never started {handle}")
                    self.blocked[rank] = handle
                    ready += self._complete(rank, handle, 0)
        for (source, target, tag), (sends, _, _) in self.posted.items():
            what = "never received" if sends else "never sent"
            raise PlanFault(f"the message from {source} to {target} with tag {tag} is {what}")
        for (tag, ranks), joined in self.collectives.items():
            missing = sorted(set(ranks) - set(joined))
            raise PlanFault(f"ranks {missing} never join the collective with tag {tag}")

    def _start_exchange(self, rank: int, x: Exchange, handle: int) -> list[int]:
        """Start all messages of an exchange; returns the ranks that can continue."""
        if (rank, handle) in self.open:
            raise PlanFault(f"rank {rank} starts {handle} twice")
        tags = {m.tag for m in x.sends + x.receives}
        self.open[rank, handle] = len(x.sends) + len(x.receives) + (1 if x.collective else 0)
        this_rank, ready = self.ranks[rank], list[int]()
        for m in x.sends:
            this_rank.check_not_in_flight(m.buffer, m.box, written=False)
        for m in x.receives:
            this_rank.check_not_in_flight(m.buffer, m.box, written=True)
        if handle != BLOCKING:
            this_rank.in_flight[handle] = x
        for m in x.sends:
            ready += self._post((rank, m.rank, m.tag), True, m, (x, handle))
        for m in x.receives:
            ready += self._post((m.rank, rank, m.tag), False, m, (x, handle))
        if x.collective and len(tags) != 1:
            raise PlanFault(f"a collective of rank {rank} has the tags {sorted(tags)}")
        if x.collective:
            ready += self._join_collective(rank, tags.pop(), (x, handle))
        return ready

    def _complete(self, rank: int, handle: int, count: int = 1) -> list[int]:
        """Complete `count` messages of a handle; returns the rank if it waited for the last of them."""
        self.open[rank, handle] -= count
        if self.open[rank, handle] or self.blocked.get(rank) != handle:
            return []
        del self.open[rank, handle], self.blocked[rank]
        self.ranks[rank].in_flight.pop(handle, None)
        return [rank]

    def _join_collective(self, rank: int, tag: int, joining: JoinedStep) -> list[int]:
        """Add a rank to a collective; the last rank completes it. Returns the ranks that can continue."""
        step, _ = joining
        if rank not in step.ranks or tuple(sorted(set(step.ranks))) != step.ranks:
            raise PlanFault(f"rank {rank} is none of {step.ranks}, or they are not in order")
        joined = self.collectives.setdefault((tag, step.ranks), {})
        if rank in joined:
            raise PlanFault(f"rank {rank} joins the collective with tag {tag} twice")
        joined[rank] = joining
        if len(joined) < len(step.ranks):
            return []
        del self.collectives[tag, step.ranks]
        steps = {other: joined_step for other, (joined_step, _) in joined.items()}
        if isinstance(step, Reduce | Route):
            if isinstance(step, Reduce):
                self._reduce(steps, step)
            else:
                self._route(steps, step)
            return list(step.ranks)
        _check_gather(tag, steps)
        return [r for other, (_, handle) in joined.items() for r in self._complete(other, handle)]

    def _route(self, members: Mapping[int, Exchange | Reduce | Route], route: Route) -> None:
        """Store the rows that each rank reads; PlanFault unless the ranks together have all of them."""
        for n, (rank, step) in enumerate(sorted(members.items())):
            check, box, block = self.ranks[rank], route.boxes[n], route.blocks[n]
            if not isinstance(step, Route) or replace(step, index=None, target=None) != replace(
                route, index=None, target=None
            ):
                raise PlanFault(f"rank {rank} takes part in another route, tag {route.tag}")
            if block is not None:
                check.check_not_in_flight(route.tensor, block, written=False)
                check.check_complete(route.tensor, block)
            if (box is None) != (step.target is None) or (box is None) != (step.index is None):
                raise PlanFault(f"rank {rank} reads {box} of a route into {step.target!r}")
            if box is None or step.target is None or step.index is None:
                continue
            shared = ((route.key_block(m), route.shared_rows(n, m)) for m in range(len(members)))
            owned = sum(
                element_count(b) * element_count(s) for b, s in shared if b is not None and s is not None
            )
            if owned != element_count(route.whole) * element_count(box[route.index_dims :]):
                raise PlanFault(f"ranks {route.ranks} do not have all of {route.tensor!r}")
            check.check_complete(step.index, box[: route.index_dims])
            target = check.buffer(step.target, box)
            if target.tensor != route.tensor:
                raise PlanFault(f"{step.target!r} is no buffer of {route.tensor!r}")
            target.put([(box, check.points[route.tensor])])

    def _reduce(self, members: Mapping[int, Exchange | Reduce | Route], reduction: Reduce) -> None:
        """Combine the boxes of all ranks of a reduction, and store each rank's part of the result."""
        total: BufferContents | None = None
        for rank, step in sorted(members.items()):
            if not isinstance(step, Reduce) or (step.box, step.parts) != (
                reduction.box,
                reduction.parts,
            ):
                raise PlanFault(f"rank {rank} takes part in another reduction, tag {reduction.tag}")
            self.ranks[rank].check_not_in_flight(step.source, step.box, written=False)
            contents = self.ranks[rank].buffer(step.source, step.box)
            pieces = self.ranks[rank].values(step.source, step.box)
            if total is None:
                total = BufferContents(contents.tensor, step.box, pieces)
            elif total.tensor == contents.tensor:
                total.add(pieces)
            else:
                raise PlanFault(f"ranks reduce {total.tensor!r} and {contents.tensor!r} at once")
        assert total is not None
        for rank, part in zip(reduction.ranks, reduction.parts, strict=True):
            joined_step = members[rank]
            assert isinstance(joined_step, Reduce)
            if (part is None) != (joined_step.target is None):
                raise PlanFault(f"rank {rank} gets {part} of a reduction into {joined_step.target!r}")
            if part is not None and joined_step.target is not None:
                self.ranks[rank].check_not_in_flight(joined_step.target, part, written=True)
                target = self.ranks[rank].buffer(joined_step.target, part)
                if target.tensor != total.tensor or not contains(reduction.box, part):
                    raise PlanFault(f"{part} of {total.tensor!r} does not fit {joined_step.target!r}")
                target.put(total.get(part))

    def _post(
        self, key: tuple[int, int, int], sends: bool, m: Message, part: tuple[Exchange, int]
    ) -> list[int]:
        """Start one side of a message; the second delivers it. Returns the ranks that can continue."""
        source, target, tag = key
        if not (0 <= m.rank < len(self.ranks)) or source == target or key in self.done:
            raise PlanFault(f"a message from {source} to {target} with tag {tag} cannot be")
        if key not in self.posted:
            self.posted[key] = (sends, m, part)
            return []
        other, partner, partner_part = self.posted.pop(key)
        (step, handle), (partner_step, partner_handle) = part, partner_part
        if other == sends:
            raise PlanFault(f"two messages from {source} to {target} have tag {tag}")
        if (step.collective, step.ranks) != (partner_step.collective, partner_step.ranks):
            raise PlanFault(f"{source} and {target} see different collectives with tag {tag}")
        send, receive = (m, partner) if sends else (partner, m)
        self.ranks[target].receive(receive, *self.ranks[source].send(send))
        self.done.add(key)
        first, second = (handle, partner_handle) if sends else (partner_handle, handle)
        return [*self._complete(source, first), *self._complete(target, second)]


@dataclass(slots=True)
class RankCheck:
    """The execution of one rank without data: its buffers, its exchanges in flight, its peak memory.

    `parts_read` has what its tasks read as this rank's part of a tensor, by reader, tensor and box.
    """

    plan: RankPlan
    points: Mapping[str, Points]
    sizes: Mapping[str, int]
    owned: Mapping[str, SpanBox]
    tensors: Mapping[str, PlacedTensor]
    buffers: dict[str, BufferContents] = field(default_factory=dict)
    in_flight: dict[int, Exchange] = field(default_factory=dict)
    parts_read: dict[tuple[str, str, SpanBox], BufferContents] = field(default_factory=dict)
    at: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        for name, box in self.owned.items():
            self.buffers[name] = BufferContents(name, box)
            self.buffers[name].put([(box, self.points[name])])
        self._update_peak()

    def _update_peak(self) -> None:
        over = {id(b.over) for b in self.buffers.values()}
        allocated = sum(
            element_count(b.box) * self.sizes[b.tensor] for b in self.buffers.values() if id(b) not in over
        )
        self.peak = max(self.peak, allocated)

    def _fault(self, why: str) -> PlanFault:
        return PlanFault(f"step {self.at} of rank {self.plan.rank}: {why}")

    def _overwritten(self, name: str, box: SpanBox) -> BufferContents:
        """The buffer whose memory another one takes for a box; PlanFault unless it is a block of that box."""
        if name not in self.owned or self.buffer(name, box).box != box:
            raise self._fault(f"{name!r} is no block of {box}")
        return self.buffers[name]

    def buffer(self, name: str, box: SpanBox) -> BufferContents:
        """The buffer `name`; PlanFault unless it is allocated and contains `box`."""
        if name not in self.buffers:
            raise self._fault(f"there is no buffer {name!r}")
        contents = self.buffers[name]
        if len(box) != len(contents.box) or not contains(contents.box, box):
            raise self._fault(f"{name!r} holds {contents.box}, not {box}")
        return contents

    def values(self, name: str, box: SpanBox) -> list[Piece]:
        """The pieces of a buffer within a box; PlanFault unless all elements of the box have values."""
        pieces = self.buffer(name, box).get(box)
        if sum(element_count(part) for part, _ in pieces) < element_count(box):
            raise self._fault(f"{name!r} has no values in all of {box}")
        return pieces

    def advance(self) -> Exchange | Start | Finish | Reduce | Route | None:
        """Execute local steps; returns the next communication step, None at the end of the plan."""
        while self.at < len(self.plan.steps):
            step = self.plan.steps[self.at]
            self.at += 1
            if isinstance(step, Exchange | Start | Finish | Reduce | Route):
                return step
            self._execute(step)
        return None

    def check_not_in_flight(self, name: str, box: SpanBox | None, *, written: bool) -> None:
        """Raise PlanFault if an access conflicts with an exchange in flight; None is the whole buffer."""
        for x in self.in_flight.values():
            for m in (*x.receives, *(x.sends if written else ())):
                if m.buffer == name and (box is None or intersection(m.box, box) is not None):
                    raise self._fault(f"{name!r} is touched while {m.box} of it is on its way")

    def _execute(self, step: Step) -> None:
        match step:
            case Free(name) | Fill(name):
                self.check_not_in_flight(name, None, written=True)
            case Copy(source, name, box) | Merge(source, name, box):
                self.check_not_in_flight(source, box, written=False)
                self.check_not_in_flight(name, box, written=True)
            case Run():
                for _, name in step.reads:
                    self.check_not_in_flight(name, None, written=False)
                self.check_not_in_flight(step.target, step.box, written=True)
            case _:
                pass
        match step:
            case Allocate(name, tensor, box):
                if name in self.buffers or tensor not in self.points:
                    raise self._fault(f"{name!r} is there already, or {tensor!r} is nothing known")
                self.buffers[name] = BufferContents(tensor, box)
                if step.over is not None:
                    self.buffers[name].over = self._overwritten(step.over, box)
                self._update_peak()
            case Free(name):
                if name not in self.buffers:
                    raise self._fault(f"there is no buffer {name!r}")
                del self.buffers[name]
            case Fill(name):
                if name not in self.buffers:
                    raise self._fault(f"there is no buffer {name!r}")
                contents = self.buffers[name]
                contents.put([(contents.box, ())])
            case Copy(source, target, box):
                self._same_tensor(source, target, box)
                self.buffer(target, box).put(self.values(source, box))
            case Merge(source, target, box):
                self._same_tensor(source, target, box)
                self.values(target, box)
                self.buffer(target, box).add(self.values(source, box))
            case Run():
                self._run_task(step)
            case Exchange() | Start() | Finish() | Reduce() | Route():
                raise AssertionError("`MessageMatcher` performs communication")

    def _same_tensor(self, source: str, target: str, box: SpanBox) -> None:
        if self.buffer(source, box).tensor != self.buffer(target, box).tensor:
            raise self._fault(f"{source!r} and {target!r} hold different tensors")

    def _run_task(self, step: Run) -> None:
        for source, name in step.reads:
            contents, tensor = self.buffers.get(name), self.tensors[step.func].aliases.get(source, source)
            if contents is None or contents.tensor != tensor:
                raise self._fault(f"{name!r} is no buffer of {tensor!r}")
            axes = self.tensors[step.func].partial_axes
            if any(n in self.tensors[tensor].placement.partial for n in axes):
                key = (step.func, tensor, contents.box)
                self.parts_read[key] = BufferContents(tensor, contents.box, self.values(name, contents.box))
            else:
                self.check_complete(name, contents.box)
        placed, ranges, read = self.tensors[step.func], dict(step.ranges), dict(step.reads)
        assert placed.read_boxes is not None, "what is run is a stage"
        for tensor, needed in placed.read_boxes(step.ranges).items():
            if tensor not in read or not contains(self.buffers[read[tensor]].box, needed):
                raise self._fault(f"{step.func!r} needs {needed} of {tensor!r}")
        if self.buffer(step.target, step.box).tensor != step.func:
            raise self._fault(f"{step.target!r} is no buffer of {step.func!r}")
        dims = zip(placed.dims, placed.whole, strict=True)
        box = tuple(whole if name is None else ranges.get(name) for name, whole in dims)
        (whole,) = reduction_points(placed)
        points = tuple(ranges.get(name, (0, 0)) for name, _ in placed.points)
        if box != step.box or is_empty((*step.box, *points)) or not contains(whole, points):
            raise self._fault(f"the ranges of {step.func!r} are not those of its box")
        self.buffer(step.target, step.box).put([(step.box, (points,))])

    def check_complete(self, name: str, box: SpanBox) -> None:
        """Raise PlanFault unless every element of a box has all points of its reduction."""
        expected = point_count(self.points[self.buffer(name, box).tensor])
        for part, points in self.values(name, box):
            if point_count(points) != expected:
                raise self._fault(f"{part} of {name!r} has the points {points} only")

    def send(self, m: Message) -> tuple[str, SpanBox, list[Piece]]:
        """The contents of a message: tensor, box, pieces."""
        return self.buffer(m.buffer, m.box).tensor, m.box, self.values(m.buffer, m.box)

    def receive(self, m: Message, tensor: str, box: SpanBox, pieces: list[Piece]) -> None:
        """Store the pieces of a message in its buffer; PlanFault unless tensor and box match."""
        contents = self.buffer(m.buffer, m.box)
        if contents.tensor != tensor or m.box != box:
            raise self._fault(f"{contents.tensor}{m.box} is expected, {tensor}{box} is sent, tag {m.tag}")
        contents.put(pieces)

    def check_end(self, outputs: Mapping[str, SpanBox | None], whole: AbstractSet[str]) -> None:
        """Raise PlanFault unless the rank has its blocks of the outputs, and nothing else is left.

        No exchange may be in flight, and no other buffer be allocated. Elements of the outputs in `whole`
        must have all of their points.
        """
        for name, box in outputs.items():
            if box is not None:
                if self.buffers.get(name) is None or self.buffers[name].box != box:
                    raise self._fault(f"{name!r} is not left in the end")
                if name in whole:
                    self.check_complete(name, box)
        if self.in_flight:
            raise self._fault(f"{sorted(self.in_flight)} are never finished")
        over = {id(b.over) for b in self.buffers.values()}
        extra = set(self.buffers) - set(outputs) - set(self.owned)
        extra |= {name for name, b in self.buffers.items() if id(b) in over}  # overwritten
        if extra:
            raise self._fault(f"buffers are left: {', '.join(sorted(extra))}")
