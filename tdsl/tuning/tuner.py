"""`Tuner`: compiles, checks, measures and records schedules of one program for given sizes.

1. Seeds: the default schedule, the candidates of the search, and the schedules of the nearest records.
2. Then the neighbours of the fastest schedules, in which one parameter differs; those that are predicted to
   be much slower come last. Each third one is a neighbour of one of the other fast schedules.
3. As many schedules as there are workers are compiled at once. Then each is measured while nothing else runs,
   in turns with the default schedule, whose results its results must agree with.
4. A schedule that is faster than all before is measured again, for longer and in another process; the slower
   measurement is recorded, as the fastest of many measurements is a lucky one.
5. Schedules of records for the same task are not measured again.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.core.text import in_seconds
from tdsl.errors import ScheduleError, TdslError
from tdsl.lang.program import Program
from tdsl.records import file as files
from tdsl.records.file import Record, RecordFile, canonical
from tdsl.records.lookup import CLEARLY_FASTER, environment_records, replayed, task_of
from tdsl.target import Target
from tdsl.tilegraph.schedule import Schedule
from tdsl.tilegraph.search import candidates
from tdsl.tuning.neighbours import neighbours
from tdsl.tuning.oracle import rounding_tolerance
from tdsl.tuning.worker import Setup, Worker

MEASURE_S = 0.05  # seconds for which a schedule is measured in turns with the default, on each placement
PLACEMENTS = 2  # of the arrays in memory
AGAIN_S, AGAIN_PLACEMENTS = 0.1, 5  # the same for a schedule that was faster than all before
MAX_PREDICTED = 2.0  # times the prediction for the fastest, beyond which a neighbour is tried last
LIMIT_S = 20.0  # most seconds for the compilation or for the measurement of one schedule
MIN_LIMIT_S = 1.0
FAST_ONES = 5  # schedules of which neighbours are tried
NEAREST = 3  # records of other sizes whose schedules are seeds


@frozen
class TuningReport:
    """What tuning has measured: the fastest schedule, the default schedule, and the numbers of trials.

    `trials` were measured in this call, `known` before it; `repeated` are those trials of this call whose
    schedule was recorded before. `failures` are the numbers of trials by the reason why they cannot be used.
    `best_seconds` and `default_seconds` were measured in turns. `is_complete` is True if no schedule is left.
    """

    label: str
    best_seconds: float
    default_seconds: float
    trials: int
    known: int = 0
    repeated: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    is_complete: bool = False

    def __str__(self) -> str:
        speedup = self.default_seconds / self.best_seconds
        lines = [
            f"{self.trials} trials, {self.known} known before",
            f"best     {in_seconds(self.best_seconds)}: {self.label}",
            f"default  {in_seconds(self.default_seconds)}, {speedup:.2f} times as long",
        ]
        lines += [f"failed   {n}: {reason}" for reason, n in sorted(self.failures.items())]
        lines += ["all neighbours of the fastest schedules were tried"] * self.is_complete
        return "\n".join(lines)


def _ratio(answer: dict[str, Any]) -> float:
    """The seconds of a schedule divided by those of the default; infinite if there is a problem."""
    return math.inf if "problem" in answer else answer["seconds"] / answer["default_seconds"]


class Tuner:
    """A search for the fastest schedule of a task, as far as it has come.

    `path` is a file of records, or None; `values` are the inputs by name. If `folds`, what depends on
    constant inputs only is not measured.
    """

    def __init__(
        self, program: Program, sizes: Mapping[str, int], target: Target, path: Any,
        values: Mapping[str, Any], *, folds: bool = False,
    ) -> None:  # fmt: skip
        self.program, self.sizes, self.target = program, dict(sizes), target
        self._values, self.folds = dict(values), folds
        self._setup: Setup | None = None
        self.task = task_of(program, sizes, target)
        self.file = RecordFile(path, writable=True) if path is not None else None
        self.tried: dict[str, Record] = {}
        self.others: list[Record] = []  # of other sizes and processors
        self.mine: list[Record] = []
        self.repeated = 0
        self.is_complete = False  # no schedule is left, or the default cannot be measured
        self._problem = ""  # why the default cannot be measured
        self._read_new()
        self.others += [r for r in environment_records() if self.task.is_same_program(r.task)]
        self.known = len(self.tried)
        self._random = random.Random(self.known)
        self._seeds = self._seed_schedules()
        self._neighbours: dict[str, Iterator[tuple[str, str]]] = {}
        self._postponed: list[tuple[str, str]] = []
        self._late: set[str] = set()  # labels of those that were postponed
        self._predicted: float | None = None  # seconds of the default schedule

    def _read_new(self) -> None:
        for record in self.file.new_records() if self.file is not None else ():
            if record.task == self.task:
                self.tried.setdefault(record.directives, record)
            elif self.task.is_same_program(record.task):
                self.others.append(record)

    def fastest(self) -> list[Record]:
        """The records of schedules that can be used, the fastest relative to the default first."""
        return sorted((r for r in self.tried.values() if not r.problem), key=lambda r: r.ratio)

    def best(self) -> Record | None:
        """The record of the fastest schedule; None if nothing is clearly faster than the default."""
        ranked = self.fastest()
        return ranked[0] if ranked and ranked[0].ratio <= CLEARLY_FASTER else None

    def seconds(self) -> tuple[float, float]:
        """The seconds of the fastest schedule and of the default; NaN if nothing was measured."""
        ranked = self.fastest()
        default = min((r.default_seconds for r in ranked), default=math.nan)
        return (min(ranked[0].ratio, 1.0) * default if ranked else math.nan), default

    def report(self) -> TuningReport:
        """What was measured until now; ScheduleError if no schedule could be measured."""
        ranked = self.fastest()
        if not ranked:
            why = self._problem or next((r.problem for r in self.tried.values()), "the time was over")
            raise ScheduleError(
                f"no schedule of {self.program.name!r} could be measured: {why}",
                loc=here(), label="this call", hint="give more seconds, or smaller sizes",
            )  # fmt: skip
        best, default = self.best(), min(r.default_seconds for r in ranked)
        label, seconds = "default", default
        if best is not None:
            label, seconds, default = best.label, best.seconds, best.default_seconds
        failures = dict(Counter(r.problem for r in self.mine if r.problem))
        return TuningReport(
            label, seconds, default, len(self.mine), self.known, self.repeated, failures, self.is_complete
        )

    def setup(self, folder: str) -> Setup:
        """What workers need for the task; writes the inputs to a file in `folder`."""
        if self._setup is None:
            inputs = os.path.join(folder, f"inputs-{id(self)}")
            with open(inputs, "wb") as out:
                pickle.dump(self._values, out, protocol=5)
            state = Schedule.of_program(self.program, self.sizes, self.target).state
            tolerance = rounding_tolerance(self.program, self.sizes)
            self._setup = state, self.sizes, self.target, inputs, tolerance, self.folds
        return self._setup

    def measure_next(
        self, pool: Sequence[Worker], judge: Worker, folder: str, end: float,
        on_trial: Callable[[Record], None],
    ) -> None:  # fmt: skip
        """Measure the next schedules, one for each worker of `pool`, until `end` on the monotonic clock.

        The process `judge` measures those again that are faster than all before.
        """
        self._read_new()
        batch = self._next(len(pool))
        self.is_complete = not batch
        if not batch:
            return
        setup, jobs = self.setup(folder), [*zip(batch, pool, strict=False)]
        limit = min(max(end - time.monotonic(), MIN_LIMIT_S), LIMIT_S)
        for (_, _, schedule), worker in jobs:
            worker.use(setup)
            worker.send(("compile", schedule.state), limit)
        compiled = [worker.answer() for _, worker in jobs]  # all have ended before anything is measured
        for ((label, directives, schedule), worker), answer in zip(jobs, compiled, strict=True):
            if "setup" in answer:
                self.is_complete, self._problem = True, answer["problem"]
                return
            if "problem" not in answer:
                worker.send(("measure", MEASURE_S, PLACEMENTS), limit)
                answer = worker.answer()
            if _ratio(answer) < min((r.ratio for r in self.tried.values()), default=CLEARLY_FASTER):
                judge.use(setup)
                judge.send(("compile", schedule.state), limit)
                judge.send(("measure", AGAIN_S, AGAIN_PLACEMENTS), limit)
                answer = max(answer, judge.answer(), key=_ratio)
            self._record(label, directives, answer, on_trial)

    def _record(
        self, label: str, directives: str, answer: dict[str, Any], on_trial: Callable[[Record], None]
    ) -> None:
        date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        record = Record(
            self.task, label, directives, answer.get("seconds", 0.0), answer.get("default_seconds", 0.0),
            answer.get("problem", ""), date,
        )  # fmt: skip
        if self.file is not None:
            self.file.append(record)
        self.repeated += directives in self.tried
        self.tried.setdefault(directives, record)
        self.mine.append(record)
        on_trial(record)

    def _next(self, count: int) -> list[tuple[str, str, Schedule]]:
        """The next legal schedules that were not tried, with labels and directives."""
        batch: list[tuple[str, str, Schedule]] = []
        taken = set[str]()
        while len(batch) < count:
            proposed = self._propose(len(self.mine) + len(batch))
            if proposed is None:
                break
            label, text = proposed
            directives = canonical(text)
            if directives in self.tried or directives in taken:
                continue
            with contextlib.suppress(TdslError):
                schedule = replayed(self.program, self.sizes, self.target, directives)
                if label not in self._late and self._is_predicted_slow(schedule):
                    self._late.add(label)
                    self._postponed.append((label, text))
                    continue
                taken.add(directives)
                batch.append((label, directives, schedule))
        return batch

    def _propose(self, number: int) -> tuple[str, str] | None:
        seed = next(self._seeds, None)
        if seed is not None:
            return seed
        ranked = self.fastest()[:FAST_ONES]
        if number % 3 == 2:
            self._random.shuffle(ranked)
        for record in ranked:
            if record.directives not in self._neighbours:
                all_of_it = [*neighbours(record.directives)]
                self._random.shuffle(all_of_it)
                base = "" if record.label == "default" else f"{record.label}; "
                self._neighbours[record.directives] = iter([(base + x, text) for x, text in all_of_it])
            proposed = next(self._neighbours[record.directives], None)
            if proposed is not None:
                return proposed
        return self._postponed.pop(0) if self._postponed else None

    def _is_predicted_slow(self, schedule: Schedule) -> bool:
        """True if a schedule is predicted to take much longer than the default schedule."""
        if self._predicted is None:
            self._predicted = Schedule.of_program(self.program, self.sizes, self.target).prediction().seconds
        return schedule.prediction().seconds > MAX_PREDICTED * self._predicted

    def _seed_schedules(self) -> Iterator[tuple[str, str]]:
        """Labels and directives of the candidates of the search, and of records of other sizes."""
        for record in files.by_relevance(self.others, self.task)[:NEAREST]:
            yield f"{record.label} of {files.sizes_text(record.task.sizes)}", record.directives
        for candidate in candidates(self.program, self.sizes, self.target):
            yield candidate.label, candidate.schedule.to_json()
