"""The number of threads that parallel loops on the CPU request, which the process keeps."""

from __future__ import annotations

import os

from tdsl.core.source import here
from tdsl.errors import TargetError

MOST_THREADS = 4096

_threads: list[int] = []


def num_threads() -> int:
    """The number of threads that a parallel loop requests; TargetError if TDSL_NUM_THREADS is invalid."""
    if not _threads:
        _threads.append(default_threads()[0])
    return _threads[0]


def store_num_threads(count: int) -> None:
    """Set what `num_threads` returns; TargetError for a number below 1 or above MOST_THREADS."""
    if type(count) is not int or not 1 <= count <= MOST_THREADS:
        raise TargetError(
            f"{count!r} is not a number of threads",
            loc=here(),
            label="this call",
            hint=f"give an int from 1 to {MOST_THREADS}",
        )
    _threads[:] = [count]


def default_threads() -> tuple[int, str]:
    """The number of threads and its origin: the environment, else the cores that this process may use."""
    setting = os.environ.get("TDSL_NUM_THREADS", "").strip()
    if setting:
        if not setting.isdecimal() or not 1 <= int(setting) <= MOST_THREADS:
            raise TargetError(
                f"TDSL_NUM_THREADS={setting!r} is not a number of threads",
                loc=here(),
                label="this call",
                hint=f"set it to 1 to {MOST_THREADS}, or leave it unset",
            )
        return int(setting), "set by TDSL_NUM_THREADS"
    outermost = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if outermost.isdecimal() and 1 <= int(outermost) <= MOST_THREADS:
        return int(outermost), "set by OMP_NUM_THREADS"
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)), "the cores that this process may use"
    return os.cpu_count() or 1, "the cores of this machine"
