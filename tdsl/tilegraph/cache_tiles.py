"""Sizes of tiles for the caches, for a register tile: a lattice of sizes is priced at once, in closed form.

The loops are those over tiles, then those in a tile, then the register tile. A cache holds what the body of a
loop touches if that fits; each array then comes in once for every iteration of the loops around, except of
those right outside in which it stays the same (Li et al., "Analytical characterization and design space
exploration for optimization of CNNs", ASPLOS 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product
from math import gcd, prod
from typing import Any

import numpy as np

from tdsl.autoschedule.problem import Access, Problem
from tdsl.cost.seconds import bytes_per_second, launch_seconds
from tdsl.cost.terms import WARM
from tdsl.machine.model import PAGE_BYTES, Machine
from tdsl.tilegraph.kernels import NO_LIMITS, Kernel, Limits, Rates, kernels
from tdsl.tilegraph.tree import LANES, THREADS, UNROLL, Copy, Cut, Tree

LINE = 64  # bytes
FULL = 0.75  # of a cache that tiles may fill
MOST = 384  # sizes in a lattice
FOLLOWED = 2  # register tiles for which all orders of loops are tried
STEPS = (1, 2, 4, 8, 16, 32, 64)  # register tiles in a tile
FEW = (1, 4, 16)  # the same where the lattice would be too large
WHOLE = 32  # an axis that is no longer has no tiles
LASTS = 3  # axes tried as the innermost one over tiles
LAUNCHES = 4  # launches' time of work, from which threads pay

Sizes = dict[str, Any]  # of each axis: a number, or one for each point of the lattice


@dataclass(frozen=True)
class Order:
    """The loops over tiles by axis, the first shared by threads, and those in a tile, outermost first."""

    outer: tuple[str, ...]
    inner: tuple[str, ...]
    parallel: bool


def best_trees(op: Problem, machine: Machine, limits: Limits = NO_LIMITS) -> list[tuple[float, Tree]]:
    """The best tree for each of the best register tiles, with its predicted seconds, the best first."""
    by_kernel = []
    for kernel in kernels(op, machine, limits):
        orders = list(_orders(op, kernel, machine, limits))
        if orders:
            seconds, tree = _best(op, kernel, orders[0], machine, limits)
            by_kernel.append((seconds, tree, kernel, orders[1:]))
    by_kernel.sort(key=lambda x: x[0])
    priced = [(seconds, tree) for seconds, tree, *_ in by_kernel]
    for n, (_, _, kernel, orders) in enumerate(by_kernel[:FOLLOWED]):
        others = [_best(op, kernel, order, machine, limits) for order in orders]
        priced[n] = min([priced[n], *others], key=lambda x: x[0])
    return sorted(priced, key=lambda x: x[0])


def _orders(op: Problem, kernel: Kernel, machine: Machine, limits: Limits) -> Iterator[Order]:
    free, summed = [a.name for a in op.free], [a.name for a in op.summed]
    if kernel.lane in summed:
        summed = [*(v for v in summed if v != kernel.lane), kernel.lane]
    inner = (*free, *summed) if kernel.sums_inside else (*summed, *free)
    work = op.points * op.terms * kernel.seconds
    parallel = machine.threads > 1 and work > LAUNCHES * launch_seconds(machine)
    several = [a.name for a in op.axes if a.extent > 1] or [a.name for a in op.axes]
    if limits.ordered:
        yield from _orders_by_hand(op, kernel, tuple(v for v in inner if v in several), limits)
        return
    firsts = [v for v in free if v in several and v not in limits.whole][:2] if parallel else []
    lasts = sorted(several, key=lambda v: -op.axis(v).extent)[:LASTS]
    for first, last in product(firsts or [""], lasts):
        if first == last and len(several) > 1:
            continue
        rest = [v for v in several if v not in (first, last)]
        outer = tuple(v for v in (first, *rest, *([last] if last != first else [])) if v)
        yield Order(outer, tuple(v for v in inner if v in several), bool(firsts))


def _orders_by_hand(op: Problem, kernel: Kernel, inner: tuple[str, ...], limits: Limits) -> Iterator[Order]:
    """Orders with the loops of some axes as directives say, which have no loops over tiles."""
    summed = {a.name for a in op.summed}
    for loops in permutations(inner):
        sums = [v in summed for v in loops]
        inside = sums == sorted(sums) and (kernel.lane not in summed or loops[-1] == kernel.lane)
        if limits.keep(loops) and inside == (kernel.sums_inside or not summed):
            yield Order(loops, loops, parallel=False)


def _best(
    op: Problem, kernel: Kernel, order: Order, machine: Machine, limits: Limits
) -> tuple[float, Tree]:  # fmt: skip
    """The fastest sizes of tiles for an order of loops."""
    sizes = _lattice(op, kernel, order, machine.threads, limits)
    seconds = _seconds(op, kernel, order, sizes, machine)
    at = int(np.argmin(seconds))
    return float(seconds[at]), _tree(op, kernel, order, {v: int(n[at]) for v, n in sizes.items()})


def _lattice(op: Problem, kernel: Kernel, order: Order, threads: int, limits: Limits) -> Sizes:
    """Sizes of tiles: register tiles times powers of two, the whole axis, or a share of a short outer one."""
    whole = limits.whole | {v for pair in limits.ordered for v in pair}
    in_registers = kernel.sums_inside and not op.axis(kernel.lane).summed  # sums are complete in a tile

    def sizes(steps: Sequence[int]) -> list[list[int]]:
        each = [
            [a.extent]
            if (a.summed and in_registers) or a.name in whole
            else _sizes(a.extent, kernel.size(a.name), steps)
            for a in op.axes
        ]
        first = [a.name for a in op.axes].index(order.outer[0])
        if order.parallel and len(each[first]) == 1:
            extent = op.axes[first].extent
            each[first] = sorted(
                {min(max(-(-extent // threads), kernel.size(order.outer[0])), extent), extent}
            )
        return each

    lattices = (sizes(steps) for steps in (STEPS, FEW, (4,), ()))
    each = next(x for x in lattices if prod(map(len, x)) <= MOST or not any(len(n) > 1 for n in x))
    grid = np.meshgrid(*each, indexing="ij")
    return {a.name: g.reshape(-1).astype(float) for a, g in zip(op.axes, grid, strict=True)}


def _sizes(extent: int, tile: int, steps: Sequence[int]) -> list[int]:
    if extent <= WHOLE:
        return [extent]
    unit = tile if tile > 1 else 4
    return sorted({n for k in steps if (n := unit * k) < extent} | {extent})


def _seconds(op: Problem, kernel: Kernel, order: Order, tiles: Sizes, machine: Machine) -> Any:
    """The seconds for each point of the lattice."""
    extents: Sizes = {a.name: float(a.extent) for a in op.axes}
    trips = {v: np.ceil(extents[v] / tiles[v]) for v in tiles}
    loops = [(v, trips[v]) for v in order.outer]
    loops += [(v, np.ceil(tiles[v] / kernel.size(v))) for v in order.inner]
    boxes = [extents]
    for n, (v, _) in enumerate(loops):
        inside = tiles[v] if n < len(order.outer) else np.minimum(kernel.size(v), tiles[v])
        boxes.append(boxes[-1] | {v: inside})
    workers: Any = 1.0
    threads = machine.threads if order.parallel else 1
    if order.parallel:
        n = trips[order.outer[0]]
        workers = n / np.ceil(n / threads)
    copying = sum(_copying(x, op, kernel, order, tiles, trips, machine) for x in kernel.copied)
    zero = np.zeros_like(next(iter(tiles.values())))
    slowest, far = zero + (op.points * op.terms * kernel.seconds + copying) / workers, zero
    bodies = [_body(op, kernel, loops, boxes, n, len(order.outer)) for n in range(len(boxes))]
    size = sum(prod(x.shape) * x.size for x in op.accesses)
    for cache, behind in pairwise(x for x in machine.levels if not x.managed or x is machine.levels[-1]):
        capacity = float(machine.capacity(cache) or 0)
        is_last = cache is machine.caches[-1]
        if is_last and size <= WARM * capacity:
            continue
        moved: Any = bodies[-1].moved
        for body in reversed(bodies):
            fits = body.room <= FULL * capacity / cache.shared_by
            moved = np.where(fits, body.moved + (body.runs if is_last else 0.0), moved)
        alone, together = (bytes_per_second(behind, machine, n) for n in (1, threads))
        time = moved / (alone + (together - alone) * (workers - 1) / max(threads - 1, 1))
        slowest, far = (slowest, time) if is_last else (np.maximum(slowest, time), far)
    return slowest + far


@dataclass(frozen=True)
class Body:
    """The body of a loop: the `room` in a cache of all that it touches, and the bytes that move if that fits.

    `runs` are the bytes of a line for each contiguous run, which memory takes to begin with it.
    """

    room: Any
    moved: Any
    runs: Any


def _body(
    op: Problem, kernel: Kernel, loops: list[tuple[str, Any]], boxes: list[Sizes], n: int, tiles: int
) -> Body:
    """What is inside the first n loops, of which some are over tiles."""
    room: Any = 0.0
    moved: Any = 0.0
    runs: Any = 0.0
    for x in op.accesses:
        copied = n > tiles and x in kernel.copied
        rows, lines, blocked = _lines(x, boxes[n], copied)
        foot = rows * lines * LINE
        room = room + np.maximum(foot, blocked)
        times = 2 if x.written else 1
        around = _around(x, loops[:n]) * times
        moved, runs = moved + around * foot, runs + around * (0.0 if copied else rows * LINE)
        if copied:  # the copy itself, and what it is copied from
            rows, lines, _ = _lines(x, boxes[tiles], False)
            around = _around(x, loops[:tiles])
            moved, runs = moved + around * rows * lines * LINE, runs + around * rows * LINE
    return Body(room, moved, runs)


def _around(x: Access, loops: Sequence[tuple[str, Any]]) -> Any:
    """How often an array comes in: once for all iterations of the innermost loops in which it is the same."""
    around, same = 1.0, True
    for v, count in reversed(loops):
        if not (same and not x.uses(v)):
            same, around = False, around * count
    return around


def _extents(x: Access, box: Sizes) -> list[Any]:
    """The elements of a box along each dimension of an array."""
    return [
        np.minimum(1 + sum(abs(c) * (box[v] - 1) for v, c in dim), length) if length else 1
        for dim, length in zip(x.dims, x.shape, strict=True)
    ]


def _elements(x: Access, box: Sizes) -> Any:
    return prod(_extents(x, box), start=1.0)


def _lines(x: Access, box: Sizes, copied: bool) -> tuple[Any, Any, Any]:
    """The contiguous runs of a box, the cache lines of each, and the bytes of a cache that these block.

    A cache has as many lines for a place in a page as pages fill it.
    """
    each = _extents(x, box)
    if copied or not each:
        return 1.0, np.ceil(_elements(x, box) * x.size / LINE), 0.0
    rows: Any = 1.0
    places: Any = 1.0
    run, whole, stride = each[-1], each[-1] >= x.shape[-1], x.size
    for n in reversed(range(len(each) - 1)):
        stride *= x.shape[n + 1]
        run, rows = np.where(whole, run * each[n], run), np.where(whole, rows, rows * each[n])
        places = np.where(whole, places, places * np.minimum(PAGE_BYTES // gcd(stride, PAGE_BYTES), each[n]))
        whole = whole & (each[n] >= x.shape[n])
    aligned = x.shape[-1] * x.size % LINE == 0
    lines = np.ceil(run * x.size / LINE) if aligned else run * x.size / LINE + 1 - 1 / LINE
    blocked = np.where(rows > 1, np.ceil(rows / np.minimum(places, PAGE_BYTES // LINE)) * PAGE_BYTES, 0.0)
    return rows, np.maximum(lines, 1), blocked


def _copying(
    x: Access, op: Problem, kernel: Kernel, order: Order, tiles: Sizes, trips: Sizes, machine: Machine
) -> Any:
    """The seconds to copy an array for all tiles: in squares that are transposed in registers, if it can."""
    around = _around(x, [(v, trips[v]) for v in order.outer])
    rates = Rates.of(op, machine)
    along = next((v for v, step in x.steps if abs(step) == 1), "")
    each: Any = 1.5
    if along:
        square = (tiles[along] >= kernel.lanes) & (tiles[kernel.lane] >= kernel.lanes)
        each = np.where(square, 4 / kernel.lanes, 1.5)
    return around * _elements(x, tiles) * each * rates.vector


def _tree(op: Problem, kernel: Kernel, order: Order, tiles: dict[str, int]) -> Tree:
    extents = {a.name: a.extent for a in op.axes}
    outer = [Cut(v, tiles[v]) for v in order.outer if tiles[v] < extents[v]]
    first = order.outer[0]
    if order.parallel and tiles[first] < extents[first]:
        outer[0] = Cut(first, tiles[first], THREADS)
    inner = [Cut(v, kernel.size(v)) for v in order.inner if tiles[v] > kernel.size(v)]
    registers = [Cut(kernel.row, kernel.rows, UNROLL)] if kernel.row and kernel.rows > 1 else []
    registers.append(Cut(kernel.lane, kernel.lanes * kernel.vectors, LANES, kernel.vectors))
    loops = [*order.inner, kernel.lane]
    copies = tuple(Copy(x.array, next(v for v in reversed(loops) if x.uses(v))) for x in kernel.copied)
    return Tree(op.func, tuple(outer), copies, tuple(inner), tuple(registers))
