"""Reductions of the rows of a product on a GPU, computed from its tiles in registers or in fragments.

    best[i] = min over j of product[i, j], where product[i, j] = sum over k of a term of x[i, k] and y[j, k]

    for rows of tiles (and parts of all columns): blocks
      for a smaller tile of each thread, or rows of each warp:
        for tiles of the columns:
          for steps along the terms:
            what the operands hold of the tile, fetched together into shared memory, ahead of its use
            the terms of the tile, added up in registers, or multiplied by tensor cores in fragments
          the columns of the tile, merged into the results
      the results of all threads of a row, merged by shuffles

The product is not stored. Where rows are too few for a GPU, the columns are shared out, too, and results of
the parts are merged by another kernel. An operand whose terms are neighbours in memory is kept in shared
memory by 16 bytes of terms, such that neighbouring threads read neighbouring chunks.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from tdsl.autoschedule.problem import Operand, Problem
from tdsl.autoschedule.recipes.choices import Unsuited, choose, gpu_of, recipe, reduction_of
from tdsl.autoschedule.recipes.epilogue import following, reader_of
from tdsl.autoschedule.recipes.grid import bind_blocks
from tdsl.autoschedule.recipes.operand_tiles import Place, copy_tile, load_tile, multiply_tiles
from tdsl.autoschedule.recipes.operands import Operand as Matrix
from tdsl.autoschedule.recipes.operands import plain_operands
from tdsl.autoschedule.recipes.partial_sums import add_parts, in_parts
from tdsl.autoschedule.recipes.stage_facts import definition_of, even_width, known_sizes, load_width
from tdsl.autoschedule.recipes.tensor_forms import mma_of
from tdsl.core.node import frozen
from tdsl.cost.sectors import WARP, WIDEST, WORD
from tdsl.lang.affine import variables
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in
from tdsl.machine.instructions.tensor_cores import ROWS, Mma
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.gathering import uses_variable
from tdsl.schedule.naming import Loop
from tdsl.schedule.state import FRAGMENT, GROUP, REGISTER, SHARED

_THREADS = (16, 16)  # of a block, along rows and columns
_EACH = 32  # bytes of sums along each side of the tile of a thread
_STEP = 64  # bytes of terms of an operand that are fetched at a time, in a row
_LEAST = 16  # rows, and columns, that are worth tiles
_STAGES = 3  # steps whose operands are in shared memory: one in use and two on their way
_WARPS = 8  # of a block with fragments, each with ROWS rows
_COLUMNS = 64  # of a tile in fragments, of which a thread has the products and the results in registers
_MOST = 128  # terms of fragments: a thread has a quarter as many registers of the rows' operand
_GAP = 8  # elements between rows of results in shared memory, so that those of half a warp conflict nowhere


@frozen
class ReducedTiles:
    """The tile of a block (rows, columns, terms) of a `product`, and that of a thread (rows, columns).

    `stages` steps along the terms are in shared memory at a time. The columns are in so many `parts`, whose
    results are merged by another kernel.
    """

    product: str
    tile: tuple[int, int, int]
    each: tuple[int, int]
    stages: int
    parts: int = 1


@frozen
class ReducedFragments:
    """The tile of a block (rows, columns) of a `product`, and in how many `parts` the columns are."""

    product: str
    tile: tuple[int, int]
    parts: int


@frozen
class _Reduced:
    """A reduction of a product: its row and column, and those of the product, with the term of this."""

    stage: Stage
    row: str
    column: str
    product: Stage
    problem: Problem
    sides: tuple[str, str]
    term: str

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The extents of rows, columns and terms."""
        rows, columns, terms = (self.problem.axis(v).extent for v in (*self.sides, self.term))
        return rows, columns, terms

    def parts(self, tile: tuple[int, ...], machine: Machine) -> int:
        """The parts of the columns for tiles of so many rows and columns."""
        rows, columns, _ = self.sizes
        blocks = self.problem.points // (rows * columns) * ceil(rows / tile[0])
        return count_parts(blocks, ceil(columns / tile[1]), machine.threads)


@frozen
class _Blocks:
    """The stage that blocks reduce, its loops over blocks, threadIdx.y, a thread's rows, tiles and in one."""

    owner: Stage
    blocks: list[str]
    y: Loop
    row: str
    tile: str
    inside: str


