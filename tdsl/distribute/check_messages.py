"""Matching of a rank's messages and collectives with those of its partners, in the verification of a plan.

A rank posts each side of a message to the partner, and joins a collective at its first member; both complete
when the other sides are there, as if every send were synchronous and every collective a barrier. What a rank
posts to others is in its `outbox`: `check.py` delivers it in one process, `check_partners.py` under MPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tdsl.communication.steps import Exchange, Finish, Message, Reduce, Route, Start
from tdsl.core.node import frozen
from tdsl.distribute.buffer_contents import BufferContents, Piece, PlanFault
from tdsl.distribute.check_rank import RankCheck
from tdsl.placement.ownership import SpanBox, contains, element_count


@frozen
class PostedMessage:
    """One side of a message, as `rank` posts it to the other; `pieces` are sent, None for a receive."""

    rank: int
    tag: int
    tensor: str
    box: SpanBox
    pieces: tuple[Piece, ...] | None
    collective: str
    members: tuple[int, ...]


@frozen
class JoinedCollective:
    """A collective that `rank` joins; of a reduction with the tensor and the pieces that it contributes."""

    rank: int
    tag: int
    step: Exchange | Reduce | Route
    tensor: str = ""
    pieces: tuple[Piece, ...] = ()


@frozen
class CompletedCollective:
    """A collective that all members have joined; of a reduction with the pieces of a member's part."""

    tag: int
    members: tuple[int, ...]
    tensor: str = ""
    pieces: tuple[Piece, ...] = ()


@frozen
class PartialResult:
    """The parts of a partial tensor in a buffer of `rank`, or those that `reader` reads; all have one box."""

    rank: int
    tensor: str
    reader: str
    box: SpanBox
    pieces: tuple[Piece, ...]


Post = PostedMessage | JoinedCollective | CompletedCollective | PartialResult
Key = tuple[int, int, int]  # of a message: source, target, tag
CollectiveKey = tuple[int, tuple[int, ...]]  # the tag and the members
BLOCKING = -1  # the handle of a blocking step


