"""Aborts all ranks of a run when one of them fails, also before MPI is initialised.

MPICH's launcher does not end a run in which a rank exits before it has initialised MPI: the others wait for
that rank in their initialisation. Such a rank asks the launcher to abort, by the wire protocol of PMI.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from array import array
from collections.abc import Callable
from types import TracebackType
from typing import Any

LAUNCHED = (
    "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS",
)  # fmt: skip
READ_S, POLL_S = 2.0, 0.005  # the longest wait for a launcher that reads output, and its interval
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def is_launched() -> bool:
    """True if the environment is that of a run of several ranks."""
    return any(os.environ.get(name, "1") != "1" for name in LAUNCHED)


def install_hook() -> None:
    """Set an excepthook that shows an uncaught exception by the previous hook, then aborts all ranks."""
    if not isinstance(sys.excepthook, _AbortingHook):
        sys.excepthook = _AbortingHook(sys.excepthook)


class _AbortingHook:
    def __init__(self, previous: Hook) -> None:
        self.previous = previous

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.previous(kind, error, trace)
        abort_ranks(1)


def abort_ranks(code: int) -> None:
    """End all ranks with an exit code: by MPI if it is initialised, else by a message to MPICH's launcher.

    Other launchers end a run when a process exits with a code that is not 0: there this does nothing.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ImportError, OSError, ValueError):
            stream.flush()
            _wait_until_read(stream.fileno())
    MPI: Any = sys.modules.get("mpi4py.MPI")
    if MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(code)
    elif "PMI_FD" in os.environ:
        with contextlib.suppress(OSError, ValueError):
            os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={code}\n".encode())


def _wait_until_read(pipe: int) -> None:
    """Wait until the launcher has read a pipe, at most `READ_S`: it ends a run without what is left there."""
    import fcntl  # not on all systems
    import termios

    until, left = time.monotonic() + READ_S, array("i", [1])
    while stat.S_ISFIFO(os.fstat(pipe).st_mode) and left[0] and time.monotonic() < until:
        fcntl.ioctl(pipe, termios.FIONREAD, left)
        time.sleep(POLL_S)
