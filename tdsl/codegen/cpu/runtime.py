"""The runtime that kernels call: `parallel_for`, `print`, and the allocation of memory.

A kernel gets a structure {parallel_for, print, handle}. `parallel_for(fn, ctx, n)` calls fn(ctx, begin, end)
on ranges that cover 0..n; a nested call runs on the calling thread alone. `TDSL_PARALLEL` selects threads:

    pool      POSIX threads, see `parallel_text.py`: the default on POSIX systems
    openmp    the threads of an OpenMP library, shared with its other users: the default elsewhere
    threads   a `ThreadPoolExecutor`: the default without an OpenMP library
    serial    the calling thread alone

The number of threads is `TDSL_NUM_THREADS`, else `OMP_NUM_THREADS`, else the number of cores that this
process may use. A forked child starts threads of its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tdsl.codegen.cpu import jit, memory_text, parallel_text
from tdsl.codegen.cpu.openmp import OpenMP, find_openmp
from tdsl.core.source import here
from tdsl.errors import TargetError, did_you_mean
from tdsl.machine.cpu import host
from tdsl.machine.threads import num_threads, store_num_threads

if TYPE_CHECKING:
    from tdsl.codegen.cpu.python_pool import PythonPool

_CHOICES = ("pool", "openmp", "threads", "serial")
_POSIX = os.name == "posix"

_SYMBOLS = (
    "tdsl_work",
    "tdsl_parallel_for",
    "tdsl_threads",
    "tdsl_region",
    "tdsl_openmp",
    "tdsl_gomp_parallel",
    "tdsl_omp_in_parallel",
)
_MEMORY_SYMBOLS = ("tdsl_malloc", "tdsl_free")
_POOL_SYMBOLS = ("tdsl_pool", "tdsl_pool_start", "tdsl_pool_reset")

Report = Callable[[int, int], None]
Structure = ctypes.Array[ctypes.c_void_p]


class Runtime:
    """The runtime of the process. `backend` is pool, threads, serial, or the path of an OpenMP library."""

    def __init__(self, choice: str) -> None:
        text = parallel_text.SELF_SCHEDULING + parallel_text.OPENMP + memory_text.allocator_text(sys.platform)
        symbols = [*_SYMBOLS, *_MEMORY_SYMBOLS, *(_POOL_SYMBOLS if _POSIX else ())]
        if _POSIX:
            text += parallel_text.pool(host().architecture, sys.platform)
        self._code = jit.load(jit.emit_object(text, host(), "runtime"), symbols, name="runtime")
        self._print = _PRINT(_print_callback)
        self._python: PythonPool | None = None
        self._library: OpenMP | None = None
        self.threads = num_threads()
        self.backend = "serial"
        if _POSIX:
            self._call_symbol("tdsl_pool_start")
        self._select_backend(choice)

    def _select_backend(self, choice: str) -> None:
        if choice == "pool" or (not choice and _POSIX):
            self._use_pool()
        elif choice == "openmp" or not choice:
            self._library = find_openmp()
            if self._library is not None:
                self._set_word("tdsl_omp_in_parallel", self._library.in_parallel)
                self._set_word("tdsl_gomp_parallel", self._library.parallel)
                self._set_word("tdsl_region", self._code.address("tdsl_openmp"))
                self.backend = self._library.path
            elif choice:
                raise TargetError(
                    "no OpenMP library is found",
                    loc=here(),
                    label="this call",
                    hint="leave TDSL_PARALLEL unset",
                )
            else:
                self._use_python_pool()
        elif choice == "threads":
            self._use_python_pool()

    def _use_pool(self) -> None:
        if not _POSIX:
            raise TargetError(
                "no POSIX threads on this system",
                loc=here(),
                label="this call",
                hint="leave TDSL_PARALLEL unset",
            )
        self._set_word("tdsl_region", self._code.address("tdsl_pool"))
        self.backend = "pool"

    def _use_python_pool(self) -> None:
        from tdsl.codegen.cpu.python_pool import PythonPool

        self._python = PythonPool(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._code.address("tdsl_work")))
        self._set_word("tdsl_region", self._python.address)
        self.backend = "threads"

    @property
    def threads(self) -> int:
        """The number of threads that a parallel loop requests."""
        return ctypes.c_int64.from_address(self._code.address("tdsl_threads")).value

    @threads.setter
    def threads(self, count: int) -> None:
        self._set_word("tdsl_threads", count)

    def structure(self, report: Report) -> Structure:
        """The structure passed to a kernel, whose prints call `report(site, address of the values)`.

        The caller keeps references to the structure and to `report` for as long as the kernel can run.
        """
        parallel_for = self._code.address("tdsl_parallel_for")
        callback = ctypes.cast(self._print, ctypes.c_void_p).value
        return (ctypes.c_void_p * 3)(parallel_for, callback, id(report))

    @property
    def memory(self) -> dict[str, int]:
        """The addresses of `tdsl_malloc` and `tdsl_free`, by name."""
        return {name: self._code.address(name) for name in _MEMORY_SYMBOLS}

    def after_fork(self) -> None:
        """Reset the thread pools in a forked child, which has none of the parent's threads."""
        self._call_symbol("tdsl_pool_reset")
        if self._python is not None:
            self._python.reset()
        if self._library is not None and self._library.gnu:  # it would deadlock on the lost threads
            self._use_pool()

    def _set_word(self, word: str, value: int) -> None:
        ctypes.c_int64.from_address(self._code.address(word)).value = value

    def _call_symbol(self, function: str) -> None:
        ctypes.CFUNCTYPE(None)(self._code.address(function))()


_lock = threading.Lock()
_runtimes: list[Runtime] = []


def runtime() -> Runtime:
    """The runtime of the process, created on the first call. TargetError if TDSL_* variables are invalid."""
    if not _runtimes:
        with _lock:
            if not _runtimes:
                choice = os.environ.get("TDSL_PARALLEL", "")
                if choice and choice not in _CHOICES:
                    raise TargetError(
                        f"TDSL_PARALLEL={choice!r} is no way to run threads",
                        loc=here(),
                        label="this call",
                        hint=f"{did_you_mean(choice, _CHOICES)}; or leave it unset",
                    )
                created = Runtime(choice)
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(after_in_child=created.after_fork)
                _runtimes.append(created)
    return _runtimes[0]


def set_num_threads(count: int) -> None:
    """Set the number of threads that parallel loops request, at least 1. Running kernels are not affected."""
    store_num_threads(count)
    runtime().threads = count


_PRINT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


def _print_callback(handle: int, site: int, values: int) -> None:
    report: Report = ctypes.cast(handle, ctypes.py_object).value
    report(site, values)
