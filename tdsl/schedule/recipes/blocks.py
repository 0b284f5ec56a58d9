"""Stages on the blocks and threads of a GPU.

elements     neighbours on neighbouring threads, some elements for each
block_sums   a block for each result: its threads sum parts, which they combine
block_tiles  a sum of products: a tile for each block, fetched together, a smaller one in the registers of
             each thread

`on_blocks` takes the one that fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tdsl.lang.affine import as_sum, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in
from tdsl.schedule.facts import extents, has_effects
from tdsl.schedule.nest import REGISTER, SHARED, is_ordered
from tdsl.schedule.recipes.block_rows import ACCESS, BlockRows, block_rows, fused, reduce_by_threads
from tdsl.schedule.recipes.block_transpose import BlockTranspose, block_transpose
from tdsl.schedule.recipes.choices import recipe
from tdsl.schedule.recipes.conv import known
from tdsl.schedule.stage import Stage

_LONG = 256  # terms of a sum that are worth a block
_FEW = 1 << 14  # results that leave a GPU idle with a thread for each
_LARGE = 64  # rows and columns of a product that is worth tiles
_COPIED = 4  # bytes, the least that a GPU copies to shared memory by itself
_EACH = 16  # terms of a thread where many blocks reduce to one element


@dataclass(frozen=True, slots=True)
class Elements:
    """Blocks of so many threads, and the elements that each of them makes at once."""

    threads: int
    vector: int


@dataclass(frozen=True, slots=True)
class BlockSums:
    """A block for each result, whose threads sum over `along`."""

    along: str
    threads: int


@dataclass(frozen=True, slots=True)
class BlockTiles:
    """The tile of a block (rows, columns, terms), and that of a thread (rows, columns).

    `stages` of a block's tiles are in shared memory at a time.
    """

    tile: tuple[int, int, int]
    each: tuple[int, int]
    vector: int
    stages: int


Plan = Elements | BlockSums | BlockTiles | BlockRows | BlockTranspose


def on_blocks(stage: Stage, *, threads: int = 256) -> Plan | None:
    """The recipe that fits the sizes of a stage; what it chose, or None for a stage of one point."""
    d, sizes = definition_of(stage), sizes_of(stage)
    points = prod(sizes.get(v) or 1 for v in d.free)
    terms = prod(sizes.get(v) or 1 for v, _, _ in d.ranges)
    if all((sizes.get(v) or 0) >= _LARGE for v in d.free[-2:]):
        tiles = block_tiles(stage)
        if tiles is not None:
            return tiles
    rows = block_rows(stage)
    if rows is not None:
        return rows
    turned = block_transpose(stage)
    if turned is not None:
        return turned
    if terms >= _LONG and points <= _FEW:
        sums = block_sums(stage, threads=threads)
        if sums is not None:
            return sums
    return elements(stage, threads=threads)


@recipe
def elements(stage: Stage, *, threads: int = 256, vector: int | None = None) -> Elements | None:
    """Share the points of a stage out among threads, each definition by itself.

    `vector` neighbours are made by one thread; by default as many as 16 bytes hold, where they divide the
    last extent. Returns what was chosen, or None for a stage without free loops.

    >>> import tdsl as td
    >>> i, j, a, f = *td.vars("i j"), td.Tensor("a", (100, 64), td.f32), td.Func("f")
    >>> f[i, j] = a[i, j] * 2
    >>> s = td.Schedule(f)
    >>> td.recipes.elements(s[f])
    Elements(threads=256, vector=4)
    """
    f = stage.schedule.state.program.func(stage.func)
    if not any(d.free for d in f.definitions):
        return None
    found = 1
    for n, d in enumerate(f.definitions):
        own = stage if n == 0 else stage.update(n - 1)
        width = _vector(own) if vector is None else vector
        if _share_out(own, d, threads, width):
            found = max(found, width)
    return Elements(threads, found)


def _share_out(stage: Stage, d: Definition, threads: int, vector: int) -> bool:
    """One loop over blocks and one over threads of the free loops that stand outside of all others."""
    free = [x.name for x in stage.loops]
    while free and not set(d.free).issuperset(free):
        free.pop()
    if not free:
        return False
    if vector > 1:
        outer, lanes = stage.split(free[-1], vector)
        stage.vectorize(lanes)
        free[-1] = outer.name
    block, thread = stage.split(fused(stage, free), threads)
    stage.bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    return True


def _vector(stage: Stage) -> int:
    """How many neighbours 16 bytes hold, where the last dimension has a multiple of so many."""
    d = definition_of(stage)
    if d.ranges or not d.index or has_effects(d):
        return 1
    last = d.index[-1]
    if not isinstance(last, Var) or last.name != d.free[-1]:
        return 1
    f = stage.schedule.state.program.func(stage.func)
    widest = max(t.bytes for t in (*f.dtypes, *(r.dtype for r in reads_in(d.values))))
    return even_width(ACCESS // widest, sizes_of(stage).get(last.name))


def definition_of(stage: Stage) -> Definition:
    """The definition that a stage schedules."""
    return stage.schedule.state.program.func(stage.func).definitions[stage.definition]


def sizes_of(stage: Stage) -> dict[str, int | None]:
    """The extent of each variable of a definition that the schedule knows."""
    state, boxes = known(stage.schedule)
    f = state.program.func(stage.func)
    return extents(f, f.definitions[stage.definition], boxes[f.name]) if f.name in boxes else {}


def even_width(most: int, extent: int | None) -> int:
    """The largest power of two up to `most` that divides an extent; 1 where that is not known."""
    width = max(most, 1)
    while width > 1 and (extent is None or extent % width):
        width //= 2
    return width


@recipe
def block_sums(stage: Stage, *, threads: int = 256) -> BlockSums | None:
    """Reduce each element of a stage by a block of threads; float sums are then in another order.

    A stage of one element is reduced by many blocks, and their results by one more. Returns what was
    chosen, or None for a stage that is no reduction, or one whose order matters.

    >>> import tdsl as td
    >>> i, k, a, f = *td.vars("i k"), td.Tensor("a", (100, 5000), td.f32), td.Func("f")
    >>> f[i] = td.sum(a[i, k], axis=k)
    >>> s = td.Schedule(f)
    >>> td.recipes.block_sums(s[f])
    BlockSums(along='k', threads=256)
    """
    f = stage.schedule.state.program.func(stage.func)
    d = f.definitions[0]
    if len(f.definitions) > 1 or d.init is None or not d.ranges or is_ordered(f, 0):
        return None
    names = [name for name, _, _ in d.ranges]
    if not d.free:
        block, _ = stage.split(fused(stage, names), threads * _EACH)
        parts = stage.rfactor(block)
        _sum_in_blocks(parts, [parts.loops[-1].name], threads, 1)
        _, part = stage.split(block.name, threads)
        stage.bind(part, "threadIdx.x")
    else:
        _sum_in_blocks(stage, names, threads, _loaded(stage, d))
    return BlockSums(names[-1], threads)


def _sum_in_blocks(stage: Stage, names: list[str], threads: int, vector: int) -> None:
    whole = fused(stage, [x.name for x in stage.loops if x.name not in names])
    stage.bind(whole, "blockIdx.x")
    stage.schedule.cache_write(stage, at=whole)
    reduce_by_threads(stage, names, threads, vector)


def _loaded(stage: Stage, d: Definition) -> int:
    """How many terms of a reduction that are neighbours in memory 16 bytes hold, where rows have so many."""
    last = d.ranges[-1][0]
    near = [r for r in reads_in(d.values) if r.index[-1:] == (Var(last),)]
    widest = max((r.dtype.bytes for r in near), default=ACCESS)
    return even_width(ACCESS // widest, sizes_of(stage).get(last))


@recipe
def block_tiles(
    stage: Stage, *, tile: tuple[int, int, int] = (64, 64, 16), each: tuple[int, int] = (4, 4),
    stages: int = 3,
) -> BlockTiles | None:  # fmt: skip
    """Tiles for a sum of products over one variable, with two free variables or more.

    The last two free variables are the rows and columns of `tile`; those before are batches. What both
    operands hold of a tile is fetched into shared memory by all threads, 16 bytes at a time where extents
    allow that, and while others are in use where copies have 4 bytes or more. Returns what was chosen, or
    None for a stage of another kind.

    >>> import tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> a, b, c = td.Tensor("a", (256, 64), td.f32), td.Tensor("b", (64, 256), td.f32), td.Func("c")
    >>> c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    >>> s = td.Schedule(c)
    >>> td.recipes.block_tiles(s[c])
    BlockTiles(tile=(64, 64, 16), each=(4, 4), vector=4, stages=3)
    """
    schedule, name = stage.schedule, stage.func
    f = schedule.state.program.func(name)
    d = f.definitions[0]
    fits = len(f.definitions) == 1 and d.init is not None and len(d.ranges) == 1
    if not fits or len(d.free) < 2 or is_ordered(f, 0):
        return None
    operands = _operands(d)
    if len(operands) < 2:
        return None
    vector = min(fetched(stage, source) for source in operands)
    *batch, rows, columns = d.free
    term = d.ranges[0][0]
    ro, co, ri, ci = stage.tile((rows, columns), tile[:2])
    ty, tx, r, c = stage.tile((ri, ci), each)
    ko, ki = stage.split(term, tile[2])
    stage.reorder(*batch, ro, co, ty, tx, ko, ki, r, c)
    if batch:
        stage.bind(fused(stage, batch), "blockIdx.z")
    stage.bind(ro, "blockIdx.y").bind(co, "blockIdx.x")
    stage.bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
    out = schedule.cache_write(name, at=tx, scope=REGISTER)
    wide = _vector(out)
    if wide > 1 and each[1] % wide == 0:
        out.vectorize(columns, wide)
    for source in operands:
        schedule.cache_read(source, name, at=ko, scope=SHARED).cooperate(vector)
    if vector * min(r.dtype.bytes for r in reads_in(d.values)) < _COPIED:
        stages = 1
    if stages > 1:
        stage.pipeline(ko, stages)
    stage.unroll(ki).unroll(r).unroll(c)
    return BlockTiles(tile, each, vector, stages)


def _operands(d: Definition) -> list[str]:
    """The tensors and funcs that the terms read along rows or columns, not both."""
    (term, _, _), (rows, columns) = d.ranges[0], d.free[-2:]
    found: dict[str, bool] = {}
    for r in reads_in(d.values):
        used = {v for e in r.index for v in variables(e)}
        near = term in used and len(used & {rows, columns}) == 1
        found[r.name] = near and found.get(r.name, True)
    return [name for name, near in found.items() if near]


def fetched(stage: Stage, source: str) -> int:
    """How many elements of an operand 16 bytes hold, where its last index has a multiple of so many."""
    sizes, width = sizes_of(stage), ACCESS
    for r in reads_in(definition_of(stage).values):
        if r.name == source:
            last = as_sum(r.index[-1])
            near = [a.name for a, c in last.terms.items() if c == 1 and isinstance(a, Var)]
            steps = [last.constant, *(c for c in last.terms.values() if c != 1)]
            for step in (*steps, *(sizes.get(v) for v in near), *[None] * (len(near) != 1)):
                width = min(width, even_width(ACCESS // r.dtype.bytes, step))
    return width
