"""What kernels call while they run: `parallel_for`, and `print`.

A kernel is handed a structure {parallel_for, print, handle}. `parallel_for(fn, ctx, n)` lets threads take
shares of 0..n until none is left, each a fraction of what remains, so that neither the number of
threads that come nor a busy neighbour matters. The threads are those of

1. LLVM's or Intel's OpenMP library: quick to start, right after a fork, no spinning;
2. GNU's: as quick, but a child process of a fork must not use it, so there (3) takes its place;
3. a `ThreadPoolExecutor`;
4. the caller alone, with `TDSL_PARALLEL=serial`, or when nested.

`TDSL_PARALLEL` (openmp, threads, serial) chooses; `TDSL_NUM_THREADS`, then `OMP_NUM_THREADS`, is the
number of threads, else that of the cores this process may use.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.machine import host
from tdsl.errors import TargetError

# A job lies on the stack of the caller: fn, ctx, n, twice the number of threads; in a cache line of its
# own what nobody has taken yet.
_IR = """
%job = type { ptr, ptr, i64, i64, [32 x i8], i64, [56 x i8] }
@tdsl_threads = global i64 1
@tdsl_gomp_parallel = global ptr null
@tdsl_omp_in_parallel = global ptr null
@tdsl_pool = global ptr null

define void @tdsl_work(ptr %job) {
entry:
  %ctx.at = getelementptr %job, ptr %job, i64 0, i32 1
  %n.at = getelementptr %job, ptr %job, i64 0, i32 2
  %parts.at = getelementptr %job, ptr %job, i64 0, i32 3
  %next = getelementptr %job, ptr %job, i64 0, i32 5
  %fn = load ptr, ptr %job
  %ctx = load ptr, ptr %ctx.at
  %n = load i64, ptr %n.at
  %parts = load i64, ptr %parts.at
  br label %look
look:
  %seen = load atomic i64, ptr %next monotonic, align 8
  br label %try
try:
  %begin = phi i64 [%seen, %look], [%newer, %take]
  %left = sub i64 %n, %begin
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %take, label %done
take:
  %fraction = udiv i64 %left, %parts
  %share = call i64 @llvm.umax.i64(i64 %fraction, i64 1)
  %end = add i64 %begin, %share
  %swap = cmpxchg ptr %next, i64 %begin, i64 %end monotonic monotonic
  %newer = extractvalue { i64, i1 } %swap, 0
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %run, label %try
run:
  call void %fn(ptr %ctx, i64 %begin, i64 %end)
  br label %look
done:
  ret void
}

