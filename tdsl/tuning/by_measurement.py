"""Autoscheduling with measurements: each candidate schedule runs in its own process, so that it may crash.

The child process, `python -m tdsl.tuning.by_measurement FILE`, reads a pickle with schedule and inputs that
only the parent process writes, and prints its measured time as a line of JSON.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tdsl.codegen.lowering.bounds_checks import check_reads
from tdsl.codegen.runtime import cache
from tdsl.codegen.runtime.fingerprint import fingerprint, package_hash
from tdsl.compile import Compiled
from tdsl.compile import compile as compiled
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.core.text import in_seconds
from tdsl.errors import IndexBoundError, ScheduleError, TargetError, TypeMismatch
from tdsl.lang.program import Program
from tdsl.planner.schedule import Schedule
from tdsl.schedule.bind import bind_state
from tdsl.target import Target, as_target
from tdsl.tilegraph.pins import read_pins
from tdsl.tilegraph.reasons import reasons_of
from tdsl.tilegraph.search import candidates, notes_of
from tdsl.tuning.oracle import is_close, rounding_tolerance

RUN_S = 0.3  # seconds for which a schedule is run repeatedly
MIN_LIMIT_S = 1.0  # minimal time limit of a process in seconds
MAX_LIMIT_S = 86_400.0  # maximal time limit of a process in seconds


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
    best = min(measured, key=lambda t: t.seconds or 0.0) if measured else Trial(ranked[0].label, None)
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
    """The measurement of a schedule: the seconds of its fastest run, or the reason why it was dropped."""

    label: str
    seconds: float | None
    problem: str = ""


def measure(
    default: Schedule,
    schedules: Sequence[tuple[str, Schedule]],
    values: Mapping[str, Any],
    seconds: float,
) -> list[Trial]:
    """Runs schedules of one program on the same inputs, one after another, for `seconds` seconds in all.

    `default` computes the reference results, and is no candidate itself: if it fails, all are dropped. The
    time limit of a schedule is half of the remaining time. Schedules not reached in time have no trial.
    """
    end = time.monotonic() + seconds
    trials: list[Trial] = []
    tolerance = rounding_tolerance(default.program, default.sizes)
    with tempfile.TemporaryDirectory(prefix="tdsl-") as folder:

        def run(label: str, schedule: Schedule, tolerance: float | None, share: float) -> Trial:
            limit = min(max(share * (end - time.monotonic()), MIN_LIMIT_S), MAX_LIMIT_S)
            results = os.path.join(folder, "results")
            job = (
                schedule.state,
                schedule.sizes,
                schedule.target,
                dict(values),
                results,
                tolerance,
            )
            return _run_process(label, job, os.path.join(folder, "job"), limit)

        reference = run("default", default, None, 1.0)
        if reference.seconds is None:
            problem = f"the default schedule, which gives the reference, was dropped: {reference.problem}"
            return [Trial(label, None, problem) for label, _ in schedules]
        for n, (label, schedule) in enumerate(schedules):
            if trials and end - time.monotonic() < MIN_LIMIT_S:
                break
            if schedule.state == default.state:
                trials.append(replace(reference, label=label))
            else:
                share = 0.5 if n + 1 < len(schedules) else 1.0
                trials.append(run(label, schedule, tolerance, share))
    return trials


def _run_process(label: str, job: object, file: str, limit: float) -> Trial:
    with open(file, "wb") as out:
        pickle.dump(job, out)
    command = [sys.executable, "-m", "tdsl.tuning.by_measurement", file]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
    try:
        process = subprocess.run(
            command, capture_output=True, timeout=limit, check=False, text=True,
            env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Trial(label, None, f"it took longer than {limit:.3g} s")
    if process.returncode:
        return Trial(label, None, f"it ended with status {process.returncode}")
    if not process.stdout:
        return Trial(label, None, "it ended without an answer")
    answer = json.loads(process.stdout.splitlines()[-1])
    if "problem" in answer:
        return Trial(label, None, f"it failed: {answer['problem']}")
    if not answer["right"]:
        return Trial(label, None, "its results are wrong")
    return Trial(label, float(answer["seconds"]))


def _run_job(file: str) -> dict[str, Any]:
    """The work of the child process: compiles and times a schedule, and compares its results."""
    with open(file, "rb") as job:
        state, sizes, target, values, file, tolerance = pickle.load(job)  # written by `_run_process`
    schedule = Schedule.of_state(state)
    run: Compiled = compiled(schedule, target=target, **sizes)
    arguments = {a.name: values[a.name] for a in run.signature.inputs}
    result = run(**arguments)
    results = result if isinstance(result, tuple) else (result,)
    if tolerance is None:
        with open(file, "wb") as results_file:
            pickle.dump(results, results_file)
    best, end = float("inf"), time.perf_counter() + RUN_S
    while True:
        start = time.perf_counter()
        run(**arguments, out=results if len(results) > 1 else results[0])
        stop = time.perf_counter()
        best = min(best, stop - start)
        if stop >= end:
            break
    if tolerance is None:
        return {"seconds": best, "right": True}
    with open(file, "rb") as reference_file:  # compared with the results of the last run
        agree = all(
            is_close(x, y, tolerance) for x, y in zip(results, pickle.load(reference_file), strict=True)
        )
    return {"seconds": best, "right": agree}


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


def _job_answer(file: str) -> dict[str, Any]:
    try:
        return _run_job(file)
    except Exception as error:  # noqa: BLE001  # whatever is wrong with a candidate, it is dropped
        return {"problem": str(error).partition("\n")[0] or type(error).__name__}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_job_answer(sys.argv[1])) + "\n")
