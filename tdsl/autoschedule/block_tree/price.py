"""The price of a tile tree of a GPU in closed form: what each resource of the machine takes for it.

Resources are the units that compute, issue slots, loads and stores of shared and global memory (wavefronts
and sectors, `cost/sectors.py`), the L2 cache, memory, and the latency that resident blocks leave exposed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, gcd, inf, prod

import numpy as np

from tdsl.autoschedule.block_tree.memory import Grid, bytes_read, memory_seconds
from tdsl.autoschedule.block_tree.tree import BlockTree, Shared
from tdsl.autoschedule.problem import Access, Operand, Problem
from tdsl.core.node import frozen
from tdsl.cost.sectors import LINE, SECTOR, WARP, WIDEST, WORD, conflict_degree, transactions
from tdsl.machine.model import Machine, of_nearest
from tdsl.machine.occupancy import occupancy

UNROLLED = 1024  # multiplications of a thread in one piece of code, at most
_OTHERS = 0.3  # of the time of resources that are not the slowest, which is not hidden
_LOOP = 6  # instructions of an iteration of a loop beyond its body
_ADDRESS = 1.5  # instructions of a load or store, with those of its address
_LATENCY = 4  # operations of a warp at a time that hide the latency of one
_TESTED = 3.0  # times the instructions of a term, where each is tested for the edge
_SPARE = 48  # registers of a thread that an estimate leaves, so that none are spilled
_COPYING = 8 * WARP  # threads of a copy whose conflicts stand for those of all
_REGISTERS = 28  # of a thread beyond its sums and operands
_STAGED = 128  # bytes of a step that a thread loads to registers while the one before is computed, at most
_CODE = 2e-4  # of the time for each read of a thread's points, which are one piece of code
_SHIFT = 20  # instructions that take a vector from two aligned ones


@frozen
class Price:
    """The seconds of a tree, and those of each resource; inf for one that the machine cannot run.

    `conflicts` is the part of wavefronts beyond those without bank conflicts, `wasted` that of sectors beyond
    those that their bytes fill. Neighbours of a `group` of rows follow each other.
    """

    seconds: float
    resources: tuple[tuple[str, float], ...] = ()
    blocks: int = 0
    resident: int = 0
    shared: int = 0
    conflicts: float = 0.0
    wasted: float = 0.0
    group: int = 1

    @property
    def waits_for(self) -> str:
        """The slowest resource."""
        return max(self.resources, key=lambda x: x[1], default=("nothing", 0.0))[0]


def price(p: Problem, t: BlockTree, machine: Machine, *, ideal: bool = False, kept: int = 0) -> Price:
    """The price of a tree of a problem on a GPU, `ideal` for layouts of copies without bank conflicts.

    A thread keeps some values in `kept` registers, from the loads of a block to its end.

    >>> import tdsl as td
    >>> from tdsl.autoschedule.block_tree.tree import Cut
    >>> from tdsl.machine.devices import describe_gpu
    >>> i, j, k = td.vars("i j k")
    >>> a, b, c = td.Tensor("a", (4096, 4096), td.f32), td.Tensor("b", (4096, 4096), td.f32), td.Func("c")
    >>> c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    >>> p, cuts = Problem.of(td.Schedule(c)["c"]), (Cut("i", 16, 8), Cut("j", 16, 8))
    >>> copies = Shared("a", None, 4, (0, 1)), Shared("b", None, 4, (0, 1), 36, 32)
    >>> tree = BlockTree("c", cuts, (("j", 8), ("i", 16), ("j", 2)), (("k", 16),), copies, 4, 3)
    >>> price(p, tree, describe_gpu("sm_90a")).waits_for
    'issue'
    """
    gpu = machine.gpu
    assert gpu is not None, "the machine is a GPU"
    unrolled, inner = unrolled_terms(t)
    each = prod(c.each for c in t.cuts)
    threads, sizes = t.threads, t.sizes
    warps, steps = -(-threads // WARP), prod(ceil(a.extent / sizes.get(a.name, 1)) for a in p.summed)
    blocks = prod(ceil(a.extent / t.cut(a.name).size) for a in p.free)
    terms = steps * prod(n for _, n in t.steps)
    copies = {(s.array, s.along): s for s in t.shared}
    tiles = ((x, copies.get((x.array, x.along)), p.tile_of(x, sizes)) for x in p.operands)
    pairs = [(x, s, whole_vectors(box, s) if s else box) for x, s, box in tiles]
    shared = _shared_bytes(pairs) * t.stages
    staged = sum(_staged_bytes(x, t, box) for x, s, box in pairs if s is not None and _is_staged(s, x))
    registers = _registers(p, t, pairs, unrolled, kept) + (staged // WORD if t.stages > 1 else 0)
    most = min(gpu.registers_per_thread - _SPARE, gpu.registers // max(threads, WARP))
    alone = threads == 1 and bool(t.shared)  # copies are shared out among threads
    alone = alone or (t.stages > 1 and staged > _STAGED)
    if alone or registers > most or threads > 1024 or shared > (machine.level("shared").bytes or 0):
        return Price(inf)
    resident = occupancy(gpu, (threads, 1, 1), registers, shared).warps // warps
    if not resident:
        return Price(inf)
    copied = lds = requests = sectors = useful = fragments = shifts = least = conflicts = 0.0
    for x, copy, box in pairs:
        if copy is not None:
            whole = (*box[:-1], groups_of(copy, box) * copy.group) if copy.group else box
            count = prod(whole)
            copied += steps * count / copy.vector / WARP
            sectors += steps * sectors_of_rows(x, t, whole, copy)
            useful += steps * prod(map(min, whole, x.reads[0].shape)) * x.reads[0].size / SECTOR
            loads = steps * max(count * x.reads[0].size / LINE, count / copy.vector / WARP)
            stores = steps * count / WARP if copy.is_scattered else loads
            degree = 1.0 if ideal else store_conflicts(whole, copy, x.reads[0].size)
            requests += stores * degree
            least += stores
            conflicts += stores * (degree - 1)
            if _is_staged(copy, x):
                requests += loads
            if copy.is_scattered:
                copied += stores
            if _is_shifted(copy, x):
                shifts += steps * count / copy.vector / WARP
        for r, elements, vector, wavefronts, fewest in _loads(p, x, t, copy, unrolled, box, ideal=ideal):
            loads = elements / vector * prod(sizes[v] for v in inner if r.uses(v))
            loads *= prod(ceil(a.extent / sizes[a.name]) for a in p.summed if copy or r.uses(a.name))
            fragments += warps * loads
            if copy is not None:
                lds += loads * wavefronts
                least += loads * fewest
                conflicts += loads * (wavefronts - fewest)
            else:
                touched, used = _transactions(r, t, vector)
                requests += loads * max(warps, touched / 4)
                sectors += loads * touched
                useful += loads * used
    stored = each / t.vector
    written, used = _transactions(p.write, t, t.vector)
    requests += stored * max(warps, written / 4)
    sectors += stored * written
    useful += stored * used
    processors = machine.threads
    total = ceil(blocks / processors)  # of the busiest processor
    products = each * terms * p.work * warps * WARP
    code = float(products)
    if p.summed and len(t.shared) < len(p.operands) and has_tail(p, t):
        code *= _TESTED
    code = code / WARP / 2 + _ADDRESS * (fragments + copied + stored * warps)
    code += _SHIFT * shifts
    code += _LOOP * warps * steps * prod(sizes[v] for v in inner)
    of_cache = machine.level("L2").bytes_per_second(processors) or inf
    size_of, ends = [(a.name, t.cut(a.name).size) for a in p.free], {a.name: a.extent for a in p.summed}

    def read_by(x: Operand, at: Grid) -> int:
        return p.bytes_of(x, ends | {v: n * size for n, (v, size) in zip(at, size_of, strict=True)})

    grid = tuple(ceil(a.extent / size) for a, (_, size) in zip(p.free, size_of, strict=True))
    boxes = [functools.partial(read_by, x) for x in p.operands]
    moved, group = bytes_read(boxes, grid, processors * resident, machine)
    active = warps * min(resident, ceil(blocks / processors))
    chains = min(each * prod(c.each for c in t.lanes), _LATENCY)
    busy = min(1.0, active * chains / gpu.schedulers / _LATENCY)  # operations wait for others
    turns = steps if t.shared else steps * prod(sizes[v] for v in inner)
    waits = 1 + turns / (2 * (t.stages - 1) if t.stages > 1 else 1) / 2 if p.summed else 1
    resources = {
        "units": total * products / (machine.rate("vector", p.dtype) or inf) / busy,
        "issue": total * code / gpu.schedulers / gpu.clock / busy,
        "lds": total * (lds + requests) / gpu.clock,
        "L2": blocks * sectors * SECTOR / of_cache,
        "memory": memory_seconds(moved + p.written_bytes, blocks, machine),
        "latency": ceil(blocks / processors / resident) * waits * gpu.latency,
    }
    slowest = max(resources.values())
    seconds = slowest + _OTHERS * (sum(resources.values()) - slowest) + (of_nearest(machine.launch, 1) or 0.0)
    if not p.summed:
        seconds *= 1 + _CODE * each * len(p.reads)
    return Price(
        seconds, tuple(resources.items()), blocks, resident, shared,
        conflicts=conflicts / least if least else 0.0, wasted=sectors / useful - 1, group=group,
    )  # fmt: skip


def _loads(
    p: Problem, x: Operand, t: BlockTree, copy: Shared | None, unrolled: Sequence[str], box: Sequence[int], *,
    ideal: bool,
) -> list[tuple[Access, float, int, float, float]]:  # fmt: skip
    """The loads of a thread's piece of code: the read, its elements, those of a vector, and wavefronts.

    Of wavefronts there are those of the block for each load, and the least. Several reads may be one window,
    which is loaded once; `ideal` layouts have windows where these are fewer loads.
    """
    common = _new_fraction(x, t, unrolled)
    if copy is None:
        return [(r, distinct(r, t, unrolled) * common, _vector(p, x, r, t), 0.0, 0.0) for r in x.reads]
    each = [
        (r, distinct(r, t, unrolled) * common, *shared_load(x, r, t, copy, unrolled, box=box, ideal=ideal))
        for r in x.reads
    ]
    if len(x.reads) == 1 or not (copy.window or ideal):
        return each
    r, (*outer, width) = x.reads[0], window_of(x, t, unrolled)
    vector, wavefronts, least = shared_load(x, r, t, replace(copy, window=True), unrolled, box=box)
    count = float(prod(outer) * -(-width // vector) * vector)
    window = [(r, count, vector, least if ideal else wavefronts, least)]
    return (
        window
        if copy.window
        else min(each, window, key=lambda loads: sum(n / v * w for _, n, v, w, _ in loads))
    )


def _shared_bytes(pairs: Sequence[tuple[Operand, Shared | None, tuple[int, ...]]]) -> int:
    """The shared memory of a step."""
    return sum(
        -(-layout_of(copy, box)[1] * x.reads[0].size // LINE) * LINE
        for x, copy, box in pairs
        if copy is not None
    )


def _registers(
    p: Problem, t: BlockTree, pairs: Sequence[tuple[Operand, Shared | None, tuple[int, ...]]],
    unrolled: Sequence[str], kept: int = 0,
) -> int:  # fmt: skip
    """The registers of a thread; what it keeps is loaded to the `kept` ones."""
    count = kept + _REGISTERS + 2 * len(p.operands)
    if p.summed:
        count += prod(t.values.values()) * max(p.sum_bytes, WORD) // WORD
    for x, copy, _ in pairs if not kept else ():
        if copy is not None and copy.window:
            loaded = prod(window_of(x, t, unrolled))
        else:
            loaded = sum(_at_once(r, t, unrolled) for r in x.reads)
        count += loaded * max(x.reads[0].size, WORD) // WORD
    return count


def _at_once(r: Access, t: BlockTree, unrolled: Sequence[str]) -> int:
    """The elements of an operand that a thread has in registers: of some terms, if these are neighbours."""
    vectors = any(r.step(v) == 1 for v in unrolled)
    return distinct(r, t, ()) * (max(WIDEST // r.size, 1) if vectors else 1)


def _is_shifted(copy: Shared, x: Operand) -> bool:
    """True if each vector of a copy is taken from two aligned ones."""
    return copy.shifted and copy.vector * x.reads[0].size == WIDEST


def _is_staged(copy: Shared, x: Operand) -> bool:
    """True if each vector of a copy is in registers before it is stored."""
    return _is_shifted(copy, x) or copy.is_scattered


def _staged_bytes(x: Operand, t: BlockTree, box: Sequence[int]) -> int:
    """The bytes of a copy that a thread has in registers while the step before is computed."""
    return -(-prod(box) * x.reads[0].size // (t.threads * WIDEST)) * WIDEST


def has_tail(p: Problem, t: BlockTree) -> bool:
    """True if tiles or steps go beyond an edge."""
    return any(not a.known or a.extent % t.sizes.get(a.name, 1) for a in p.axes)


def unrolled_terms(t: BlockTree) -> tuple[list[str], list[str]]:
    """The summed axes whose terms of a step are one piece of code with a thread's points, and the others."""
    count, unrolled = prod(c.each for c in t.cuts), list[str]()
    axes = [v for v, _ in t.steps]
    for v in reversed(axes):
        if count * t.sizes[v] > UNROLLED:
            break
        count *= t.sizes[v]
        unrolled.insert(0, v)
    return unrolled, axes[: len(axes) - len(unrolled)]


