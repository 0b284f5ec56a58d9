"""The command `tdsl plan`: plans of the schedules that a program defines."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterator

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.planner.cluster import Cluster
from tdsl.planner.schedule import Schedule


def schedules_of(file: str) -> Iterator[tuple[str, Schedule]]:
    """The schedules at module level of a program, with their names.

    The program is not run as `__main__`. TypeMismatch if there is no such file, or none of its values is a
    schedule.
    """
    if not os.path.isfile(file):
        raise TypeMismatch(
            f"there is no program {file}", loc=here(), label="this plan",
            hint=f"paths are relative to {os.getcwd()}",
        )  # fmt: skip
    schedules = {name: x for name, x in runpy.run_path(file).items() if isinstance(x, Schedule)}
    if not schedules:
        raise TypeMismatch(
            f"{file} defines no schedule", loc=here(), label="this plan",
            hint="s = td.Schedule(f), or s = op.schedule(N=100), at module level",
        )  # fmt: skip
    yield from schedules.items()


def texts(file: str, cluster: Cluster, forbid: tuple[str, ...]) -> Iterator[str]:
    """For each schedule of a program the directives of its plan, then bytes, memory, seconds and reasons."""
    for name, schedule in schedules_of(file):
        planned = schedule.plan(cluster, forbid=forbid)
        yield f"# {name}\n{schedule}\n\n{planned}"
