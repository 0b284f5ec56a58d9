"""Runs a computation in a forked child that can be killed: LLVM in this process cannot be interrupted.

The child inherits this process's initialised compilers. The limit is one of processor time (wall time may be
`_WALL_TIME_FACTOR` times as long), so that a busy machine kills hardly more children than an idle one. The
child exits without running exit handlers.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

_DONE, _RAISED = b"done", b"rais"
_WALL_TIME_FACTOR = 20  # seconds of wall time to wait for a second of processor time on a busy machine


class ChildFailure(Exception):
    """A computation exceeded its time limit, or its process died; the message says which."""


def run_in_child(compute: Callable[[], bytes], seconds: float) -> bytes | None:
    """The bytes that `compute` returns in a child process; None if it raises.

    ChildFailure if it takes more than `seconds` of processor time, or the child dies.
    """
    read, write = os.pipe()
    with warnings.catch_warnings():  # Python 3.12 warns of other threads; `jit` locks them out
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run_child(compute, seconds, write)
    os.close(write)
    try:
        result = _read(read, time.monotonic() + _WALL_TIME_FACTOR * seconds)
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        status = 0
        with contextlib.suppress(ChildProcessError):  # a program may reap all its children itself
            status = os.waitpid(child, 0)[1]
    if result[:4] == _DONE:
        return result[4:]
    if result[:4] == _RAISED:
        return None
    signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if signal_number in (0, signal.SIGPROF, signal.SIGKILL):
        raise ChildFailure(f"takes more than {seconds:g} s of processor time")
    raise ChildFailure(f"ends with signal {signal_number}")


def _run_child(compute: Callable[[], bytes], seconds: float, write: int) -> NoReturn:
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            result = _DONE + compute()
        except Exception:  # noqa: BLE001  # the parent computes it again, to raise it
            result = _RAISED
        remaining = memoryview(result)
        while remaining:
            remaining = remaining[os.write(write, remaining) :]
    finally:
        os._exit(0)


def _read(pipe: int, deadline: float) -> bytes:
    """The bytes read from a pipe up to its end; b"" if the deadline passes before."""
    chunks: list[bytes] = []
    ready = select.poll()
    ready.register(pipe)
    while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(pipe, 1 << 20)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
    return b""