def distinct(r: Access, t: BlockTree, unrolled: Sequence[str]) -> int:
    """The elements that a thread's piece of code reads: of a window, those of the box around it."""
    count = dict(t.values)
    for v in unrolled:
        count[v] = t.sizes[v]
    moved = prod([n for v, n in count.items() if r.uses(v)])
    if r.data:
        return moved
    hull = 1
    for dim in r.dims:
        hull *= 1 + sum([abs(c) * (count.get(v, 1) - 1) for v, c in dim])
    return min(hull, moved)


def _new_fraction(x: Operand, t: BlockTree, unrolled: Sequence[str]) -> float:
    """The part of the elements of all reads of an operand in a thread that no read before has loaded."""
    if len(x.reads) == 1 or not x.is_affine or any(r.dims != x.reads[0].dims for r in x.reads):
        return 1.0
    count = dict(t.values) | {v: t.sizes[v] for v in unrolled}
    extents = tuple(1 + sum([abs(c) * (count.get(v, 1) - 1) for v, c in dim]) for dim in x.reads[0].dims)
    steps = tuple(abs(dim[0][1]) if len(dim) == 1 else 1 for dim in x.reads[0].dims)
    return _united(extents, steps, tuple(r.starts for r in x.reads))


@functools.lru_cache(1 << 12)
def _united(extents: tuple[int, ...], steps: tuple[int, ...], starts: tuple[tuple[int, ...], ...]) -> float:
    """The elements of the union of translated boxes of every few elements, for each one of all boxes."""
    first = [min(at) for at in zip(*starts, strict=True)]
    reach = [max(at) - low + n for at, low, n in zip(zip(*starts, strict=True), first, extents, strict=True)]
    read = np.zeros(reach, bool)
    for start in starts:
        slices = (slice(a - b, a - b + n, s) for a, b, n, s in zip(start, first, extents, steps, strict=True))
        read[tuple(slices)] = True
    return float(read.sum()) / (len(starts) * prod(-(-n // s) for n, s in zip(extents, steps, strict=True)))


def window_of(x: Operand, t: BlockTree, unrolled: Sequence[str]) -> tuple[int, ...]:
    """The extents of the box that a thread's piece of code reads of an operand."""
    return x.box(dict(t.values) | {v: t.sizes[v] for v in unrolled})


def window_axes(x: Operand, t: BlockTree) -> set[str]:
    """The axes that move a thread in one dimension of an operand together: of points and of terms."""
    count = {c.axis: c.each for c in t.cuts} | dict(t.steps)
    together = ([v for v, _ in dim if count.get(v, 1) > 1] for r in x.reads for dim in r.dims)
    return {v for names in together if len(names) > 1 for v in names}


def whole_vectors(box: Sequence[int], s: Shared) -> tuple[int, ...]:
    """The extents of a copy whose rows are extended to whole vectors."""
    whole = s.group or s.rows > 1 or not box
    return tuple(box) if whole else (*box[:-1], -(-box[-1] // s.vector) * s.vector)


def groups_of(copy: Shared, box: Sequence[int]) -> int:
    """The groups of the last dimension that a box touches, one more where its length is no multiple."""
    whole, rest = divmod(box[copy.order[-1]], copy.group)
    return whole + (2 if rest > 1 else 1 if rest else 0)


def layout_of(copy: Shared, box: Sequence[int]) -> tuple[list[int], int]:
    """The elements from one index to the next in each dimension of a copy, of groups in the last; all."""
    sizes = [*box]
    last = copy.order[-1]
    if copy.group:
        sizes[last] = groups_of(copy, box)
        inner = copy.row
    else:
        padded = last if copy.padded is None else copy.padded
        sizes[padded] = -(-box[padded] // copy.run) * copy.row if copy.run else max(box[padded], copy.row)
        inner = 1
    strides, total = [0] * len(box), inner
    for n in reversed(copy.order):
        strides[n] = total
        total *= sizes[n]
    return strides, total


def shared_load(
    x: Operand, r: Access, t: BlockTree, copy: Shared, unrolled: Sequence[str], *,
    box: Sequence[int], ideal: bool = False,
) -> tuple[int, float, float]:  # fmt: skip
    """The neighbours of a copy that a thread loads at once, the wavefronts of a block for that, the least.

    The copy has the extents `box`.
    """
    strides, _ = layout_of(copy, box)
    last = copy.order[-1]
    count = dict(t.values) | {v: t.sizes[v] for v in unrolled}
    moving = [(v, c) for v, c in r.dims[last] if count.get(v, 1) > 1]
    vector = max(WIDEST // r.size, 1)
    if copy.window or (ideal and len(moving) > 1):
        vector = gcd(vector, *(c * t.cut(v).each for v, c in r.dims[last] if t.cut(v).threads > 1))
    elif len(moving) == 1 and moving[0][1] == 1:
        first = 0 if copy.group else min(y.starts[last] for y in x.reads)
        vector = gcd(vector, count[moving[0][0]], r.starts[last] - first)
    else:
        vector = 1
    row = copy.row if copy.row and copy.padded is None else box[last]
    while vector > 1 and (row % vector or (copy.group and copy.group % vector)):
        vector //= 2
    while vector > 1 and any(c * t.cut(v).each % vector for v, c in r.dims[last] if t.cut(v).threads > 1):
        vector //= 2
    axes = []
    seen: dict[str, int] = {}
    for v, n in t.order:
        at = seen.get(v, 1) * t.cut(v).each
        seen[v] = seen.get(v, 1) * n
        move = sum(
            _moved(copy, d, c * at) * strides[d]
            for d, dim in enumerate(r.dims) if d != last for a, c in dim if a == v
        )  # fmt: skip
        along = sum(c * at for a, c in r.dims[last] if a == v)
        if copy.group and along:
            inside = min(n, max(copy.group // along, 1))
            axes.append((inside, move + (along if along < copy.group else along // copy.group * copy.row)))
            if n > inside:
                axes.append((n // inside, move * inside + along * inside // copy.group * copy.row))
        else:
            axes.append((n, move + along))
    shown, times = _first_threads(axes, 2 * WARP)
    served = transactions(shown, r.size, vector)
    strided = any(t.cut(v).threads > 1 and t.cut(v).each > 1 for v, _ in r.dims[last])
    is_padded = not copy.group and len(moving) <= 1 and (vector > 1 or not strided)
    least = times * served.least
    return vector, least if ideal and is_padded else times * served.wavefronts, least


def _moved(copy: Shared, dim: int, count: int) -> int:
    """The rows between two indices of a copy that are `count` apart, with the padding of runs."""
    return count // copy.run * copy.row + count % copy.run if copy.run and dim == copy.padded else count


def _vector(p: Problem, x: Operand, r: Access, t: BlockTree) -> int:
    """The neighbours that a thread loads at once from global memory."""
    copy = next((s for s in t.registers if (s.array, s.along) == (x.array, x.along)), None)
    if copy is not None:
        return copy.vector
    return r.width(p.lane, t.vector) if p.lane and not p.summed else 1


def _transactions(r: Access, t: BlockTree, vector: int) -> tuple[float, float]:
    """The sectors of an access of all threads of a block to global memory, and how many their bytes fill."""
    axes, seen = list[tuple[int, float]](), dict[str, int]()
    for v, n in t.order:
        at = seen.get(v, 1) * t.cut(v).each
        seen[v] = seen.get(v, 1) * n
        axes.append((n, _stride(r, v, at)))
    shown, times = _first_threads(axes, 2 * WARP)
    offset = r.offset % (SECTOR // gcd(SECTOR, r.size))
    moved = transactions(shown, r.size, vector, offset=offset)
    return times * moved.sectors, times * moved.useful / SECTOR


def _stride(r: Access, axis: str, values: int) -> float:
    """The mean elements between two values of an axis; data choose rows that do not follow each other."""
    if axis not in r.data or r.step(axis):
        return r.step(axis) * values
    slope = dict(r.slopes).get(axis)
    if slope is not None:
        return slope * values
    return 3 * r.shape[-1] if r.dims[-1] else SECTOR // r.size


def _first_threads(
    axes: Sequence[tuple[int, float]], most: int
) -> tuple[tuple[tuple[int, float], ...], float]:
    """The axes of about the first `most` threads of a block, and how many times more threads it has."""
    shown, count = list[tuple[int, float]](), 1
    for n, stride in axes:
        if count < most and n > 1:
            shown.append((min(n, -(-most // count)), stride))
            count *= shown[-1][0]
    return tuple(shown), prod(n for n, _ in axes) / count


def store_conflicts(box: Sequence[int], s: Shared, size: int) -> float:
    """The conflicts of a warp that stores neighbours of the source, row by row."""
    if s.rows > 1:
        return 1.0  # one after the other in memory
    strides, _ = layout_of(s, box)
    axes = [(-(-box[n] // s.vector) if n == len(box) - 1 else box[n], strides[n]) for n in range(len(box))]
    axes[-1] = axes[-1][0], strides[-1] * s.vector
    if s.lanes:
        whole = (box[-1] // s.lanes, strides[-1] * s.lanes)
        inner = (s.lanes // s.vector, strides[-1] * s.vector)
        axes = [*axes[: s.order[-1]], whole, *axes[s.order[-1] : -1], inner]
    if s.group:  # neighbours in a group, then groups
        axes[-1:] = [(axes[-1][0] * s.vector // s.group, s.row), (s.group // s.vector, s.vector)]
    width = 1 if s.is_scattered else s.vector
    return conflict_degree(_first_threads(axes[::-1], _COPYING)[0], size, width)


def sectors_of_rows(x: Operand, t: BlockTree, box: Sequence[int], copy: Shared) -> float:
    """The sectors of a copy to shared memory, whose rows may begin anywhere in a sector."""
    size, shape = x.reads[0].size, x.reads[0].shape
    box = [*map(min, box, shape)]
    row, rows, outer = box[-1], prod(box[:-1]), list(box[:-1])
    while outer and row == prod(shape[len(outer) :]):  # whole rows follow each other
        row *= outer[-1]
        rows //= outer.pop()
    moves = [size * x.reads[0].offset, *(size * s * t.sizes.get(v, 1) for v, s in x.reads[0].steps)]
    moves += [size * prod(shape[n + 1 :]) for n in range(len(outer))]
    if copy.group:  # from a multiple of its elements on
        moves[:1] = [size * copy.group]
    aligned = gcd(SECTOR, *moves) or SECTOR
    requests = -(-row // (copy.lanes or WARP * copy.vector))
    return rows * ceil((row * size + requests * (SECTOR - aligned)) / SECTOR)
