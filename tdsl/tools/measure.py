"""Measures this machine: capacities, bandwidths, rates, latencies and overheads: `tdsl machine measure`.

Memory is read, written and copied by kernels in LLVM IR (`machine/memory_kernels.py`), in working sets whose
sizes do not depend on what the system reports. A rate is measured by a kernel of tdsl: sums of values or
products with operands in the nearest cache and accumulators in registers. Each figure is the best of several
runs, as other load only slows a run down; overheads are medians. With MPI, a ping-pong between two ranks on
this machine measures the link to other ranks, the level "network".
"""

from __future__ import annotations

import datetime
import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import tdsl as td
from tdsl.codegen.cpu.runtime import set_num_threads
from tdsl.distribute.launch import command
from tdsl.errors import TargetError
from tdsl.machine.capacities import LevelFigures, level_figures, rounded
from tdsl.machine.cpu import host
from tdsl.machine.cpu_caches import describe
from tdsl.machine.description import BUILT_IN
from tdsl.machine.description_json import Description
from tdsl.machine.instructions.dots import DOTS, Dot
from tdsl.machine.memory_kernels import MemoryKernels
from tdsl.machine.model import PAGE_BYTES, Machine, MemoryLevel, Rate
from tdsl.machine.probe import FASTER, OF_MEMORY, free_memory
from tdsl.machine.threads import num_threads

