"""The innermost tile of a definition: which axis is in vectors, which is unrolled, and the time of a point.

Each candidate is priced by the instructions of one iteration of its innermost loop: operations, loads and
stores overlap; sums that wait for the one before take their latency (Low et al., "Analytical modeling is
enough for high-performance BLIS", TOMS 2016, for the rows and vectors of a register tile).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from tdsl.autoschedule.problem import Access, Problem
from tdsl.cost.least import operation_seconds
from tdsl.cost.seconds import bytes_per_second
from tdsl.machine.model import PAGE_BYTES, Machine
from tdsl.schedule.properties import max_bytes

UNROLLED = (1, 2, 3, 4, 5, 6, 8)  # values of an axis in a register tile
VECTORS = (1, 2, 4)
MOST = 4  # kernels that are tiled for the caches
FEW = 2  # of those with sums in memory
IN_FLIGHT = 8  # sums that a core has in flight: 2 units with a latency of 4 cycles
ELSEWHERE = 3  # loads, that the first one of a page takes longer


@dataclass(frozen=True)
class Kernel:
    """A register tile: `lanes` elements of `lane` in each of `vectors`, times `rows` of `row` ("" for none).

    `copied` are reads that are copied for it. `sums_inside`: the sums are the innermost loops, in registers.
    `seconds` is the time of a point on one thread from the nearest cache, without copies.
    """

    lane: str
    lanes: int
    vectors: int
    row: str
    rows: int
    copied: tuple[Access, ...]
    sums_inside: bool
    seconds: float

    def size(self, axis: str) -> int:
        """The values of an axis in the tile."""
        return {self.lane: self.lanes * self.vectors, self.row: self.rows}.get(axis, 1)


@dataclass(frozen=True)
class Limits:
    """What directives say of the loops that a tree describes.

    `registers` are the values of an axis that loops by hand have in vectors or unrolled: `lanes` elements of
    `lane` in a vector. Axes that are `whole` have no loops over tiles. Of two axes in `ordered`, all loops
    over register tiles of the first are outside of those of the second.
    """

    registers: tuple[tuple[str, int], ...] = ()
    lane: str = ""
    lanes: int = 0
    whole: frozenset[str] = frozenset()
    ordered: tuple[tuple[str, str], ...] = ()

    def size(self, axis: str) -> int:
        """The values of an axis that loops by hand have in registers, 1 if there are none."""
        return dict(self.registers).get(axis, 1)

    def keep(self, loops: Sequence[str]) -> bool:
        """True if loops over axes, outermost first, are in the order that directives say."""
        at = {axis: n for n, axis in enumerate(loops)}
        return all(at[a] < at[b] for a, b in self.ordered if a in at and b in at)


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Rates:
    """Seconds of one thread: the operations of a point with the axes they need, an addition to a sum, a load.

    Operations and additions are in full vectors, by element; a load is of a vector from the nearest cache.
    """

    operations: tuple[tuple[frozenset[str], float], ...]
    addition: float
    vector: float

    @staticmethod
    def of(op: Problem, machine: Machine) -> Rates:
        """The rates for the operations and types of a definition."""
        vector = machine.vector_bytes / bytes_per_second(machine.caches[0], machine, 1)
        operations = tuple(operation_seconds(op.definition, machine))
        return Rates(operations, min((s for _, s in operations), default=0.0), vector)

    def seconds(self, sizes: Mapping[str, int]) -> float:
        """The time of the operations in a tile; a value that several of its points share is computed once."""
        return sum(s * prod(n for v, n in sizes.items() if v in needs) for needs, s in self.operations)


def kernels(op: Problem, machine: Machine, limits: Limits = NO_LIMITS) -> list[Kernel]:
    """The best register tiles of a definition, the best first, with different lanes and copies."""
    best: dict[object, Kernel] = {}
    rates = Rates.of(op, machine)
    for k in _candidates(op, machine, rates, limits):
        key = (k.lane, k.sums_inside, k.copied, k.row if not op.summed else "")
        if key not in best or k.seconds < best[key].seconds:
            best[key] = k
    ranked = sorted(best.values(), key=lambda k: k.seconds)
    return [*[k for k in ranked if k.sums_inside][:MOST], *[k for k in ranked if not k.sums_inside][:FEW]]


def _candidates(op: Problem, machine: Machine, rates: Rates, limits: Limits) -> Iterator[Kernel]:
    width = max(machine.vector_bytes // max_bytes(op.definition), 1)
    summed = {a.name for a in op.summed}
    once = any(all(x.uses(a.name) for a in op.axes) for x in op.reads)  # whose values no row uses again
    contiguous = {a.name for a in op.axes for x in op.accesses if abs(x.step(a.name)) == 1}
    for axis in op.axes:
        if limits.lane not in ("", axis.name) or (not limits.lane and limits.size(axis.name) > 1):
            continue
        lanes = limits.lanes or min(width, 1 << (axis.extent - 1).bit_length())
        if axis.name not in {*contiguous, limits.lane} or lanes < 2:
            continue
        of_lane = {n * max(limits.size(axis.name) // lanes, 1) for n in VECTORS}
        of_row = op.axes if once else op.free
        rows = ["", *(a.name for a in of_row if a.name != axis.name and a.extent > 1)]
        rows = [row for row in rows if _have_registers(op, limits, axis.name, row)]
        strided = tuple(x for x in op.reads if x.step(axis.name) not in (0, 1))
        inner = op.summed[-1].name if op.summed else ""
        paged = tuple(x for x in op.reads if x in strided or abs(x.step(inner)) * x.size >= PAGE_BYTES)
        for copied in dict.fromkeys(((), strided, paged)):
            for row, inside in product(rows, {True, not op.summed or axis.summed}):
                if inside and row in summed:
                    continue  # terms of the innermost loop are unrolled as it is
                least = limits.size(row)
                sizes = {*(least * n for n in UNROLLED[least == 1 :]), lanes} if row else {1}
                for r, vectors in product(sorted(x for x in sizes if x % least == 0), sorted(of_lane)):
                    extent = 1 if not row else op.axis(row).extent
                    if r > extent or vectors > max(-(-axis.extent // lanes), 1):
                        continue
                    seconds = _seconds(op, machine, rates, axis.name, lanes, vectors, row, r, copied, inside)
                    if seconds is not None:
                        yield Kernel(axis.name, lanes, vectors, row, r, copied, inside, seconds)


def _have_registers(op: Problem, limits: Limits, lane: str, row: str) -> bool:
    """True if free axes with values in registers by hand are the lane and the rows."""
    return all(limits.size(a.name) == 1 for a in op.free if a.name not in (lane, row))


def _seconds(
    op: Problem, machine: Machine, rates: Rates, lane: str, lanes: int, vectors: int, row: str, rows: int,
    copied: tuple[Access, ...], inside: bool,
) -> float | None:  # fmt: skip
    """The time of a point in a register tile; None where it does not fit the registers."""
    sums = bool(op.summed)
    width = max(machine.vector_bytes // max_bytes(op.definition), 1)
    accumulators = rows * vectors * -(-lanes // width) if sums and inside else 0
    if accumulators + vectors + 2 > machine.registers:
        return None
    terms = prod(a.extent for a in op.summed) if inside else 1
    inner = op.summed[-1].name if sums and inside else ""
    loads = stores = 0.0
    for x in op.reads:
        count = float(rows) if row and x.uses(row) else 1.0
        if inner and not x.uses(inner) and inner != lane:
            count /= op.axis(inner).extent
        loads += count * (
            _vectors(x, lane, lanes, vectors) if x not in copied else vectors if x.step(lane) else 0.5
        )
        if inner and x not in copied and abs(x.step(inner)) * x.size >= PAGE_BYTES:
            loads += count * ELSEWHERE
    square = not sums and rows == lanes and abs(op.write.step(row)) == 1 and op.write.step(lane) not in (0, 1)
    if square:
        stores += rows * vectors * 4  # shuffles, too
    elif not sums or not op.axis(lane).summed:
        written = (rows if op.write.uses(row) else 1) * _vectors(op.write, lane, lanes, vectors)
        stores += written / terms
        if sums and not inside:
            loads += written
    else:
        stores += rows * 2 * lanes.bit_length() * lanes / terms
    points = rows * vectors * lanes
    operations = rates.seconds({row: rows, lane: vectors * lanes})
    time = max(operations, rates.vector * (loads + stores / 2 if sums else max(loads, stores)))
    if sums and inside:
        time = max(time, IN_FLIGHT * lanes * rates.addition)
    extent = op.axis(lane).extent
    waste = -(-extent // lanes) * lanes / extent
    if row:
        n = op.axis(row).extent
        waste *= -(-n // rows) * rows / n
    return time / points * waste


def _vectors(x: Access, lane: str, lanes: int, vectors: int) -> float:
    """The loads or stores of an access in a register tile, in vectors."""
    match abs(x.step(lane)):
        case 0:
            return 0.5
        case 1:
            return vectors
        case _:
            return vectors * lanes
