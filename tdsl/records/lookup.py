"""Schedules from records: of the same sizes, else of the nearest ones that are not predicted to be slow."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping

from tdsl.codegen.runtime.fingerprint import fingerprint
from tdsl.errors import TdslError
from tdsl.lang.program import Program
from tdsl.machine.cpu import host
from tdsl.records.file import Record, RecordFile, Task, by_relevance, sizes_text
from tdsl.schedule.legality import check_all
from tdsl.schedule.state import State
from tdsl.target import Target
from tdsl.tilegraph.schedule import Schedule

VARIABLE = "TDSL_TUNING"
CLEARLY_FASTER = 0.98  # times the default: what is not faster than that does not replace it
MAX_PREDICTED = 1.1  # times the prediction for the default, for records of other sizes or processors


def task_of(program: Program, sizes: Mapping[str, int], target: Target) -> Task:
    """The task of tuning a program for sizes on this machine."""
    return Task(fingerprint(program), dict(sizes), str(target), host().cpu, target.machine().threads)


def recorded_schedule(
    program: Program, sizes: Mapping[str, int], target: Target, records: Iterable[Record]
) -> Schedule:
    """The schedule of the best record: of the same sizes, else of the nearest; else one without directives.

    Records of other sizes or processors are used only if their schedule is legal for these sizes and is not
    predicted to be slower than the default. The notes of the schedule say which record it is of.
    """
    task = task_of(program, sizes, target)
    default_s: float | None = None
    for record in by_relevance(records, task):
        is_exact = task == record.task
        if is_exact and record.ratio > CLEARLY_FASTER:
            break  # the default is as good
        with contextlib.suppress(TdslError):
            schedule = replayed(program, sizes, target, record.directives)
            if not is_exact:
                if default_s is None:
                    default_s = Schedule.of_program(program, sizes, target).prediction().seconds
                is_slow = schedule.prediction().seconds > MAX_PREDICTED * default_s
                if record.ratio > CLEARLY_FASTER or is_slow:
                    continue
            where = "" if is_exact else f" for {sizes_text(record.task.sizes)} on {record.task.cpu}"
            schedule.notes = (f"taken: {record.label}, record of {record.date}{where}",)
            return schedule
    return Schedule.of_program(program, sizes, target)


def replayed(program: Program, sizes: Mapping[str, int], target: Target, directives: str) -> Schedule:
    """The schedule with the directives; ScheduleError if they are illegal."""
    schedule = Schedule.of_program(program, sizes, target).replay(directives)
    check_all(schedule.state)
    return schedule


_files: dict[tuple[str, int, int], tuple[RecordFile, list[Record]]] = {}  # by path, device and inode
_lock = threading.Lock()


def environment_records() -> list[Record]:
    """The records of the files that the environment variable `TDSL_TUNING` lists, read as they grow.

    TypeMismatch if one of them cannot be opened.
    """
    records: list[Record] = []
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        file = RecordFile(path, origin=f"{VARIABLE}=tuning/a.jsonl{os.pathsep}b.jsonl: files that exist")
        with _lock:
            file, known = _files.setdefault(file.identity(), (file, []))
            known += file.new_records()
            records += known
    return records


def schedule_of_environment(
    program: Program, state: State, sizes: Mapping[str, int], target: Target
) -> Schedule | None:
    """The schedule that the files of `TDSL_TUNING` have for a program; None if they have none.

    None as well if its state has directives, a size is not known, or the target is not a CPU.
    """
    is_scheduled = any(plan.scheduled for _, plan in state.plans)
    if target.name != "cpu" or is_scheduled or not sizes.keys() >= {*program.sizes}:
        return None
    schedule = recorded_schedule(program, sizes, target, environment_records())
    return schedule if schedule.directives else None
