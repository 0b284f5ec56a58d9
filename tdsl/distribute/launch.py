"""Runs a program on several ranks by mpiexec, and reports the step of each rank if the run fails."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shutil
import subprocess
import sys
import tempfile

from tdsl.core.source import here
from tdsl.distribute.progress import FOLDER, processes, rank_positions
from tdsl.errors import TargetError

POLL_S = 0.1  # the interval of looking for processes that have started


def launch(ranks: int, script: str, arguments: list[str]) -> int:
    """Run a program on some ranks, all of which end when one raises; returns the exit code.

    If it is not 0, the step in which each rank ended is written to stderr, beginning with the rank whose
    process ended first: a rank that is killed cannot report itself. TargetError if mpi4py or mpiexec is
    missing.
    """
    with tempfile.TemporaryDirectory(prefix="tdsl_run_") as folder:
        env = os.environ | {FOLDER: folder}
        with subprocess.Popen(command(ranks, script, arguments), env=env) as process:
            first = _wait_for_exit(process, folder)
        if process.returncode:
            sys.stderr.write("".join(f"{line}\n" for line in _report(folder, first)))
    return process.returncode


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
    return [mpiexec, "-n", str(ranks), sys.executable, "-m", "mpi4py", script, *arguments]


def _wait_for_exit(process: subprocess.Popen[bytes], folder: str) -> int | None:
    """Wait for mpiexec; returns the rank on this machine whose process ended first, None if unknown."""
    poll, first = select.poll(), None
    watched: dict[int, int] = {}  # ranks by the pidfd of their process
    seen: set[int] = set()
    while process.poll() is None:
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