ROWS = 6  # rows of the register tile whose rate is measured
SIDE = 512  # rows of the square matrices that measure dot-product instructions
MPI_S = 60  # time limit in seconds of the run of two ranks
SMALLEST, LARGEST, QUICK = 8 << 10, 1 << 30, 1 << 27  # bytes of all working sets together
PASS = 1 << 22  # bytes that a thread reads at least between two looks at the clock
TASKS = 256  # iterations of the loop whose launch is measured: some 50 us of work
LOOPS = 9  # parallel loops one after another in the kernel that measures the barrier
LEAST = 1e-8  # seconds; a figure that load of the machine made smaller
DEGREES = (2, 4, 8, 16, 32, 64)  # of polynomials, one of which takes as long as memory
Step = Callable[[Machine], Machine]
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x,
    "div": lambda x: 1 / x,
    "sqrt": td.sqrt,
    "exp": td.exp,
    "log": td.log,
    "pow": lambda x: x**0.7,
    "sin": td.sin,
    "tanh": td.tanh,
}


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
    """Measures the figures one by one, each for `seconds`, in working sets of up to `largest` bytes."""

    def __init__(self, seconds: float, largest: int) -> None:
        self.seconds = seconds
        self.machine = replace(describe(host()), threads=num_threads())
        self.largest = min(largest, (free_memory() or OF_MEMORY * largest) // OF_MEMORY)
        self.kernels: MemoryKernels | None = None

    def steps(self) -> Iterator[tuple[str, Step]]:
        """Every measurement: its name, and what adds its figures to a machine model."""
        counts = _counts(self.machine.threads)
        for threads in counts:
            yield f"memory, {threads} threads", partial(self.with_levels, threads=threads)
        yield "non-temporal stores", self.with_crossing
        for dtype in (td.f32, td.f64, td.i32, td.i64):
            for unit, lanes in (("scalar", 1), ("vector", self.machine.vector_bytes // dtype.bytes)):
                yield f"{unit} products of {dtype}", partial(_with_rate, partial(self.products, dtype, lanes))
        for unit in FUNCTIONS:
            for dtype in (td.f32, td.f64):
                yield f"{unit} of {dtype}", partial(_with_rate, partial(self.function, unit, dtype))
        for dot in DOTS:
            if dot.feature in self.machine.features:
                yield dot.name, partial(_with_rate, partial(self.narrow_products, dot))
        yield "gathers", self.with_gathers
        for threads in counts[1:]:
            yield f"parallel loops, {threads} threads", partial(self.with_launch, threads=threads)
        yield "pages", self.with_pages
        yield "overlap of memory and arithmetic", self.with_overlap
        yield "messages between two ranks", lambda m: replace(m, links=self.links())

    def describe(self, tell: Callable[[str, int, int], None]) -> Description:
        """Measure all figures; `tell` is called with a name, its number and how many there are."""
        machine, steps = self.machine, list(self.steps())
        for number, (name, step) in enumerate(steps):
            tell(name, number, len(steps))
            machine = step(machine)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return Description(machine, host().cpu, now)

    def with_levels(self, machine: Machine, threads: int) -> Machine:
        """The machine with the capacities of its levels and their bandwidths for a number of threads."""
        if self.kernels is None:
            self.kernels = MemoryKernels(machine.threads, self.largest // machine.threads)
            self.kernels.touch(0, self.largest // machine.threads)
        curve, size = [], float(SMALLEST)
        while size * threads <= self.largest and size <= self.largest // machine.threads:
            step = int(size) // 1024 * 1024
            curve.append((step, threads * step / self.memory_seconds("read", step, threads)))
            size *= math.sqrt(2)
        figures = level_figures(curve, machine.caches, threads)
        levels = {x.name: x for x in machine.levels}
        nearer = 0
        for level, figure in zip((*machine.caches, machine.levels[-1]), figures, strict=True):
            size = self._inside(level, figure, nearer, threads)
            levels[level.name] = self.with_level(level, figure, int(size), threads)
            nearer = figure.effective or level.bytes or 0
        return replace(machine, levels=tuple(levels.values()))

    def _inside(self, level: MemoryLevel, figure: LevelFigures, nearer: int, threads: int) -> float:
        """The bytes for each thread of a working set that fits into a level, and into no nearer one."""
        if level.bytes is None:
            return self.largest // self.machine.threads
        return max(
            (figure.effective or level.bytes) // min(threads, level.shared_by) / 2, math.sqrt(2) * nearer
        )

    def with_level(self, level: MemoryLevel, figure: LevelFigures, size: int, threads: int) -> MemoryLevel:
        """The level with its figures for a number of threads; working sets have `size` bytes for each."""
        size = min(size, self.largest // self.machine.threads)

        def speed(name: str) -> tuple[int, float]:
            return threads, rounded(threads * size / self.memory_seconds(name, size, threads))

        non_temporal = (speed("write_non_temporal"),) if level.bytes is None else ()
        effective = () if figure.effective is None else ((threads, figure.effective),)
        return replace(
            level,
            bandwidth=(*level.bandwidth, (threads, rounded(figure.bandwidth))),
            effective=(*level.effective, *effective),
            write_bandwidth=(*level.write_bandwidth, speed("write")),
            non_temporal_bandwidth=(*level.non_temporal_bandwidth, *non_temporal),
        )

    def memory_seconds(self, name: str, size: int, threads: int) -> float:
        """The seconds of the fastest pass of a memory kernel over `size` bytes for each thread."""
        assert self.kernels is not None
        repeat, best, end = max(PASS // size, 1), math.inf, time.perf_counter() + self.seconds / 4
        while True:
            best = min(best, self.kernels.seconds(name, size, repeat=repeat, threads=threads))
            if time.perf_counter() >= end:
                return best / repeat

    def with_crossing(self, machine: Machine) -> Machine:
        """The machine with the size of results from which on non-temporal stores are faster."""
        return replace(machine, non_temporal_from=self.crossing(machine))

    def crossing(self, machine: Machine) -> float:
        """The bytes of a copy from which on non-temporal stores are faster; infinity if they never are."""
        threads, least = machine.threads, math.inf
        size = self.largest // threads
        while size * threads > machine.llc_bytes // 4:
            ordinary, streamed = (
                self.memory_seconds(name, size, threads) for name in ("copy", "copy_non_temporal")
            )
            if streamed > FASTER * ordinary:
                break
            least = size * threads // 2
            size //= 2
        return max(least, machine.llc_bytes // 2)  # what follows reads a small result from the cache

    def products(self, dtype: td.DType, lanes: int) -> Rate:
        """The multiplications and additions per second on a tile of accumulators in registers."""
        rows, vectors = ROWS, 4 if lanes > 1 and self.machine.registers >= 32 else 2
        unit = "vector" if lanes > 1 else "scalar"
        per_second = 2 * rows * vectors * lanes / self.product_seconds(dtype, lanes, rows, vectors)
        if dtype.is_float:  # of a vector also for scalars: a single sum of scalars is reordered into vectors
            latency = self.product_seconds(dtype, self.machine.vector_bytes // dtype.bytes, 1, 1)
        else:  # only the addition waits
            latency = self.value_seconds(FUNCTIONS["add"], dtype, lanes, lanes)
        return Rate(unit, str(dtype), rounded(per_second), rounded(latency))

    def product_seconds(self, dtype: td.DType, lanes: int, rows: int, vectors: int) -> float:
        """The seconds in which a product is added to each of `rows` times `vectors` accumulators."""
        width = vectors * lanes
        depth = max(self.machine.l1_share // 2 // ((rows + width) * dtype.bytes), 1)
        repeat = max((1 << 21) // (depth * rows * vectors), 1)
        t, i, j, k = td.vars("t i j k")
        again = td.range("again", 0, repeat)
        a, b = td.Tensor("a", (depth, rows), dtype), td.Tensor("b", (depth, width), dtype)
        c = td.Func("c", shape=(1, rows, width))
        c[t, i, j] = td.sum(a[k, i] * b[k, j], axis=(again, k))
        with _threads(1):
            kernel = _compiled(c, t, (again, k), i, j, lanes=lanes)
            arrays = [np.ones(shape, dtype.numpy) for shape in ((depth, rows), (depth, width))]
            return self.time(kernel, *arrays) / (repeat * depth)

    def narrow_products(self, dot: Dot) -> Rate:
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
        with _threads(1):
            per_second = 2 * SIDE**3 / self.time(td.compile(s), *arrays)
        return Rate(dot.name, str(dot.total), rounded(per_second))

    def function(self, unit: str, dtype: td.DType) -> Rate:
        """The values per second of a function of vectors, for an array in the nearest cache."""
        lanes = self.machine.vector_bytes // dtype.bytes
        per_second = 8 * lanes / self.value_seconds(FUNCTIONS[unit], dtype, 8 * lanes, lanes)
        one = self.value_seconds(FUNCTIONS[unit], dtype, lanes, lanes) if unit == "add" else None
        latency = None if one is None else rounded(one)
        return Rate(unit, str(dtype), rounded(per_second), latency)

    def value_seconds(self, function: Callable[[Any], Any], dtype: td.DType, width: int, lanes: int) -> float:
        """The seconds in which values of a function are added to `width` sums, in vectors of `lanes`."""
        depth = max(self.machine.l1_share // 2 // (dtype.bytes * width), 1)
        repeat = max((1 << 20) // (depth * width), 1)
        t, j, k = td.vars("t j k")
        again = td.range("again", 0, repeat)
        a, total = td.Tensor("a", (depth, width), dtype), td.Func("total", shape=(1, width))
        total[t, j] = td.sum(function(a[k, j]), axis=(again, k))
        with _threads(1):
            kernel = _compiled(total, t, (again, k), j, lanes=lanes)
            array = np.linspace(0.5, 1.5, depth * width, dtype=dtype.numpy).reshape(depth, width)
            return self.time(kernel, array) / (repeat * depth)

    def with_gathers(self, machine: Machine) -> Machine:
        """The machine with the elements that are gathered per second."""
        return replace(machine, gathers=rounded(self.gathers()))

    def gathers(self) -> float:
        """The elements per second that one thread reads at indices that are data, from the nearest cache."""
        lanes = self.machine.vector_bytes // 4
        width, depth, repeat = 4 * lanes, 1024 // lanes, 256
        t, j, k = td.vars("t j k")
        again = td.range("again", 0, repeat)
        table, index = td.Tensor("table", (256,), td.f32), td.Tensor("index", (depth, width), td.u8)
        total = td.Func("total", shape=(1, width))
        total[t, j] = td.sum(table[index[k, j]], axis=(again, k))
        with _threads(1):
            kernel = _compiled(total, t, (again, k), j, lanes=lanes)
            indices = np.random.default_rng(0).integers(0, 256, (depth, width), dtype=np.uint8)
            return repeat * depth * width / self.time(kernel, np.ones(256, np.float32), indices)

    def with_launch(self, machine: Machine, threads: int) -> Machine:
        """The machine with what a parallel loop takes beyond its even share of the work."""
        with _threads(threads):
            alone = self.loop_seconds(1, parallel=False) / threads
            first = self.loop_seconds(1)
            following = (self.loop_seconds(LOOPS) - first) / (LOOPS - 1)
        launch = (threads, rounded(max(first - alone, LEAST)))
        barrier = (threads, rounded(max(following - alone, LEAST)))
        return replace(machine, launch=(*machine.launch, launch), barrier=(*machine.barrier, barrier))

    def loop_seconds(self, count: int, *, parallel: bool = True) -> float:
        """The median time of a kernel of `count` loops, one after another."""
        t, i = td.vars("t i")
        source: td.Tensor | td.Func = td.Tensor("a", (TASKS, 1024), td.f32)
        loops = []
        for n in range(count):
            f = td.Func(f"f{n}")
            f[t, i] = td.exp(-source[t, i])
            loops.append(f)
            source = f
        s = td.Schedule(loops[-1])
        for f in loops:
            s[f].compute_root().vectorize(i, self.machine.vector_bytes // 4)
            if parallel:
                s[f].parallel(t)
        return self.time(td.compile(s), np.zeros((TASKS, 1024), np.float32), of=statistics.median)

    def with_pages(self, machine: Machine) -> Machine:
        """The machine with what an access to another page takes, and the first access to a page."""
        return replace(machine, page=self.page(machine), first_touch=rounded(self.first_touch()))

    def page(self, machine: Machine) -> float:
        """The seconds that one thread takes for a line on another page beyond those of its bytes."""
        lanes, rows = machine.vector_bytes // 4, self.largest // 4 // PAGE_BYTES
        t, j, k = td.vars("t j k")
        a, total = td.Tensor("a", (rows, PAGE_BYTES // 4), td.f32), td.Func("total", shape=(1, lanes))
        total[t, j] = td.sum(a[k, j], axis=k)
        with _threads(1):
            kernel = _compiled(total, t, (k,), j, lanes=lanes)
            seconds = self.time(kernel, np.ones((rows, PAGE_BYTES // 4), np.float32)) / rows
        memory = machine.levels[-1]
        return rounded(max(seconds - memory.line / (memory.bytes_per_second(1) or math.inf), 1e-11))

    def first_touch(self) -> float:
        """The seconds of the first access to a page of memory that the system has yet to provide."""
        size, new, filled = self.largest // 8, math.inf, math.inf
        for _ in range(3):
            start = time.perf_counter()
            array = np.empty(size, np.uint8)
            array.fill(0)
            once = time.perf_counter()
            array.fill(0)
            new, filled = min(new, once - start), min(filled, time.perf_counter() - once)
            del array  # the next one is on new pages
        return max(new - filled, LEAST) / (size // PAGE_BYTES)

    def with_overlap(self, machine: Machine) -> Machine:
        """The machine with the part of the time of memory that overlaps with arithmetic."""
        return replace(machine, hidden=self.hidden())

    def hidden(self) -> float:
        """The part of the time of memory that overlaps with as long arithmetic."""
        in_memory = self.polynomial_seconds(0, self.largest // 4)
        in_cache = {n: self.polynomial_seconds(n, SMALLEST) for n in DEGREES}
        degree = min(in_cache, key=lambda n: abs(math.log(in_cache[n] / in_memory)))
        both = self.polynomial_seconds(degree, self.largest // 4)
        exposed = (both - max(in_cache[degree], in_memory)) / min(in_cache[degree], in_memory)
        return round(min(max(1 - exposed, 0.0), 1.0), 1)

    def polynomial_seconds(self, degree: int, size: int) -> float:
        """The seconds of one thread for a value of a polynomial, of an array of `size` bytes."""
        lanes = self.machine.vector_bytes // 4
        width = 8 * lanes
        depth = size // (4 * width)
        repeat = max(PASS // size, 1)
        t, j, k = td.vars("t j k")
        again = td.range("again", 0, repeat)
        a, total = td.Tensor("a", (depth, width), td.f32), td.Func("total", shape=(1, width))
        value = a[k, j]
        for _ in range(degree):
            value = value * a[k, j] + 0.5
        total[t, j] = td.sum(value, axis=(again, k))
        with _threads(1):
            kernel = _compiled(total, t, (again, k), j, lanes=lanes)
            seconds = self.time(kernel, np.full((depth, width), 0.5, np.float32))
        return seconds / (repeat * depth * width)

    def links(self) -> tuple[MemoryLevel, ...]:
        """The link between two ranks on this machine; none without MPI."""
        try:
            run = command(2, "-m", ["tdsl.distribute.pingpong", str(self.seconds)])
            done = subprocess.run(run, capture_output=True, text=True, timeout=MPI_S, check=True)
        except (TargetError, OSError, subprocess.SubprocessError):
            return ()
        latency, bandwidth = json.loads(done.stdout)
        link = MemoryLevel(
            "network",
            None,
            managed=True,
            bandwidth=((1, rounded(bandwidth)),),
            latency=rounded(latency),
        )
        return (link,)

    def time(self, kernel: td.Compiled, *arrays: Any, of: Callable[[list[float]], float] = min) -> float:
        """The seconds of the fastest call of a kernel, or another figure `of` all, in `self.seconds`."""
        out, times, end = kernel(*arrays), list[float](), time.perf_counter() + self.seconds
        while True:
            start = time.perf_counter()
            kernel(*arrays, out=out)
            now = time.perf_counter()
            times.append(now - start)
            if now >= end:
                return of(times)


def _with_rate(rate: Callable[[], Rate], machine: Machine) -> Machine:
    return replace(machine, rates=(*machine.rates, rate()))


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


def measure(*, quick: bool = False, tell: Callable[[str, int, int], None] = lambda *_: None) -> Description:
    """Measure this machine: takes about a minute, `quick` a few seconds, with larger errors.

    `tell` is called with the name of each measurement, its number, and how many there are. The number of
    threads of kernels changes meanwhile.
    """
    with _built_in():
        return Measurement(0.02 if quick else 0.4, QUICK if quick else LARGEST).describe(tell)
