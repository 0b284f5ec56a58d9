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
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self._share)
        self.address = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self.forget()

    def forget(self) -> None:
        """Replace the executor by a new one without threads."""
        self._nested = threading.local()
        self._executor = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="tdsl")

    def _share(self, job: int, threads: int) -> None:
        """Work on a job with helper threads; a nested call returns at once, and its caller works alone."""
        if getattr(self._nested, "active", False):
            return
        region = _Region(functools.partial(self._help, job))
        interrupted = False
        self._nested.active = True
        while True:
            try:
                region.ask(self._executor, threads - 1)
                self._work(job)
                region.close()
                break
            except KeyboardInterrupt:  # cannot unwind through machine code: finish the loop first
                interrupted = True
        self._nested.active = False
        if interrupted:
            _thread.interrupt_main()

    def _help(self, job: int) -> None:
        self._nested.active = True
        try:
            self._work(job)
        finally:
            self._nested.active = False


class _Region:
    """One parallel loop: a helper thread that starts after its end must not access the job."""

    def __init__(self, help_out: Callable[[], None]) -> None:
        self._help_out = help_out
        self._changed = threading.Condition()
        self._open, self._inside, self._asked = True, 0, 0

    def ask(self, executor: ThreadPoolExecutor, helpers: int) -> None:
        """Submit helpers to the executor; none start during shutdown of the interpreter."""
        with contextlib.suppress(RuntimeError):
            while self._asked < helpers:
                self._asked += 1
                executor.submit(self._enter)

    def close(self) -> None:
        """Admit no further helper, and wait for those inside."""
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: not self._inside)

    def _enter(self) -> None:
        with self._changed:
            if not self._open:
                return
            self._inside += 1
        try:
            self._help_out()
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()
