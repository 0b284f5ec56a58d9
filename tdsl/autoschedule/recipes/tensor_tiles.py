"""Tiles of a product by tensor cores, chosen by their price on a machine.

Block and warp tiles are multiples of an instruction's shape. With them steps of terms, numbers of tiles in
shared memory, parts of the terms (split-K), clusters, and operands that are copied to aligned rows first are
searched as trees of tiles are, by steps to what is better. What exceeds the registers, shared memory or warps
of a multiprocessor is left out. The rest has a price:

    memory and rounds * (steps * step + latency and stores), which overlap, + launches

A step is bound by tensor cores, by shared memory, by what the L2 cache delivers, or by the latency of a
fetch. Blocks run in rounds on the multiprocessors.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import field, replace
from itertools import product
from math import inf, prod

from tdsl.autoschedule.block_tree.climb import Place, climb, lattice_moves
from tdsl.autoschedule.block_tree.memory import Grid, bytes_read, memory_seconds, merge_seconds
from tdsl.autoschedule.recipes.pipelining import COPIED
from tdsl.core.node import frozen
from tdsl.cost.sectors import SECTOR, WARP, WIDEST
from tdsl.machine.model import Machine, of_nearest
from tdsl.machine.occupancy import occupancy
from tdsl.schedule.launch import MAX_CLUSTER_BLOCKS
from tdsl.schedule.pipelines import LOADED_AHEAD_BYTES

_BURST = 64  # bytes that the memory delivers at least
_REST = 0.1  # of the time of each resource that is not hidden behind the busiest
_GROUP_THREADS = 128
_MMA_PART = 0.62  # of the rate of wgmma that mma.sync reaches: Luo et al., arXiv 2402.13499
_ASYNC, _MOVE = 4, 8  # instructions of an access, with its address: asynchronous, or through registers
_SHIFT = 60  # the same, of 16 bytes that begin anywhere: two loads, shifts, and tests of each element
_COMPUTE = 2  # instructions of an operation on an element, with conversions to f32 and back
_OVERLAP = 0.8  # of the time of the less busy unit that is hidden behind the busier one
_SYNC = 120  # clocks of a step for a barrier, and the first loads and products after it
_GROUP_SYNC = 40  # the same where a producer fetches tiles
_DEPTH = 4  # products that a scheduler has under way to hide their latency
_FIXED_REGISTERS = 32  # of a thread for addresses and counters
_FRAGMENTS = 1.25  # times the registers of the fragments of a step: some are loaded ahead
PHASE_BYTES = 1 << 10  # bytes of barriers in shared memory, at most
_ROW_BYTES = 128  # of terms of a tile, with which a swizzle has no conflicts
# of the terms: a number, or for so many blocks of each multiprocessor
_PARTS = ((1, 0), (2, 0), (4, 0), (8, 0), (0, 1), (0, 2), (0, 3), (0, 4))
_CLUSTER = 2  # blocks: of larger ones some multiprocessors have none


@frozen
class Unit:
    """A unit of tensor cores, of warps or of groups of 128 threads, and the tiles that compete by price.

    The tile of a warp or group has `rows` and `columns` times those of `step`, or for warps of the operands'
    instruction. A block has `counts` of these tiles down and across, `most` at most, and `width` columns.
    """

    name: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    counts: tuple[int, ...]
    most: int
    width: int
    step: tuple[int, int] = (16, 8)

    def default(self, size: int) -> TensorCoreChoices:
        """The largest tiles of groups, of elements of so many bytes."""
        warp = max(self.rows) * self.step[0], max(self.columns) * self.step[1]
        return TensorCoreChoices((128, self.width, _ROW_BYTES // size), warp, 4)


WARPS = Unit("mma", (1, 2, 3, 4), (1, 2, 4, 8), (1, 2, 4, 8), 8, 512)
GROUPS = (
    Unit("wgmma", (1,), (8, 6, 4, 3, 2, 1), (1, 2), 2, 256, (64, 32)),
    Unit("tcgen05", (1,), (4, 3, 2, 1), (1, 2), 2, 256, (128, 32)),
)


def group_unit(machine: Machine) -> Unit | None:
    """The unit of groups of 128 threads on a machine; None if only warps multiply.

    >>> from tdsl.machine.devices import describe_gpu
    >>> [u and u.name for u in map(group_unit, map(describe_gpu, ("sm_80", "sm_90a", "sm_100a")))]
    [None, 'wgmma', 'tcgen05']
    """
    return next((u for u in GROUPS if u.name in machine.features), None)


@frozen
class Side:
    """An operand: bytes of an element, and the most bytes of its rows that an aligned access has.

    If `turned`, its terms are in different rows. If `computed`, threads compute its tiles by `operations` for
    each element, of an array whose elements have `source_bytes`. If `packable`, its rows may be copied to
    aligned ones. If `boxed`, TMA can load its tiles, or what they are computed of. If `shifted`, threads load
    vectors of 16 bytes that begin anywhere.
    """

    bytes: int
    access: int
    turned: bool
    computed: bool = False
    packable: bool = False
    boxed: bool = False
    source_bytes: int = 0
    operations: int = 0
    shifted: bool = False

    @property
    def read_bytes(self) -> int:
        """The bytes of an element in memory."""
        return self.source_bytes or self.bytes

    @property
    def is_ahead(self) -> bool:
        """True if threads have vectors of a tile in registers while they multiply the tile before."""
        return self.computed or self.shifted

    def instructions(self, elements: float) -> float:
        """The instructions with which warps load, compute and store so many elements."""
        access = WIDEST if self.shifted else min(self.access, WIDEST)
        is_asynchronous = access >= COPIED and not self.is_ahead
        each = _SHIFT if self.shifted else _ASYNC if is_asynchronous else _MOVE
        each += _COMPUTE * self.operations * access // self.bytes
        return elements * self.bytes / (access * WARP) * each


@frozen
class Product:
    """A batched product of matrices: extents, operands, bytes of a sum and of a result; `dtype` of factors.

    The instruction of a warp has `steps` rows, columns and terms. If `groups`, wgmma takes the storage
    orders of the operands. Extents of an `open` product are assumed, as only a call tells them.
    """

    rows: int
    columns: int
    terms: int
    batches: int
    left: Side
    right: Side
    dtype: str
    sum_bytes: int
    result_bytes: int
    step: tuple[int, int, int]
    groups: bool = False
    open: bool = False


@frozen
class TensorCoreChoices:
    """The choices of `tensor_core_matmul`."""

    block: tuple[int, int, int] = (128, 128, 32)
    warp: tuple[int, int] = (64, 32)
    stages: int = 3
    tf32: bool = False
    warpgroups: bool = False
    factors: str = ""
    group: int = 1
    blocks: int = 0
    cluster: int = field(default=1, metadata={"among": range(1, MAX_CLUSTER_BLOCKS + 1)})
    parts: int = 1
    packed: tuple[bool, bool] = (False, False)

    @property
    def tiles(self) -> int:
        """The warps or groups of a block that multiply a tile each."""
        return self.block[0] // self.warp[0] * (self.block[1] // self.warp[1])

    @property
    def warps(self) -> int:
        """The warps of a block that multiply."""
        return 4 * self.tiles if self.warpgroups else self.tiles


@functools.lru_cache(1 << 8)
def best_tiles(p: Product, machine: Machine) -> tuple[TensorCoreChoices, ...]:
    """The cheapest tiles by wgmma and by mma.sync, with and without copies of operands, cheapest first.

    >>> import tdsl as td
    >>> side = Side(2, 16, False, boxed=True)
    >>> p = Product(4096, 4096, 4096, 1, side, side, "f16", 4, 2, (16, 8, 16), groups=True)
    >>> t = best_tiles(p, td.Target("cuda", arch="sm_90a").machine())[0]
    >>> t.block, t.warp, t.warpgroups, t.parts
    ((128, 256, 64), (64, 256), True, 1)
    """
    units = [WARPS, *([unit] if p.groups and (unit := group_unit(machine)) else [])]
    left, right = (
        (False, True) if x.packable and not p.open and (x.access < WIDEST or x.computed) else (False,)
        for x in (p.left, p.right)
    )
    best = (_cheapest(u, (a, b), p, machine) for u, a, b in product(units, left, right))
    in_order = sorted((x for x in best if x[0] < inf), key=lambda x: x[0])
    return tuple(_in_order(t, p, machine) for _, t in in_order)


def _cheapest(
    u: Unit, packed: tuple[bool, bool], p: Product, machine: Machine
) -> tuple[float, TensorCoreChoices]:
    """The lowest price that the search finds for a unit, and its tiles.

    It goes from small, middle and large tiles to better ones by a change of one number, then also of two.
    """
    group, size = u is not WARPS, max(p.left.bytes, p.right.bytes)
    wide = _ROW_BYTES * (2 if size == 8 else 1) // size
    axes: tuple[Sequence[int], ...] = (
        sorted(u.rows), sorted(u.columns), u.counts, u.counts, (wide,) if group else (wide // 2, wide),
        (2, 3, 4, 5), range(len(_PARTS)), (1, _CLUSTER) if group else (1,),
    )  # fmt: skip
    step, across = u.step if group else p.step[:2]

    def tiles(at: Place) -> TensorCoreChoices:
        r, c, down, right, terms, stages, parts, cluster = (n[x] for n, x in zip(axes, at, strict=True))
        warp = r * step, c * across
        block = down * warp[0], right * warp[1], terms
        t = TensorCoreChoices(block, warp, stages, warpgroups=group, cluster=cluster, packed=packed)
        return replace(t, parts=_parts(t, p, machine, parts))

    @functools.cache
    def price(at: Place) -> float:
        t = tiles(at)
        fits = t.tiles <= u.most and t.block[1] <= u.width and bool(t.parts)
        if group and t.block[1] > t.warp[1]:
            fits = fits and t.warp[1] == max(u.columns) * across
        if t.cluster > 1:
            fits = fits and all(_boxed(t, p)) and _grid(t, p)[0] % t.cluster == 0
        return seconds(t, p, machine) if fits else inf

    sizes = tuple(map(len, axes))
    of_one, of_two = (functools.partial(lattice_moves, sizes, several=x) for x in (False, True))
    shapes = (0, 0, 0, 0), [(n - 1) // 2 for n in sizes[:4]], (sizes[0] - 1, sizes[1] - 1, 0, 0)
    first = product(shapes, range(sizes[4]), (0, sizes[6] - 1))
    seeds = ((*shape, terms, 0, parts, 0) for shape, terms, parts in first)
    best = min((climb(climb(x, price, of_one, 1.0), price, of_two, 1.0) for x in seeds), key=price)
    return price(best), tiles(best)


def _parts(t: TensorCoreChoices, p: Product, machine: Machine, which: int) -> int:
    """The parts of whole steps by a number of _PARTS; 0 where there is no such number."""
    steps, tiles, (count, blocks) = _ceildiv(p.terms, t.block[2]), _tiles(t, p), _PARTS[which]
    count = count or blocks * machine.threads // tiles
    if which and (p.open or tiles >= 2 * machine.threads or not 1 < count <= steps):
        return 0
    return _ceildiv(steps, _ceildiv(steps, count))


def _ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def _grid(t: TensorCoreChoices, p: Product) -> tuple[int, int]:
    return _ceildiv(p.rows, t.block[0]), _ceildiv(p.columns, t.block[1])


def _tiles(t: TensorCoreChoices, p: Product) -> int:
    return prod(_grid(t, p)) * p.batches


def _sides(t: TensorCoreChoices, p: Product) -> tuple[Side, Side]:
    """The operands as blocks read them."""
    left, right = (
        Side(x.bytes, WIDEST, x.turned, boxed=True) if packed else x
        for x, packed in zip((p.left, p.right), t.packed, strict=True)
    )
    return left, right


def _fetched(t: TensorCoreChoices, p: Product) -> int:
    """The bytes of the tiles of a step."""
    return t.block[2] * (t.block[0] * p.left.bytes + t.block[1] * p.right.bytes)


def _boxed(t: TensorCoreChoices, p: Product) -> tuple[bool, bool]:
    """For each operand, whether TMA fetches its tiles, or what they are computed of."""
    left, right = (t.warpgroups and not p.open and x.boxed and x.access >= WIDEST for x in _sides(t, p))
    is_computed_alone = _sides(t, p)[0].computed and not right  # then threads compute tiles of memory
    return left and not is_computed_alone, right


def _registers(t: TensorCoreChoices, p: Product) -> int:
    """The registers of a thread: sums, fragments of operands, and what it loads of the next tiles."""
    (rows, columns), threads = t.warp, _GROUP_THREADS if t.warpgroups else WARP
    words = 0.0 if t.warpgroups else _FRAGMENTS * max(p.left.bytes, p.right.bytes) * p.step[2] / (4 * WARP)
    used = int(rows * columns * p.sum_bytes / (4 * threads) + words * (rows + columns))
    return used + _FIXED_REGISTERS + min(_loaded(t, p), LOADED_AHEAD_BYTES) // 4


def _loaded(t: TensorCoreChoices, p: Product) -> int:
    """The bytes of the next tiles that a thread loads to registers."""
    sides = zip(_sides(t, p), t.block, _boxed(t, p), strict=False)
    loaded = (n * t.block[2] * x.read_bytes for x, n, boxed in sides if x.is_ahead and not boxed)
    return sum(loaded) // (t.warps * WARP)


def shared_bytes(t: TensorCoreChoices, p: Product) -> int:
    """The bytes of shared memory of a block, without those that pass results on."""
    return t.stages * _fetched(t, p) + PHASE_BYTES


def _resident(t: TensorCoreChoices, p: Product, machine: Machine) -> int:
    """The blocks that a multiprocessor has at a time; 0 for tiles beyond its limits."""
    gpu = machine.gpu
    assert gpu is not None
    shared, registers = shared_bytes(t, p), _registers(t, p)
    if shared > (machine.level("shared").bytes or 0) or registers > gpu.registers_per_thread:
        return 0
    warps = t.warps + (4 if all(_boxed(t, p)) else 0)
    return occupancy(gpu, (warps * WARP, 1, 1), registers, shared).warps // warps


def seconds(t: TensorCoreChoices, p: Product, machine: Machine) -> float:
    """The price of tiles, see the module; infinite for those beyond the limits of a multiprocessor."""
    gpu, processors, resident = machine.gpu, machine.threads, _resident(t, p, machine)
    assert gpu is not None
    if not resident:
        return inf
    shared_speed, cache = (
        machine.level(x).bytes_per_second(n) or inf for x, n in (("shared", 1), ("L2", processors))
    )
    sides, boxes, clock = _sides(t, p), _boxed(t, p), 1 / gpu.clock
    staged = [(x, n * t.block[2]) for x, n, boxed in zip(sides, t.block, boxes, strict=False) if not boxed]
    (bm, bn, bk), steps = t.block, _ceildiv(_ceildiv(p.terms, t.parts), t.block[2])
    tiles = _tiles(t, p) * t.parts
    rounds = _ceildiv(tiles, processors)
    active = min(rounds, resident)

    rate = machine.rate("tensor", p.dtype) or inf
    if not t.warpgroups:
        rate *= _MMA_PART if group_unit(machine) else 1.0
    products = alone = 2 * bm * bn * bk / rate
    if not t.warpgroups:
        under_way = t.warps * (t.warp[0] // p.step[0]) * (t.warp[1] // p.step[1]) / gpu.schedulers
        alone *= max(1.0, gpu.schedulers / t.warps, _DEPTH / under_way)
    moved = bk * (t.warp[0] * p.left.bytes + t.warp[1] * p.right.bytes) * t.tiles
    moved += _fetched(t, p)
    moved += sum((1 + x.shifted) * x.read_bytes * n for x, n in staged)  # by the first cache: the same memory
    shared = moved / shared_speed
    issued = clock / gpu.schedulers * sum(
        x.instructions(along * bk)
        for x, along, boxed in zip(sides, t.block, boxes, strict=False)
        if x.computed or not boxed
    )  # fmt: skip
    work = _overlapped(products, shared, issued)
    sync = (_SYNC if staged else _GROUP_SYNC) * clock
    from_cache = sum(_used(t, sides, p, SECTOR)) * active * processors / cache  # each has its share
    late = gpu.latency / (1 if any(x.is_ahead for x, _ in staged) else t.stages - 1)
    waits = all(x.access < COPIED and not x.is_ahead for x in sides)
    if waits or _loaded(t, p) > LOADED_AHEAD_BYTES:  # threads wait for what they load
        sync += gpu.latency
    bounds = active * work, max(alone, shared, issued) + sync, from_cache, late
    step = max(bounds) + _REST * sum(bounds)
    sums = p.sum_bytes if t.parts > 1 else p.result_bytes
    ends = gpu.latency + active * processors * bm * bn * sums / cache
    time = rounds / max(active, 1) * (steps * step + ends)

    results = p.batches * p.rows * p.columns
    memory = _read(t, p, machine, active)[0] + results * p.result_bytes
    launch, more = of_nearest(machine.launch, 1) or 0.0, 0.0
    if t.parts > 1:
        more += merge_seconds(t.parts, results * p.sum_bytes, machine)
        memory += t.parts * results * p.sum_bytes
    for x, along, packed in zip((p.left, p.right), (p.rows, p.columns), t.packed, strict=True):
        elements = packed * p.batches * along * p.terms
        computed = x.instructions(elements) * clock / gpu.schedulers / processors
        copied = memory_seconds(elements * (x.read_bytes + x.bytes), processors, machine)
        more += packed * launch + _overlapped(copied, computed)
    return _overlapped(time, memory_seconds(memory, tiles, machine)) + launch + more


def _overlapped(*times: float) -> float:
    """The time of units that work beside each other, most of it hidden behind the busiest."""
    return max(times) + (1 - _OVERLAP) * (sum(times) - max(times))


def _read(t: TensorCoreChoices, p: Product, machine: Machine, active: int) -> tuple[float, int]:
    """The bytes of operands that blocks read of memory, and the rows of tiles that follow each other."""
    sides, extents = _sides(t, p), (p.rows, p.columns)
    bursts, least = (_used(t, sides, p, n) for n in (_BURST, 1))

    def box(n: int, at: Grid) -> float:
        elements = at[0] * min(at[1 + n] * t.block[n], extents[n]) * p.terms
        return elements * sides[n].read_bytes * bursts[n] / max(least[n], 1)

    count = max(machine.threads * max(active, 1) // t.parts, 1)
    boxes = [functools.partial(box, n) for n in (0, 1)]
    return bytes_read(boxes, (p.batches, *_grid(t, p)), count, machine)


def _used(t: TensorCoreChoices, sides: tuple[Side, Side], p: Product, least: int) -> list[int]:
    """The bytes of a step of each operand, of the cache or memory, which deliver `least` at a time.

    Beyond the edges nothing is fetched, and blocks of a cluster fetch the columns' operand together.
    """
    used = []
    for x, along, extent, shared in zip(sides, t.block[:2], (p.rows, p.columns), (1, t.cluster), strict=True):
        count, length = min(along, extent), min(t.block[2], p.terms)
        rows, row = (length, count) if x.turned else (count, length)
        used.append(rows * _ceildiv(row * x.read_bytes, least) * least // shared)
    return used


def _in_order(t: TensorCoreChoices, p: Product, machine: Machine) -> TensorCoreChoices:
    """The order of blocks: groups of rows of tiles, several tiles of a block where a producer is ahead."""
    if p.open:
        return t
    tiles, resident = _tiles(t, p) * t.parts, _resident(t, p, machine)
    _, group = _read(t, p, machine, min(_ceildiv(tiles, machine.threads), resident))
    rounds = _ceildiv(tiles, machine.threads * resident)
    blocks = _ceildiv(tiles, rounds)
    if not all(_boxed(t, p)) or rounds == 1 or blocks % t.cluster:
        blocks = 0
    return replace(t, group=group, blocks=blocks)
