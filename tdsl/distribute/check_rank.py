"""Verification of the steps of one rank, without data: its buffers, exchanges in flight and peak memory.

A buffer is abstracted to a list of boxes with the points of the reduction that their elements have combined
so far, themselves as boxes: none after a fill; a run gives the points of its ranges, a merge adds those of
its source, which must be disjoint from those of its target.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
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
from tdsl.placement.ownership import SpanBox, contains, element_count, intersection, is_empty


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
                needed = self._boxes_read(step)
                for source, name in step.reads:
                    self.check_not_in_flight(name, needed.get(source), written=False)
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
                raise AssertionError("`RankMatcher` performs communication")

    def _same_tensor(self, source: str, target: str, box: SpanBox) -> None:
        if self.buffer(source, box).tensor != self.buffer(target, box).tensor:
            raise self._fault(f"{source!r} and {target!r} hold different tensors")

    def _run_task(self, step: Run) -> None:
        for source, name in step.reads:
            contents, tensor = self.buffers.get(name), self.tensors[step.func].aliases.get(source, source)
            if contents is None or contents.tensor != tensor:
                raise self._fault(f"{name!r} is no buffer of {tensor!r}")
            if self._has_parts(step.func, source):
                key = (step.func, tensor, contents.box)
                self.parts_read[key] = BufferContents(tensor, contents.box, self.values(name, contents.box))
        placed, ranges, read = self.tensors[step.func], dict(step.ranges), dict(step.reads)
        for tensor, needed in self._boxes_read(step).items():
            if tensor not in read or not contains(self.buffers[read[tensor]].box, needed):
                raise self._fault(f"{step.func!r} needs {needed} of {tensor!r}")
            if not self._has_parts(step.func, tensor):
                self.check_complete(read[tensor], needed)
        if self.buffer(step.target, step.box).tensor != step.func:
            raise self._fault(f"{step.target!r} is no buffer of {step.func!r}")
        dims = zip(placed.dims, placed.whole, strict=True)
        box = tuple(whole if name is None else ranges.get(name) for name, whole in dims)
        (whole,) = reduction_points(placed)
        points = tuple(ranges.get(name, (0, 0)) for name, _ in placed.points)
        if box != step.box or is_empty((*step.box, *points)) or not contains(whole, points):
            raise self._fault(f"the ranges of {step.func!r} are not those of its box")
        self.buffer(step.target, step.box).put([(step.box, (points,))])

    def _boxes_read(self, step: Run) -> Mapping[str, SpanBox]:
        """The boxes that a run needs, by source."""
        read_boxes = self.tensors[step.func].read_boxes
        assert read_boxes is not None, "what is run is a stage"
        return read_boxes(step.ranges)

    def _has_parts(self, func: str, source: str) -> bool:
        """True if each rank computes a func from its own part of a source."""
        tensor, axes = self.tensors[func].aliases.get(source, source), self.tensors[func].partial_axes
        return any(n in self.tensors[tensor].placement.partial for n in axes)

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
