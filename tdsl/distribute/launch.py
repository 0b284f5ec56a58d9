"""Runs a program on several ranks by mpiexec, again on fewer ranks if that fails, and reports where."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from tdsl.core.source import here
from tdsl.distribute.progress import FOLDER, processes, rank_positions
from tdsl.errors import TargetError, counted

POLL_S = 0.1  # the interval of looking for processes that have started
GRACE_S = 10.0  # between the request to mpiexec to end its ranks and killing it
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def launch(ranks: int, script: str, arguments: list[str], restarts: int = 0) -> int:
    """Run a program on some ranks, all of which end when one raises or ends; returns the exit code.

    After a run whose exit code is not 0 it runs again, at most `restarts` times, each time on one rank less,
    as long as there is one. SIGINT and SIGTERM end all ranks, too; the code is then 128 and the signal. If
    the code is not 0, the step in which each rank in a call ended is written to stderr, beginning with the
    rank whose process ended first: a rank that is killed cannot report itself. TargetError if mpi4py or
    mpiexec is missing.
    """
    restart = 0
    while True:
        code, is_ended_by_signal = _launch_once(ranks, script, arguments)
        if not code or is_ended_by_signal or restart == restarts:
            return code
        restart, ranks = restart + 1, max(ranks - 1, 1)
        sys.stderr.write(f"restart {restart} of {restarts}, on {counted(ranks, 'rank')}\n")


def _launch_once(ranks: int, script: str, arguments: list[str]) -> tuple[int, bool]:
    """The exit code of a run, and whether a signal to this process ended it."""
    with tempfile.TemporaryDirectory(prefix="tdsl_run_") as folder:
        env = os.environ | {FOLDER: folder}
        with (
            _caught_signals() as caught,
            subprocess.Popen(command(ranks, script, arguments), env=env) as process,
        ):
            first = _wait_for_exit(process, folder, caught)
        code = 128 + caught[0] if caught else process.returncode
        if code:
            sys.stderr.write("".join(f"{line}\n" for line in _report(folder, first)))
    return code, bool(caught)


@contextlib.contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """A list to which signals that end a run are appended in the block, instead of ending this process."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught  # only the main thread may set handlers
        return
    previous = {s: signal.signal(s, lambda number, _: caught.append(number)) for s in ENDING_SIGNALS}
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def command(ranks: int, script: str, arguments: list[str]) -> list[str]:
    """The mpiexec command; an mpiexec in the folder of this Python interpreter precedes the PATH."""
    sibling = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    mpiexec = sibling if os.path.exists(sibling) else shutil.which("mpiexec")
    if mpiexec is None or importlib.util.find_spec("mpi4py") is None:
        raise TargetError(
            f"there is no {'mpiexec' if mpiexec is None else 'mpi4py'} here",
            loc=here(),
            label="needed here",
            hint='pip install "tdsl[mpi]"',
        )
    return [mpiexec, "-n", str(ranks), sys.executable, "-m", "tdsl.distribute.run_rank", script, *arguments]


def _wait_for_exit(process: subprocess.Popen[bytes], folder: str, caught: list[int]) -> int | None:
    """Wait for mpiexec; returns the rank on this machine whose process ended first, None if unknown.

    Once a signal is in `caught`, mpiexec is asked to end its ranks, and killed if it has not in `GRACE_S`.
    """
    terminated_at: float | None = None
    poll, first = select.poll(), None
    watched: dict[int, int] = {}  # ranks by the pidfd of their process
    seen: set[int] = set()
    while process.poll() is None:
        if caught and terminated_at is None:
            terminated_at = time.monotonic()
            process.terminate()
        elif terminated_at is not None and time.monotonic() > terminated_at + GRACE_S:
            process.kill()
        for rank, pid in processes(folder).items():
            if rank not in seen and hasattr(os, "pidfd_open"):
                with contextlib.suppress(OSError):  # it has ended, or runs on another machine
                    watched[handle := os.pidfd_open(pid)] = rank
                    poll.register(handle, select.POLLIN)
            seen.add(rank)
        for handle, _ in poll.poll(POLL_S * 1e3):
            first = watched[handle] if first is None else first
            poll.unregister(handle)
            os.close(handle)
    return first


def _report(folder: str, first: int | None) -> list[str]:
    positions = rank_positions(folder)
    order = sorted(positions, key=lambda rank: (rank != first, rank))
    return [f"rank {rank} ended in {positions[rank]}" for rank in order]
