"""Verification of a plan, from the plan alone, by executing all ranks without data.

A buffer is abstracted to a list of boxes with the points of the reduction that their elements have combined
so far, themselves as boxes: none after a fill; a run gives the points of its ranges, a merge adds those of
its source, which must be disjoint from those of its target. It is verified that

1. every send matches one receive, of the same box of the same tensor, with the same tag and collective;
2. exchanges do not deadlock, even if every send is synchronous and a collective is a barrier of its ranks,
   all of which must name the same ranks;
3. steps access allocated buffers only, inside of their boxes; tasks read complete values only, from buffers
   that contain all that they read; between a start and its finish no step accesses the boxes that are
   received, nor writes those that are sent;
4. at the end each owner of an output has every point of every element exactly once;
5. the peak memory of each rank is what the plan states.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tdsl.distribute.buffer_contents import Held, Piece, PlanFault, Points, count_of, points_of
from tdsl.distribute.plan import Plan
from tdsl.distribute.steps import (
    Copy,
    Drop,
    Exchange,
    Fill,
    Finish,
    Home,
    Make,
    Merge,
    Message,
    RankPlan,
    Reduce,
    Run,
    Start,
    Step,
)
from tdsl.placement.ownership import (
    Box,
    contains,
    element_count,
    intersection,
    is_empty,
)


def check(plan: Plan) -> None:
    """Raise PlanFault unless a plan is correct and its ranks have the peak memory that its costs state."""
    points = {h.name: points_of(h) for h in plan.homes}
    sizes = {h.name: h.bytes for h in plan.homes}
    homes = {h.name: h for h in plan.homes}
    ranks = [RankCheck(p, points, sizes, dict(p.owned), homes) for p in plan]
    Post(ranks).carry()
    whole = {h.name for h in plan.homes if not h.placement.partial}
    for rank in ranks:
        outputs = {name: plan.owned(name, rank.plan.rank) for name in plan.outputs}
        rank.check_end(outputs, whole)
    for name in set(plan.outputs) - whole:
        _check_parts(plan, homes[name], ranks)
    for rank in ranks:
        said = plan.costs[rank.plan.rank].peak_memory
        if rank.peak != said:
            raise PlanFault(f"rank {rank.plan.rank} holds {rank.peak} bytes, the plan says {said}")


def _check_gather(tag: int, here: Mapping[int, Exchange | Reduce]) -> None:
    """Raise PlanFault unless the messages of all ranks of a collective have the pattern of its kind."""
    ranks, kinds = set(here), {x.collective for x in here.values()}
    given: dict[int, list[Message]] = {}
    for rank, x in here.items():
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
        len(given[r]) == len(ranks) - 1 and len({(m.buffer, m.box) for m in given[r]}) == 1
        for r in senders
    )
    right = {
        "broadcast": len(senders) == 1 and to_all,
        "all-gather": len(senders) > 1 and to_all,
        "all-to-all": all(len(sends) == len(ranks) - 1 for sends in given.values()),
    }
    if not right.get(kind, False):
        raise PlanFault(f"the messages of ranks {sorted(ranks)} with tag {tag} are no {kind}")


def _check_parts(plan: Plan, home: Home, ranks: list[RankCheck]) -> None:
    """Raise PlanFault unless the partial results of an output together have every point once.

    Ranks whose coordinates differ only along partial axes of the placement have parts of one block.
    """
    together: dict[tuple[int, ...], Held] = {}
    for rank in ranks:
        if home.name in rank.buffers:
            at = list(plan.grid.coordinates(rank.plan.rank))
            for axis in home.placement.partial:
                at[axis] = 0
            own = rank.buffers[home.name]
            parts = rank.values(home.name, own.box)
            key = tuple(at)
            if key in together:
                together[key].add(parts)
            else:
                together[key] = Held(home.name, own.box, parts)
    for held in together.values():
        for box, points in held.pieces:
            if count_of(points) != count_of(points_of(home)):
                raise PlanFault(f"the parts of {home.name!r}{box} have the points {points} only")


HERE = -1  # the handle of a blocking step
Started = tuple[bool, Message, tuple[Exchange, int]]  # is it a send; exchange, handle
Part = tuple[Exchange | Reduce, int]  # the step by which a rank joins a collective, and its handle


class Post:
    """Matches sends with receives, and tracks the handle that each rank waits for."""

    def __init__(self, ranks: list[RankCheck]) -> None:
        self.ranks = ranks
        self.started: dict[tuple[int, int, int], Started] = {}
        self.done: set[tuple[int, int, int]] = set()
        self.open: dict[tuple[int, int], int] = {}  # messages in flight, by rank and handle
        self.waits: dict[int, int] = {}  # the handle that a rank waits for
        self.joined: dict[tuple[int, tuple[int, ...]], dict[int, Part]] = {}

    def carry(self) -> None:
        """Execute all ranks to their end; PlanFault for unmatched messages and incomplete collectives."""
        ready = list(range(len(self.ranks)))
        while ready:
            rank = ready.pop()
            step = self.ranks[rank].advance()
            if step is None:
                continue
            match step:
                case Reduce(_, tag):
                    ready += self._join(rank, tag, (step, HERE))
                case Exchange():
                    self.waits[rank] = HERE
                    ready += self._begin(rank, step, HERE)
                case Start(exchange, handle):
                    ready += [rank, *self._begin(rank, exchange, handle)]
                case Finish(handle):
                    if (rank, handle) not in self.open:
                        raise PlanFault(f"rank {rank} never started {handle}")
                    self.waits[rank] = handle
                    ready += self._done(rank, handle, 0)
        for (source, target, tag), (sends, _, _) in self.started.items():
            what = "never received" if sends else "never sent"
            raise PlanFault(f"the message from {source} to {target} with tag {tag} is {what}")
        for (tag, ranks), here in self.joined.items():
            missing = sorted(set(ranks) - set(here))
            raise PlanFault(f"ranks {missing} never join the collective with tag {tag}")

    def _begin(self, rank: int, x: Exchange, handle: int) -> list[int]:
        """Start all messages of an exchange; returns the ranks that can continue."""
        if (rank, handle) in self.open:
            raise PlanFault(f"rank {rank} starts {handle} twice")
        tags = {m.tag for m in x.sends + x.receives}
        self.open[rank, handle] = len(x.sends) + len(x.receives) + (1 if x.collective else 0)
        own, ready = self.ranks[rank], list[int]()
        for m in x.sends:
            own.check_still(m.buffer, m.box, written=False)
        for m in x.receives:
            own.check_still(m.buffer, m.box, written=True)
        if handle != HERE:
            own.flying[handle] = x
        for m in x.sends:
            ready += self._start((rank, m.rank, m.tag), True, m, (x, handle))
        for m in x.receives:
            ready += self._start((m.rank, rank, m.tag), False, m, (x, handle))
        if x.collective and len(tags) != 1:
            raise PlanFault(f"a collective of rank {rank} has the tags {sorted(tags)}")
        if x.collective:
            ready += self._join(rank, tags.pop(), (x, handle))
        return ready

    def _done(self, rank: int, handle: int, count: int = 1) -> list[int]:
        """Complete `count` messages of a handle; returns the rank if it waited for the last of them."""
        self.open[rank, handle] -= count
        if self.open[rank, handle] or self.waits.get(rank) != handle:
            return []
        del self.open[rank, handle], self.waits[rank]
        self.ranks[rank].flying.pop(handle, None)
        return [rank]

    def _join(self, rank: int, tag: int, part: Part) -> list[int]:
        """Add a rank to a collective; the last rank completes it. Returns the ranks that can continue."""
        step, _ = part
        if rank not in step.ranks or tuple(sorted(set(step.ranks))) != step.ranks:
            raise PlanFault(f"rank {rank} is none of {step.ranks}, or they are not in order")
        here = self.joined.setdefault((tag, step.ranks), {})
        if rank in here:
            raise PlanFault(f"rank {rank} joins the collective with tag {tag} twice")
        here[rank] = part
        if len(here) < len(step.ranks):
            return []
        del self.joined[tag, step.ranks]
        steps = {other: own for other, (own, _) in here.items()}
        if isinstance(step, Reduce):
            self._reduce(steps, step)
            return list(step.ranks)
        _check_gather(tag, steps)
        return [r for other, (_, handle) in here.items() for r in self._done(other, handle)]

    def _reduce(self, here: Mapping[int, Exchange | Reduce], like: Reduce) -> None:
        """Combine the boxes of all ranks of a reduction, and store each rank's part of the result."""
        total: Held | None = None
        for rank, step in sorted(here.items()):
            if not isinstance(step, Reduce) or (step.box, step.parts) != (like.box, like.parts):
                raise PlanFault(f"rank {rank} takes part in another reduction, tag {like.tag}")
            self.ranks[rank].check_still(step.source, step.box, written=False)
            held = self.ranks[rank].buffer(step.source, step.box)
            pieces = self.ranks[rank].values(step.source, step.box)
            if total is None:
                total = Held(held.tensor, step.box, pieces)
            elif total.tensor == held.tensor:
                total.add(pieces)
            else:
                raise PlanFault(f"ranks reduce {total.tensor!r} and {held.tensor!r} at once")
        assert total is not None
        for rank, part in zip(like.ranks, like.parts, strict=True):
            into = here[rank]
            assert isinstance(into, Reduce)
            if (part is None) != (into.target is None):
                raise PlanFault(f"rank {rank} gets {part} of a reduction into {into.target!r}")
            if part is not None and into.target is not None:
                self.ranks[rank].check_still(into.target, part, written=True)
                target = self.ranks[rank].buffer(into.target, part)
                if target.tensor != total.tensor or not contains(like.box, part):
                    raise PlanFault(f"{part} of {total.tensor!r} does not fit {into.target!r}")
                target.put(total.get(part))

    def _start(
        self, key: tuple[int, int, int], sends: bool, m: Message, part: tuple[Exchange, int]
    ) -> list[int]:
        """Start one side of a message; the second delivers it. Returns the ranks that can continue."""
        source, target, tag = key
        if not (0 <= m.rank < len(self.ranks)) or source == target or key in self.done:
            raise PlanFault(f"a message from {source} to {target} with tag {tag} cannot be")
        if key not in self.started:
            self.started[key] = (sends, m, part)
            return []
        other, partner, its = self.started.pop(key)
        (step, handle), (also, its_handle) = part, its
        if other == sends:
            raise PlanFault(f"two messages from {source} to {target} have tag {tag}")
        if (step.collective, step.ranks) != (also.collective, also.ranks):
            raise PlanFault(f"{source} and {target} see different collectives with tag {tag}")
        send, receive = (m, partner) if sends else (partner, m)
        self.ranks[target].receive(receive, *self.ranks[source].send(send))
        self.done.add(key)
        first, second = (handle, its_handle) if sends else (its_handle, handle)
        return [*self._done(source, first), *self._done(target, second)]


