"""Running a program on ranks by mpiexec, and saying where they were when that ends badly."""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import subprocess
import sys
import tempfile

from tdsl.distribute.places import FOLDER, processes, whereabouts
from tdsl.errors import TargetError
from tdsl.source import here

LOOK_S = 0.1  # how often processes are looked for that have begun


def launch(ranks: int, script: str, arguments: list[str]) -> int:
    """Run a program on some ranks, all of which end when one raises; the exit code.

    When it is not 0, what each rank did is said, the first whose process ended before all others: whoever
    kills a rank leaves it no time to say so itself. TargetError where mpi4py or mpiexec is missing.
    """
    with tempfile.TemporaryDirectory(prefix="tdsl_run_") as folder:
        process = subprocess.Popen(
            command(ranks, script, arguments), env=os.environ | {FOLDER: folder}
        )
        ended = _watch(process, folder)
        if process.returncode:
            sys.stderr.write("".join(f"{line}\n" for line in _report(folder, ended)))
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


def _watch(process: subprocess.Popen[bytes], folder: str) -> list[int]:
    """Wait for mpiexec; the ranks on this machine in the order in which their processes ended."""
    poll = select.poll()
    watched: dict[int, int] = {}  # ranks by what stands for their process
    ended: list[int] = []
    while process.poll() is None:
        for rank, pid in processes(folder).items():
            if rank not in watched.values() and rank not in ended:
                try:
                    watched[handle := os.pidfd_open(pid)] = rank
                except (AttributeError, OSError):  # ended before, of another machine or system
                    ended.append(rank)
                    continue
                poll.register(handle, select.POLLIN)
        for handle, _ in poll.poll(LOOK_S * 1e3):
            ended.append(watched.pop(handle))
            poll.unregister(handle)
            os.close(handle)
    return ended


def _report(folder: str, ended: list[int]) -> list[str]:
    places = whereabouts(folder)
    order = sorted(places, key=lambda rank: (rank not in ended[:1], rank))
    return [f"rank {rank} ended in {places[rank]}" for rank in order]