@dataclass(slots=True)
class RankMatcher:
    """Executes the steps of one rank of `ranks`, as far as messages of others allow."""

    check: RankCheck
    ranks: int
    outbox: list[tuple[int, Post]] = field(default_factory=list)  # with the rank that gets each
    mine: dict[Key, tuple[Message, Exchange, int]] = field(default_factory=dict)  # posted, not matched
    theirs: dict[Key, PostedMessage] = field(default_factory=dict)
    done: set[Key] = field(default_factory=set)
    open: dict[int, int] = field(default_factory=dict)  # messages and collectives in flight, by handle
    blocked: int | None = None  # the handle that the rank waits for
    joined: dict[CollectiveKey, tuple[Exchange | Reduce | Route, int]] = field(default_factory=dict)
    members: dict[CollectiveKey, dict[int, JoinedCollective]] = field(default_factory=dict)  # at the first

    @property
    def rank(self) -> int:
        """The rank."""
        return self.check.plan.rank

    def run(self) -> None:
        """Execute steps until the rank waits for others, or ends."""
        while self.blocked is None:
            step = self.check.advance()
            match step:
                case None:
                    return
                case Reduce():
                    self._reduce(step)
                case Route():
                    self._route(step)
                case Exchange():
                    self.blocked = BLOCKING
                    self._start_exchange(step, BLOCKING)
                case Start(exchange, handle):
                    self._start_exchange(exchange, handle)
                case Finish(handle):
                    if handle not in self.open:
                        raise PlanFault(f"rank {self.rank} never started {handle}")
                    self.blocked = handle
                    self._complete(handle, 0)

    def check_complete(self) -> None:
        """Raise PlanFault for messages and collectives that the others never post or join."""
        for source, target, tag in self.mine:
            what = "never received" if source == self.rank else "never sent"
            raise PlanFault(f"the message from {source} to {target} with tag {tag} is {what}")
        for (tag, ranks), joined in self.members.items():
            missing = sorted(set(ranks) - set(joined))
            raise PlanFault(f"ranks {missing} never join the collective with tag {tag}")
        for tag, _ in self.joined:
            raise PlanFault(f"the collective of rank {self.rank} with tag {tag} is never complete")
        for source, target, tag in self.theirs:
            raise PlanFault(f"rank {self.rank} has no message from {source} to {target} with tag {tag}")

    def _post(self, rank: int, post: Post) -> None:
        if rank == self.rank:
            self.receive(post)
        else:
            self.outbox.append((rank, post))

    def receive(self, post: Post) -> None:
        """Take what a rank has posted to this one."""
        match post:
            case PostedMessage(rank, tag):
                sends = post.pieces is not None
                key = (rank, self.rank, tag) if sends else (self.rank, rank, tag)
                if key in self.theirs or key in self.done:
                    raise PlanFault(f"two messages from {key[0]} to {key[1]} have tag {tag}")
                self.theirs[key] = post
                if key in self.mine:
                    self._match(key)
            case JoinedCollective():
                self._add_member(post)
            case CompletedCollective():
                self._complete_collective(post)
            case PartialResult():
                raise AssertionError("partial results are compared at the end")

    # -- messages

    def _start_exchange(self, x: Exchange, handle: int) -> None:
        """Start all messages of an exchange."""
        if handle in self.open:
            raise PlanFault(f"rank {self.rank} starts {handle} twice")
        tags = {m.tag for m in x.sends + x.receives}
        self.open[handle] = len(x.sends) + len(x.receives) + (1 if x.collective else 0)
        for m in x.sends:
            self.check.check_not_in_flight(m.buffer, m.box, written=False)
        for m in x.receives:
            self.check.check_not_in_flight(m.buffer, m.box, written=True)
        if handle != BLOCKING:
            self.check.in_flight[handle] = x
        if x.collective and len(tags) != 1:
            raise PlanFault(f"a collective of rank {self.rank} has the tags {sorted(tags)}")
        for messages, sends in ((x.sends, True), (x.receives, False)):
            for m in messages:
                self._post_message(m, x, handle, sends=sends)
        if x.collective:
            self._join(tags.pop(), x, handle)

    def _post_message(self, m: Message, x: Exchange, handle: int, *, sends: bool) -> None:
        """Start this rank's side of a message."""
        key = (self.rank, m.rank, m.tag) if sends else (m.rank, self.rank, m.tag)
        if not 0 <= m.rank < self.ranks or m.rank == self.rank or key in self.done:
            raise PlanFault(f"a message from {key[0]} to {key[1]} with tag {m.tag} cannot be")
        if key in self.mine:
            raise PlanFault(f"two messages from {key[0]} to {key[1]} have tag {m.tag}")
        tensor, box, pieces = self.check.buffer(m.buffer, m.box).tensor, m.box, None
        if sends:
            tensor, box, sent = self.check.send(m)
            pieces = tuple(sent)
        self.mine[key] = m, x, handle
        self._post(m.rank, PostedMessage(self.rank, m.tag, tensor, box, pieces, x.collective, x.ranks))
        if key in self.theirs:
            self._match(key)

    def _match(self, key: Key) -> None:
        """Complete a message of which both sides are posted."""
        (m, x, handle), other = self.mine.pop(key), self.theirs.pop(key)
        source, target, tag = key
        if (x.collective, x.ranks) != (other.collective, other.members):
            raise PlanFault(f"{source} and {target} see different collectives with tag {tag}")
        if other.pieces is not None:
            self.check.receive(m, other.tensor, other.box, list(other.pieces))
        self.done.add(key)
        self._complete(handle)

    def _complete(self, handle: int, count: int = 1) -> None:
        """Complete `count` messages of a handle; the rank goes on if it waited for the last of them."""
        self.open[handle] -= count
        if self.open[handle] == 0 and self.blocked == handle:
            del self.open[handle]
            self.blocked = None
            self.check.in_flight.pop(handle, None)

    # -- collectives

    def _reduce(self, step: Reduce) -> None:
        self.blocked = BLOCKING
        self.open[BLOCKING] = 1
        self.check.check_not_in_flight(step.source, step.box, written=False)
        tensor = self.check.buffer(step.source, step.box).tensor
        pieces = tuple(self.check.values(step.source, step.box))
        self._join(step.tag, step, BLOCKING, tensor, pieces)

    def _route(self, step: Route) -> None:
        """Join a route, with a complete block and indices; PlanFault unless the blocks have all rows."""
        self.blocked = BLOCKING
        self.open[BLOCKING] = 1
        self._join(step.tag, step, BLOCKING)
        n = step.ranks.index(self.rank)
        box, block = step.boxes[n], step.blocks[n]
        if block is not None:
            self.check.check_not_in_flight(step.tensor, block, written=False)
            self.check.check_complete(step.tensor, block)
        if (box is None) != (step.target is None) or (box is None) != (step.index is None):
            raise PlanFault(f"rank {self.rank} reads {box} of a route into {step.target!r}")
        if box is None or step.index is None:
            return
        shared = ((step.key_block(m), step.shared_rows(n, m)) for m in range(len(step.ranks)))
        owned = sum(element_count(b) * element_count(s) for b, s in shared if b is not None and s is not None)
        if owned != element_count(step.whole) * element_count(box[step.index_dims :]):
            raise PlanFault(f"ranks {step.ranks} do not have all of {step.tensor!r}")
        self.check.check_complete(step.index, box[: step.index_dims])

    def _join(
        self,
        tag: int,
        step: Exchange | Reduce | Route,
        handle: int,
        tensor: str = "",
        pieces: tuple[Piece, ...] = (),
    ) -> None:
        if self.rank not in step.ranks or tuple(sorted(set(step.ranks))) != step.ranks:
            raise PlanFault(f"rank {self.rank} is none of {step.ranks}, or they are not in order")
        if (tag, step.ranks) in self.joined:
            raise PlanFault(f"rank {self.rank} joins the collective with tag {tag} twice")
        self.joined[tag, step.ranks] = step, handle
        self._post(step.ranks[0], JoinedCollective(self.rank, tag, step, tensor, pieces))

    def _add_member(self, post: JoinedCollective) -> None:
        """Add a member to a collective of which this rank is the first; the last one completes it."""
        key = post.tag, post.step.ranks
        joined = self.members.setdefault(key, {})
        if post.rank in joined:
            raise PlanFault(f"rank {post.rank} joins the collective with tag {post.tag} twice")
        joined[post.rank] = post
        if len(joined) < len(post.step.ranks):
            return
        del self.members[key]
        parts: Mapping[int, tuple[Piece, ...]] = {}
        if isinstance(post.step, Reduce):
            parts = _reduced(joined, post.step)
        elif isinstance(post.step, Route):
            _check_route(joined, post.step)
        else:
            _check_gather(post.tag, {rank: j.step for rank, j in joined.items()})
        for rank in post.step.ranks:
            self._post(rank, CompletedCollective(*key, post.tensor, parts.get(rank, ())))

    def _complete_collective(self, post: CompletedCollective) -> None:
        step, handle = self.joined.pop((post.tag, post.members))
        n = step.ranks.index(self.rank)
        if isinstance(step, Reduce) and step.target is not None:
            part = step.parts[n]
            assert part is not None, "the first member compares targets and parts"
            self.check.check_not_in_flight(step.target, part, written=True)
            target = self.check.buffer(step.target, part)
            if target.tensor != post.tensor or not contains(step.box, part):
                raise PlanFault(f"{part} of {post.tensor!r} does not fit {step.target!r}")
            target.put(list(post.pieces))
        if isinstance(step, Route) and step.target is not None:
            box = step.boxes[n]
            assert box is not None, "who joins a route reads rows into a target"
            target = self.check.buffer(step.target, box)
            if target.tensor != step.tensor:
                raise PlanFault(f"{step.target!r} is no buffer of {step.tensor!r}")
            target.put([(box, self.check.points[step.tensor])])
        self._complete(handle)


