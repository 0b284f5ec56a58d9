"""Running the steps of one rank on NumPy arrays. Who carries the messages is the caller's business."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tdsl.codegen.arrays import Array
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
)
from tdsl.distribute.stages import Stage
from tdsl.distribute.task import task
from tdsl.lang.interp import Evaluator
from tdsl.lang.types import DType
from tdsl.placement.ownership import Box, extents, within
from tdsl.schedule.nest import State

Parcel = tuple[Message, Array]
Task = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Transfer:
    """An exchange: what is sent, packed, and memory for what is received."""

    sends: tuple[Parcel, ...]
    receives: tuple[Parcel, ...]


@dataclass(slots=True)
class Tasks:
    """The compiled programs of the tasks of all ranks; equal ones are one."""

    stages: Mapping[str, Stage]
    dtypes: Mapping[str, DType]
    build: Callable[[State], Task]
    _made: dict[State, Task] = field(default_factory=dict)
    _known: dict[object, Task] = field(default_factory=dict)

    def get(self, run: Run, boxes: Mapping[str, Box]) -> Task:
        """The program of a step that reads buffers which hold these boxes."""
        key = (run.func, run.ranges, tuple(boxes.items()))
        if key not in self._known:
            state = task(self.stages[run.func], run, boxes)
            if state not in self._made:
                self._made[state] = self.build(state)
            self._known[key] = self._made[state]
        return self._known[key]


@dataclass(slots=True)
class Buffer:
    """A box of a tensor in memory."""

    tensor: str
    box: Box
    array: Array


class Worker:
    """One rank: its plan, its buffers, its scalars."""

    def __init__(
        self, plan: RankPlan, tasks: Tasks, inputs: Mapping[str, Array], scalars: Mapping[str, Any]
    ) -> None:
        self.plan, self.tasks, self.scalars = plan, tasks, scalars
        self.at = 0  # the number of the step, from 1
        self.buffers = {name: Buffer(name, box, inputs[name]) for name, box in plan.owned}

    def run(self) -> Iterator[Transfer]:
        """Go through the steps; each transfer that is yielded must be done before the next is asked for."""
        for number, step in enumerate(self.plan.steps, 1):
            self.at = number
            match step:
                case Make(name, tensor, box):
                    dtype = self.tasks.dtypes[tensor].numpy
                    self.buffers[name] = Buffer(tensor, box, np.empty(extents(box), dtype))
                case Fill(name):
                    self._fill(self.buffers[name])
                case Copy(source, target, box):
                    self._part(target, box)[...] = self._part(source, box)
                case Merge(source, target, box):
                    self._merge(self._part(target, box), self._part(source, box), target)
                case Exchange(sends, receives):
                    yield from self._exchange(sends, receives)
                case Run():
                    self._run(step)
                case Drop(name):
                    del self.buffers[name]

    def _part(self, name: str, box: Box) -> Array:
        buffer = self.buffers[name]
        part: Array = buffer.array[within(box, buffer.box)]
        return part

    def _fill(self, buffer: Buffer) -> None:
        combine = self.tasks.stages[buffer.tensor].definition.combine
        assert combine is not None
        params = {name: np.asarray(value) for name, value in self.scalars.items()}
        buffer.array[...] = Evaluator({}, {}, [], params)(combine.init[0])

    def _merge(self, so_far: Array, new: Array, target: str) -> None:
        combine = self.tasks.stages[self.buffers[target].tensor].definition.combine
        assert combine is not None
        params = {name: np.asarray(value) for name, value in self.scalars.items()}
        params |= {"a0": so_far, "b0": new}
        so_far[...] = Evaluator({}, {}, [], params)(combine.exprs[0])

    def _exchange(
        self, sends: tuple[Message, ...], receives: tuple[Message, ...]
    ) -> Iterator[Transfer]:
        packed = tuple((m, np.ascontiguousarray(self._part(m.buffer, m.box))) for m in sends)
        places = [self._part(m.buffer, m.box) for m in receives]
        room = tuple(
            (m, p if p.flags.c_contiguous else np.empty(p.shape, p.dtype))
            for m, p in zip(receives, places, strict=True)
        )
        yield Transfer(packed, room)
        for place, (_, array) in zip(places, room, strict=True):
            if place is not array:
                place[...] = array

    def _run(self, step: Run) -> None:
        boxes = {tensor: self.buffers[name].box for tensor, name in step.reads}
        given = {tensor: self.buffers[name].array for tensor, name in step.reads}
        self.tasks.get(step, boxes)(**given, **self.scalars, out=self._part(step.target, step.box))
