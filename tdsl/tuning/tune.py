"""Tuning of a program for given sizes within a budget: `Operator.tune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang.program import Program
from tdsl.records.file import Record
from tdsl.target import Target
from tdsl.tuning.tasks import Budget, WeightedTask, default_workers, tune_tasks
from tdsl.tuning.tuner import Tuner, TuningReport


def check_budget(seconds: object, trials: object, workers: object, *, zero: bool = False) -> None:
    """TypeMismatch for an invalid budget or number of workers; with `zero` there may be 0 seconds."""
    is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    is_time = is_time and (seconds > 0 or (zero and seconds == 0))  # type: ignore[operator]  # a number
    counts = [n for n in (trials, workers) if n is not None]
    if not is_time or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in counts):
        raise TypeMismatch(
            f"a budget is a time and a number of trials, both positive, not {seconds!r} and {trials!r}"
            + (f", with {workers!r} workers" if workers is not None else ""),
            loc=here(), label="this call", hint="tune(..., seconds=60, trials=200, workers=2)",
        )  # fmt: skip


def check_target(target: Target) -> None:
    """TypeMismatch for a target that is not a CPU, TargetError for a level that does not run here."""
    from tdsl.machine.cpu import check_runs_here, cpu_for

    if target.name != "cpu":
        raise TypeMismatch(
            f"schedules are tuned for CPUs, not for {target.name!r}",
            loc=here(), label="this call", hint="op.autoschedule(..., target=..., measure=10)",
        )  # fmt: skip
    if target.level:
        check_runs_here(cpu_for(target.level), "tune on such a processor")


def tune(
    program: Program, sizes: Mapping[str, int], target: Target, values: Mapping[str, Any], *,
    seconds: float, trials: int | None, path: Any, workers: int | None,
    on_trial: Callable[[Record], None] | None,
) -> TuningReport:  # fmt: skip
    """The report of tuning; see `Operator.tune`."""
    tuner = Tuner(program, sizes, target, path, values)
    budget = Budget(seconds, trials, workers or default_workers(target))
    tune_tasks(program.name, [WeightedTask(tuner)], budget, on_trial)
    return tuner.report()
