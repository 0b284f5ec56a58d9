"""Running a program on ranks by mpiexec, and saying where they were when that ends badly."""

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
from tdsl.distribute.places import FOLDER, processes, whereabouts
from tdsl.errors import TargetError

LOOK_S = 0.1  # how often processes are looked for that have begun


def launch(ranks: int, script: str, arguments: list[str]) -> int:
    """Run a program on some ranks, all of which end when one raises; the exit code.

    When it is not 0, what each rank did is said, the first whose process ended before all others: whoever
    kills a rank leaves it no time to say so itself. TargetError where mpi4py or mpiexec is missing.
    """
    with tempfile.TemporaryDirectory(prefix="tdsl_run_") as folder:
        env = os.environ | {FOLDER: folder}
        with subprocess.Popen(command(ranks, script, arguments), env=env) as process:
            first = _watch(process, folder)
        if process.returncode:
            sys.stderr.write("".join(f"{line}\n" for line in _report(folder, first)))
    return process.returncode


def command(ranks: int, script: str, arguments: list[str]) -> list[str]:
    """The command for mpiexec, which is looked for in the environment of this process first."""
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    found = beside if os.path.exists(beside) else shutil.which("mpiexec")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        raise TargetError(
            f"there is no {'mpiexec' if found is None else 'mpi4py'} here",
            loc=here(),
            label="needed here",
            hint='pip install "tdsl[mpi]"',
        )
    return [found, "-n", str(ranks), sys.executable, "-m", "mpi4py", script, *arguments]


def _watch(process: subprocess.Popen[bytes], folder: str) -> int | None:
    """Wait for mpiexec; the rank on this machine whose process ended first, if the system can tell."""
    poll, first = select.poll(), None
    watched: dict[int, int] = {}  # ranks by what stands for their process
    seen: set[int] = set()
    while process.poll() is None:
        for rank, pid in processes(folder).items():
            if rank not in seen and hasattr(os, "pidfd_open"):
                with contextlib.suppress(OSError):  # it has ended, or runs on another machine
                    watched[handle := os.pidfd_open(pid)] = rank
                    poll.register(handle, select.POLLIN)
            seen.add(rank)
        for handle, _ in poll.poll(LOOK_S * 1e3):
            first = watched[handle] if first is None else first
            poll.unregister(handle)
            os.close(handle)
    return first


def _report(folder: str, first: int | None) -> list[str]:
    places = whereabouts(folder)
    order = sorted(places, key=lambda rank: (rank != first, rank))
    return [f"rank {rank} ended in {places[rank]}" for rank in order]
