"""Generates the steps of one stage on a rank.

For each iteration of the loops that ranks step through:
1. fetch the sources communicated at a loop: the box that is read, less what the rank owns, from its owners;
   and send to other ranks the parts of this rank's blocks that they read; then the rows that data select;
2. run the task, if the iteration has points; of a fetch with `overlap`, first those that read local elements;
3. send the results to their owners, and receive the results of other ranks for this rank's block.

Messages that form a collective become one; the rest are point-to-point messages, all in flight together.
Every rank goes through the same iterations and counts the same communications; this number is the tag of
their messages. A rank finds the readers of its blocks by bisection of the grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tdsl.communication.collective import Gather, Layout, StageCollectives
from tdsl.communication.hierarchical_reduce import hierarchical_phases
from tdsl.communication.partial_reads import PartialReads
from tdsl.communication.routed_reads import route_of
from tdsl.communication.stages import Spans, Stage
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
    Run,
    Start,
    Step,
)
from tdsl.distribute.fetched import Fetched, StartSteps, merge_exchanges
from tdsl.distribute.interior import interior_and_rim
from tdsl.distribute.partners import Partners
from tdsl.placement.grid import Coordinates
from tdsl.placement.ownership import SpanBox, contains, element_count, intersection, is_contiguous


@dataclass(slots=True)
class StageSteps:
    """The steps of one stage on the rank at `at`; `tag` counts communications."""

    layout: Layout
    stage: Stage
    at: Coordinates
    tag: int
    steps: list[Step] = field(default_factory=list)
    buffers: dict[str, str] = field(default_factory=dict)  # the buffer to read for each source
    computed: set[SpanBox] = field(default_factory=set)  # boxes of the target computed so far
    overlapped: tuple[str, ...] = ()  # sources of which exchanges end in the middle of a task
    handles: int = 0
    windows: dict[tuple[str, int], StartSteps] = field(default_factory=dict)  # by source and iteration
    sending: dict[str, list[Step]] = field(default_factory=dict)  # ends of what is sent in windows, by source
    arriving: dict[int, list[Step]] = field(default_factory=dict)  # the ends of deliveries in flight, by step
    starts: list[int] = field(default_factory=list)  # of the iterations of the outermost loop, and their end
    collectives: StageCollectives = field(init=False)
    partial_reads: PartialReads = field(init=False)
    partners: Partners = field(init=False)

    def __post_init__(self) -> None:
        self.collectives = StageCollectives(self.layout, self.stage)
        self.partial_reads = PartialReads(self.collectives)
        self.partners = Partners(self.collectives, self.at)

    def run(self) -> None:
        """Append the steps of all iterations."""
        name = self.stage.name
        owned_box = self.layout.owned(name, self.at)
        if owned_box is not None:
            over = dict(self.stage.state.overwrites).get(name)
            self.steps.append(Allocate(name, name, owned_box, over))
        self._iterate(tuple((p, p + 1) for p in self.at))
        self.steps += itertools.chain(*self.sending.values())
        if owned_box is not None:
            self._fill(name, owned_box, 1)

    def _fill(self, buffer: str, box: SpanBox | None, start: int) -> None:
        """Insert a fill of a buffer at step `start`, unless its first later write covers `box`."""
        if self.stage.combine is None:
            return
        for step in self.steps[start:]:
            match step:
                case Run(target=target, box=written) if target == buffer and written == box:
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
        self.starts = [n + (n >= start) for n in self.starts]

    def _iterate(self, spans: Spans, ahead: Sequence[Fetched] = ()) -> None:
        """Append one iteration of the loops outside; its prefetches, `ahead`, are in flight."""
        stage, depth = self.stage, len(spans)
        sources, since = stage.fetched_sources(depth, 0), stage.since
        fetched = self._fetch([s for s in sources if s not in since], spans)
        ahead = (*ahead, *(self._start_window(s, spans) for s in sources if s in since))
        handles = [self._start(exchange) for exchange in fetched.overlapped]
        self.steps += [*fetched.exchanges, *fetched.reductions]
        self.steps += [*(Finish(handle) for f in ahead for handle in f.handles)]
        for f in (fetched, *ahead):
            self.steps += f.copies
            self.buffers |= f.buffers
        routed = self._fetch_routes(spans)
        target = self._allocate_target(spans) if stage.levels[stage.name] == depth else None
        start = len(self.steps)
        if depth == len(stage.outer):
            self._run_task(spans, [Finish(handle) for handle in handles])
        else:
            self._loop(spans)
        if stage.levels[stage.name] == depth:
            if target is not None and target != stage.name:
                self._fill(target, stage.written_box(spans), start)
            self._deliver_results(spans, target)
        self.steps += [Free(name) for f in (fetched, *ahead) for name in f.allocated]
        self.steps += map(Free, routed)

    def _loop(self, spans: Spans) -> None:
        """Append all iterations of a loop; prefetches of an iteration start in earlier iterations."""
        stage, depth = self.stage, len(spans)
        first, count = stage.loops[stage.outer[depth]][0], stage.counts[depth]
        distances = sorted({stage.ahead.get(s, 0) for s in stage.sources} - {0})
        prefetched = {a: stage.fetched_sources(depth + 1, a) for a in distances}
        coming: dict[int, list[Fetched]] = {}
        is_outermost = depth == stage.fixed
        for n in range(count):
            self.starts += [len(self.steps)] if is_outermost else []
            for a, sources in prefetched.items():
                for m in range(0 if n == 0 else n + a, min(n + a + 1, count) if sources else 0):
                    at = (*spans, (first + m, first + m + 1))
                    coming.setdefault(m, []).append(self._start_fetch(sources, at, m % (a + 1)))
            self._iterate((*spans, (first + n, first + n + 1)), coming.pop(n, ()))
        self.starts += [len(self.steps)] if is_outermost else []

    # -- fetches

    def _start_fetch(self, sources: list[str], spans: Spans, slot: int) -> Fetched:
        """Start to fetch sources for a later iteration, into the buffers of a slot."""
        fetched = self._fetch(sources, spans, f" ({slot})")
        fetched.handles = [self._start(exchange) for exchange in fetched.exchanges]
        return fetched

    def _start_window(self, source: str, spans: Spans) -> Fetched:
        """Start to fetch a source for an iteration, by steps that come before those of the iteration.

        What this rank receives is there when the iteration begins, what it sends when the next one does.
        """
        first, number = len(self.steps), self._step_number(spans)
        fetched = self._fetch([source], spans, f" ({number})")
        window = self.windows[source, number] = StartSteps(self.steps[first:])
        self.steps[first:] = self.sending.pop(source, [])
        for exchange in fetched.exchanges:
            if exchange.collective:
                fetched.handles.append(self._start(exchange, window.sends))
                continue
            if exchange.receives:
                fetched.handles.append(self._start(replace(exchange, sends=()), window.receives))
            if exchange.sends:
                handle = self._start(replace(exchange, receives=()), window.sends)
                self.sending.setdefault(source, []).append(Finish(handle))
        return fetched

    def _step_number(self, spans: Spans) -> int:
        """The number of the step of the outermost loop in which an iteration is; 0 outside of that loop."""
        step = spans[self.stage.fixed :]
        return step[0][0] - self.stage.loops[self.stage.outer[self.stage.fixed]][0] if step else 0

    def _start(self, exchange: Exchange, steps: list[Step] | None = None) -> int:
        """Append the start of an exchange to the steps, or to others; returns its handle."""
        self.handles += 1
        (self.steps if steps is None else steps).append(Start(exchange, self.handles))
        return self.handles

    def _fetch(self, sources: list[str], spans: Spans, slot: str = "") -> Fetched:
        """Append allocations for the box of each source that is read; returns how the boxes are fetched."""
        fetched = Fetched()
        messages = Exchange((), ())
        for source in sources:
            owned_box, reduction = self.layout.owned(source, self.at), None
            partial = bool(self.collectives.combined_axes(source))
            if partial:
                inner = spans[self.stage.fixed :]
                reduction = self.partial_reads.reduction(source, self.at, inner, self.tag)
            tensor = self.stage.tensor_of(source)
            box, buffer = self.stage.read_box(source, spans), tensor
            local = None if partial else owned_box
            if box is not None and local is not None and is_contiguous(local) and contains(local, box):
                fetched.buffers[source], box = tensor, None
            elif box is not None:
                buffer = f"{source} at {self.stage.outer[len(spans) - 1]}{slot}"
                fetched.buffers[source] = buffer
                fetched.allocated.append(buffer)
                self.steps.append(Allocate(buffer, tensor, box))
                if partial and reduction is None:
                    self.steps.append(Fill(buffer))
                elif local is not None and (owned_part := intersection(local, box)) is not None:
                    fetched.copies.append(Copy(tensor, buffer, owned_part))
            exchanges: Iterator[Exchange] = iter(())
            if reduction is not None:
                target = None if box is None else buffer
                fetched.reductions.append(replace(reduction, source=source, target=target))
            elif partial:
                exchanges = iter((self._partial_results(source, buffer, box, spans, fetched.copies),))
            else:
                exchanges = self._source_exchanges(source, buffer, box, spans)
            for exchange in exchanges:
                if tensor in self.overlapped and (exchange.sends or exchange.receives):
                    fetched.overlapped.append(exchange)
                elif exchange.collective:
                    fetched.exchanges.append(exchange)
                else:
                    messages = merge_exchanges(messages, exchange)
            self.tag += 1
        fetched.exchanges = [x for x in (messages, *fetched.exchanges) if x.sends or x.receives]
        return fetched

    def _partial_results(
        self, source: str, buffer: str, box: SpanBox | None, spans: Spans, merges: list[Step]
    ) -> Exchange:
        """The messages with partial results of a source; appends to `merges` in the order of ranks."""
        grid, axes = self.layout.grid, self.collectives.combined_axes(source)
        parts: list[tuple[int, SpanBox]] = []
        if box is not None:
            for at in self.layout.line(self.at, axes):
                cut = self.layout.pieces(source, box, at)
                parts += [(grid.rank(owner), piece) for owner, piece in cut]
        receives: list[Message] = []
        for rank, piece in sorted(parts, key=lambda part: part[0]):
            if rank == grid.rank(self.at):
                merges.append(Merge(source, buffer, piece))
                continue
            part = f"{buffer} from {rank}"
            self.steps.append(Allocate(part, source, piece))
            receives.append(Message(rank, self.tag, part, piece))
            merges += [Merge(part, buffer, piece), Free(part)]
        requests = self.partners.requests(source, spans)
        sends = [Message(grid.rank(at), self.tag, source, piece) for at, piece in requests]
        return Exchange(tuple(sends), tuple(receives))

    def _source_exchanges(
        self, source: str, buffer: str, box: SpanBox | None, spans: Spans
    ) -> Iterator[Exchange]:
        """The exchanges that receive a box of a source, and send parts of this rank's block to others."""
        inner, grid = spans[self.stage.fixed :], self.layout.grid
        receives: list[Message] = []
        groups: dict[Gather, tuple[list[Message], list[Message]]] = {}
        if box is not None:
            group = self.collectives.source_collective(source, self.at, inner)
            into = receives if group is None else groups.setdefault(group, ([], []))[1]
            for owner, piece in self.layout.pieces(source, box, self.at):
                if owner != self.at:
                    into.append(Message(grid.rank(owner), self.tag, buffer, piece))
        sends: list[Message] = []
        for reader, piece in self.partners.requests(source, spans):
            group = self.collectives.source_collective(source, reader, inner)
            out = sends if group is None else groups.setdefault(group, ([], []))[0]
            out.append(Message(grid.rank(reader), self.tag, self.stage.tensor_of(source), piece))
        for gather, (out, into) in groups.items():
            yield Exchange(tuple(out), tuple(into), gather.kind, gather.ranks)
        ranks = self.collectives.all_to_all_ranks(source, self.at, inner) if sends and receives else ()
        yield self._all_to_all(source, sends, receives, ranks)

    def _all_to_all(
        self, tensor: str, sends: list[Message], receives: list[Message], ranks: tuple[int, ...]
    ) -> Exchange:
        """An exchange of parts of a tensor: an all-to-all among `ranks`, or messages if there are none."""
        if not ranks:
            return Exchange(tuple(sends), tuple(receives))
        bound = (len(ranks) - 1) * element_count(self.layout.wholes[tensor])
        return Exchange(tuple(sends), tuple(receives), "all-to-all", ranks, bound)

    def _fetch_routes(self, spans: Spans) -> list[str]:
        """Append the steps that fetch rows which data select; returns the buffers of the rows."""
        stage, allocated = self.stage, list[str]()
        for route in (r for r in stage.routes if stage.levels[r.name] == len(spans)):
            step = route_of(stage, self.layout, route, self.at, spans[stage.fixed :], self.tag)
            box, key = stage.read_box(route.name, spans), route.key
            self.tag += ROUTE_TAGS
            if box is None:
                self.steps.append(step)
                continue
            index, target = (f"{n} at {stage.outer[len(spans) - 1]}" for n in (key.name, route.name))
            indexed = box[: step.index_dims]
            reads = tuple((s, self.buffers[s]) for s in key.sources)
            self.steps += [
                Allocate(index, key.name, indexed),
                Run(key.name, tuple(zip(key.func.variables, indexed, strict=True)), reads, index, indexed),
                Allocate(target, route.tensor, box),
                replace(step, index=index, target=target),
                Free(index),
            ]
            self.buffers[route.name] = target
            allocated.append(target)
        return allocated

    # -- results

    def _slot(self, spans: Spans) -> str:
        """A suffix for buffers of results, several of which are there at a time if they are in flight."""
        return "" if self.stage.until is None else f" ({self._step_number(spans)})"

    def _allocate_target(self, spans: Spans) -> str | None:
        """Allocate the buffer for the results of the iterations inside; None if there are no results.

        Results within the rank's own block are computed in place, unless others are combined with them first.
        """
        stage = self.stage
        box = stage.written_box(spans)
        if box is None:
            return None
        owned_box = self.layout.owned(stage.name, self.at)
        is_final = stage.combine is None or len(spans) == stage.fixed
        self.computed.clear()
        if owned_box is not None and contains(owned_box, box) and is_final:
            self.buffers[stage.name] = stage.name
        else:
            name = f"{stage.name} at {stage.outer[len(spans) - 1]}{self._slot(spans)}"
            self.buffers[stage.name] = name
            self.steps.append(Allocate(name, stage.name, box))
        return self.buffers[stage.name]

    def _run_task(self, spans: Spans, finishes: list[Step]) -> None:
        """Append the runs of a task; before `finishes` of messages those of the points that need none."""
        stage = self.stage
        ranges, box = stage.ranges(spans), stage.written_box(spans)
        if ranges is None or box is None:
            self.steps += finishes
            return
        target = self.buffers[stage.name]
        first = all(intersection(box, other) is None for other in self.computed)
        self.computed.add(box)
        sources = stage.task_sources
        reads = tuple((s, self.buffers[s]) for s in sources if stage.read_box(s, spans) is not None)
        coordinates = tuple((stage.outer[n], (self.at[n], self.at[n] + 1)) for n in stage.partial_axes)
        is_final = stage.combine is None or stage.levels[stage.name] == len(spans) or first
        into = target if is_final else f"{stage.name} of a step"
        run = Run(stage.name, (*ranges.items(), *coordinates), reads, into, box)
        pending = (s for s, b in reads if b != stage.tensor_of(s) in self.overlapped)
        blocks = {s: self.layout.owned(s, self.at) for s in pending}
        interior, rim = interior_and_rim(stage, run, blocks) if finishes else ([], [run])
        self.steps += [] if is_final else [Allocate(into, stage.name, box)]
        self.steps += [*interior, *finishes, *rim]
        self.steps += [] if is_final else [Merge(into, target, box), Free(into)]

    def _deliver_results(self, spans: Spans, target: str | None) -> None:
        """Append the messages or the collective that bring results to owners; merges are in rank order."""
        name, inner = self.stage.name, spans[self.stage.fixed :]
        collective = self.collectives.result_collective(self.at, inner, self.tag)
        is_reduced = False
        if isinstance(collective, Reduce) and self.layout.grid.rank(self.at) in collective.ranks:
            operand, is_final = target, len(spans) == self.stage.fixed
            if operand is None:  # a rank without results receives those of others
                operand = f"{name} of nothing"
                self.steps += [Allocate(operand, name, collective.box), Fill(operand)]
            self._append_reduction(replace(collective, source=operand), is_final)
            if target is None:
                self.steps.append(Free(operand))
            is_reduced = True
        merges: list[tuple[int, Step]] = []
        sends = [] if is_reduced else list(self._result_sends(spans, target, merges))
        receives = list(self._result_receives(inner, merges, self._slot(spans)))
        exchanges, gathered = list[Exchange](), list[Message]()
        if isinstance(collective, Gather):
            members = set(collective.ranks)
            gathered = [m for m in receives if m.rank in members]
            receives = [m for m in receives if m.rank not in members]
            exchanges = [Exchange(tuple(sends), tuple(gathered), collective.kind, collective.ranks)]
            sends = []
        buffers = [m for m in receives if m.buffer != name]
        self.steps += [Allocate(m.buffer, name, m.box) for m in buffers]
        exchange_ranks: tuple[int, ...] = ()
        if sends and receives and self.stage.combine is None:
            exchange_ranks = self.collectives.all_to_all_ranks(name, self.at, inner)
        exchanges.append(self._all_to_all(name, sends, receives, exchange_ranks))
        exchanges = [x for x in exchanges if x.sends or x.receives]
        ends = [step for _, step in sorted(merges, key=lambda j: j[0])]
        ends += [Free(m.buffer) for m in buffers]
        self.tag += 1
        if target is not None and target != name:
            ends.append(Free(target))
        if self.stage.until is None:
            self.steps += [*exchanges, *ends]
        else:
            handles = [self._start(x) for x in exchanges]
            self.arriving[self._step_number(spans)] = [*map(Finish, handles), *ends]

    def _append_reduction(self, reduction: Reduce, is_final: bool) -> None:
        """Append a reduction of results; unless `is_final`, merge it with those of other iterations."""
        name, me = self.stage.name, self.layout.grid.rank(self.at)
        steps = hierarchical_phases(self.layout.grid, reduction, self.at)
        last = max(n for n, step in enumerate(steps) if isinstance(step, Reduce))
        received_box = reduction.parts[reduction.ranks.index(me)]
        source, allocated = reduction.source, list[str]()

        def allocate(buffer: str, box: SpanBox) -> str:
            self.steps.append(Allocate(buffer, name, box))
            allocated.append(buffer)
            return buffer

        result = name if is_final or received_box is None else allocate(f"{name} in all", received_box)
        for n, step in enumerate(steps):
            if isinstance(step, Gather):
                self._append_exchanges(self._gather_exchange(step, result))
                continue
            part = step.parts[step.ranks.index(me)]
            target = None
            if part is not None:
                target = result if n == last else allocate(f"{name} in all {n}", part)
            self.steps.append(replace(step, source=source, target=target))
            source = target or source
        if received_box is not None and not is_final:
            self.steps.append(Merge(result, name, received_box))
        self.steps += [Free(buffer) for buffer in allocated]

    def _gather_exchange(self, gather: Gather, buffer: str) -> Exchange:
        """The exchange by which each rank of a group receives all parts in a buffer."""
        me = self.layout.grid.rank(self.at)
        sent_parts = [part for rank, part in gather.parts if rank == me]
        sends = [Message(r, self.tag, buffer, part) for part in sent_parts for r in gather.ranks if r != me]
        receives = [Message(r, self.tag, buffer, part) for r, part in gather.parts if r != me]
        return Exchange(tuple(sends), tuple(receives), gather.kind, gather.ranks)

    def _result_sends(
        self, spans: Spans, target: str | None, merges: list[tuple[int, Step]]
    ) -> Iterator[Message]:
        """The messages with results for other ranks; `merges` gets copies or merges into the own block."""
        name, grid = self.stage.name, self.layout.grid
        if target is None:
            return
        combine = Copy if self.stage.combine is None else Merge
        box = self.stage.written_box(spans)
        assert box is not None
        for first, piece in self.layout.pieces(name, box, self.at):
            for owner in self.collectives.owners_of_result((first,), self.at):
                if owner != self.at:
                    yield Message(grid.rank(owner), self.tag, target, piece)
                elif target != name:
                    merges.append((grid.rank(self.at), combine(target, name, piece)))

    def _result_receives(self, inner: Spans, merges: list[tuple[int, Step]], slot: str) -> Iterator[Message]:
        """The messages with others' results for this rank's block, except reductions; appends to `merges`."""
        name, combine = self.stage.name, self.stage.combine
        for writer, box in self.partners.writers(inner):
            if writer == self.at or isinstance(
                self.collectives.result_collective(writer, inner, self.tag), Reduce
            ):
                continue
            rank = self.layout.grid.rank(writer)
            buffer = name if combine is None else f"{name} from {rank}{slot}"
            if combine is not None:
                merges.append((rank, Merge(buffer, name, box)))
            yield Message(rank, self.tag, buffer, box)

    def _append_exchanges(self, *exchanges: Exchange) -> None:
        self.steps += [x for x in exchanges if x.sends or x.receives]
