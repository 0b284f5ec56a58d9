"""The steps of one rank.

For each stage, and in it for each iteration of the loops that are stepped through:
1. fetch what is communicated at a loop: the needed box, less what the rank owns, from its owners; and send
   to the others what they need of the rank's own;
2. run the task, where the iteration has points;
3. send what was made to its owners, and take what others made of the rank's own box.

Every rank goes through the same iterations and counts the same communications, so the number of one is the
tag of its messages. A rank finds those who need something of it by halving the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tdsl.distribute.plan import (
    Copy,
    Drop,
    Exchange,
    Fill,
    Make,
    Merge,
    Message,
    RankPlan,
    Run,
    Step,
)
from tdsl.distribute.stages import Spans, Stage
from tdsl.placement.grid import Coordinates, Grid
from tdsl.placement.notation import Copies, Placement
from tdsl.placement.ownership import Box, common, contains, copies, is_whole, owned, pieces

Touched = Callable[[Spans], Box | None]  # the box that ranks with these spans of coordinates touch


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lives: the grid, the placement and the whole box of each tensor."""

    grid: Grid
    placements: Mapping[str, Placement]
    wholes: Mapping[str, Box]

    def owned(self, tensor: str, at: Coordinates) -> Box | None:
        """The box that the rank at some coordinates owns."""
        return owned(self.placements[tensor], self.grid, self.wholes[tensor], at)

    def pieces(self, tensor: str, box: Box, near: Coordinates) -> Iterator[tuple[Coordinates, Box]]:
        """A box cut along the blocks, each piece with the coordinates of the owner nearest."""
        whole = self.wholes[tensor]
        return pieces(self.placements[tensor], self.grid, whole, box, near)


def plan_rank(
    layout: Layout, stages: tuple[Stage, ...], inputs: tuple[str, ...], outputs: tuple[str, ...], rank: int
) -> RankPlan:  # fmt: skip
    """The plan of one rank. Memory of a stage that is no output is given back behind its last reader."""
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
class StageSteps:
    """The steps of one stage on the rank at `at`; `tag` counts communications."""

    layout: Layout
    stage: Stage
    at: Coordinates
    tag: int
    steps: list[Step] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)  # the buffer to read for each source

    def run(self) -> None:
        """All iterations."""
        name = self.stage.name
        home = self.layout.owned(name, self.at)
        if home is not None:
            self.steps.append(Make(name, name, home))
            if self.stage.combine is not None:
                self.steps.append(Fill(name))
        self._iterate(tuple((p, p + 1) for p in self.at))

    def _iterate(self, spans: Spans) -> None:
        stage, depth = self.stage, len(spans)
        fetched = [s for s in stage.sources if stage.levels[s] == depth]
        made = self._fetch(fetched, spans)
        target = self._target(spans) if stage.levels[stage.name] == depth else None
        if depth == len(stage.outer):
            self._task(spans)
        else:
            first = stage.loops[stage.outer[depth]][0]
            for n in range(stage.counts[depth]):
                self._iterate((*spans, (first + n, first + n + 1)))
        if stage.levels[stage.name] == depth:
            self._flush(spans, target)
        self.steps += [Drop(name) for name in made]

    # -- what is read

    def _fetch(self, sources: list[str], spans: Spans) -> list[str]:
        """Have the needed box of each source in one buffer; the buffers that were made for it."""
        made: list[str] = []
        sends: list[Message] = []
        receives: list[Message] = []
        needed = self.stage.reads(spans) if sources else {}
        copied: list[Step] = []
        for source in sources:
            home = self.layout.owned(source, self.at)
            box = needed.get(source)
            if box is not None and home is not None and is_whole(home) and contains(home, box):
                self.held[source] = source
            elif box is not None:
                buffer = self.held[source] = f"{source} at {self.stage.outer[len(spans) - 1]}"
                made.append(buffer)
                self.steps.append(Make(buffer, source, box))
                for owner, piece in self.layout.pieces(source, box, self.at):
                    if owner == self.at:
                        copied.append(Copy(source, buffer, piece))
                    else:
                        rank = self.layout.grid.rank(owner)
                        receives.append(Message(rank, self.tag, buffer, piece))
            sends += self._wanted(source, home, spans)
            self.tag += 1
        self._exchange(sends, receives)
        self.steps += copied
        return made

    def _wanted(self, source: str, home: Box | None, spans: Spans) -> Iterator[Message]:
        """Whom to send what of the own box of a source, for this iteration of all ranks."""
        if home is None:
            return
        inner = spans[self.stage.fixed :]

        def touched(ranks: Spans) -> Box | None:
            return self.stage.reads((*ranks, *inner)).get(source)

        entries = self.layout.placements[source].entries
        nearest = tuple(
            (p, p + 1) if isinstance(e, Copies) else (0, size)
            for e, p, size in zip(entries, self.at, self.layout.grid.shape, strict=True)
        )
        for reader, box in meeting(nearest, home, touched):
            other = self.layout.owned(source, reader)
            if reader != self.at and not (other is not None and contains(other, box)):
                yield Message(self.layout.grid.rank(reader), self.tag, source, box)

    # -- what is made

    def _target(self, spans: Spans) -> str | None:
        """The buffer for what the iterations inside make; None where they make nothing.

        What the rank owns itself is made in place, if nothing else is to be combined with it before.
        """
        stage = self.stage
        box = stage.writes(spans)
        if box is None:
            return None
        home = self.layout.owned(stage.name, self.at)
        once = stage.combine is None or len(spans) == stage.fixed
        if home is not None and contains(home, box) and once:
            self.held[stage.name] = stage.name
        else:
            name = f"{stage.name} at {stage.outer[len(spans) - 1]}"
            self.held[stage.name] = name
            self.steps.append(Make(name, stage.name, box))
            if len(spans) < len(stage.outer) and stage.combine is not None:
                self.steps.append(Fill(name))
        return self.held[stage.name]

    def _task(self, spans: Spans) -> None:
        stage = self.stage
        ranges, box = stage.ranges(spans), stage.writes(spans)
        if ranges is None or box is None:
            return
        target = self.held[stage.name]
        reads = tuple((s, self.held[s]) for s in stage.sources if s in stage.reads(spans))
        run = Run(stage.name, tuple(ranges.items()), reads, target, box)
        if stage.combine is None or stage.levels[stage.name] == len(spans):
            self.steps.append(run)
            return
        part = f"{stage.name} of a step"
        self.steps += [
            Make(part, stage.name, box), Run(run.func, run.ranges, reads, part, box),
            Merge(part, target, box), Drop(part),
        ]  # fmt: skip

    def _flush(self, spans: Spans, target: str | None) -> None:
        """Bring what was made to its owners; where it is combined, in the order of the ranks that made it."""
        stage, name = self.stage, self.stage.name
        sends: list[Message] = []
        own: list[Box] = []
        if target is not None:
            box = stage.writes(spans)
            assert box is not None
            for first, piece in self.layout.pieces(name, box, self.at):
                for owner in copies(self.layout.placements[name], self.layout.grid, first):
                    if owner != self.at:
                        rank = self.layout.grid.rank(owner)
                        sends.append(Message(rank, self.tag, target, piece))
                    elif target != name:
                        own.append(piece)
        self._collect(spans, sends, own, target)
        self.tag += 1
        if target is not None and target != name:
            self.steps.append(Drop(target))

    def _collect(
        self, spans: Spans, sends: list[Message], own: list[Box], target: str | None
    ) -> None:
        name, combine = self.stage.name, self.stage.combine
        inner = spans[self.stage.fixed :]
        home = self.layout.owned(name, self.at)
        receives: list[Message] = []
        buffers: list[tuple[str, Box]] = []

        def touched(ranks: Spans) -> Box | None:
            return self.stage.writes((*ranks, *inner))

        parts = self.layout.placements[name].partial  # each rank keeps its own
        everyone = tuple(
            (p, p + 1) if n in parts else (0, size)
            for n, (p, size) in enumerate(zip(self.at, self.layout.grid.shape, strict=True))
        )
        joins: list[tuple[int, Step]] = []
        join = Copy if combine is None else Merge
        me = self.layout.grid.rank(self.at)
        joins += [(me, join(target, name, piece)) for piece in own if target is not None]
        for maker, box in meeting(everyone, home, touched) if home is not None else ():
            if maker == self.at:
                continue
            rank = self.layout.grid.rank(maker)
            buffer = name
            if combine is not None:
                buffer = f"{name} from {rank}"
                buffers.append((buffer, box))
                joins.append((rank, Merge(buffer, name, box)))
            receives.append(Message(rank, self.tag, buffer, box))
        self.steps += [Make(buffer, name, box) for buffer, box in buffers]
        self._exchange(sends, receives)
        self.steps += [step for _, step in sorted(joins, key=lambda j: j[0])]
        self.steps += [Drop(buffer) for buffer, _ in buffers]

    def _exchange(self, sends: list[Message], receives: list[Message]) -> None:
        if sends or receives:
            self.steps.append(Exchange(tuple(sends), tuple(receives)))


