"""A probe of the last-level cache: how much stays there, and from which size non-temporal stores are faster.

It copies arrays of rising size with ordinary and with non-temporal stores. It takes at most `LIMIT` seconds,
once for each model of processor and number of threads, when the first machine model is asked for, and is kept
in the cache folder. TDSL_PROBE=0 switches it off; then, and where it cannot run, sizes are built in.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tdsl.core.folders import cache_folder
from tdsl.core.node import frozen
from tdsl.machine.description_fields import NEVER
from tdsl.machine.model import Machine

if TYPE_CHECKING:
    from tdsl.machine.memory_kernels import MemoryKernels

SCHEMA = 1  # version of the format of the file
LIMIT = 0.15  # seconds
RETRY = 86400.0  # seconds; a probe without a result runs again a day later
WAIT = 2.0  # seconds to wait for another process that probes
SMALLEST, LARGEST = 2 << 20, 64 << 20  # bytes for each thread: of the source and the destination
PIECE = 1 << 20  # bytes for each thread that are touched between looks at the clock
OF_MEMORY = 8  # one in so many bytes of the free memory is what a probe uses at most
STEP = 1.25  # so many times the bandwidth of memory has a cache that is worth to keep something in
LEAST = 4  # copies of so many sizes show a step: two before it and two after it
GROWTH = 2.5  # the time of a size in that of the size before
BUSY = 1.4  # the second fastest of three runs in the time of the fastest, on a processor with other work
FASTER = 0.95  # of the time of ordinary stores that non-temporal ones take where they win
TIMER = 1e-6  # seconds; the coarsest timer


@frozen
class Probe:
    """Measurements: the bytes that stay in the last-level cache, and `Machine.non_temporal_from`.

    A field is None where the measurement failed; `problem` says why.
    """

    effective: int | None = None
    non_temporal_from: float | None = None
    problem: str = ""


def with_probe(machine: Machine) -> Machine:
    """The machine model of this processor with the measurements of a probe, of this run or an earlier one."""
    result = probe(machine)
    last = machine.caches[-1]
    if result.effective is not None:
        effective = ((machine.threads, result.effective),)
        levels = tuple(replace(x, effective=effective) if x is last else x for x in machine.levels)
        machine = replace(machine, levels=levels)
    return replace(machine, non_temporal_from=result.non_temporal_from)


def probe(machine: Machine) -> Probe:
    """What a probe of this processor finds; it runs unless this or another process has done so before."""
    if os.environ.get("TDSL_PROBE", "") == "0":
        return Probe(problem="it is switched off by TDSL_PROBE=0")
    folder = cache_folder()
    if not folder:
        return Probe(problem="the disk cache, which keeps what it finds, is switched off")
    file = os.path.join(folder, f"probe-{_key(machine)}.json")
    with _lock:
        if file not in _results:
            _results[file] = _read(file) or _run_alone(machine, file)
        return _results[file]


_lock = threading.Lock()
_results: dict[str, Probe] = {}  # by file; a process sees one machine as long as it lives


def _replace_lock() -> None:
    """Replace the lock in a forked child, where the thread that may hold it does not exist."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_lock)


@functools.lru_cache(8)
def _key(machine: Machine) -> str:
    """The name of what is probed: the processor, its reported caches, and the number of threads."""
    from tdsl.machine.cpu import host

    about = (SCHEMA, host().cpu, _model_name(), machine.threads, [(x.name, x.bytes) for x in machine.caches])
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


def _model_name() -> str:
    """The name of the processor in Linux; "" elsewhere."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def _read(file: str) -> Probe | None:
    """What a file keeps; None if there is none, or if it is damaged."""
    try:
        with open(file, encoding="utf-8") as text:
            data = json.load(text)
        if data["problem"] and time.time() - os.stat(file).st_mtime > RETRY:
            return None
        size, least = data["effective"], data["non_temporal_from"]
        if not all(
            x is None or (type(x) is int and x > 0) for x in (size, None if least == NEVER else least)
        ):
            return None
        return Probe(size, math.inf if least == NEVER else least, str(data["problem"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file: str, result: Probe) -> None:
    least = NEVER if result.non_temporal_from == math.inf else result.non_temporal_from
    data = {"effective": result.effective, "non_temporal_from": least, "problem": result.problem}
    part = f"{file}.{os.getpid()}.tmp"
    with open(part, "w", encoding="utf-8") as text:
        json.dump(data, text)
    os.replace(part, file)


def _run_alone(machine: Machine, file: str) -> Probe:
    """What a probe finds, which is written; that of another process if it probes at the same time."""
    try:
        os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
        with _turn(file + ".tmp") as is_ours:
            result = _read(file)
            if result is None and is_ours:
                result = run(machine)
                _write(file, result)
    except OSError as error:
        return Probe(problem=f"what it finds cannot be kept: {error}")
    return result or Probe(problem=f"another process has not finished it within {WAIT:g} s")


@contextlib.contextmanager
def _turn(file: str) -> Iterator[bool]:
    """A context in which at most one process is; False if the wait for the others took `WAIT` seconds."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield True
        return
    end, is_ours = time.monotonic() + WAIT, False
    with open(file, "w", encoding="utf-8") as locked:
        while not is_ours and time.monotonic() < end:
            try:
                fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = True
            except BlockingIOError:
                time.sleep(0.01)
        yield is_ours