@recipe
def reduced_tiles(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> ReducedTiles:
    """Reduce the rows of a product in the kernel that makes the product, tile by tile.

    `stage` is the reduction over the columns: a minimum, a sum, the place of a maximum, of the elements of
    the product, or of an expression of it. It alone reads the product, the order of terms may change,
    and the schedule knows all sizes. `choices` replace what is chosen: the numbers of `ReducedTiles`. Returns
    what was chosen.

    >>> import tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> x, y = td.Tensor("x", (4096, 64), td.f32), td.Tensor("y", (8192, 64), td.f32)
    >>> distance, nearest = td.Func("distance"), td.Func("nearest")
    >>> distance[i, j] = td.sum((x[i, k] - y[j, k]) ** 2, axis=k)
    >>> nearest[i] = td.argmin(distance[i, j], axis=j)
    >>> s = td.Schedule(nearest, target=td.Target("cuda", arch="sm_90a"))
    >>> plan = td.recipes.reduced_tiles(s["nearest_argmin"])
    >>> plan.product, plan.tile, plan.each, plan.parts
    ('distance', (128, 128, 16), (8, 8), 4)
    """
    machine, reduced = gpu_of(stage, machine), _find(stage)
    plan = choose(_plan(reduced, machine), choices, product=(reduced.product.func,))
    _write_tiles(reduced, plan)
    return plan


@recipe
def reduced_fragments(stage: Stage, *, machine: Machine | None = None) -> ReducedFragments:
    """Reduce the rows of a product of few terms by tensor cores in the kernel that makes the product.

    As `reduced_tiles`, of operands that tensor cores multiply, with at most 128 terms, a multiple of those of
    an instruction. Returns what was chosen.

    >>> import tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> x, y = td.Tensor("x", (4096, 64), td.f16), td.Tensor("y", (8192, 64), td.f16)
    >>> product, best = td.Func("product"), td.Func("best")
    >>> product[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[j, k], td.f32), axis=k)
    >>> best[i] = td.max(product[i, j], axis=j)
    >>> s = td.Schedule(best, target=td.Target("cuda", arch="sm_90a"))
    >>> reduced_fragments(s[best])
    ReducedFragments(product='product', tile=(128, 64), parts=4)
    """
    machine, reduced = gpu_of(stage, machine), _find(stage)
    pair = plain_operands(definition_of(reduced.product))
    left, right = sorted(pair, key=lambda x: x.along != reduced.sides[0])
    types = [stage.schedule.state.program.func(x.func).dtypes for x in (stage, reduced.product)]
    form = mma_of(left, right, types[1][0].name)
    if (left.along, right.along) != reduced.sides or left.gathered or right.gathered:
        raise Unsuited("its operands are not read along rows, columns and terms")
    if form is None or not machine.supports(form.name):
        raise Unsuited(f"{left.read.dtype} and {right.read.dtype} have no instruction")
    rows, _, terms = reduced.sizes
    if any(len(t) > 1 or t[0].bytes != WORD for t in types) or terms > _MOST or terms % form.k:
        raise Unsuited(f"fragments have values of {WORD} bytes, and {terms} terms do not suit")
    tile = ROWS * min(_WARPS, 1 << (ceil(rows / ROWS) - 1).bit_length()), _COLUMNS
    plan = ReducedFragments(reduced.product.func, tile, reduced.parts(tile, machine))
    _write_fragments(reduced, plan, (left, right), form)
    return plan


def _find(stage: Stage) -> _Reduced:
    """The product that a stage reduces; Unsuited for another stage, or where sizes are not known."""
    d, state = reduction_of(stage, 1), stage.schedule.state
    (column, _, _), used = d.ranges[0], {r for r in reads_in(d.values) if state.program.has_func(r.name)}
    products = {r for r in used if variables(r) >= {*d.free, column}}
    if not d.free or d.index != tuple(map(Var, d.free)) or len(products) != 1:
        raise Unsuited("it does not reduce one product, element by element, to a row of results")
    (read,) = products
    names = {e.name: v for v, e in zip(state.program.func(read.name).variables, read.index, strict=True)
             if isinstance(e, Var)}  # fmt: skip
    readers = {c.name for c, _ in state.consumers(read.name)}
    taken = read.name in state.program.outputs or state.plan(read.name).scheduled
    if len(names) < len(read.index) or readers != {stage.func} or taken:
        raise Unsuited(f"{read.name!r} is read at other places, too")
    product = stage.schedule[read.name]
    known_sizes(stage)
    known_sizes(product)
    p = Problem.of(product)
    if {*names} != {*d.free, column} or len(p.summed) != 1:
        raise Unsuited(f"it does not reduce rows of {read.name!r}, a product")
    across, term = names[column], p.summed[0].name
    alone = [
        v for v in d.free
        if any(x.uses(names[v]) for x in p.operands)
        and not any(x.uses(names[v]) and x.uses(across) for x in p.operands)
    ]  # fmt: skip
    if not (alone and all(r.uses(term) for r in p.reads) and any(x.uses(across) for x in p.operands)):
        raise Unsuited("the terms do not read something along its rows, and something else along its columns")
    sides = names[alone[-1]], across
    rows, columns = (p.axis(v).extent for v in sides)
    if min(rows, columns) < _LEAST:
        raise Unsuited(f"{rows} rows and {columns} columns are no tiles")
    return _Reduced(stage, alone[-1], column, product, p, sides, term)


def _plan(reduced: _Reduced, machine: Machine) -> ReducedTiles:
    p, (rows, columns, terms) = reduced.problem, reduced.sizes
    size = max(p.sum_bytes, WORD)
    across = [r for r in reads_in(p.definition.values) if reduced.sides[1] in variables(r)]
    chunks = any(r.index[-1] != Var(reduced.term) for r in across)  # what neighbours read is in one row
    most = _EACH // size, (WIDEST if chunks else _EACH) // size
    each = [
        min(m, 1 << (ceil(n / count) - 1).bit_length())
        for m, n, count in zip(most, (rows, columns), _THREADS, strict=True)
    ]
    tile = each[0] * _THREADS[0], each[1] * _THREADS[1]
    step = _STEP // max(r.size for r in p.reads)
    whole = [n for n in (step, step // 2) if n and terms % n == 0]
    step = whole[0] if whole else min(step, 1 << (terms - 1).bit_length())
    stages = _STAGES if ceil(terms / step) * ceil(columns / tile[1]) > 1 else 1
    parts = reduced.parts(tile, machine)
    return ReducedTiles(p.func, (*tile, step), (each[0], each[1]), stages, parts)


def count_parts(blocks: int, tiles: int, multiprocessors: int) -> int:
    """The fewest parts of the columns with which about as few tiles as possible are one after another.

    >>> count_parts(128, 128, 132), count_parts(32, 64, 132), count_parts(133, 128, 132)
    (1, 4, 2)
    """

    def steps(parts: int) -> int:
        return ceil(blocks * parts / multiprocessors) * ceil(tiles / parts)

    most = max(1, min(tiles, 2 * ceil(multiprocessors / blocks)))
    least = min(steps(n) for n in range(1, most + 1))
    return next(n for n in range(1, most + 1) if steps(n) <= 1.1 * least)


def _open_blocks(reduced: _Reduced, plan: ReducedTiles | ReducedFragments, each: int) -> _Blocks:
    """Split a reduction into rows for blocks and tiles of the columns, in parts merged by another kernel."""
    stage = owner = reduced.stage
    loops = [v for v in definition_of(stage).free if v != reduced.row]
    over, inside = (x.name for x in stage.split(reduced.column, plan.tile[1]))
    if plan.parts > 1:
        owner, part, over = in_parts(stage, over, nparts=plan.parts)
        loops.append(part)
        add_parts(stage, reader_of(stage))
    block, rows = owner.split(reduced.row, plan.tile[0])
    y, row = owner.split(rows, each)
    return _Blocks(owner, [*loops, block.name], y, row.name, over, inside)


def _merge_lanes(b: _Blocks, loops: list[str], lane: str, threads: int, row: str, parts: int) -> Stage:
    """Reduce by so many threads, each to registers, and merge these by shuffles; the stage of the registers.

    `loops` are those over the columns, of which `lane` is the number of a thread.
    """
    owner = b.owner
    owner.reorder(*b.blocks, b.y, b.row, *loops)
    bind_blocks(owner, b.blocks)
    owner.bind(b.y, "threadIdx.y")
    lanes = owner.rfactor(lane)
    owner.bind(lane, "threadIdx.x").unroll(b.row)
    following(owner, b.y, SHARED, reader_of(owner, b.y) if parts == 1 else None)
    lanes.compute_at(owner, b.y).set_scope(REGISTER)
    _, thread = lanes.split(lane, threads)
    lanes.bind(thread, "threadIdx.x")
    *outer, each = (x for x in loops if x != lane)
    first = [x.name for x in lanes.loops if x.name not in (row, *outer, each)]
    lanes.reorder(*first, *outer, row, each).unroll(row).unroll(each)
    return lanes


def _write_tiles(reduced: _Reduced, plan: ReducedTiles) -> None:
    """Keep the tile of a thread in registers, and a step of its operands in shared memory."""
    b = _open_blocks(reduced, plan, plan.each[0])
    tx, c = (x.name for x in b.owner.split(b.inside, plan.each[1]))
    threads = plan.tile[1] // plan.each[1]
    results = _merge_lanes(b, [b.tile, tx, c], tx, threads, reduced.row, plan.parts)
    product = reduced.product.compute_at(results, b.tile).set_scope(REGISTER)
    d = definition_of(product)
    ko, ki = product.split(reduced.term, plan.tile[2])
    product.reorder(*[v for v in d.free if v not in reduced.sides], ko, ki, *reduced.sides)
    product.unroll(ki).unroll(reduced.sides[0]).unroll(reduced.sides[1])
    for x in reduced.problem.operands:
        _copy(reduced, x, ko.name, plan)
    if plan.stages > 1:
        product.pipeline(ko, plan.stages)


def _copy(reduced: _Reduced, x: Operand, at: str, plan: ReducedTiles) -> None:
    """Copy a step of an operand to shared memory.

    Where neighbouring threads read columns of it, chunks of the terms are packed, such that these threads'
    accesses have no bank conflicts.
    """
    stage, reads = reduced.product, reads_in(reduced.problem.definition.values)
    index = next(r.index for r in reads if r.name == x.array and uses_variable(r, x.along))
    chunk, vector, last = WIDEST // x.reads[0].size, load_width(stage, x.array, x.along), len(index) - 1
    across = [n for n, e in enumerate(index) if reduced.sides[1] in variables(e)]
    packed = len(across) == 1 and index[-1] == Var(reduced.term) and plan.tile[2] % chunk == 0
    copy = stage.schedule.cache_read(
        x.array, stage.func, at=at, scope=SHARED, filled=True, along=x.along,
        pack={across[0]: plan.each[1], last: chunk} if packed else None,
    )  # fmt: skip
    if packed:
        # axes: threads in place of the columns, chunks in place of the terms, columns, terms
        axis, column, one = across[0], last + 1, last + 2
        rest = [n for n in range(last) if n != axis]
        copy.reorder(*[copy.loops[n] for n in (*rest, axis, column, last, one)])
        copy.reorder_storage(*rest, column, last, axis, one)
        copy.align_storage(axis, plan.tile[1] // plan.each[1] + 1)
    copy.cooperate(even_width(chunk, vector) if packed else vector)


def _write_fragments(
    reduced: _Reduced, plan: ReducedFragments, pair: tuple[Matrix, Matrix], form: Mma
) -> None:  # fmt: skip
    """Keep the rows' operand and the tile of a warp in fragments, and a tile of columns in shared memory."""
    reduced.stage.compute_root()
    b = _open_blocks(reduced, plan, ROWS)
    places = b.owner.rfactor(b.inside)
    each, lane = (x.name for x in b.owner.split(b.inside, WARP))
    lanes = _merge_lanes(b, [each, lane], lane, WARP, reduced.row, plan.parts)
    places.compute_at(b.owner, b.y).set_scope(FRAGMENT)
    others = [x.name for x in places.loops if x.name not in (b.tile, reduced.row, b.inside)]
    places.reorder(*others, b.tile, reduced.row, b.inside)
    copy = places.schedule.cache_read(places.func, lanes, scope=GROUP).compute_at(b.owner, b.y)
    copy.align_storage(len(copy.loops) - 1, plan.tile[1] + _GAP)
    product = reduced.product.compute_at(places, b.tile).set_scope(FRAGMENT)
    outside = [v for v in definition_of(product).free if v not in reduced.sides]
    ko = multiply_tiles(product, form, (*reduced.sides, reduced.term), outside)
    at: tuple[Place, Place] = ((b.owner, b.y), (places, b.tile))
    for x, operand, place, along in zip(pair, "ab", at, plan.tile, strict=True):
        vector = load_width(product, x.read.name, x.copy_along)
        shared = copy_tile(product, x, along if x.transposed else reduced.sizes[2], place, vector)
        load_tile(product, x, shared.func, place if operand == "a" else (product, ko), operand, ROWS)
    places.cooperate()
    copy.cooperate(2)
    places.pipeline(b.tile, 2)