define void @tdsl_parallel_for(ptr %fn, ptr %ctx, i64 %n) {
entry:
  %job = alloca %job, align 64
  %allowed = load atomic i64, ptr @tdsl_threads monotonic, align 8
  %threads = call i64 @llvm.smin.i64(i64 %allowed, i64 %n)
  %several = icmp sgt i64 %threads, 1
  br i1 %several, label %share, label %alone
share:
  %ctx.at = getelementptr %job, ptr %job, i64 0, i32 1
  %n.at = getelementptr %job, ptr %job, i64 0, i32 2
  %parts.at = getelementptr %job, ptr %job, i64 0, i32 3
  %next = getelementptr %job, ptr %job, i64 0, i32 5
  %parts = shl i64 %threads, 1
  store ptr %fn, ptr %job
  store ptr %ctx, ptr %ctx.at
  store i64 %n, ptr %n.at
  store i64 %parts, ptr %parts.at
  store i64 0, ptr %next
  %gomp = load atomic ptr, ptr @tdsl_gomp_parallel acquire, align 8
  %openmp = icmp ne ptr %gomp, null
  br i1 %openmp, label %nested, label %other
nested:
  %query = load ptr, ptr @tdsl_omp_in_parallel
  %inside = call i32 %query()
  %outermost = icmp eq i32 %inside, 0
  br i1 %outermost, label %region, label %alone
region:
  %team = trunc i64 %threads to i32
  call void %gomp(ptr @tdsl_work, ptr %job, i32 %team, i32 0)
  ret void
other:
  %pool = load atomic ptr, ptr @tdsl_pool acquire, align 8
  %pooled = icmp ne ptr %pool, null
  br i1 %pooled, label %python, label %alone
python:
  call void %pool(ptr %job, i64 %threads)
  call void @tdsl_work(ptr %job)
  ret void
alone:
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %serial, label %end
serial:
  call void %fn(ptr %ctx, i64 0, i64 %n)
  br label %end
end:
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
"""

_WORDS = ("tdsl_threads", "tdsl_gomp_parallel", "tdsl_omp_in_parallel", "tdsl_pool")
_SYMBOLS = ("tdsl_work", "tdsl_parallel_for", *_WORDS)
_CHOICES = ("openmp", "threads", "serial")
_MOST_THREADS = 4096

Report = Callable[[int, int], None]
Structure = ctypes.Array[ctypes.c_void_p]


class Runtime:
    """The runtime of the process. `backend` is the path of an OpenMP library, threads, or serial."""

    def __init__(self, choice: str) -> None:
        self._code = jit.load(jit.emit_object(_IR, host(), "runtime"), _SYMBOLS, name="runtime")
        work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._code.address("tdsl_work"))
        self._pool = _Pool(work)
        self._print = _PRINT(_report)
        library = _openmp() if choice in ("", "openmp") else None
        if library is None and choice == "openmp":
            raise TargetError("no OpenMP library is found", hint="leave TDSL_PARALLEL unset")
        if library is not None:
            self.backend = library.path
            self._set("tdsl_omp_in_parallel", library.in_parallel)
            self._set("tdsl_gomp_parallel", library.parallel)
        else:
            self.backend = choice or "threads"
            if choice != "serial":
                self._set("tdsl_pool", self._pool.address)
        self._forks = library is None or not library.gnu
        self.threads = default_threads()

    @property
    def threads(self) -> int:
        """How many threads a parallel loop asks for."""
        return ctypes.c_int64.from_address(self._code.address("tdsl_threads")).value

    @threads.setter
    def threads(self, count: int) -> None:
        self._set("tdsl_threads", count)

    def structure(self, report: Report) -> Structure:
        """What a kernel gets. `report(site, address of the values)` is called by its prints.

        The caller keeps both the structure and `report` for as long as the kernel can run.
        """
        parallel_for = self._code.address("tdsl_parallel_for")
        callback = ctypes.cast(self._print, ctypes.c_void_p).value
        return (ctypes.c_void_p * 3)(parallel_for, callback, id(report))

    def after_fork(self) -> None:
        """In a child process: none of the parent's threads is there."""
        self._pool.forget()
        if not self._forks:
            self.backend = "threads"
            self._set("tdsl_pool", self._pool.address)
            self._set("tdsl_gomp_parallel", 0)

    def _set(self, word: str, value: int) -> None:
        ctypes.c_int64.from_address(self._code.address(word)).value = value


_lock = threading.Lock()
_made: list[Runtime] = []


def runtime() -> Runtime:
    """The runtime, made when it is first asked for. TargetError when the environment is not valid."""
    if not _made:
        with _lock:
            if not _made:
                choice = os.environ.get("TDSL_PARALLEL", "")
                if choice and choice not in _CHOICES:
                    raise TargetError(
                        f"TDSL_PARALLEL={choice!r} is not one of {', '.join(_CHOICES)}"
                    )
                made = Runtime(choice)
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(after_in_child=made.after_fork)
                _made.append(made)
    return _made[0]


def num_threads() -> int:
    """How many threads a parallel loop asks for."""
    return runtime().threads


def set_num_threads(count: int) -> None:
    """Let parallel loops ask for `count` threads, at least 1. Kernels that run now are not affected."""
    if type(count) is not int or not 1 <= count <= _MOST_THREADS:
        raise TargetError(
            f"{count!r} is not a number of threads", hint=f"give an int from 1 to {_MOST_THREADS}"
        )
    runtime().threads = count


def default_threads() -> int:
    """The number of threads that the environment asks for, else that of usable cores."""
    asked = os.environ.get("TDSL_NUM_THREADS", "").strip()
    if asked:
        if not asked.isdecimal() or not 1 <= int(asked) <= _MOST_THREADS:
            raise TargetError(f"TDSL_NUM_THREADS={asked!r} is not a number of threads")
        return int(asked)
    outermost = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if outermost.isdecimal() and 1 <= int(outermost) <= _MOST_THREADS:
        return int(outermost)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_PRINT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


def _report(handle: int, site: int, values: int) -> None:
    report: Report = ctypes.cast(handle, ctypes.py_object).value
    report(site, values)


# -- OpenMP ------------------------------------------------------------------------------------------


class _OpenMP:
    """An OpenMP library with the entry points of GNU's, which LLVM's and Intel's have too."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self.path = path
        self.gnu = "gomp" in os.path.basename(path)
        self.parallel = _address(library.GOMP_parallel)
        self.in_parallel = _address(library.omp_in_parallel)
        library.omp_get_max_threads()  # LLVM's reads its environment at the first call


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _openmp() -> _OpenMP | None:
    # Threads that wait must not keep a core for long: with the defaults of GNU's library a product of
    # NumPy that follows a kernel takes 50 times as long on two cores, LLVM's burns 200 ms.
    settings = {}
    if "OMP_WAIT_POLICY" not in os.environ:
        settings = {"GOMP_SPINCOUNT": "300", "KMP_BLOCKTIME": "1"}
    with _environment(settings):
        for path in _libraries():
            with contextlib.suppress(OSError, AttributeError):
                return _OpenMP(path)
    return None


def _libraries() -> Iterator[str]:
    """OpenMP libraries, the best first: a second copy of LLVM's in one process would end it."""
    loaded = _loaded()
    yield from (path for path in loaded if "gomp" not in os.path.basename(path))
    names = {"darwin": ("libomp.dylib",), "win32": ("libiomp5md.dll", "libomp.dll")}
    for name in names.get(sys.platform, ("libomp.so", "libomp.so.5", "libiomp5.so")):
        yield os.path.join(sys.prefix, "lib", name)
        yield name
    yield from (path for path in loaded if "gomp" in os.path.basename(path))
    if sys.platform.startswith("linux"):
        yield "libgomp.so.1"


def _loaded() -> list[str]:
    """The OpenMP libraries that are in this process already, where the system tells."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[-1].rstrip() for line in maps if "omp" in line}
    except OSError:
        return []
    library = re.compile(r"/lib(iomp5|omp|gomp)(-\w+)?\.so[.\d]*$")
    return sorted(path for path in paths if library.search(path))


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Set variables that are not set, for a moment: child processes do not get them."""
    added = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


# -- threads of Python -------------------------------------------------------------------------------


class _Pool:
    """Parallel loops on a `ThreadPoolExecutor`, through a callback from machine code."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self._work = work
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self._share)
        self.address = _address(self._callback)
        self.forget()

    def forget(self) -> None:
        """Start anew, with no thread."""
        self._nested = threading.local()
        self._executor = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="tdsl")

    def _share(self, job: int, threads: int) -> None:
        """Work on a job with helpers; when nested do nothing: the caller then works alone."""
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
            except KeyboardInterrupt:  # nobody above machine code could finish the loop
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
    """One parallel loop: a helper that comes after its end must not touch the job any more."""

    def __init__(self, help_out: Callable[[], None]) -> None:
        self._help_out = help_out
        self._changed = threading.Condition()
        self._open, self._inside, self._asked = True, 0, 0

    def ask(self, executor: ThreadPoolExecutor, helpers: int) -> None:
        """Ask for helpers; none come while the interpreter ends."""
        with contextlib.suppress(RuntimeError):
            while self._asked < helpers:
                self._asked += 1
                executor.submit(self._enter)

    def close(self) -> None:
        """Let no helper in any more, and wait for those inside."""
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
