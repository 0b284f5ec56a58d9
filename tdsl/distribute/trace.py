"""Writes traces for ui.perfetto.dev and chrome://tracing: a process for each rank, with tracks for
computation, sends and receives; or pictures of them."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tdsl.codegen.runtime.arrays import Array
from tdsl.communication.stages import Stage
from tdsl.communication.steps import (
    Allocate,
    Copy,
    Exchange,
    Finish,
    Merge,
    RankPlan,
    Reduce,
    Route,
    Run,
    Start,
    reduction_elements,
)
from tdsl.core.source import here
from tdsl.distribute.collective_algorithms import NAMES
from tdsl.distribute.plan import Plan
from tdsl.distribute.time_model import COMPUTE, RECEIVE, SEND, Machine, Slice
from tdsl.distribute.timeline import timeline
from tdsl.errors import TypeMismatch, did_you_mean, is_one_of
from tdsl.lang.operations import arithmetic_of
from tdsl.placement.grid import Grid
from tdsl.placement.ownership import SpanBox, element_count

TRACKS = (COMPUTE, SEND, RECEIVE)
MICRO = 1e6


def model_parameters(
    grid: Grid, latency: float | Sequence[float], bandwidth: float | Sequence[float],
    operations: float, memory: float, shared_by: int | Sequence[int | None] | None,
    algorithm: str | None = None, in_switch: bool | Sequence[bool] = False,
) -> Machine:  # fmt: skip
    """The parameters of the model; those of links are one number, or one for each grid level."""
    levels_of: list[tuple[float, ...]] = []
    for name, value in (("latency", latency), ("bandwidth", bandwidth)):
        count = len(grid.depths)
        numbers: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) else (value,) * count
        least = 0.0 if name == "latency" else math.ulp(0.0)
        fits = all(isinstance(x, int | float) and x >= least for x in numbers)
        if len(numbers) != count or not fits:
            raise TypeMismatch(
                f"{name} is a positive number, or one for each level of {grid}, not {value!r}",
                loc=here(),
                label="this call",
                hint="seconds, and bytes a second: latency=(2e-6, 5e-7), bandwidth=(1e10, 1e11)",
            )
        levels_of.append(tuple(float(x) for x in numbers))
    rates: tuple[tuple[str, Any], ...] = (("operations", operations), ("memory", memory))
    for name, rate in rates:
        if not (isinstance(rate, int | float) and rate > 0):
            raise TypeMismatch(
                f"{name} is a positive number a second, not {rate!r}",
                loc=here(),
                label="this call",
                hint="operations=1e10, memory=1e10",
            )
    count = len(grid.depths)
    sharers: tuple[Any, ...] = (
        tuple(shared_by) if isinstance(shared_by, list | tuple) else (shared_by,) * count
    )
    if len(sharers) != count or not all(n is None or (type(n) is int and n > 0) for n in sharers):
        raise TypeMismatch(
            f"shared_by is a number of ranks, or one for each level of {grid}, not {shared_by!r}",
            loc=here(),
            label="this call",
            hint="1 is a link for each rank, None one for all ranks of a group: shared_by=(None, 1)",
        )
    switches: tuple[Any, ...] = (
        tuple(in_switch) if isinstance(in_switch, list | tuple) else (in_switch,) * count
    )
    if len(switches) != count or not all(isinstance(x, bool) for x in switches):
        raise TypeMismatch(
            f"in_switch is True or False, or one of them for each level of {grid}, not {in_switch!r}",
            loc=here(),
            label="this call",
            hint="True where switches combine what ranks send: in_switch=(False, True)",
        )
    if algorithm is not None and not is_one_of(algorithm, NAMES):
        raise TypeMismatch(
            f"there is no algorithm {algorithm!r} of collectives",
            loc=here(),
            label="this call",
            hint=did_you_mean(algorithm, NAMES),
        )
    sharing = tuple(n or 0 for n in sharers)
    return Machine(levels_of[0], levels_of[1], operations, memory, sharing, switches, algorithm)


def operations_per_point(stage: Stage) -> float:
    """The operations for a point of a stage, with those of the funcs computed in its tasks."""
    definitions = [stage.definition, *(d for f in stage.task_funcs for d in f.definitions)]
    return float(sum(map(arithmetic_of, definitions))) or 1.0


def measured_slices(plan: Plan, marks: Iterable[Array], moved: Iterable[Array]) -> list[Slice]:
    """The slices of a run; `marks` has for each rank the times of its steps in s, and the end of the last.

    `moved` has the bytes that steps sent and received of which data decided the sizes.
    """
    ranks = zip(plan, marks, moved, strict=True)
    return [s for rank_plan, when, sizes in ranks for s in _rank_slices(plan, rank_plan, when, sizes)]


def _rank_slices(plan: Plan, rank_plan: RankPlan, marks: Array, moved_bytes: Array) -> Iterator[Slice]:
    tensors = {name: name for name, _ in rank_plan.owned}
    started: dict[int, Exchange] = {}
    when = (marks - marks[0]).tolist()

    def size(buffer: str, box: SpanBox) -> int:
        return element_count(box) * plan.sizes[tensors[buffer]]

    for number, (step, (begin, end)) in enumerate(
        zip(rank_plan.steps, itertools.pairwise(when), strict=True)
    ):
        match step:
            case Allocate(buffer, tensor, _):
                tensors[buffer] = tensor
            case Run(func):
                yield Slice(rank_plan.rank, COMPUTE, func, begin, end)
            case Copy(source, _, box) | Merge(source, _, box):
                name = f"{type(step).__name__.lower()} {tensors[source]}"
                yield Slice(rank_plan.rank, COMPUTE, name, begin, end, size(source, box))
            case Start(exchange, handle):
                started[handle] = exchange
            case Exchange() | Finish():
                done = step if isinstance(step, Exchange) else started.pop(step.handle)
                for track, messages in ((SEND, done.sends), (RECEIVE, done.receives)):
                    name = ", ".join(sorted({tensors[m.buffer] for m in messages}))
                    moved = sum(size(m.buffer, m.box) for m in messages)
                    if messages:
                        yield Slice(rank_plan.rank, track, name, begin, end, moved)
            case Route():
                for track, count in zip((SEND, RECEIVE), moved_bytes[number].tolist(), strict=True):
                    yield Slice(rank_plan.rank, track, f"rows of {step.tensor}", begin, end, count)
            case Reduce():
                name = f"{step.collective} {tensors[step.source]}"
                for track, count in zip(
                    (SEND, RECEIVE), reduction_elements(step, rank_plan.rank), strict=True
                ):
                    each = plan.sizes[tensors[step.source]]
                    yield Slice(rank_plan.rank, track, name, begin, end, count * each)
            case _:
                pass


def write_trace(path: str | os.PathLike[str], plan: Plan, slices: list[Slice]) -> float:
    """Write slices to a file; returns the end of the last one in seconds.

    The file has Chrome's trace event format (JSON), or is a picture if its name ends in ".svg".
    """
    length = max((s.end for s in slices), default=0.0)
    if Path(path).suffix == ".svg":
        Path(path).write_text(timeline(f"{plan.grid.size} ranks over time", slices, plan.grid.size) + "\n")
        return length
    events: list[dict[str, Any]] = []
    for rank in range(plan.grid.size):
        at = " ".join(map(str, plan.grid.coordinates(rank)))
        events.append(_name_event("process_name", rank, 0, f"rank {rank} at ({at})"))
        events += [_name_event("thread_name", rank, n, track) for n, track in enumerate(TRACKS)]
    flows: dict[object, int] = {}
    for s in slices:
        place = {"pid": s.rank, "tid": TRACKS.index(s.track)}
        begin, end = MICRO * s.begin, MICRO * s.end
        events.append(
            {"ph": "X", "name": s.name, "cat": s.track, "ts": begin, "dur": end - begin, **place,
             "args": {"bytes": s.bytes} if s.bytes else {}}
        )  # fmt: skip
        if s.flow is not None:
            number = flows.setdefault(s.flow, len(flows))
            side = {"ph": "s"} if s.track == SEND else {"ph": "f", "bp": "e"}
            events.append({**side, "name": s.name, "cat": "message", "id": number,
                           "ts": begin if s.track == SEND else end, **place})  # fmt: skip
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}) + "\n")
    return length


def _name_event(what: str, rank: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": track, "args": {"name": name}}
