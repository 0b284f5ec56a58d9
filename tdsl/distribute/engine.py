"""Executes the steps of one rank on NumPy arrays; communication is yielded to the caller, who performs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import Array
from tdsl.codegen.runtime.result_memory import new_output
from tdsl.communication.stages import Stage
from tdsl.communication.steps import (
    Allocate,
    Copy,
    Exchange,
    Fill,
    Finish,
    Free,
    Merge,
    Message,
    RankPlan,
    Reduce,
    Route,
    Run,
    Start,
)
from tdsl.core.node import frozen
from tdsl.distribute.packing import pack, receive_memory, unpack
from tdsl.distribute.routing import fetch_rows
from tdsl.distribute.task import components, task
from tdsl.lang.expr import Binary, Param
from tdsl.lang.interp import Evaluator
from tdsl.lang.reduction import Combine
from tdsl.lang.types import DType
from tdsl.placement.ownership import SpanBox, index_within, stored_shape
from tdsl.schedule.state import State

IN_PLACE = {"add": np.add, "mul": np.multiply}
Parcel = tuple[Message, Array]
Task = Callable[..., Any]


@frozen
class Transfer:
    """An exchange with its arrays: packed ones to send, and memory for those to receive.

    If its sizes are data, no rank of a collective sends or receives more than `bound` bytes.
    """

    step: Exchange
    sends: tuple[Parcel, ...]
    receives: tuple[Parcel, ...]
    bound: int | None = None


@frozen
class StartTransfer:
    """A transfer to start; a `FinishTransfer` with the same handle follows."""

    transfer: Transfer
    handle: int


@frozen
class FinishTransfer:
    """The transfer that was started with this handle must be completed."""

    handle: int


@frozen
class Reduction:
    """A reduction: this rank's operand, packed by parts of the result, and memory for its own part."""

    step: Reduce
    parts: tuple[Array, ...]
    result: Array | None
    combine: Combine


Event = Transfer | StartTransfer | FinishTransfer | Reduction  # communication, which the caller performs


@dataclass(slots=True)
class Tasks:
    """The compiled programs of the tasks of all ranks; equal tasks share one program."""

    stages: Mapping[str, Stage]
    dtypes: Mapping[str, tuple[DType, ...]]
    build: Callable[[State], Task]
    _programs: dict[State, Task] = field(default_factory=dict)
    _programs_by_run: dict[object, Task] = field(default_factory=dict)

    def get(self, run: Run, boxes: Mapping[str, SpanBox]) -> Task:
        """The program of a step; `boxes` has the box of the buffer that it reads for each tensor."""
        key = (run.func, run.ranges, tuple(boxes.items()))
        if key not in self._programs_by_run:
            state = task(self.stages[run.func], run, boxes)
            if state not in self._programs:
                self._programs[state] = self.build(state)
            self._programs_by_run[key] = self._programs[state]
        return self._programs_by_run[key]


@dataclass(slots=True)
class Buffer:
    """A box of a tensor in memory; a func of several values has one array for each value."""

    tensor: str
    box: SpanBox
    arrays: tuple[Array, ...]

    def part(self, box: SpanBox) -> tuple[Array, ...]:
        """The arrays of `box`: views of the buffer, or copies if `box` has gaps that the buffer has not."""
        return tuple(array[index_within(box, self.box)] for array in self.arrays)

    def put(self, box: SpanBox, values: tuple[Array, ...]) -> None:
        """Store values in a box of the buffer; arrays that are views of the buffer are skipped."""
        for array, new in zip(self.arrays, values, strict=True):
            if not np.may_share_memory(array, new):
                array[index_within(box, self.box)] = new