@dataclass(slots=True)
class RankCheck:
    """The execution of one rank without data: its buffers, its exchanges in flight, its peak memory."""

    plan: RankPlan
    points: Mapping[str, Points]
    sizes: Mapping[str, int]
    owned: Mapping[str, Box]
    homes: Mapping[str, Home]
    buffers: dict[str, Held] = field(default_factory=dict)
    flying: dict[int, Exchange] = field(default_factory=dict)
    at: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        for name, box in self.owned.items():
            self.buffers[name] = Held(name, box)
            self.buffers[name].put([(box, self.points[name])])
        self._measure()

    def _measure(self) -> None:
        held = sum(element_count(b.box) * self.sizes[b.tensor] for b in self.buffers.values())
        self.peak = max(self.peak, held)

    def _fault(self, why: str) -> PlanFault:
        return PlanFault(f"step {self.at} of rank {self.plan.rank}: {why}")

    def buffer(self, name: str, box: Box) -> Held:
        """The buffer `name`; PlanFault unless it is allocated and contains `box`."""
        if name not in self.buffers:
            raise self._fault(f"there is no buffer {name!r}")
        held = self.buffers[name]
        if len(box) != len(held.box) or not contains(held.box, box):
            raise self._fault(f"{name!r} holds {held.box}, not {box}")
        return held

    def values(self, name: str, box: Box) -> list[Piece]:
        """The pieces of a buffer within a box; PlanFault unless all elements of the box have values."""
        found = self.buffer(name, box).get(box)
        if sum(element_count(part) for part, _ in found) < element_count(box):
            raise self._fault(f"{name!r} has no values in all of {box}")
        return found

    def advance(self) -> Exchange | Start | Finish | Reduce | None:
        """Execute local steps; returns the next communication step, None at the end of the plan."""
        while self.at < len(self.plan.steps):
            step = self.plan.steps[self.at]
            self.at += 1
            if isinstance(step, Exchange | Start | Finish | Reduce):
                return step
            self._do(step)
        return None

    def check_still(self, name: str, box: Box | None, *, written: bool) -> None:
        """Raise PlanFault if an access conflicts with an exchange in flight; None is the whole buffer."""
        for x in self.flying.values():
            for m in (*x.receives, *(x.sends if written else ())):
                if m.buffer == name and (box is None or intersection(m.box, box) is not None):
                    raise self._fault(f"{name!r} is touched while {m.box} of it is on its way")

    def _do(self, step: Step) -> None:
        match step:
            case Drop(name) | Fill(name):
                self.check_still(name, None, written=True)
            case Copy(source, name, box) | Merge(source, name, box):
                self.check_still(source, box, written=False)
                self.check_still(name, box, written=True)
            case Run():
                for _, name in step.reads:
                    self.check_still(name, None, written=False)
                self.check_still(step.target, step.box, written=True)
            case _:
                pass
        match step:
            case Make(name, tensor, box):
                if name in self.buffers or tensor not in self.points:
                    raise self._fault(f"{name!r} is there already, or {tensor!r} is nothing known")
                self.buffers[name] = Held(tensor, box)
                self._measure()
            case Drop(name):
                if name not in self.buffers:
                    raise self._fault(f"there is no buffer {name!r}")
                del self.buffers[name]
            case Fill(name):
                if name not in self.buffers:
                    raise self._fault(f"there is no buffer {name!r}")
                held = self.buffers[name]
                held.put([(held.box, ())])
            case Copy(source, target, box):
                self._same_tensor(source, target, box)
                self.buffer(target, box).put(self.values(source, box))
            case Merge(source, target, box):
                self._same_tensor(source, target, box)
                self.values(target, box)
                self.buffer(target, box).add(self.values(source, box))
            case Run():
                self._run(step)
            case Exchange() | Start() | Finish() | Reduce():
                raise AssertionError("exchanges are carried out by the post")

    def _same_tensor(self, source: str, target: str, box: Box) -> None:
        if self.buffer(source, box).tensor != self.buffer(target, box).tensor:
            raise self._fault(f"{source!r} and {target!r} hold different tensors")

    def _run(self, step: Run) -> None:
        for tensor, name in step.reads:
            held = self.buffers.get(name)
            if held is None or held.tensor != tensor:
                raise self._fault(f"{name!r} is no buffer of {tensor!r}")
            self.complete(name, held.box)
        home, ranges, read = self.homes[step.func], dict(step.ranges), dict(step.reads)
        assert home.needs is not None, "what is run is a stage"
        for tensor, needed in home.needs(step.ranges).items():
            if tensor not in read or not contains(self.buffers[read[tensor]].box, needed):
                raise self._fault(f"{step.func!r} needs {needed} of {tensor!r}")
        if self.buffer(step.target, step.box).tensor != step.func:
            raise self._fault(f"{step.target!r} is no buffer of {step.func!r}")
        made = zip(home.dims, home.whole, strict=True)
        box = tuple(whole if name is None else ranges.get(name) for name, whole in made)
        (whole,) = points_of(home)
        each = tuple(ranges.get(name, (0, 0)) for name, _ in home.points)
        if box != step.box or is_empty((*step.box, *each)) or not contains(whole, each):
            raise self._fault(f"the ranges of {step.func!r} are not those of its box")
        self.buffer(step.target, step.box).put([(step.box, (each,))])

    def complete(self, name: str, box: Box) -> None:
        """Raise PlanFault unless every element of a box has all points of its reduction."""
        wanted = count_of(self.points[self.buffer(name, box).tensor])
        for part, points in self.values(name, box):
            if count_of(points) != wanted:
                raise self._fault(f"{part} of {name!r} has the points {points} only")

    def send(self, m: Message) -> tuple[str, Box, list[Piece]]:
        """The contents of a message: tensor, box, pieces."""
        return self.buffer(m.buffer, m.box).tensor, m.box, self.values(m.buffer, m.box)

    def receive(self, m: Message, tensor: str, box: Box, pieces: list[Piece]) -> None:
        """Store the pieces of a message in its buffer; PlanFault unless tensor and box match."""
        held = self.buffer(m.buffer, m.box)
        if held.tensor != tensor or m.box != box:
            raise self._fault(
                f"{held.tensor}{m.box} is expected, {tensor}{box} is sent, tag {m.tag}"
            )
        held.put(pieces)

    def check_end(self, outputs: Mapping[str, Box | None], whole: AbstractSet[str]) -> None:
        """Raise PlanFault unless the rank has its blocks of the outputs, and nothing else is left.

        No exchange may be in flight, and no other buffer be allocated. Elements of the outputs in `whole`
        must have all of their points.
        """
        for name, box in outputs.items():
            if box is not None:
                if self.buffers.get(name) is None or self.buffers[name].box != box:
                    raise self._fault(f"{name!r} is not left in the end")
                if name in whole:
                    self.complete(name, box)
        if self.flying:
            raise self._fault(f"{sorted(self.flying)} are never finished")
        extra = set(self.buffers) - set(outputs) - set(self.owned)
        if extra:
            raise self._fault(f"buffers are left: {', '.join(sorted(extra))}")
