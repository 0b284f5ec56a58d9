"""Accesses of a warp to memory, counted from the indices of a kernel's loops."""

from collections.abc import Iterator
from math import prod

import numpy as np

from tdsl.codegen.gpu.launches import Launch, launches_of
from tdsl.codegen.ir.loops import SHARED, THREADS, Alloc, For, Kernel, Stmt, Store
from tdsl.codegen.ir.statements import exprs_of, parts_of, walk
from tdsl.core.node import post_order
from tdsl.lang import arithmetic
from tdsl.lang.expr import Binary, Const, Expr, Load, Ramp, Select, Unary, Var

WARP, BANKS = 32, 32
Loops = tuple[For, ...]


def value(e: Expr, at: dict[str, int]) -> int:
    """An index where variables are numbers; of a vector that of its first lane."""
    match e:
        case Const(number):
            return int(number)
        case Var(name):
            return at[name]
        case Ramp(base):
            return value(base, at)
        case Binary(op, x, y):
            a, b = (np.int64(value(v, at)) for v in (x, y))
            return int(arithmetic.binary(op, a, b))
        case Unary("neg", x):
            return -value(x, at)
        case Select(cond, yes, no):
            return value(yes if value(cond, at) else no, at)
        case _:
            raise AssertionError(f"no plain index: {e}")


def accesses(s: Stmt, loops: Loops = ()) -> Iterator[tuple[str, str, tuple[Expr, ...], Loops]]:
    """Each access ("load" or "store"), its buffer and index, and the loops around it."""
    if isinstance(s, Store):
        yield "store", s.buffer, s.index, loops
    for n in post_order(*exprs_of(s)):
        if isinstance(n, Load):
            yield "load", n.buffer, n.index, loops
    inner = (*loops, s) if isinstance(s, For) else loops
    for part in parts_of(s):
        yield from accesses(part, inner)


def first_warp(loops: Loops, launch: Launch) -> list[dict[str, int]]:
    """The variables for each thread of the first warp, other loops being at their first iteration."""
    threads = []
    for lane in range(min(WARP, prod(launch.block))):
        x, y, _ = launch.block
        numbers = dict(zip(THREADS, (lane % x, lane // x % y, lane // x // y), strict=True))
        at: dict[str, int] = {}
        for loop in loops:
            at[loop.name] = value(loop.lo, at) + numbers.get(loop.kind, 0)
        threads.append(at)
    return threads


def conflicts(kernel: Kernel) -> list[int]:
    """For each access to shared memory the most words in one bank that a warp touches there: 1 is best.

    Accesses of 16 bytes are made by 8 threads at a time, of 8 bytes by 16.
    """
    ways = []
    for launch in launches_of(kernel).launches:
        shared = {s.name: s for s in walk(launch.body) if isinstance(s, Alloc) and s.scope == SHARED}
        for _, buffer, index, loops in accesses(launch.body):
            if buffer in shared:
                ways.append(_bank_conflicts(shared[buffer], index, first_warp(loops, launch)))
    return ways


def _bank_conflicts(memory: Alloc, index: tuple[Expr, ...], threads: list[dict[str, int]]) -> int:
    extents = [int(e.value) for e in memory.extents]
    size = memory.dtype.bytes
    lanes = max((e.lanes for e in index if isinstance(e, Ramp)), default=1)
    together = max(WARP * 4 // max(size * lanes, 4), 1)
    worst = 1
    for first in range(0, len(threads), together):
        words = set()
        for at in threads[first : first + together]:
            flat = 0
            for e, extent in zip(index, extents, strict=True):
                flat = flat * extent + value(e, at)
            words |= {(flat * size + n) // 4 for n in range(0, size * lanes, 4)}
        banks = [w % BANKS for w in words]
        worst = max(worst, max(banks.count(b) for b in set(banks)))
    return worst


def strides(kernel: Kernel, buffer: str) -> list[int]:
    """For each access to an argument how far two neighbouring threads of a warp are apart, in elements."""
    distances = []
    for launch in launches_of(kernel).launches:
        params = {p.name: p for p in launch.params}
        for _, name, index, loops in accesses(launch.body):
            if name == buffer:
                steps = [s or 0 for s in params[name].strides]
                first, second = first_warp(loops, launch)[:2]
                one, two = (
                    sum(value(e, at) * n for e, n in zip(index, steps, strict=True)) for at in (first, second)
                )
                distances.append(two - one)
    return distances
