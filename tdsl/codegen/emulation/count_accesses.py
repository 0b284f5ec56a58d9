"""Counts the memory transactions of GPU kernels: evaluates the indices of every access for all threads.

Runs the loops as `run.py` does, but computes only what indices, conditions and trip counts depend on, and
checks nothing. With a sample of blocks and of iterations of serial loops, the counts of a large launch are
estimated from these: each is weighted by the number of blocks and iterations that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tdsl.codegen.emulation.counted_batch import CountedBatch, Tally, sample
from tdsl.codegen.emulation.counted_buffer import CountedBuffer
from tdsl.codegen.emulation.memory import Array, LockstepThreads, constants
from tdsl.codegen.emulation.memory_counts import GLOBAL, AccessCount, KernelSample, MemoryCounts, Site
from tdsl.codegen.emulation.run import MOST_THREADS, EmulatedExecutable
from tdsl.codegen.gpu.launches import Launch, Launches
from tdsl.codegen.ir.loops import (
    BLOCKS,
    BufferParam,
    Check,
    CopyTile,
    Kernel,
    Let,
    Print,
    ScalarParam,
    Shuffle,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.statements import exprs_of, stored_in, walk
from tdsl.core.node import post_order
from tdsl.core.source import Loc
from tdsl.lang.expr import Expr, Load, Var


class CountingExecutable(EmulatedExecutable):
    """A kernel of a GPU as a callable that appends its transactions to `counts`, and writes no results.

    `blocks` of each launch, and `iterations` of each serial loop, are run; None for all of them. `places` has
    the locations of funcs in the user's source.
    """

    def __init__(
        self, kernel: Kernel, arch: str, places: Mapping[str, Loc | None], counts: list[MemoryCounts],
        blocks: int | None, iterations: int | None,
    ) -> None:  # fmt: skip
        super().__init__(kernel, arch)
        self.places, self.counts, self.blocks, self.iterations = places, counts, blocks, iterations

    def run(self, arguments: Sequence[Any]) -> None:
        """Count the transactions of a call with arrays, scalars and sizes."""
        launches, values = self.bound(arguments)
        self.counts.append(_count_accesses(launches, values, self.blocks, self.iterations, self.places))


def _count_accesses(
    launches: Launches, arguments: Sequence[Any], blocks: int | None, iterations: int | None,
    places: Mapping[str, Loc | None],
) -> MemoryCounts:  # fmt: skip
    """The transactions of all launches, called with arguments in the order of the kernel's parameters."""
    needed = _index_sources(x.body for x in launches.launches)
    buffers: dict[str, CountedBuffer] = {}
    scalars: dict[str, Array] = {}
    for p, value in zip(launches.kernel.params, arguments, strict=True):
        if isinstance(p, BufferParam):
            buffers[p.name] = CountedBuffer(p.name, GLOBAL, value.shape, value.itemsize)
            if p.name in needed:
                data = np.array(value) if p.written else np.ascontiguousarray(value)
                buffers[p.name].data = data.reshape(1, -1)
        elif isinstance(p, ScalarParam):
            scalars[p.name] = np.asarray(value, p.dtype.numpy).reshape(1, 1)
    for t in launches.temporaries:
        buffers[t.name] = CountedBuffer(t.name, GLOBAL, constants(t.extents), t.dtype.bytes)
        if t.name in needed:
            buffers[t.name].data = np.zeros((1, prod(constants(t.extents))), t.dtype.numpy)
    accesses: list[AccessCount] = []
    samples: list[KernelSample] = []
    for launch in launches.launches:
        tallies: dict[Site, Tally] = {}
        counted, total = _count_launch(launch, buffers, scalars, needed, blocks, iterations, tallies)
        of_kernel = next((places[x] for x in sorted(stored_in(launch.body)) if x in places), None)
        for site, x in ((site, x) for site, x in tallies.items() if x.requests):
            sums = (x.requests, x.sectors, x.fetched, x.useful, x.wavefronts, x.least)
            accesses.append(
                AccessCount(launch.name, site, places.get(site.stage, of_kernel), *map(round, sums))
            )
        samples.append(KernelSample(launch.name, counted, total))
    return MemoryCounts(launches.kernel.name, tuple(samples), tuple(accesses))


def _count_launch(
    launch: Launch, buffers: dict[str, CountedBuffer], scalars: dict[str, Array], needed: frozenset[str],
    most: int | None, iterations: int | None, tallies: dict[Site, Tally],
) -> tuple[int, int]:  # fmt: skip
    """Adds up the accesses of a launch; returns the number of blocks that were run, and of all."""
    threads, total = prod(launch.block), prod(map(launch.extent, BLOCKS))
    clusters = sample(total // launch.cluster, most if most is None else -(-most // launch.cluster))
    chosen = (np.asarray(clusters, np.int64)[:, None] * launch.cluster + np.arange(launch.cluster)).ravel()
    step = max(1, MOST_THREADS // (threads * launch.cluster)) * launch.cluster
    epochs = np.zeros(total, np.int64)
    for first in range(0, len(chosen), step):
        some = chosen[first : first + step]
        block, number = np.repeat(some, threads), np.tile(np.arange(threads), len(some))
        team = LockstepThreads.of_threads(launch.name, block, number, epochs, launch.block[0], threads)
        with np.errstate(all="ignore"):
            CountedBatch(
                launch, team, 0, {}, dict(scalars), (), buffers=dict(buffers), needed=needed,
                iterations=iterations, weight=total / len(chosen), tallies=tallies,
            ).run()  # fmt: skip
    return len(chosen), total


def _names(*exprs: Expr | None) -> set[str]:
    """The buffers and variables that expressions use."""
    order = post_order(*(e for e in exprs if e is not None))
    return {n.name if isinstance(n, Var) else n.buffer for n in order if isinstance(n, Var | Load)}


def _index_sources(bodies: Iterable[Stmt]) -> frozenset[str]:
    """The buffers and variables whose values indices, conditions or trip counts depend on."""
    needed: set[str] = set()
    sources: dict[str, set[str]] = {}
    for s in (s for body in bodies for s in walk(body)):
        match s:
            case Store(buffer, index, value, mask):
                sources.setdefault(buffer, set()).update(_names(value))
                needed |= _names(*index, mask)
            case Shuffle(buffer, value):
                sources.setdefault(buffer, set()).update(_names(value))
            case Let(name, value):
                sources.setdefault(name, set()).update(_names(value))
            case CopyTile(buffer, index, source, start):
                sources.setdefault(buffer, set()).add(source)
                needed |= _names(*index, *start)
            case Check() | Print():
                pass
            case _:
                needed |= _names(*exprs_of(s))
        loads = (n for n in post_order(*exprs_of(s)) if isinstance(n, Load))
        needed |= {name for n in loads for name in _names(*n.index, n.mask)}
    stack = list(needed)
    while stack:
        new = sources.get(stack.pop(), set()) - needed
        needed |= new
        stack += new
    return frozenset(needed)
