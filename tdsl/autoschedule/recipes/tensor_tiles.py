"""Tiles of a product by tensor cores, chosen by their price on a machine.

The lattice has block and warp tiles of multiples of an instruction's shape, steps of terms, numbers of tiles
in shared memory, parts of the terms (split-K), and operands that are copied to aligned rows first. What
exceeds the registers, shared memory or warps of a multiprocessor is left out. The rest has a price:

    memory and rounds * (steps * step + latency and stores), which overlap, + launches

A step is bound by tensor cores, by shared memory, by what the L2 cache delivers, or by the latency of a
fetch. Blocks run in rounds on the multiprocessors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import field, replace
from itertools import product as combinations
from math import inf

from tdsl.core.node import frozen
from tdsl.machine.model import Machine, of_nearest
from tdsl.machine.occupancy import occupancy
from tdsl.schedule.launch import MAX_CLUSTER_BLOCKS
from tdsl.schedule.pipelines import LOADED_AHEAD_BYTES

_ACCESS = 16  # bytes
_LANES = 32
_SECTOR, _BURST = 32, 64  # bytes that the L2 cache and the memory deliver at least
_MERGE = 2  # times as long as its bytes takes the kernel that adds up parts: it is short
_REST = 0.1  # of the time of each resource that is not hidden behind the busiest
_GROUP_THREADS = 128
GROUP_TILES = {"wgmma": (64, 256), "tcgen05": (128, 128)}  # rows, and the most columns, of a group
_MMA_PART = 0.62  # of the rate of wgmma that mma.sync reaches: Luo et al., arXiv 2402.13499
_COPIED = 4  # bytes that a GPU copies to shared memory asynchronously, at least
_NARROW = 8  # clocks in which a warp copies less than 4 bytes of each thread through registers
_MOVE = 8  # instructions of a warp that load and store an access through registers, with its addresses
_COMPUTE = 2  # instructions of an operation on an element, with conversions to f32 and back
_OVERLAP = 0.8  # of the time of the less busy unit that is hidden behind the busier one
_SYNC = 120  # clocks of a step for a barrier, and the first loads and products after it
_GROUP_SYNC = 40  # the same where a producer fetches tiles
_DEPTH = 4  # products that a scheduler has under way to hide their latency
_FIXED_REGISTERS = 32  # of a thread for addresses and counters
_FRAGMENTS = 1.25  # times the registers of the fragments of a step: some are loaded ahead
PHASE_BYTES = 1 << 10  # bytes of barriers in shared memory, at most
_ROW_BYTES, _WIDE_ROW_BYTES = (64, 128), (128, 256)  # of terms of a tile; the latter of 8-byte elements
_CLUSTER = 2  # blocks: of larger ones some multiprocessors have none


@frozen
class Side:
    """An operand: bytes of an element, and the most bytes of its rows that an aligned access has.

    If `turned`, its terms are in different rows. If `computed`, threads compute its tiles by `operations` for
    each element, of an array whose elements have `source_bytes`. If `packable`, its rows may be copied to
    aligned ones. If `boxed`, TMA can load its tiles, or what they are computed of.
    """

    bytes: int
    access: int
    turned: bool
    computed: bool = False
    packable: bool = False
    boxed: bool = False
    source_bytes: int = 0
    operations: int = 0

    @property
    def read_bytes(self) -> int:
        """The bytes of an element in memory."""
        return self.source_bytes or self.bytes


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
    def warps(self) -> int:
        """The warps of a block that multiply."""
        count = self.block[0] // self.warp[0] * (self.block[1] // self.warp[1])
        return 4 * count if self.warpgroups else count


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
    best: dict[tuple[bool, tuple[bool, bool]], tuple[float, TensorCoreChoices]] = {}
    for t in _lattice(p, machine):
        price, key = seconds(t, p, machine), (t.warpgroups, t.packed)
        if price < (best[key][0] if key in best else inf):
            best[key] = price, t
    return tuple(_in_order(t, p, machine) for _, t in sorted(best.values(), key=lambda x: x[0]))


def _lattice(p: Product, machine: Machine) -> Iterator[TensorCoreChoices]:
    packings = {(False, False)}
    if not p.open:
        needed = [x.packable and (x.access < _ACCESS or x.computed) for x in (p.left, p.right)]
        packings |= {(a and needed[0], b and needed[1]) for a in (True, False) for b in (True, False)}
    shapes = list(_warp_tiles(p))
    if p.groups:
        shapes += _group_tiles(p, machine)
    for (block, warp, warpgroups), stages, packed in combinations(shapes, (2, 3, 4, 5), sorted(packings)):
        t = TensorCoreChoices(block, warp, stages, warpgroups=warpgroups, packed=packed)
        if _resident(t, p, machine):
            for parts in _parts(t, p, machine):
                one = replace(t, parts=parts)
                yield one
                if _is_boxed(t, p) and _grid(t, p)[0] % _CLUSTER == 0:
                    yield replace(one, cluster=_CLUSTER)


Shape = tuple[tuple[int, int, int], tuple[int, int], bool]


def _warp_tiles(p: Product) -> Iterator[Shape]:
    """Tiles of up to 8 warps that multiply, none larger than the product where a smaller one covers it."""
    rows, columns, _ = p.step
    size = max(p.left.bytes, p.right.bytes)
    steps = [n // size for n in (_ROW_BYTES if size < 8 else _WIDE_ROW_BYTES)]
    down, across = (rows, 2 * rows, 3 * rows, 4 * rows), (columns, 2 * columns, 4 * columns, 8 * columns)
    sides = (1, 2, 4, 8)
    for wr, wc, nr, nc in combinations(down, across, sides, sides):
        if nr * nc > 8 or _is_beyond(nr, wr, p.rows, rows) or _is_beyond(nc, wc, p.columns, columns):
            continue
        for bk in steps:
            if bk == steps[0] or p.terms > bk // 2:
                yield (nr * wr, nc * wc, bk), (wr, wc), False


def _is_beyond(count: int, size: int, extent: int, step: int) -> bool:
    """True for a side of a block that a smaller one could cover, too."""
    padded = -(-extent // step) * step
    return count * size > padded and (count > 1 or size > step) and (count * size >= 2 * padded or count > 1)


def _group_tiles(p: Product, machine: Machine) -> Iterator[Shape]:
    """Tiles of one or two groups of threads, of the instruction that the machine has for groups."""
    size = max(p.left.bytes, p.right.bytes)
    for rows, most in (tile for unit, tile in GROUP_TILES.items() if unit in machine.features):
        for down, across, columns in combinations((1, 2), (1, 2), (32, 64, 96, 128, 192, 256)):
            wide, tall = columns * across, rows * down
            if columns > most or wide > 256 or down * across > 2 or (across > 1 and columns < most):
                continue
            if (down == 1 or p.rows > rows) and (wide == 32 or p.columns > wide // 2):
                yield (tall, wide, 128 // size), (rows, columns), True


def _parts(t: TensorCoreChoices, p: Product, machine: Machine) -> list[int]:
    """Numbers of parts of whole steps with which every multiprocessor has about as many blocks."""
    steps, tiles = _ceildiv(p.terms, t.block[2]), _tiles(t, p)
    if p.open or tiles >= 2 * machine.threads:
        return [1]
    needed = {n * machine.threads // tiles for n in (1, 2, 3, 4)} | {2, 4, 8}
    parts = {_ceildiv(steps, _ceildiv(steps, n)) for n in needed if 1 < n <= steps}
    return [1, *sorted(parts)]


def _ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def _grid(t: TensorCoreChoices, p: Product) -> tuple[int, int]:
    return _ceildiv(p.rows, t.block[0]), _ceildiv(p.columns, t.block[1])


def _tiles(t: TensorCoreChoices, p: Product) -> int:
    down, across = _grid(t, p)
    return down * across * p.batches


def _sides(t: TensorCoreChoices, p: Product) -> tuple[Side, Side]:
    """The operands as blocks read them."""
    left, right = (
        replace(x, access=_ACCESS, boxed=True, computed=False, source_bytes=0) if packed else x
        for x, packed in zip((p.left, p.right), t.packed, strict=True)
    )
    return left, right


def _fetched(t: TensorCoreChoices, p: Product) -> int:
    """The bytes of the tiles of a step."""
    return t.block[2] * (t.block[0] * p.left.bytes + t.block[1] * p.right.bytes)


def _is_boxed(t: TensorCoreChoices, p: Product) -> bool:
    return t.warpgroups and not p.open and all(x.boxed and x.access >= _ACCESS for x in _sides(t, p))


def _registers(t: TensorCoreChoices, p: Product) -> int:
    """The registers of a thread: sums, fragments of operands, and what it loads to compute the next tiles."""
    rows, columns = t.warp
    sides = zip(_sides(t, p), t.block[:2], strict=True)
    loaded = 0 if _is_boxed(t, p) else sum(n * t.block[2] * x.read_bytes for x, n in sides if x.computed)
    fixed = _FIXED_REGISTERS + min(loaded // (t.warps * _LANES), LOADED_AHEAD_BYTES) // 4
    if t.warpgroups:
        return rows * columns // _GROUP_THREADS + fixed
    words = max(p.left.bytes, p.right.bytes) * p.step[2] / (4 * _LANES)
    return int(rows * columns * p.sum_bytes / (4 * _LANES) + _FRAGMENTS * words * (rows + columns)) + fixed


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
    warps = t.warps + (4 if _is_boxed(t, p) else 0)
    return occupancy(gpu, (warps * _LANES, 1, 1), registers, shared).warps // warps


def seconds(t: TensorCoreChoices, p: Product, machine: Machine) -> float:
    """The price of tiles; see the module."""
    gpu, processors = machine.gpu, machine.threads
    assert gpu is not None
    shared_speed, cache, far = (
        machine.level(x).bytes_per_second(n) or inf
        for x, n in (("shared", 1), ("L2", processors), ("global", processors))
    )
    sides, clock = _sides(t, p), 1 / gpu.clock
    (bm, bn, bk), steps = t.block, _ceildiv(_ceildiv(p.terms, t.parts), t.block[2])
    tiles, boxed = _tiles(t, p) * t.parts, _is_boxed(t, p)
    rounds = _ceildiv(tiles, processors)
    active = min(rounds, _resident(t, p, machine))
    busy = min(tiles, processors) / processors

    rate = machine.rate("tensor", p.dtype) or inf
    if not t.warpgroups:
        rate *= _MMA_PART if GROUP_TILES.keys() & machine.features else 1.0
    products = 2 * bm * bn * bk / rate
    fetched = _fetched(t, p)
    copies = t.warps // 4 if t.warpgroups else t.warps
    moved = fetched + copies * bk * (t.warp[0] * p.left.bytes + t.warp[1] * p.right.bytes)
    copied, converted = _copy_clocks(t, sides, gpu.schedulers, boxed=boxed)
    shared = moved / shared_speed + copied * clock
    used = _used(t, sides, p, _SECTOR)
    alone = products
    if not t.warpgroups:
        under_way = t.warps * (t.warp[0] // p.step[0]) * (t.warp[1] // p.step[1]) / gpu.schedulers
        alone *= max(1.0, gpu.schedulers / t.warps, _DEPTH / under_way)
    work = _overlapped(products, shared, converted * clock)
    sync = (_GROUP_SYNC if boxed else _SYNC) * clock
    from_cache = used * active * processors / cache  # each multiprocessor has its share
    late = gpu.latency / (t.stages - 1)
    if converted and not boxed:  # threads load to registers one step ahead
        late = gpu.latency
    if all(x.access < _COPIED for x in sides):  # threads wait for what they load
        sync += gpu.latency
    bounds = active * work, max(alone, shared, converted * clock) + sync, from_cache, late
    step = max(bounds) + _REST * sum(bounds)
    sums = p.sum_bytes if t.parts > 1 else p.result_bytes
    ends = gpu.latency + active * processors * bm * bn * sums / cache
    time = rounds / max(active, 1) * (steps * step + ends)

    results = p.batches * p.rows * p.columns
    memory = _far_bytes(t, sides, p, machine, active) + results * p.result_bytes
    launch, more = of_nearest(machine.launch, 1) or 0.0, 0.0
    if t.parts > 1:
        partial = t.parts * results * p.sum_bytes
        cached = partial <= (machine.level("L2").bytes or 0) / 2
        more += launch + _MERGE * partial / (cache if cached else far)
        memory += partial
    for x, along, packed in zip((p.left, p.right), (p.rows, p.columns), t.packed, strict=True):
        more += packed * (launch + p.batches * along * p.terms * (x.read_bytes + x.bytes) / far)
    return _overlapped(time, memory / (far * busy)) + launch + more


def _overlapped(*times: float) -> float:
    """The time of units that work beside each other, most of it hidden behind the busiest."""
    return max(times) + (1 - _OVERLAP) * (sum(times) - max(times))


def _copy_clocks(
    t: TensorCoreChoices, sides: tuple[Side, Side], schedulers: int, *, boxed: bool
) -> tuple[float, float]:
    """The clocks of a step in which copies enter shared memory, and those in which threads issue others.

    The latter go through registers: elements of less than 4 bytes, and those that are computed. TMA copies
    tiles that are `boxed`.
    """
    copied = converted = 0.0
    for x, along in zip(sides, t.block[:2], strict=True):
        access = min(x.access, _ACCESS)
        accesses = along * t.block[2] * x.bytes / (access * _LANES)
        if x.computed:
            converted += accesses * (_MOVE + access / x.bytes * _COMPUTE * x.operations) / schedulers
        elif boxed:
            continue
        elif x.access >= _COPIED:
            copied += accesses * access / _COPIED
        else:
            converted += accesses * _NARROW
    return copied, converted


def _far_bytes(
    t: TensorCoreChoices, sides: tuple[Side, Side], p: Product, machine: Machine, active: int
) -> float:  # fmt: skip
    """The bytes of operands that blocks read of memory: what they read at a time is there once."""
    left_bytes, right_bytes = (x.read_bytes for x in sides)
    left, right = p.rows * p.terms * left_bytes, p.columns * p.terms * right_bytes
    least = p.batches * (left + right)
    if least <= (machine.level("L2").bytes or 0) / 2:
        return least
    down, across = _grid(t, p)
    rows, columns = _at_once(t, p, machine, active, _group(t, p, machine, active))
    turns = _ceildiv(down, rows) * _ceildiv(across, columns) * p.batches
    read = turns * p.terms * (rows * t.block[0] * left_bytes + columns * t.block[1] * right_bytes)
    return max(least * _used(t, sides, p, _BURST) / max(_used(t, sides, p, 1), 1), read)


def _at_once(t: TensorCoreChoices, p: Product, machine: Machine, active: int, group: int) -> tuple[int, int]:
    """The rows and columns of tiles whose blocks run at a time, which go down `group` rows first."""
    down, across = _grid(t, p)
    count = max(machine.threads * max(active, 1) // t.parts, 1)
    columns = min(across, _ceildiv(count, group))
    return min(down, _ceildiv(count, columns)), columns


def _used(t: TensorCoreChoices, sides: tuple[Side, Side], p: Product, least: int) -> int:
    """The bytes of a step that are fetched of the cache or memory, which deliver `least` at a time.

    Beyond the edges nothing is fetched, and blocks of a cluster fetch the columns' operand together.
    """
    total = 0
    for x, along, extent, shared in zip(sides, t.block[:2], (p.rows, p.columns), (1, t.cluster), strict=True):
        count, length = min(along, extent), min(t.block[2], p.terms)
        rows, row = (length, count) if x.turned else (count, length)
        total += rows * _ceildiv(row * x.read_bytes, least) * least // shared
    return total


def _group(t: TensorCoreChoices, p: Product, machine: Machine, active: int) -> int:
    """Rows of tiles whose blocks run one after the other, so that those at a time read the fewest bytes."""
    down, across = _grid(t, p)
    if machine.threads * max(active, 1) // t.parts >= down * across:
        return 1

    def read(group: int) -> int:
        rows, columns = _at_once(t, p, machine, active, group)
        return rows * t.block[0] * p.left.bytes + columns * t.block[1] * p.right.bytes

    return min((n for n in (1, 2, 4, 8, 16) if down % n == 0), key=lambda n: (read(n), n))


def _in_order(t: TensorCoreChoices, p: Product, machine: Machine) -> TensorCoreChoices:
    """The order of blocks: groups of rows of tiles, several tiles of a block where a producer is ahead."""
    if p.open:
        return t
    tiles, resident = _tiles(t, p) * t.parts, _resident(t, p, machine)
    group = _group(t, p, machine, min(_ceildiv(tiles, machine.threads), resident))
    rounds = _ceildiv(tiles, machine.threads * resident)
    blocks = _ceildiv(tiles, rounds)
    if not _is_boxed(t, p) or rounds == 1 or blocks % t.cluster:
        blocks = 0
    return replace(t, group=group, blocks=blocks)
