"""The task scheduler: divides a budget among programs that are tuned, by the gain per second of each.

The objective is the time of a call of all programs, each weighed by the number of its calls. After each task
has been measured once, the next measurements go to the task whose share of the objective is expected to fall
fastest: the mean of the slope over its last measurements and of an optimistic one, as if the time of a
program were inversely proportional to the time spent on it. Sometimes a task is chosen at random.

Source: Zheng et al., Ansor: Generating High-Performance Tensor Programs for Deep Learning, OSDI 2020,
section 6; with seconds in place of rounds, and without its term for similar tasks.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tdsl.core.node import frozen
from tdsl.records.file import Record
from tdsl.target import Target
from tdsl.tuning.progress import progress_bar
from tdsl.tuning.tuner import Tuner
from tdsl.tuning.worker import Worker

SETUP_S = 120.0  # seconds in which the default schedule has to be compiled and run
MAX_WORKERS = 8
SLOPE_WEIGHT = 0.5  # of the slope over the last measurements; the rest is that of the optimistic one
WINDOW = 3  # measurements over which the slope is taken
RANDOM_PART = 0.05  # of the choices


@frozen
class Budget:
    """The seconds and the number of trials after which tuning ends, and the number of worker processes."""

    seconds: float
    trials: int | None
    workers: int


@dataclass
class WeightedTask:
    """A tuner, and how often its program is called in a call of the whole.

    `history` has the seconds spent on the task and those of its fastest schedule, after each measurement.
    """

    tuner: Tuner
    weight: float = 1.0
    history: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, math.nan)])

    def add_measurement(self, spent: float) -> None:
        """Note that `spent` more seconds were used."""
        self.history.append((self.history[-1][0] + spent, self.tuner.seconds()[0]))

    def gain(self) -> float:
        """The expected decrease of the objective in seconds for each second spent; inf before the first."""
        spent, best = self.history[-1]
        if len(self.history) == 1:
            return math.inf
        if math.isnan(best):
            return 0.0
        before, best_before = self.history[max(len(self.history) - 1 - WINDOW, 1)]
        is_known = before < spent and not math.isnan(best_before)  # not if all trials until then failed
        slope = max(best_before - best, 0.0) / (spent - before) if is_known else 0.0
        trials = max(len(self.tuner.mine), 1)
        optimistic = best / (spent * (self.tuner.known + trials) / trials)
        return self.weight * (SLOPE_WEIGHT * slope + (1 - SLOPE_WEIGHT) * optimistic)


def tune_tasks(
    name: str, tasks: Sequence[WeightedTask], budget: Budget, on_trial: Callable[[Record], None] | None = None
) -> None:
    """Measures schedules of all tasks until the budget is used, all are tried, or the user interrupts.

    `name` is shown beside the progress bar; `on_trial` is called with each record. KeyboardInterrupt is
    raised if nothing was measured yet.
    """
    end, choice = time.monotonic() + budget.seconds, random.Random(0)

    def count() -> int:
        return sum(len(t.tuner.mine) for t in tasks)

    with (
        progress_bar(name, budget.seconds, budget.trials) as advance,
        tempfile.TemporaryDirectory(prefix="tdsl-") as folder,
    ):

        def tell(record: Record) -> None:
            failed = sum(bool(r.problem) for t in tasks for r in t.tuner.mine)
            advance(count(), failed, _ratio(tasks))
            if on_trial is not None:
                on_trial(record)

        pool: list[Worker] = []
        judge: Worker | None = None
        try:
            while time.monotonic() < end and (budget.trials is None or count() < budget.trials):
                open_tasks = [t for t in tasks if not t.tuner.is_complete]
                if not open_tasks:
                    break
                is_random = choice.random() < RANDOM_PART
                task = choice.choice(open_tasks) if is_random else max(open_tasks, key=WeightedTask.gain)
                if judge is None:
                    judge, *pool = (
                        Worker(task.tuner.setup(folder), SETUP_S) for _ in range(budget.workers + 1)
                    )
                most = budget.workers if budget.trials is None else budget.trials - count()
                start = time.monotonic()
                task.tuner.measure_next(pool[:most], judge, folder, end, tell)
                task.add_measurement(time.monotonic() - start)
        except KeyboardInterrupt:
            if not any(t.tuner.fastest() for t in tasks):
                raise
        finally:
            for worker in (*pool, judge):
                if worker is not None:
                    worker.close()


def default_workers(target: Target) -> int:
    """As many worker processes as there are threads, at most `MAX_WORKERS`."""
    return max(1, min(target.machine().threads, MAX_WORKERS))


def _ratio(tasks: Sequence[WeightedTask]) -> float:
    """The time of a call of all programs that were measured, relative to their default schedules."""
    times = [(t.weight, *t.tuner.seconds()) for t in tasks]
    measured = [(w * best, w * default) for w, best, default in times if not math.isnan(best)]
    default = sum(d for _, d in measured)
    return sum(b for b, _ in measured) / default if default else 1.0
