"""Parallel loops on Python threads, for systems with neither POSIX threads nor an OpenMP library."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tdsl.machine.threads import MOST_THREADS


class PythonPool:
    """Parallel loops on a `ThreadPoolExecutor`; machine code calls the callback at `address`."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self._work = work
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self._run_job)
        self.address = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self.reset()

    def reset(self) -> None:
        """Replace the executor by a new one without threads."""
        self._nested = threading.local()
        self._executor = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="tdsl")

    def _run_job(self, job: int, threads: int) -> None:
        """Work on a job with helper threads; a nested call returns at once, and its caller works alone."""
        if getattr(self._nested, "active", False):
            return
        parallel_loop = _ParallelLoop(functools.partial(self._work_as_helper, job))
        interrupted = False
        self._nested.active = True
        while True:
            try:
                parallel_loop.submit(self._executor, threads - 1)
                self._work(job)
                parallel_loop.close()
                break
            except KeyboardInterrupt:  # cannot unwind through machine code: finish the loop first
                interrupted = True
        self._nested.active = False
        if interrupted:
            _thread.interrupt_main()

    def _work_as_helper(self, job: int) -> None:
        self._nested.active = True
        try:
            self._work(job)
        finally:
            self._nested.active = False


class _ParallelLoop:
    """One parallel loop: a helper thread that starts after its end must not access the job."""

    def __init__(self, help_out: Callable[[], None]) -> None:
        self._helper = help_out
        self._condition = threading.Condition()
        self._open, self._active_helpers, self._submitted = True, 0, 0

    def submit(self, executor: ThreadPoolExecutor, helpers: int) -> None:
        """Submit helpers to the executor; none start during shutdown of the interpreter."""
        with contextlib.suppress(RuntimeError):
            while self._submitted < helpers:
                self._submitted += 1
                executor.submit(self._run_helper)

    def close(self) -> None:
        """Admit no further helper, and wait for those inside."""
        with self._condition:
            self._open = False
            self._condition.wait_for(lambda: not self._active_helpers)

    def _run_helper(self) -> None:
        with self._condition:
            if not self._open:
                return
            self._active_helpers += 1
        try:
            self._helper()
        finally:
            with self._condition:
                self._active_helpers -= 1
                self._condition.notify_all()