class Worker:
    """The execution of one rank: its plan, its buffers, its scalars."""

    def __init__(
        self, plan: RankPlan, tasks: Tasks, inputs: Mapping[str, Array], scalars: Mapping[str, Any],
        on_step: Callable[[int], None] = lambda step: None,
    ) -> None:  # fmt: skip
        self.plan, self.tasks, self.scalars = plan, tasks, scalars
        self.at = 0  # the number of the step, from 1
        self.on_step = on_step
        self.marks: list[float] = []  # the times at which each step began, then that of the end
        self.routed: dict[int, tuple[int, int]] = {}  # bytes sent and received by a step of rows of data
        self.buffers = {name: Buffer(name, box, (inputs[name],)) for name, box in plan.owned}

    def run(self) -> Iterator[Event]:
        """Execute the steps; the caller performs (or starts) each event before it asks for the next one."""
        begun: dict[int, Transfer] = {}
        for number, step in enumerate(self.plan.steps, 1):
            self.on_step(number)
            self.at = number
            self.marks.append(time.perf_counter())
            match step:
                case Allocate(name, tensor, box, str() as over):
                    self.buffers[name] = Buffer(tensor, box, self.buffers[over].arrays)
                case Allocate(name, tensor, box):
                    arrays = tuple(new_output(stored_shape(box), t.numpy) for t in self.tasks.dtypes[tensor])
                    self.buffers[name] = Buffer(tensor, box, arrays)
                case Fill(name):
                    fill(self._combine(name), self.buffers[name].arrays, self.scalars)
                case Copy(source, target, box):
                    self.buffers[target].put(box, self._part(source, box))
                case Merge(source, target, box):
                    so_far, later = self._part(target, box), self._part(source, box)
                    merge(self._combine(target), so_far, later, self.scalars)
                    self.buffers[target].put(box, so_far)
                case Exchange():
                    yield (transfer := self._pack(step))
                    self._unpack(transfer)
                    del transfer  # its arrays may be blocks that a later step frees
                case Start(exchange, handle):
                    begun[handle] = self._pack(exchange)
                    yield StartTransfer(begun[handle], handle)
                case Finish(handle):
                    yield FinishTransfer(handle)
                    self._unpack(begun.pop(handle))
                case Reduce():
                    yield from self._reduce(step)
                case Route():
                    yield from self._route(step)
                case Run():
                    self._run_task(step)
                case Free(name):
                    del self.buffers[name]
        self.marks.append(time.perf_counter())

    def _part(self, name: str, box: SpanBox) -> tuple[Array, ...]:
        return self.buffers[name].part(box)

    def _combine(self, name: str) -> Combine:
        combine = self.tasks.stages[self.buffers[name].tensor].combine
        assert combine is not None
        return combine

    def _pack(self, step: Exchange) -> Transfer:
        packed: dict[tuple[str, SpanBox], Array] = {}
        for m in step.sends:
            if (m.buffer, m.box) not in packed:
                packed[m.buffer, m.box] = pack(self._part(m.buffer, m.box))
        sends = tuple((m, packed[m.buffer, m.box]) for m in step.sends)
        memory = tuple((m, receive_memory(self._part(m.buffer, m.box))) for m in step.receives)
        return Transfer(step, sends, memory)

    def _unpack(self, transfer: Transfer) -> None:
        for m, array in transfer.receives:
            place = self._part(m.buffer, m.box)
            if not np.may_share_memory(array, place[0]):
                unpack(array, place)
                self.buffers[m.buffer].put(m.box, place)

    def _reduce(self, step: Reduce) -> Iterator[Reduction]:
        boxes = [part for part in step.parts if part is not None]
        if step.collective == "all-reduce":
            boxes = [step.box]
        # copies: the result may be written to the memory of this rank's operand
        parts = tuple(pack(self._part(step.source, box)).copy() for box in boxes)
        mine = step.parts[step.ranks.index(self.plan.rank)]
        place = None if mine is None or step.target is None else self._part(step.target, mine)
        result = None if place is None else receive_memory(place)
        yield Reduction(step, parts, result, self._combine(step.source))
        if place is not None and result is not None and mine is not None:
            unpack(result, place)
            self.buffers[step.target or ""].put(mine, place)

    def _route(self, step: Route) -> Iterator[Transfer]:
        arrays = {name: buffer.arrays for name, buffer in self.buffers.items()}
        (keys,) = (None,) if step.index is None else arrays[step.index]
        block, target = arrays.get(step.tensor, ()), None if step.target is None else arrays[step.target]
        routes = {r.name: r for r in self.tasks.stages[step.func].routes}
        dtypes = [t.numpy for t in self.tasks.dtypes[step.tensor]]
        sent = received = 0
        for x in fetch_rows(step, self.plan.rank, keys, block, target, dtypes, routes[step.source].loc):
            sends, receives = (
                tuple((Message(rank, x.tag, step.source, ((0, a.size),)), a) for rank, a in part)
                for part in (x.sends, x.receives)
            )
            out, into = (tuple(m for m, _ in part) for part in (sends, receives))
            yield Transfer(Exchange(out, into, "all-to-all", step.ranks), sends, receives, x.bound)
            sent += sum(a.nbytes for _, a in sends)
            received += sum(a.nbytes for _, a in receives)
        self.routed[self.at] = sent, received

    def _run_task(self, step: Run) -> None:
        boxes = {tensor: self.buffers[name].box for tensor, name in step.reads}
        arguments = {
            argument: array
            for tensor, name in step.reads
            for argument, array in zip(
                components(self.tasks.stages[step.func], tensor),
                self.buffers[name].arrays,
                strict=True,
            )
        }
        out = self._part(step.target, step.box)
        result = out[0] if len(out) == 1 else out
        self.tasks.get(step, boxes)(**arguments, **self.scalars, out=result)


def fill(combine: Combine, arrays: tuple[Array, ...], scalars: Mapping[str, Any]) -> None:
    """Set all elements to the identity of `combine`."""
    params = {name: np.asarray(value) for name, value in scalars.items()}
    for array, init in zip(arrays, combine.init, strict=True):
        array[...] = Evaluator({}, {}, [], params)(init)


def merge(
    combine: Combine, so_far: tuple[Array, ...], new: tuple[Array, ...], scalars: Mapping[str, Any]
) -> None:
    """Combine `so_far` in place with `new`, which comes later in the order of the reduction."""
    match combine.exprs:
        case (Binary("add" | "mul" as op, Param("a0"), Param("b0")),):
            IN_PLACE[op](so_far[0], new[0], out=so_far[0])
            return
        case _:
            pass
    params = {name: np.asarray(value) for name, value in scalars.items()}
    params |= {f"a{n}": array for n, array in enumerate(so_far)}
    params |= {f"b{n}": array for n, array in enumerate(new)}
    merged = [Evaluator({}, {}, [], params)(e) for e in combine.exprs]
    for old, value in zip(so_far, merged, strict=True):
        old[...] = value