def _reduced(members: Mapping[int, JoinedCollective], reduction: Reduce) -> dict[int, tuple[Piece, ...]]:
    """The pieces of each member's part of a reduction; PlanFault unless all take part in the same one."""
    total: BufferContents | None = None
    for rank, joined in sorted(members.items()):
        step = joined.step
        if not isinstance(step, Reduce) or (step.box, step.parts) != (reduction.box, reduction.parts):
            raise PlanFault(f"rank {rank} takes part in another reduction, tag {reduction.tag}")
        if total is None:
            total = BufferContents(joined.tensor, step.box, list(joined.pieces))
        elif total.tensor == joined.tensor:
            total.add(list(joined.pieces))
        else:
            raise PlanFault(f"ranks reduce {total.tensor!r} and {joined.tensor!r} at once")
    assert total is not None
    result = {}
    for rank, part in zip(reduction.ranks, reduction.parts, strict=True):
        target = members[rank].step
        assert isinstance(target, Reduce)
        if (part is None) != (target.target is None):
            raise PlanFault(f"rank {rank} gets {part} of a reduction into {target.target!r}")
        if part is not None:
            result[rank] = tuple(total.get(part))
    return result


def _check_route(members: Mapping[int, JoinedCollective], route: Route) -> None:
    """Raise PlanFault unless all members take part in the same route."""
    shared = replace(route, index=None, target=None)
    for rank, joined in sorted(members.items()):
        step = joined.step
        if not isinstance(step, Route) or replace(step, index=None, target=None) != shared:
            raise PlanFault(f"rank {rank} takes part in another route, tag {route.tag}")


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
