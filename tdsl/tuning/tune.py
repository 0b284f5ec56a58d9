"""Tuning of a program for given sizes: compiles, checks, measures and records schedules within a budget.

1. Seeds: the default schedule, the candidates of the search, and the schedules of the nearest records.
2. Then the neighbours of the fastest schedules, in which one parameter differs; those that are predicted to
   be much slower come last. Each third one is a neighbour of one of the other fast schedules.
3. As many schedules as there are workers are compiled at once. Then each is measured while nothing else runs,
   in turns with the default schedule, whose results its results must agree with.
4. A schedule that is faster than all before is measured again, longer; this second measurement is recorded.
5. Schedules of records for the same task are not measured again.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import pickle
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from tdsl.codegen.runtime.fingerprint import fingerprint
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.core.text import in_seconds
from tdsl.errors import ScheduleError, TdslError, TypeMismatch
from tdsl.lang.program import Program
from tdsl.machine.cpu import host
from tdsl.schedule.legality import check_all
from tdsl.target import Target
from tdsl.tilegraph.search import candidates
from tdsl.tuning import records as files
from tdsl.tuning.neighbours import neighbours
from tdsl.tuning.oracle import rounding_tolerance
from tdsl.tuning.progress import progress_bar
from tdsl.tuning.records import Record, RecordFile, Task
from tdsl.tuning.worker import Worker
from tdsl.viewer.schedule import Schedule

MEASURE_S = 0.1  # seconds for which a schedule is measured in turns with the default
AGAIN_S = 0.4  # the same for a schedule that was faster than all before
CLEARLY = 0.98  # times the default: what is not faster than that does not replace it
MAX_PREDICTED = 2.0  # times the prediction for the fastest, beyond which a neighbour is tried last
SETUP_S = 120.0  # seconds in which the default schedule has to be compiled and run
LIMIT_S = 20.0  # most seconds for the compilation or for the measurement of one schedule
MIN_LIMIT_S = 1.0
FAST_ONES = 5  # schedules of which neighbours are tried
NEAREST = 3  # records of other sizes whose schedules are seeds
SECONDS = 60.0  # the default budget


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


def task_of(program: Program, sizes: Mapping[str, int], target: Target) -> Task:
    """The task of tuning a program for sizes on this machine."""
    return Task(fingerprint(program), dict(sizes), str(target), host().cpu, target.machine().threads)


def scheduled(program: Program, sizes: Mapping[str, int], target: Target, paths: files.Paths) -> Schedule:
    """The schedule of the best record: of the same sizes, else of the nearest; else one without directives.

    Records of other sizes or processors are used only if their schedule is legal for these sizes and is not
    predicted to be slower than the default. The notes of the schedule say which record it is of.
    """
    task = task_of(program, sizes, target)
    default_s: float | None = None
    for record in files.by_relevance(files.read(paths), task):
        is_exact = task == record.task
        if is_exact and record.ratio > CLEARLY:
            break  # the default is as good
        with contextlib.suppress(TdslError):
            schedule = _replayed(program, sizes, target, record.directives)
            if not is_exact:
                if default_s is None:
                    default_s = Schedule.of_program(program, sizes, target).prediction().seconds
                if record.ratio > CLEARLY or schedule.prediction().seconds > 1.1 * default_s:
                    continue
            where = "" if is_exact else f" for {files.sizes_text(record.task.sizes)} on {record.task.cpu}"
            schedule.notes = (f"taken: {record.label}, record of {record.date}{where}",)
            return schedule
    return Schedule.of_program(program, sizes, target)


def _replayed(program: Program, sizes: Mapping[str, int], target: Target, directives: str) -> Schedule:
    """The schedule with the directives; ScheduleError if they are illegal."""
    schedule = Schedule.of_program(program, sizes, target).replay(directives)
    check_all(schedule.state)
    return schedule


def check_budget(seconds: object, trials: object, workers: object, target: Target) -> None:
    """TypeMismatch for an invalid budget or number of workers, or for a target that is not this CPU."""
    is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
    counts = [n for n in (trials, workers) if n is not None]
    if not is_time or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in counts):
        raise TypeMismatch(
            f"a budget is a time and a number of trials, both positive, not {seconds!r} and {trials!r}"
            + (f", with {workers!r} workers" if workers is not None else ""),
            loc=here(), label="this call", hint="tune(..., seconds=60, trials=200, workers=2)",
        )  # fmt: skip
    if target.name != "cpu":
        raise TypeMismatch(
            f"schedules are tuned for CPUs, not for {target.name!r}",
            loc=here(), label="this call", hint="op.autoschedule(..., target=..., measure=10)",
        )  # fmt: skip


class Tuner:
    """A search for the fastest schedule of a task; `run` goes on until the budget is used."""

    def __init__(
        self, program: Program, sizes: Mapping[str, int], target: Target, path: Any, values: Mapping[str, Any]
    ) -> None:
        self.program, self.sizes, self.target, self.values = program, dict(sizes), target, dict(values)
        self.task = task_of(program, sizes, target)
        self.file = RecordFile(path, writable=True) if path is not None else None
        self.tried: dict[str, Record] = {}
        self.others: list[Record] = []  # of other sizes and processors
        self.mine: list[Record] = []
        self.repeated = 0
        self._read_new()
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

    def report(self, is_complete: bool = False) -> TuningReport:
        """What was measured until now; ScheduleError if no schedule could be measured."""
        ranked = self.fastest()
        if not ranked:
            why = next((r.problem for r in self.tried.values()), "the time was over")
            raise ScheduleError(
                f"no schedule of {self.program.name!r} could be measured: {why}",
                loc=here(), label="this call", hint="give more seconds, or smaller sizes",
            )  # fmt: skip
        best = ranked[0]
        failures = dict(Counter(r.problem for r in self.mine if r.problem))
        shared = {"trials": len(self.mine), "known": self.known, "repeated": self.repeated}
        if best.ratio > CLEARLY:
            seconds = min(r.default_seconds for r in ranked)
            return TuningReport(
                "default", seconds, seconds, **shared, failures=failures, is_complete=is_complete
            )
        return TuningReport(
            best.label, best.seconds, best.default_seconds, **shared, failures=failures,
            is_complete=is_complete,
        )  # fmt: skip

    def run(
        self, seconds: float, trials: int | None, workers: int, on_trial: Callable[[Record], None]
    ) -> TuningReport:
        """Measure schedules until `seconds` or `trials` are used, all are tried, or the user interrupts."""
        end = time.monotonic() + seconds
        is_complete = False
        with tempfile.TemporaryDirectory(prefix="tdsl-") as folder:
            inputs = os.path.join(folder, "inputs")
            with open(inputs, "wb") as out:
                pickle.dump(self.values, out, protocol=5)
            state = Schedule.of_program(self.program, self.sizes, self.target).state
            tolerance = rounding_tolerance(self.program, self.sizes)
            setup = state, self.sizes, self.target, inputs, tolerance
            pool = [Worker(setup, SETUP_S) for _ in range(workers)]
            try:
                while time.monotonic() < end and (trials is None or len(self.mine) < trials):
                    self._read_new()
                    count = min(workers, math.inf if trials is None else trials - len(self.mine))
                    batch = self._next(int(count))
                    if not batch:
                        is_complete = True
                        break
                    self._try(batch, pool, end, on_trial)
            except KeyboardInterrupt:
                if not self.fastest():
                    raise
            finally:
                for worker in pool:
                    worker.close()
        return self.report(is_complete)

    def _try(
        self, batch: list[tuple[str, str, Schedule]], pool: list[Worker], end: float,
        on_trial: Callable[[Record], None],
    ) -> None:  # fmt: skip
        limit = min(max(end - time.monotonic(), MIN_LIMIT_S), LIMIT_S)
        jobs = list(zip(batch, pool, strict=False))
        for (_, _, schedule), worker in jobs:
            worker.send(("compile", schedule.state), limit)
        compiled = [worker.answer() for _, worker in jobs]  # all have ended before anything is measured
        for ((label, directives, _), worker), answer in zip(jobs, compiled, strict=True):
            if "problem" not in answer:
                worker.send(("measure", MEASURE_S), limit)
                answer = worker.answer()
            if "problem" not in answer:
                ratio = answer["seconds"] / answer["default_seconds"]
                if ratio < min((r.ratio for r in self.tried.values()), default=1.0):
                    worker.send(("measure", AGAIN_S), limit)
                    answer = worker.answer()
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
            directives = files.canonical(text)
            if directives in self.tried or directives in taken:
                continue
            with contextlib.suppress(TdslError):
                schedule = _replayed(self.program, self.sizes, self.target, directives)
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


def tune(
    program: Program, sizes: Mapping[str, int], target: Target, values: Mapping[str, Any], *,
    seconds: float, trials: int | None, path: Any, workers: int | None,
    on_trial: Callable[[Record], None] | None,
) -> TuningReport:  # fmt: skip
    """The report of tuning; see `Operator.tune`."""
    tuner = Tuner(program, sizes, target, path, values)
    count = workers or max(1, min(target.machine().threads, 8))
    with progress_bar(program.name, seconds, trials) as advance:

        def tell(record: Record) -> None:
            ranked = tuner.fastest()
            failed = sum(bool(r.problem) for r in tuner.mine)
            advance(len(tuner.mine), failed, ranked[0].ratio if ranked else 1.0)
            if on_trial is not None:
                on_trial(record)

        return tuner.run(seconds, trials, count, tell)
