"""Autoscheduling with measurements: candidates run in a process of their own, so that they may crash."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tdsl.codegen.lowering.bounds_checks import check_reads
from tdsl.codegen.runtime import cache
from tdsl.codegen.runtime.fingerprint import fingerprint, package_hash
from tdsl.compile import compile as compiled
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.core.text import in_seconds
from tdsl.errors import IndexBoundError, ScheduleError, TargetError, TypeMismatch
from tdsl.lang.program import Program
from tdsl.schedule.bind import bind_state
from tdsl.target import Target, as_target
from tdsl.tilegraph.pins import read_pins
from tdsl.tilegraph.reasons import reasons_of
from tdsl.tilegraph.search import candidates, notes_of
from tdsl.tuning.oracle import rounding_tolerance
from tdsl.tuning.worker import Worker
from tdsl.viewer.schedule import Schedule

RUN_S = 0.1  # seconds for which a schedule is run in turns with the default, on each placement of the arrays
PLACEMENTS = 3
MIN_LIMIT_S = 1.0  # minimal time limit of a schedule in seconds
MAX_LIMIT_S = 86_400.0  # maximal time limit of a schedule in seconds


def autoschedule(
    program: Program, sizes: Mapping[str, int], target: Target, values: Mapping[str, Any],
    *, pin: object, tries: int, seconds: float, results: Collection[str] = (),
) -> Schedule:  # fmt: skip
    """The best schedule of the search: by prediction, or by measurement of the first `tries` candidates.

    For a graph `results` are the funcs whose values groups of operator calls pass to each other.
    """
    empty = Schedule.of_program(program, sizes, target)
    stored = load_best(empty, tries) if tries and not pin else None
    if stored is not None:
        directives, label, stored_seconds = stored
        empty.replay(directives)
        empty.notes = (f"taken: {label}, measured before: {stored_seconds * 1e3:.3g} ms",)
        return empty
    try:
        ranked = candidates(program, sizes, target, pin, results)
    except ScheduleError:
        _refuse_reads_outside(empty, empty)  # errors of the program come before errors of a pin
        raise
    schedules = {c.label: Schedule.of(c.schedule) for c in ranked}
    schedule = schedules[ranked[0].label]
    _refuse_reads_outside(empty, schedule)
    pinned_levels = read_pins(program, target.machine(), pin).far
    if not tries:
        schedule.notes = notes_of(ranked)
        schedule.reasons = reasons_of(ranked[0], ranked, pinned_levels)
        return schedule
    trials = measure(empty, [*schedules.items()][:tries], values, seconds)
    by_label = {c.label: c for c in ranked}
    measured = [t for t in trials if t.seconds is not None]
    best = min(measured, key=lambda t: t.ratio) if measured else Trial(ranked[0].label, None)
    schedule = schedules[best.label]
    schedule.reasons = reasons_of(by_label[best.label], ranked, pinned_levels)
    trial_notes = map(_trial_note, trials)
    summary = _summary(trials, min(tries, len(ranked)), seconds)
    schedule.notes = (_choice_note(best, by_label[best.label].seconds), *trial_notes, *summary)
    if best.seconds is not None and not pin and len(trials) == min(tries, len(ranked)):
        store_best(schedule, tries, best.label, best.seconds)
    return schedule


def _refuse_reads_outside(empty: Schedule, schedule: Schedule) -> None:
    """Raises IndexBoundError if a schedule cannot be compiled because it reads an array out of bounds."""
    try:
        check_reads(bind_state(empty.state, empty.sizes))
    except IndexBoundError:
        compiled(schedule).loops(**empty.sizes)  # a precise check, after inlining


def check_measure(measure: object, seconds: object, target: Target) -> None:
    """Raises TypeMismatch for an invalid `measure` or `seconds`, TargetError if no device can run it."""
    is_count = isinstance(measure, int) and not isinstance(measure, bool) and measure >= 0
    is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
    if not is_count or not is_time:
        raise TypeMismatch(
            f"measure= is a number of candidates and seconds= a time, not {measure!r} and {seconds!r}",
            loc=here(),
            label="this call",
            hint="measure=10, seconds=60",
        )
    decides = "leave measure= away: the model decides"
    if measure and target.name == "cuda":
        from tdsl.cuda import is_available

        if not is_available():
            raise TargetError(
                "there is no GPU here to measure on", loc=here(), label="this call", hint=decides
            )
    if measure and target.level:
        from tdsl.machine.cpu import check_runs_here, cpu_for

        check_runs_here(cpu_for(target.level), decides)


def _choice_note(t: Trial, predicted: float) -> str:
    if t.seconds is None:
        return f"taken: {t.label}, predicted to take {in_seconds(predicted)}: nothing was measured"
    return f"taken: {t.label}, the fastest that was measured"


def _trial_note(t: Trial) -> str:
    if t.seconds is None:
        return f"dropped: {t.label}: {t.problem}"
    return f"measured: {t.label}, {t.seconds * 1e3:.3g} ms"


def _summary(trials: list[Trial], count: int, seconds: float) -> list[str]:
    dropped = sum(t.seconds is None for t in trials)
    lines = [f"{dropped} of {len(trials)} dropped"] if dropped else []
    if len(trials) < count:
        lines.append(f"stopped when {seconds:g} s were over: {count - len(trials)} of {count} not measured")
    return lines


@frozen
class Trial:
    """The measurement of a schedule: seconds of its fastest round, or the reason why it was dropped.

    `ratio` is that time divided by the time of the default schedule in turns with it.
    """

    label: str
    seconds: float | None
    problem: str = ""
    ratio: float = 1.0


def measure(
    default: Schedule,
    schedules: Sequence[tuple[str, Schedule]],
    values: Mapping[str, Any],
    seconds: float,
) -> list[Trial]:
    """Runs schedules of one program on the same inputs, one after another, for `seconds` seconds in all.

    `default` computes the reference results; if it fails, all are dropped. The time limit of a schedule is
    half of the remaining time. Schedules not reached in time have no trial.
    """
    end = time.monotonic() + seconds
    trials: list[Trial] = []

    def left() -> float:
        return min(max(end - time.monotonic(), MIN_LIMIT_S), MAX_LIMIT_S)

    with tempfile.TemporaryDirectory(prefix="tdsl-") as folder:
        inputs = os.path.join(folder, "inputs")
        with open(inputs, "wb") as out:
            pickle.dump(dict(values), out, protocol=5)
        tolerance = rounding_tolerance(default.program, default.sizes)
        worker = Worker((default.state, default.sizes, default.target, inputs, tolerance, False), left())
        try:
            reference = _measured(worker, "default", left())
            if reference.seconds is None:
                why = f"the default schedule, which gives the reference, was dropped: {reference.problem}"
                return [Trial(label, None, why) for label, _ in schedules]
            for n, (label, schedule) in enumerate(schedules):
                if trials and end - time.monotonic() < MIN_LIMIT_S:
                    break
                if schedule.state == default.state:
                    trials.append(replace(reference, label=label))
                    continue
                limit = left() * (0.5 if n + 1 < len(schedules) else 1.0)
                worker.send(("compile", schedule.state), limit)
                problem = worker.answer().get("problem")
                trials.append(Trial(label, None, problem) if problem else _measured(worker, label, limit))
        finally:
            worker.close()
    return trials


def _measured(worker: Worker, label: str, limit: float) -> Trial:
    """The measurement of the schedule that a worker compiled last, first of all the default schedule."""
    worker.send(("measure", RUN_S, PLACEMENTS), limit)
    answer = worker.answer()
    if "problem" in answer:
        return Trial(label, None, answer["problem"])
    return Trial(label, answer["seconds"], ratio=answer["seconds"] / answer["default_seconds"])


def _cache_key(schedule: Schedule) -> str:
    machine = as_target(schedule.target).machine()
    sizes = tuple(sorted(schedule.sizes.items()))
    parts = (package_hash(), schedule.program, sizes, as_target(schedule.target), machine)
    return cache.key("measured schedule", fingerprint(*parts))


def load_best(schedule: Schedule, tried: int) -> tuple[str, str, float] | None:
    """The cached (directives, label, seconds) of the best of at least `tried` candidates, or None."""
    payload = cache.load(_cache_key(schedule))
    if payload is None:
        return None
    record = json.loads(payload)
    if record["tried"] < tried:
        return None
    return record["directives"], record["label"], record["seconds"]


def store_best(schedule: Schedule, tried: int, label: str, seconds: float) -> None:
    """Stores the best schedule of a program in the cache, for its sizes and this machine."""
    empty = Schedule.of_program(schedule.program, schedule.sizes, schedule.target)
    record = {"directives": schedule.to_json(), "label": label, "seconds": seconds, "tried": tried}
    cache.store(_cache_key(empty), json.dumps(record).encode(), {"kind": "measured schedule"})