def meeting(ranks: Spans, box: Box, touched: Touched) -> Iterator[tuple[Coordinates, Box]]:
    """Which ranks of some spans of coordinates touch a box, and where.

    >>> def halo(ranks):
    ...     (lo, hi), = ranks
    ...     return ((10 * lo - 1, 10 * hi + 1),)
    >>> list(meeting(((0, 1000),), ((500, 510),), halo))
    [((49,), ((500, 501),)), ((50,), ((500, 510),)), ((51,), ((509, 510),))]
    """
    alive = _alive((ranks,), box, touched)
    while alive:
        at, shared = alive.pop()
        widths = [hi - lo for lo, hi in at]
        if max(widths) == 1:
            yield tuple(first for first, _ in at), shared
            continue
        wide = sorted((n for n, w in enumerate(widths) if w > 1), key=lambda n: -widths[n])
        halves = _alive(_halves(at, wide[0]), box, touched)
        for axis in wide[1:]:
            if len(halves) < 2:
                break
            # an axis of which one half can be left out is better than the widest
            other = _alive(_halves(at, axis), box, touched)
            halves = other if len(other) < 2 else halves
        alive += halves


def _alive(
    parts: tuple[Spans, ...], box: Box, touched: Touched
) -> list[tuple[Spans, Box]]:  # fmt: skip
    """Those spans of coordinates of which some rank may touch a box, the last ones first."""
    found = [(ranks, touched(ranks)) for ranks in reversed(parts)]
    shared = [(ranks, common(part, box)) for ranks, part in found if part is not None]
    return [(ranks, part) for ranks, part in shared if part is not None]


def _halves(ranks: Spans, axis: int) -> tuple[Spans, Spans]:
    lo, hi = ranks[axis]
    middle = (lo + hi) // 2
    before, behind = ranks[:axis], ranks[axis + 1 :]
    return (*before, (lo, middle), *behind), (*before, (middle, hi), *behind)
