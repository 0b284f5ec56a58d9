"""Generates the steps of one rank.

For each stage, and in it for each iteration of the loops that ranks step through:
1. fetch the sources communicated at a loop: the box that is read, less what the rank owns, from its owners;
   and send to other ranks the parts of this rank's blocks that they read;
2. run the task, if the iteration has points;
3. send the results to their owners, and receive the results of other ranks for this rank's block.

Messages that form a collective become one; the rest are point-to-point messages, all in flight together.
Every rank goes through the same iterations and counts the same communications; this number is the tag of
their messages. A rank finds the readers of its blocks by bisection of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tdsl.distribute.collective import Gather, Groups, Layout, ranked
from tdsl.distribute.hierarchical_reduce import phases
from tdsl.distribute.overlap import Touched, meeting
from tdsl.distribute.stages import Spans, Stage
from tdsl.distribute.steps import (
    Copy,
    Drop,
    Exchange,
    Fill,
    Finish,
    Make,
    Merge,
    Message,
    RankPlan,
    Reduce,
    Run,
    Start,
    Step,
)
from tdsl.placement.grid import Coordinates
from tdsl.placement.notation import Copies
from tdsl.placement.ownership import Box, contains, intersection, is_contiguous, is_empty

Meetings = dict[Spans, list[tuple[Coordinates, Box]]]  # other ranks and boxes, by iteration


def plan_rank(
    layout: Layout, stages: tuple[Stage, ...], inputs: tuple[str, ...], outputs: tuple[str, ...], rank: int
) -> RankPlan:  # fmt: skip
    """The plan of one rank. The block of a stage that is no output is freed after its last reader."""
    at = layout.grid.coordinates(rank)
    boxes = ((name, layout.owned(name, at)) for name in inputs)
    mine = tuple((name, box) for name, box in boxes if box is not None)
    last = {name: n for n, s in enumerate(stages) for name in (s.name, *s.sources)}
    made: list[Step] = []
    tag = 0
    for n, stage in enumerate(stages):
        steps = StageSteps(layout, stage, at, tag)
        steps.run()
        made += steps.steps
        tag = steps.tag
        for name in (s.name for s in stages[: n + 1] if s.name not in outputs):
            if last[name] == n and layout.owned(name, at) is not None:
                made.append(Drop(name))
    return RankPlan(rank, mine, tuple(made))


@dataclass(slots=True)
class Fetched:
    """The fetches of an iteration: buffers allocated, the buffer of each source, exchanges, later copies."""

    made: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    copies: list[Step] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)


@dataclass(slots=True)
class StageSteps:
    """The steps of one stage on the rank at `at`; `tag` counts communications."""

    layout: Layout
    stage: Stage
    at: Coordinates
    tag: int
    steps: list[Step] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)  # the buffer to read for each source
    added: set[Box] = field(default_factory=set)  # boxes of the target computed so far
    handles: int = 0
    readers: dict[tuple[str, int], Meetings] = field(default_factory=dict)
    makers: Meetings | None = None
    groups: Groups = field(init=False)

    def __post_init__(self) -> None:
        self.groups = Groups(self.layout, self.stage)

    def run(self) -> None:
        """Append the steps of all iterations."""
        name = self.stage.name
        home = self.layout.owned(name, self.at)
        if home is not None:
            self.steps.append(Make(name, name, home))
        self._iterate(tuple((p, p + 1) for p in self.at))
        if home is not None:
            self._fill(name, home, 1)

    def _fill(self, buffer: str, box: Box | None, start: int) -> None:
        """Insert a fill of a buffer at step `start`, unless its first later write covers `box`."""
        if self.stage.combine is None:
            return
        for step in self.steps[start:]:
            match step:
                case Run(target=target, box=made) if target == buffer and made == box:
                    return
                case Reduce(target=target) if target == buffer:
                    if step.parts[step.ranks.index(self.layout.grid.rank(self.at))] == box:
                        return
                    break
                case Run(target=target) | Merge(target=target) if target == buffer:
                    break
                case _:
                    pass
        self.steps.insert(start, Fill(buffer))

    def _iterate(self, spans: Spans, ahead: Sequence[Fetched] = ()) -> None:
        """Append one iteration of the loops outside; its prefetches, `ahead`, are in flight."""
        stage, depth = self.stage, len(spans)
        now = self._fetch(self._sources(depth, 0), spans)
        self.steps += [*now.exchanges, *(Finish(handle) for f in ahead for handle in f.handles)]
        for f in (now, *ahead):
            self.steps += f.copies
            self.held |= f.held
        target = self._target(spans) if stage.levels[stage.name] == depth else None
        start = len(self.steps)
        if depth == len(stage.outer):
            self._task(spans)
        else:
            self._loop(spans)
        if stage.levels[stage.name] == depth:
            if target is not None and target != stage.name:
                self._fill(target, stage.writes(spans), start)
            self._flush(spans, target)
        self.steps += [Drop(name) for f in (now, *ahead) for name in f.made]

    def _loop(self, spans: Spans) -> None:
        """Append all iterations of a loop; prefetches of an iteration start in earlier iterations."""
        stage, depth = self.stage, len(spans)
        first, count = stage.loops[stage.outer[depth]][0], stage.counts[depth]
        distances = sorted({stage.ahead.get(s, 0) for s in stage.sources} - {0})
        early = {a: self._sources(depth + 1, a) for a in distances}
        coming: dict[int, list[Fetched]] = {}
        for n in range(count):
            for a, sources in early.items():
                for m in range(0 if n == 0 else n + a, min(n + a + 1, count) if sources else 0):
                    at = (*spans, (first + m, first + m + 1))
                    coming.setdefault(m, []).append(self._start(sources, at, m % (a + 1)))
            self._iterate((*spans, (first + n, first + n + 1)), coming.pop(n, ()))

    # -- fetches

    def _sources(self, depth: int, ahead: int) -> list[str]:
        """The sources communicated inside of `depth` loops and prefetched by `ahead` iterations."""
        stage = self.stage
        return [
            s for s in stage.sources if (stage.levels[s], stage.ahead.get(s, 0)) == (depth, ahead)
        ]

    def _start(self, sources: list[str], spans: Spans, slot: int) -> Fetched:
        """Start to fetch sources for a later iteration, into the buffers of a slot."""
        fetched = self._fetch(sources, spans, f" ({slot})")
        for exchange in fetched.exchanges:
            self.handles += 1
            fetched.handles.append(self.handles)
            self.steps.append(Start(exchange, self.handles))
        return fetched

    def _fetch(self, sources: list[str], spans: Spans, slot: str = "") -> Fetched:
        """Append allocations for the box of each source that is read; returns how the boxes are fetched."""
        found = Fetched()
        messages = Exchange((), ())
        for source in sources:
            home, partial = self.layout.owned(source, self.at), self._is_partial(source)
            box, buffer = self.stage.box(source, spans), source
            if (
                not partial
                and box is not None
                and home is not None
                and is_contiguous(home)
                and contains(home, box)
            ):
                found.held[source], box = source, None
            elif box is not None:
                buffer = f"{source} at {self.stage.outer[len(spans) - 1]}{slot}"
                found.held[source] = buffer
                found.made.append(buffer)
                self.steps.append(Make(buffer, source, box))
                if partial:
                    self.steps.append(Fill(buffer))
                elif home is not None and (own := intersection(home, box)) is not None:
                    found.copies.append(Copy(source, buffer, own))
            if partial:
                exchanges = iter((self._parts(source, buffer, box, spans, found.copies),))
            else:
                exchanges = self._messages(source, buffer, box, spans)
            for exchange in exchanges:
                if exchange.collective:
                    found.exchanges.append(exchange)
                else:
                    messages = joined(messages, exchange)
            self.tag += 1
        found.exchanges = [x for x in (messages, *found.exchanges) if x.sends or x.receives]
        return found

    def _is_partial(self, source: str) -> bool:
        """True if ranks have partial results of a source, not yet combined."""
        return bool(self.layout.placements[source].partial)

    def _parts(
        self, source: str, buffer: str, box: Box | None, spans: Spans, joins: list[Step]
    ) -> Exchange:
        """The messages with partial results of a source; appends to `joins` merges in the order of ranks."""
        grid, axes = self.layout.grid, self.layout.placements[source].partial
        found: list[tuple[int, Box]] = []
        if box is not None:
            for near in self.layout.line(self.at, axes):
                cut = self.layout.pieces(source, box, near)
                found += [(grid.rank(owner), piece) for owner, piece in cut]
        receives: list[Message] = []
        for rank, piece in sorted(found, key=lambda part: part[0]):
            if rank == grid.rank(self.at):
                joins.append(Merge(source, buffer, piece))
                continue
            part = f"{buffer} from {rank}"
            self.steps.append(Make(part, source, piece))
            receives.append(Message(rank, self.tag, part, piece))
            joins += [Merge(part, buffer, piece), Drop(part)]
        wanted = self._wanted(source, spans)
        sends = [Message(grid.rank(at), self.tag, source, piece) for at, piece in wanted]
        return Exchange(tuple(sends), tuple(receives))

    def _messages(
        self, source: str, buffer: str, box: Box | None, spans: Spans
    ) -> Iterator[Exchange]:
        """The exchanges that receive a box of a source, and send parts of this rank's block to others."""
        inner, grid = spans[self.stage.fixed :], self.layout.grid
        receives: list[Message] = []
        groups: dict[Gather, tuple[list[Message], list[Message]]] = {}
        if box is not None:
            group = self.groups.fetched(source, self.at, inner)
            into = receives if group is None else groups.setdefault(group, ([], []))[1]
            for owner, piece in self.layout.pieces(source, box, self.at):
                if owner != self.at:
                    into.append(Message(grid.rank(owner), self.tag, buffer, piece))
        sends: list[Message] = []
        for reader, piece in self._wanted(source, spans):
            group = self.groups.fetched(source, reader, inner)
            out = sends if group is None else groups.setdefault(group, ([], []))[0]
            out.append(Message(grid.rank(reader), self.tag, source, piece))
        for found, (out, into) in groups.items():
            yield Exchange(tuple(out), tuple(into), found.kind, found.ranks)
        together = self.groups.exchanged(source, self.at, inner) if sends and receives else ()
        kind = "all-to-all" if together else ""
        yield Exchange(tuple(sends), tuple(receives), kind, together)

    def _wanted(self, source: str, spans: Spans) -> Iterator[tuple[Coordinates, Box]]:
        """The parts of this rank's block of `source` that others read in an iteration, and by whom."""
        if (source, len(spans)) not in self.readers:
            self.readers[source, len(spans)] = self._readers(source, len(spans))
        yield from self.readers[source, len(spans)].get(spans[self.stage.fixed :], ())

    def _readers(self, source: str, depth: int) -> Meetings:
        """The parts of this rank's block of `source` that others read, and by whom, by iteration."""
        home, grid = self.layout.owned(source, self.at), self.layout.grid
        entries = self.layout.placements[source].entries
        nearest = tuple(
            (p, p + 1) if isinstance(e, Copies) else (0, size)
            for e, p, size in zip(entries, self.at, grid.shape, strict=True)
        )

        def touched(spans: Spans) -> Box | None:
            return self.stage.box(source, spans)

        found: Meetings = {}
        for reader, inner, box in self._meeting(nearest, depth, home, touched):
            other = self.layout.owned(source, reader)
            needed = self.stage.box(source, ranked(reader, inner))
            assert needed is not None, "who touches a box needs something"
            has = other is not None and contains(other, needed) and not self._is_partial(source)
            if reader != self.at and not has:
                found.setdefault(inner, []).append((reader, box))
        return found

    def _meeting(
        self, ranks: Spans, depth: int, box: Box | None, touched: Touched
    ) -> Iterator[tuple[Coordinates, Spans, Box]]:
        """The ranks that access a box, with the iteration and the part of the box."""
        if box is None:
            return
        fixed = self.stage.fixed
        names, counts = self.stage.outer[fixed:depth], self.stage.counts[fixed:depth]
        firsts = [self.stage.loops[x][0] for x in names]
        steps = tuple((lo, lo + n) for lo, n in zip(firsts, counts, strict=True))
        if is_empty(steps):
            return
        for at, shared in meeting((*ranks, *steps), box, touched):
            yield at[:fixed], tuple((n, n + 1) for n in at[fixed:]), shared

    # -- results

    def _target(self, spans: Spans) -> str | None:
        """Allocate the buffer for the results of the iterations inside; None if there are no results.

        Results within the rank's own block are computed in place, unless others are combined with them first.
        """
        stage = self.stage
        box = stage.writes(spans)
        if box is None:
            return None
        home = self.layout.owned(stage.name, self.at)
        once = stage.combine is None or len(spans) == stage.fixed
        self.added.clear()
        if home is not None and contains(home, box) and once:
            self.held[stage.name] = stage.name
        else:
            name = f"{stage.name} at {stage.outer[len(spans) - 1]}"
            self.held[stage.name] = name
            self.steps.append(Make(name, stage.name, box))
        return self.held[stage.name]

    def _task(self, spans: Spans) -> None:
        stage = self.stage
        ranges, box = stage.ranges(spans), stage.writes(spans)
        if ranges is None or box is None:
            return
        target = self.held[stage.name]
        first = all(intersection(box, other) is None for other in self.added)
        self.added.add(box)
        reads = tuple((s, self.held[s]) for s in stage.sources if stage.box(s, spans) is not None)
        run = Run(stage.name, tuple(ranges.items()), reads, target, box)
        if stage.combine is None or stage.levels[stage.name] == len(spans) or first:
            self.steps.append(run)
            return
        part = f"{stage.name} of a step"
        self.steps += [
            Make(part, stage.name, box), Run(run.func, run.ranges, reads, part, box),
            Merge(part, target, box), Drop(part),
        ]  # fmt: skip

    def _flush(self, spans: Spans, target: str | None) -> None:
        """Append the messages or the collective that bring results to owners; merges are in rank order."""
        name, inner = self.stage.name, spans[self.stage.fixed :]
        group = self.groups.made(self.at, inner, self.tag)
        reduced = False
        if isinstance(group, Reduce) and self.layout.grid.rank(self.at) in group.ranks:
            own, once = target, len(spans) == self.stage.fixed
            if own is None:  # a rank without results receives those of others
                own = f"{name} of nothing"
                self.steps += [Make(own, name, group.box), Fill(own)]
            self._reduce(replace(group, source=own), once)
            if target is None:
                self.steps.append(Drop(own))
            reduced = True
        joins: list[tuple[int, Step]] = []
        sends = [] if reduced else list(self._given(spans, target, joins))
        receives = list(self._taken(inner, joins))
        gathered: list[Message] = []
        if isinstance(group, Gather):
            members = set(group.ranks)
            gathered = [m for m in receives if m.rank in members]
            receives = [m for m in receives if m.rank not in members]
            self._exchange(Exchange(tuple(sends), tuple(gathered), group.kind, group.ranks))
            sends = []
        buffers = [m for m in receives if m.buffer != name]
        self.steps += [Make(m.buffer, name, m.box) for m in buffers]
        together: tuple[int, ...] = ()
        if sends and receives and self.stage.combine is None:
            together = self.groups.exchanged(name, self.at, inner)
        kind = "all-to-all" if together else ""
        self._exchange(Exchange(tuple(sends), tuple(receives), kind, together))
        self.steps += [step for _, step in sorted(joins, key=lambda j: j[0])]
        self.steps += [Drop(m.buffer) for m in buffers]
        self.tag += 1
        if target is not None and target != name:
            self.steps.append(Drop(target))

    def _reduce(self, group: Reduce, once: bool) -> None:
        """Append a reduction of results; unless `once`, merge it with those of other iterations."""
        name, me = self.stage.name, self.layout.grid.rank(self.at)
        steps = phases(self.layout.grid, group, self.at)
        last = max(n for n, step in enumerate(steps) if isinstance(step, Reduce))
        got = group.parts[group.ranks.index(me)]
        source, made = group.source, list[str]()

        def room(buffer: str, box: Box) -> str:
            self.steps.append(Make(buffer, name, box))
            made.append(buffer)
            return buffer

        into = name if once or got is None else room(f"{name} in all", got)
        for n, step in enumerate(steps):
            if isinstance(step, Gather):
                self._exchange(self._gathered(step, into))
                continue
            part = step.parts[step.ranks.index(me)]
            target = None
            if part is not None:
                target = into if n == last else room(f"{name} in all {n}", part)
            self.steps.append(replace(step, source=source, target=target))
            source = target or source
        if got is not None and not once:
            self.steps.append(Merge(into, name, got))
        self.steps += [Drop(buffer) for buffer in made]

    def _gathered(self, group: Gather, buffer: str) -> Exchange:
        """The exchange by which each rank of a group receives all parts in a buffer."""
        me = self.layout.grid.rank(self.at)
        mine = [part for rank, part in group.parts if rank == me]
        sends = [
            Message(r, self.tag, buffer, part) for part in mine for r in group.ranks if r != me
        ]
        receives = [Message(r, self.tag, buffer, part) for r, part in group.parts if r != me]
        return Exchange(tuple(sends), tuple(receives), group.kind, group.ranks)

    def _given(
        self, spans: Spans, target: str | None, joins: list[tuple[int, Step]]
    ) -> Iterator[Message]:
        """The messages with results for other ranks; `joins` gets copies or merges into the own block."""
        name, grid = self.stage.name, self.layout.grid
        if target is None:
            return
        join = Copy if self.stage.combine is None else Merge
        box = self.stage.writes(spans)
        assert box is not None
        for first, piece in self.layout.pieces(name, box, self.at):
            for owner in self.layout.copies(name, first):
                if owner != self.at:
                    yield Message(grid.rank(owner), self.tag, target, piece)
                elif target != name:
                    joins.append((grid.rank(self.at), join(target, name, piece)))

    def _taken(self, inner: Spans, joins: list[tuple[int, Step]]) -> Iterator[Message]:
        """The messages with others' results for this rank's block, except reductions; `joins` gets merges."""
        name, combine = self.stage.name, self.stage.combine
        if self.makers is None:
            self.makers = self._makers()
        for maker, box in self.makers.get(inner, ()):
            if maker == self.at or isinstance(self.groups.made(maker, inner, self.tag), Reduce):
                continue
            rank = self.layout.grid.rank(maker)
            buffer = name if combine is None else f"{name} from {rank}"
            if combine is not None:
                joins.append((rank, Merge(buffer, name, box)))
            yield Message(rank, self.tag, buffer, box)

    def _makers(self) -> Meetings:
        """The parts of this rank's block that each rank computes, by iteration."""
        name, found = self.stage.name, Meetings()
        parts = self.layout.placements[name].partial  # each rank keeps its own
        everyone = tuple(
            (p, p + 1) if n in parts else (0, size)
            for n, (p, size) in enumerate(zip(self.at, self.layout.grid.shape, strict=True))
        )
        home, depth = self.layout.owned(name, self.at), self.stage.levels[name]
        for maker, inner, box in self._meeting(everyone, depth, home, self.stage.writes):
            found.setdefault(inner, []).append((maker, box))
        return found

    def _exchange(self, *exchanges: Exchange) -> None:
        self.steps += [x for x in exchanges if x.sends or x.receives]


def joined(a: Exchange, b: Exchange) -> Exchange:
    """All messages of two exchanges at once."""
    return Exchange(a.sends + b.sends, a.receives + b.receives)
