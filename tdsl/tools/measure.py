"""Measures bandwidths, rates and latencies of this machine by kernels of tdsl: `tdsl machine measure`.

A bandwidth is measured by sums over an array that fits into a memory level and into no nearer one. A rate is
measured by sums of products with operands in the nearest cache and accumulators in registers. Each figure is
the best of several runs, as other load only slows a run down. With MPI, a ping-pong between two ranks on this
machine measures the link to other ranks, the level "network".
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

import tdsl as td
from tdsl.codegen.cpu.runtime import set_num_threads
from tdsl.distribute.launch import command
from tdsl.errors import TargetError
from tdsl.machine.cpu import host
from tdsl.machine.cpu_caches import describe
from tdsl.machine.description import BUILT_IN, Description
from tdsl.machine.instructions.dots import DOTS, Dot
from tdsl.machine.model import MemoryLevel, Rate
from tdsl.machine.threads import num_threads

ROWS = 6  # rows of the register tile whose rate is measured
SUMS = 16  # accumulator vectors in registers while memory is read
BEYOND = 4  # size of the array that measures memory, in sizes of the last cache
LARGEST = 1 << 30  # the maximum of its bytes
SIDE = 512  # rows of the square matrices that measure dot-product instructions
MPI_S = 60  # time limit in seconds of the run of two ranks
TASKS = 256  # iterations of the loop whose launch is measured: some 50 us of work


@contextmanager
def _built_in() -> Iterator[None]:
    """A context in which kernels use the built-in machine description, not a measured one."""
    before = os.environ.get("TDSL_MACHINE")
    os.environ["TDSL_MACHINE"] = BUILT_IN
    try:
        yield
    finally:
        del os.environ["TDSL_MACHINE"]
        os.environ |= {} if before is None else {"TDSL_MACHINE": before}


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = num_threads()
    set_num_threads(count)
    try:
        yield
    finally:
        set_num_threads(before)


class Measurement:
    """Measures the figures one by one, each for `seconds`; `tell` is called with the name of the next one."""

    def __init__(self, seconds: float, tell: Callable[[str], None]) -> None:
        self.seconds, self.tell = seconds, tell
        self.machine = replace(describe(host()), threads=num_threads())

    def describe(self) -> Description:
        """Measure all figures of this machine."""
        machine = replace(
            self.machine,
            levels=self.levels(),
            rates=self.rates(),
            launch=self.launch(),
            links=self.links(),
        )
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return Description(machine, host().cpu, now)

    def levels(self) -> tuple[MemoryLevel, ...]:
        """The memory levels with their measured bandwidths by number of threads; registers have none."""
        levels, nearer = [], 0
        for level in self.machine.levels:
            if level.name == "registers":
                levels.append(level)
                continue
            rates = []
            for threads in _counts(self.machine.threads):
                self.tell(f"bandwidth of {level.name}, {threads} threads")
                with _threads(threads):
                    rates.append(
                        (
                            threads,
                            self.bandwidth(self._working_set(level, nearer, threads), threads),
                        )
                    )
            levels.append(replace(level, bandwidth=tuple(rates)))
            nearer = level.bytes or 0
        return tuple(levels)

    def _working_set(self, level: MemoryLevel, nearer: int, threads: int) -> int:
        """The bytes for each thread that fit into a level, and not into the next nearer one."""
        if level.bytes is None:
            return min(BEYOND * nearer, LARGEST) // threads
        return max(level.bytes // min(threads, level.shared_by) // 2, 2 * nearer)

    def bandwidth(self, size: int, threads: int) -> float:
        """The bytes/s that `threads` threads read together, each from `size` bytes of its own."""
        width = SUMS * self.machine.vector_bytes // 4
        rows = max(size // (4 * width), 1)
        repeat = max((1 << 23) // size, 1)
        t, l, i = td.vars("t l i")
        again = td.range("again", 0, repeat)
        a, total = td.Tensor("a", (threads, rows, width), td.f32), td.Func("total")
        total[t, l] = td.sum(a[t, i, l], axis=(again, i))
        kernel = _compiled(total, t, (again, i), l, lanes=self.machine.vector_bytes // 4)
        array = np.ones((threads, rows, width), np.float32)
        return array.nbytes * repeat / self.time(kernel, array)

    def rates(self) -> tuple[Rate, ...]:
        """The rates of one thread by unit and element type."""
        wide = self.machine.vector_bytes
        rates = []
        with _threads(1):
            for dtype in (td.f32, td.f64, td.i32):
                for unit, lanes in (("scalar", 1), ("vector", wide // dtype.bytes)):
                    self.tell(f"rate of {unit} {dtype}")
                    rates.append(Rate(unit, str(dtype), self.products(dtype, lanes)))
            self.tell("rate of exp")
            rates.append(Rate("exp", "f32", self.exponentials(wide // 4)))
            for dot in DOTS:
                if dot.feature in self.machine.features:
                    self.tell(f"rate of {dot.name}")
                    rates.append(Rate(dot.name, str(dot.total), self.narrow_products(dot)))
        return tuple(rates)

    def products(self, dtype: td.DType, lanes: int) -> float:
        """The multiplications and additions per second on a tile of accumulators in registers."""
        rows, vectors = ROWS, 4 if lanes > 1 and self.machine.registers >= 32 else 2
        width = vectors * lanes
        depth = max(self.machine.l1_share // 2 // ((rows + width) * dtype.bytes), 1)
        repeat = max((1 << 21) // (depth * rows * vectors), 1)
        t, i, j, k = td.vars("t i j k")
        again = td.range("again", 0, repeat)
        a, b = td.Tensor("a", (depth, rows), dtype), td.Tensor("b", (depth, width), dtype)
        c = td.Func("c", shape=(1, rows, width))
        c[t, i, j] = td.sum(a[k, i] * b[k, j], axis=(again, k))
        kernel = _compiled(c, t, (again, k), i, j, lanes=lanes)
        arrays = [np.ones(shape, dtype.numpy) for shape in ((depth, rows), (depth, width))]
        return 2 * repeat * depth * rows * width / self.time(kernel, *arrays)

    def narrow_products(self, dot: Dot) -> float:
        """The multiplications and additions per second of a dot-product instruction.

        They are measured in a matrix product, including the copy of its panels.
        """
        i, j, k = td.vars("i j k")
        a, b = td.Tensor("a", (SIDE, SIDE), dot.left), td.Tensor("b", (SIDE, SIDE), dot.right)
        c = td.Func("c")
        terms = td.cast(a[i, k], dot.total) * td.cast(b[k, j], dot.total)
        c[i, j] = td.sum(terms, axis=k, dtype=dot.total)
        s = td.Schedule(c)
        only = replace(self.machine, features=frozenset({dot.feature}))
        tiles = td.recipes.matmul(s[c], machine=only)
        assert tiles.dot == dot.name
        arrays = [np.ones((SIDE, SIDE), t.numpy) for t in (dot.left, dot.right)]
        return 2 * SIDE**3 / self.time(td.compile(s), *arrays)

    def exponentials(self, lanes: int) -> float:
        """The values of exp per second, for an array in the nearest cache."""
        width = 4 * lanes
        depth = max(self.machine.l1_share // 2 // (4 * width), 1)
        repeat = max((1 << 20) // (depth * width), 1)
        t, j, k = td.vars("t j k")
        again = td.range("again", 0, repeat)
        a, total = td.Tensor("a", (depth, width), td.f32), td.Func("total", shape=(1, width))
        total[t, j] = td.sum(td.exp(a[k, j]), axis=(again, k))
        kernel = _compiled(total, t, (again, k), j, lanes=lanes)
        array = np.linspace(-1, 1, depth * width, dtype=np.float32).reshape(depth, width)
        return repeat * array.size / self.time(kernel, array)

    def launch(self) -> float:
        """The overhead of a parallel loop in seconds: its time less the serial time over the threads."""
        self.tell("launch of a parallel loop")
        t, i = td.vars("t i")
        a = td.Tensor("a", (TASKS, 1024), td.f32)
        times = []
        for shared in (True, False):
            f = td.Func("f")
            f[t, i] = td.exp(a[t, i])
            s = td.Schedule(f)
            s[f].vectorize(i, self.machine.vector_bytes // 4)
            if shared:
                s[f].parallel(t)
            times.append(self.time(td.compile(s), np.zeros((TASKS, 1024), np.float32)))
        return max(times[0] - times[1] / self.machine.threads, 1e-9)

    def links(self) -> tuple[MemoryLevel, ...]:
        """The link between two ranks on this machine; none without MPI."""
        self.tell("messages between two ranks")
        try:
            run = command(2, "-m", ["tdsl.distribute.pingpong", str(self.seconds)])
            done = subprocess.run(run, capture_output=True, text=True, timeout=MPI_S, check=True)
        except (TargetError, OSError, subprocess.SubprocessError):
            return ()
        latency, bandwidth = json.loads(done.stdout)
        link = MemoryLevel("network", None, managed=True, bandwidth=((1, bandwidth),), latency=latency)
        return (link,)

    def time(self, kernel: td.Compiled, *arrays: Any) -> float:
        """The seconds of the fastest call of a kernel, repeated for `self.seconds`."""
        out = kernel(*arrays)
        best, end = float("inf"), time.perf_counter() + self.seconds
        while True:
            start = time.perf_counter()
            kernel(*arrays, out=out)
            now = time.perf_counter()
            best = min(best, now - start)
            if now >= end:
                return best


def _compiled(total: td.Func, task: Any, terms: tuple[Any, ...], *kept: Any, lanes: int) -> td.Compiled:
    """Compile sums over `terms`, accumulated in registers: `task` parallel, the last of `kept` vectorised."""
    s = td.Schedule(total)
    stage = s[total]
    stage.reorder(task, *terms, *kept)
    stage.parallel(task)
    copy = s.cache_write(stage, task)
    for part in (stage, copy):
        if lanes > 1:
            part.vectorize(str(kept[-1]), lanes)
        for loop in kept:
            part.unroll(str(loop))
    kernel: td.Compiled = td.compile(s)
    return kernel


def _counts(threads: int) -> list[int]:
    """The numbers of threads to measure: powers of two, and `threads`.

    >>> _counts(6)
    [1, 2, 4, 6]
    """
    return sorted({2**n for n in range(threads.bit_length())} | {threads})


def measure(*, quick: bool = False, tell: Callable[[str], None] = lambda _: None) -> Description:
    """Measure this machine: takes about a minute, `quick` a few seconds, with larger errors.

    `tell` is called with the name of each measurement. The number of threads of kernels changes meanwhile.
    """
    with _built_in():
        return Measurement(0.02 if quick else 0.5, tell).describe()