def run(machine: Machine) -> Probe:
    """Probe this processor with the threads of a machine model."""
    end = time.perf_counter() + LIMIT
    if time.get_clock_info("perf_counter").resolution > TIMER:
        return Probe(problem="the system has no timer of a microsecond")
    sizes = [SMALLEST]
    while sizes[-1] < LARGEST:
        sizes.append(2 * sizes[-1])
    free = free_memory()
    sizes = [n for n in sizes if free is None or n * machine.threads * OF_MEMORY <= free]
    if len(sizes) < LEAST:
        return Probe(problem=f"the system leaves too little memory: {free} bytes")
    from tdsl.machine.memory_kernels import MemoryKernels

    kernels = MemoryKernels(machine.threads, sizes[-1])
    rows, noise, last = list[tuple[int, float, float]](), list[float](), 0.0
    for size in sizes:
        start = time.perf_counter()
        if start + GROWTH * last > end or not _touch(kernels, size, end):
            break
        copied, streamed = (
            sorted(kernels.seconds(name, size) for _ in range(3)) for name in ("copy", "copy_non_temporal")
        )
        rows.append((size * machine.threads, copied[0], streamed[0]))
        noise.append(copied[1] / copied[0])
        last = time.perf_counter() - start
    if len(rows) >= LEAST and sorted(noise)[len(noise) // 2] > BUSY:
        return Probe(problem="other programs kept the processor busy")
    return evaluate(rows, machine.llc_bytes, whole=len(rows) == len(sizes))


def _touch(kernels: MemoryKernels, size: int, end: float) -> bool:
    """Have the system provide the second half of `size` bytes for each thread; False when the time is up."""
    at = 0 if size == SMALLEST else size // 2
    while at < size and time.perf_counter() < end:
        kernels.touch(at, at + PIECE)
        at += PIECE
    return at >= size


def evaluate(rows: Sequence[tuple[int, float, float]], llc_bytes: int, *, whole: bool) -> Probe:
    """What copies tell: their bytes, source and destination, and seconds with both kinds of stores.

    `llc_bytes` are assumed to stay in the last cache if no step shows it. `whole` says that there was time
    for the largest copy.

    >>> copies = [(n << 20, n / speed, n / 10) for n, speed in ((8, 30), (16, 30), (32, 8), (64, 8))]
    >>> evaluate(copies, 32 << 20, whole=True)
    Probe(effective=16777216, non_temporal_from=16777216, problem='')
    """
    if len(rows) < LEAST or min(min(row) for row in rows) <= 0:
        return Probe(problem=f"it takes more than {LIMIT * 1e3:.0f} ms")
    speeds = [size / copied for size, copied, _ in rows]
    fast, slow = max(speeds), speeds[-1]
    least = math.sqrt(fast * slow)
    inside = [size for (size, _, _), speed in zip(rows, speeds, strict=True) if speed >= least]
    has_step = fast > STEP * slow and speeds[-2] < least
    effective = max(inside[-1], llc_bytes // 2) if has_step else None
    least_size: float | None = math.inf if whole else None
    for size, copied, streamed in reversed(rows):
        if streamed > FASTER * copied:
            break
        least_size = size // 2
    if least_size is not None:  # what follows reads a small result from the cache
        least_size = max(least_size, (effective or llc_bytes) // 2)
    problem = "" if effective or least_size else "copies of all sizes that there was time for are as fast"
    return Probe(effective, least_size, problem)


def free_memory() -> int | None:
    """The bytes that the system, or the control group of this process, has left; None if unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        limits += [int(x.split()[1]) << 10 for x in file if x.startswith("MemAvailable")]
    for most, used in GROUPS:
        with contextlib.suppress(OSError, ValueError), open(most, encoding="ascii") as a, open(used) as b:
            limits.append(int(a.read()) - int(b.read()))
    return min(limits, default=None)


GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
