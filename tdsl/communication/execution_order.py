"""The order in which all ranks go through the stages, and through the steps of interleaved loops.

All ranks follow one order, in which each communication has one place, or one for its start and a later one
for its end: so no rank waits for another one that waits for it. The order is verified against what is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from tdsl.communication.collective import Layout
from tdsl.communication.stages import Stage
from tdsl.core.node import frozen
from tdsl.errors import Related, ScheduleError, counted, did_you_mean
from tdsl.placement.ownership import SpanBox, contains, intersection
from tdsl.schedule.state import Interleaving

Block = tuple[str, int | None]  # a stage, or a step of an interleaved one
Window = tuple[str, str, int]  # a stage, a source of it, and the number of the step that needs it


@frozen
class ExecutionOrder:
    """The blocks in their order, and for each window the number of the block before which it starts.

    Windows are in the order in which their messages start. `arrivals` has, for blocks whose results are in
    flight, the number of the block before which they arrive.
    """

    blocks: tuple[Block, ...]
    windows: Mapping[Window, int]
    arrivals: Mapping[Block, int]

    def last_block(self, stage: Stage) -> int:
        """The number of the last block of a stage, or of all stages of its interleaving."""
        x = interleaving_of(stage)
        names = {stage.name} if x is None else x.loops
        return max(n for n, (name, _) in enumerate(self.blocks) if name in names)


def execution_order(layout: Layout, stages: tuple[Stage, ...]) -> ExecutionOrder:
    """The order of stages of which those of an interleaving follow each other.

    ScheduleError if steps are missing or out of order, if one reads what a later one computes or what has
    not arrived, and for a window that starts after it ends.
    """
    blocks: list[Block] = []
    for interleaving, group in groups_of(stages):
        blocks += [(group[0].name, None)] if interleaving is None else steps_of(interleaving, group)
    order = _Positions(layout, {s.name: s for s in stages}, {b: n for n, b in enumerate(blocks)})
    arrivals = dict(order.arrivals())
    return ExecutionOrder(tuple(blocks), order.by_priority(dict(order.windows(arrivals))), arrivals)


def groups_of(stages: tuple[Stage, ...]) -> list[tuple[Interleaving | None, tuple[Stage, ...]]]:
    """The stages that run together: those of each interleaving, which follow each other, or one alone."""
    groups: list[tuple[Interleaving | None, tuple[Stage, ...]]] = []
    for stage in stages:
        x = interleaving_of(stage)
        if x is not None and groups and groups[-1][0] is x:
            groups[-1] = x, (*groups[-1][1], stage)
        else:
            groups.append((x, (stage,)))
    return groups


def interleaving_of(stage: Stage) -> Interleaving | None:
    """The interleaving of which a stage is a part."""
    return next((x for x in stage.state.interleaved if stage.name in x.loops), None)


def steps_of(interleaving: Interleaving, stages: tuple[Stage, ...]) -> list[Block]:
    """The steps of interleaved stages in their order.

    ScheduleError unless each step of each loop comes once, those of a loop one after the other.
    """
    lengths = {s.name: s.counts[s.fixed] for s in stages}
    items = [[name for name, _ in item if name in lengths] for item in interleaving.items]
    for item in items:
        for name in item:
            if lengths[name] != lengths[item[0]]:
                what = f"{item[0]!r} has {counted(lengths[item[0]], 'step')}, {name!r} has {lengths[name]}"
                raise _wrong_order(stages[0], what, "divide loops that advance together into as many parts")
    counts = [lengths[item[0]] if item else 0 for item in items]
    order = interleaving.order
    if order is None:
        steps = range(max(counts, default=0))
        order = tuple((n, m) for m in steps for n, count in enumerate(counts) if m < count)
    following = [0] * len(items)
    for n, m in order:
        if not 0 <= n < len(items):
            hint = f"loops are numbered from 0 to {len(items) - 1}, as they are named"
            raise _wrong_order(stages[0], f"there is no loop {n}", hint)
        if items[n] and m != following[n]:
            what = f"step {m} of {items[n][0]!r} comes where step {following[n]} is next"
            raise _wrong_order(stages[0], what, "name the steps of each loop once, from 0 upwards")
        following[n] += 1
    for item, count, done in zip(items, counts, following, strict=True):
        if item and done != count:
            what = f"{item[0]!r} has {counted(count, 'step')}, of which {done} are named"
            raise _wrong_order(stages[0], what, "name all steps of each loop")
    return [(name, m) for n, m in order for name in items[n]]


@frozen
class _Positions:
    """The positions of blocks, to compare those of readers and of what they read."""

    layout: Layout
    stages: Mapping[str, Stage]
    positions: Mapping[Block, int]
    accessed: dict[tuple[str, str, int | None], set[SpanBox]] = field(default_factory=dict)  # by `_boxes`

    def arrivals(self) -> Iterator[tuple[Block, int]]:
        """Each block whose results are in flight, with the block before which they arrive."""
        for stage in self.stages.values():
            if stage.until is None:
                continue
            if stage.until not in self.stages:
                hint = did_you_mean(stage.until, self.stages)
                raise self._no_arrival(stage, f"no rank computes {stage.until!r} as a stage", hint)
            blocks, others = dict(self._blocks(stage)), dict(self._blocks(self.stages[stage.until]))
            depth, stepped = stage.levels[stage.name] - stage.fixed, None not in blocks
            if depth > stepped:
                hint = "communicate results at the last distributed loop or at one that is interleaved"
                raise self._no_arrival(stage, "its loop has no order across funcs", hint)
            together = interleaving_of(stage) is interleaving_of(self.stages[stage.until])
            for n, at in blocks.items() if depth == stepped else [max(blocks.items(), key=lambda x: x[1])]:
                end = others.get(n, -1) if together and depth and stepped else min(others.values())
                if end <= at:
                    what = f"{stage.until!r} begins before {'it' if n is None else f'step {n}'} is computed"
                    raise self._no_arrival(stage, what, "name a func that is computed later")
                yield (stage.name, n), end

    @staticmethod
    def _no_arrival(stage: Stage, what: str, hint: str) -> ScheduleError:
        return ScheduleError(
            f"results of {stage.name!r} cannot arrive until then: {what}",
            loc=stage.state.plan(stage.name).loc,
            label="scheduled here",
            hint=hint,
        )

    def by_priority(self, windows: Mapping[Window, int]) -> dict[Window, int]:
        """The windows in the order in which they start, those that are behind others after these."""
        placed = dict[Window, int]()

        def place(window: Window, waiting: tuple[Window, ...]) -> int:
            if window not in placed:
                first = self._windows_before(window, windows)
                if window in waiting:
                    what = "each of them waits for the other"
                    raise self._not_behind(window, what, "name one of them with behind")
                starts = [place(w, (*waiting, window)) for w in first]
                start = max(windows[window], *starts) if starts else windows[window]
                blocks = dict(self._blocks(self.stages[window[0]]))
                if start > (blocks[None] if None in blocks else blocks[window[2]]):
                    what = f"their messages start after {window[0]!r} begins"
                    raise self._not_behind(window, what, "name what is sent before, or leave behind= away")
                placed[window] = start
            return placed[window]

        for window in sorted(windows, key=lambda w: windows[w]):
            place(window, ())
        return dict(sorted(placed.items(), key=lambda item: item[1]))

    def _windows_before(self, window: Window, windows: Iterable[Window]) -> list[Window]:
        """The windows that one is behind: those of the step of the same number, or else all of the tensor."""
        reader, source, n = window
        first = self.stages[reader].behind.get(source)
        if first is None:
            return []
        before = [w for w in windows if self.stages[w[0]].tensor_of(w[1]) == first]
        if not before:
            hint = f"communicate({first!r}, at=..., since=...) by the stage that reads it"
            raise self._not_behind(window, f"{first!r} is received in no window", hint)
        return [w for w in before if w[2] == n] or before

    def _not_behind(self, window: Window, what: str, hint: str) -> ScheduleError:
        stage, source = self.stages[window[0]], window[1]
        return ScheduleError(
            f"{stage.name!r} cannot receive {source!r} behind {stage.behind[source]!r}: {what}",
            loc=stage.state.plan(stage.name).loc,
            label="scheduled here",
            hint=hint,
        )

    def windows(self, arrivals: Mapping[Block, int]) -> Iterator[tuple[Window, int]]:
        """Each window of the stages, with the block before which it starts."""
        for reader in self.stages.values():
            since = reader.since
            read = (self.stages.get(reader.tensor_of(s)) for s in reader.sources)
            in_flight = any(s is not None and s.until is not None for s in read)
            if interleaving_of(reader) is None and not since and not in_flight:
                continue  # stages follow what they read
            for source in reader.sources:
                for n, begin in self._blocks(reader):
                    ready = self._ready(reader, source, n, begin, arrivals)
                    if source in since and self._is_level(reader, source, n):
                        yield (reader.name, source, n or 0), max(ready, self._since(reader, source, n, begin))

    def _blocks(self, stage: Stage) -> Iterator[tuple[int | None, int]]:
        """The blocks of a stage, each with its position."""
        stepped = interleaving_of(stage) is not None
        for n in range(stage.counts[stage.fixed]) if stepped else (None,):
            yield n, self.positions[stage.name, n]

    def _is_level(self, reader: Stage, source: str, n: int | None) -> bool:
        """True if a source is fetched at a step; at the first one, also those fetched before all of them."""
        depth = reader.levels[source] - reader.fixed
        if depth > (n is not None):
            raise ScheduleError(
                f"{reader.name!r} communicates {source!r} at a loop without an order across funcs",
                loc=reader.state.plan(reader.name).loc,
                label="scheduled here",
                hint="with since, at the last distributed loop or at one that is interleaved; or prefetch",
            )
        return depth == 1 or not n

    def _ready(
        self, reader: Stage, source: str, n: int | None, begin: int, arrivals: Mapping[Block, int]
    ) -> int:
        """The position from which on the owners of a source have what a block reads of it."""
        producer = self.stages.get(reader.tensor_of(source))
        if producer is None:
            return 0
        blocks = dict(self._blocks(producer))
        ends = {m: arrivals.get((producer.name, m), at + 1) - 1 for m, at in blocks.items()}
        last = max(ends.values())
        if last < begin and source not in reader.since:
            return last + 1
        is_whole = None in blocks or self._is_delivered_whole(producer)
        boxes, ready = self._boxes(reader, source, n), 0
        for m, end in ends.items():
            done = last if is_whole else end
            if done >= ready and _meet(boxes, self._boxes(producer, producer.name, m)):
                ready = done + 1
                if done >= begin and producer.until is not None:
                    step = "" if n is None else f"step {n} of "
                    hint = f"name a func that is computed before {reader.name!r}"
                    what = f"{step}{reader.name!r} reads them before"
                    raise self._no_arrival(producer, what, hint)
                if done > begin:
                    raise _reads_later(reader, producer, n, m, is_whole)
        return ready

    def _since(self, reader: Stage, source: str, n: int | None, begin: int) -> int:
        """The position of the block at whose begin the window of a block starts."""
        name = reader.since[source]
        if name not in self.stages:
            hint = did_you_mean(name, self.stages)
            raise self._no_window(reader, source, f"no rank computes {name!r} as a stage", hint)
        blocks = dict(self._blocks(self.stages[name]))
        together = n is not None and interleaving_of(self.stages[name]) is interleaving_of(reader)
        at = blocks.get(n, begin + 1) if together else min(blocks.values())
        if at > begin:
            hint = "name a func that is computed before"
            raise self._no_window(reader, source, f"{name!r} begins after it", hint)
        return at

    @staticmethod
    def _no_window(reader: Stage, source: str, what: str, hint: str) -> ScheduleError:
        return ScheduleError(
            f"{reader.name!r} cannot receive {source!r} since then: {what}",
            loc=reader.state.plan(reader.name).loc,
            label="scheduled here",
            hint=hint,
        )

    def _boxes(self, stage: Stage, tensor: str, n: int | None) -> set[SpanBox]:
        """The boxes of a source, or of the results of a stage, that all ranks access in a block."""
        key = stage.name, tensor, n
        if key in self.accessed:
            return self.accessed[key]
        step: tuple[tuple[int, int], ...] = ()
        if n is not None:
            first = stage.loops[stage.outer[stage.fixed]][0] + n
            step = ((first, first + 1),)
        boxes: set[SpanBox | None] = set()
        for at in map(self.layout.grid.coordinates, range(self.layout.grid.size)):
            spans = (*((p, p + 1) for p in at), *step)
            boxes.add(stage.written_box(spans) if tensor == stage.name else stage.read_box(tensor, spans))
        self.accessed[key] = {box for box in boxes if box is not None}
        return self.accessed[key]

    def _is_delivered_whole(self, stage: Stage) -> bool:
        """True if the owners of a func have its elements after the last step only."""
        if stage.levels[stage.name] > stage.fixed:
            return False
        if stage.combine is not None:
            return True
        for at in map(self.layout.grid.coordinates, range(self.layout.grid.size)):
            box = stage.written_box(tuple((p, p + 1) for p in at))
            block = self.layout.owned(stage.name, at)
            if box is not None and (block is None or not contains(block, box)):
                return True
        return False


def _meet(boxes: set[SpanBox], others: set[SpanBox]) -> bool:
    """True if a box of one set intersects one of the other.

    Others are looked up by where they begin in the dimension with most begins: sets have a box for each rank.
    """
    dims = range(len(next(iter(others), ())))
    if not boxes or not others or not dims:
        return bool(boxes and others)
    dim = max(dims, key=lambda d: len({box[d][0] for box in others}))
    ordered = sorted(others, key=lambda box: box[dim][0])
    begins, longest = [box[dim][0] for box in ordered], max(box[dim][1] - box[dim][0] for box in ordered)
    for box in boxes:
        lo, hi = box[dim]
        candidates = ordered[bisect_right(begins, lo - longest) : bisect_left(begins, hi)]
        if any(intersection(box, other) is not None for other in candidates):
            return True
    return False


def _reads_later(reader: Stage, source: Stage, n: int | None, m: int | None, is_whole: bool) -> ScheduleError:
    what = f"step {n} of {reader.name!r} waits for step {m} of {source.name!r}, which comes later"
    hint = f"put step {m} of {source.name!r} before"
    if is_whole:
        what = f"step {n} of {reader.name!r} waits for {source.name!r}, which ranks send after its last step"
        loop = source.outer[source.fixed]
        hint = f'send each step: s["{source.name}"].communicate("{source.name}", at="{loop}")'
    return _wrong_order(reader, what, hint, ((source.func.loc, f"{source.name!r}"),))


def _wrong_order(stage: Stage, what: str, hint: str, related: Iterable[Related] = ()) -> ScheduleError:
    interleaving = interleaving_of(stage)
    assert interleaving is not None, "a stage of an interleaving"
    loc = stage.state.plan(next(iter(interleaving.loops))).loc
    return ScheduleError(
        f"steps are out of order: {what}", loc=loc, label="interleaved here", related=related, hint=hint
    )
