"""Reductions of the rows of a product on a GPU, computed from its tiles in registers.

    best[i] = min over j of product[i, j], where product[i, j] = sum over k of a term of x[i, k] and y[j, k]

    for rows of tiles (and parts of all columns): blocks
      for a smaller tile of each thread:
        for tiles of the columns:
          for steps along the terms:
            what the operands hold of the tile, fetched together into shared memory, ahead of its use
            the terms of the thread, added up in registers
          the columns of the thread, merged into its results
      the results of all threads of a row, merged by shuffles

The product is not stored. Where rows are too few for a GPU, the columns are shared out, too, and results of
the parts are merged by another kernel. An operand whose terms are neighbours in memory is kept in shared
memory by 16 bytes of terms, such that neighbouring threads read neighbouring chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import Any

from tdsl.autoschedule.recipes.choices import Unsuited, choose, gpu_of, recipe, reduction_of
from tdsl.autoschedule.recipes.epilogue import following, reader_of
from tdsl.autoschedule.recipes.grid import bind_blocks
from tdsl.autoschedule.recipes.partial_sums import add_parts, in_parts
from tdsl.autoschedule.recipes.stage_facts import (
    definition_of,
    even_width,
    known_sizes,
    load_width,
    separate_operands,
)
from tdsl.core.node import frozen
from tdsl.cost.sectors import WIDEST
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Read, Var
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.gathering import uses_variable
from tdsl.schedule.naming import Loop
from tdsl.schedule.state import REGISTER, SHARED

THREADS = (16, 16)  # of a block, along rows and columns
EACH = 32  # bytes of sums along each side of the tile of a thread
STEP = 64  # bytes of terms of an operand that are fetched at a time, in a row
LEAST = 16  # rows, and columns, that are worth tiles
STAGES = 3  # steps whose operands are in shared memory: one in use and two on their way


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
class ReducedProduct:
    """A reduction of a product: its rows and columns, and, in the product, those and the terms.

    `sources` are what the terms read, with the variable along which a copy serves, None for all, and the
    variables, of rows, columns and terms, with which they move.
    """

    row: str
    column: str
    product: str
    inner_row: str
    inner_column: str
    term: str
    sources: tuple[tuple[str, str | None, frozenset[str]], ...]


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
    machine = gpu_of(stage, machine)
    reduced = find_reduced_product(stage)
    plan = choose(_plan(stage, reduced, machine), choices, product=(reduced.product,))
    _write(stage, reduced, plan)
    return plan


def find_reduced_product(stage: Stage) -> ReducedProduct:
    """The product that a stage reduces; Unsuited for another stage, or where sizes are not known."""
    d = reduction_of(stage, 1)
    state = stage.schedule.state
    if not d.free or d.index != tuple(map(Var, d.free)):
        raise Unsuited("it has no row for each of its results")
    column = d.ranges[0][0]
    used = {r for r in reads_in(d.values) if state.program.has_func(r.name)}
    products = {r for r in used if variables(r) >= {*d.free, column}}
    if len(products) != 1:
        raise Unsuited("it does not reduce one product, element by element")
    (read,) = products
    f = state.program.func(read.name)
    readers = {c.name for c, _ in state.consumers(f.name)}
    plain = all(isinstance(e, Var) for e in read.index) and len({*read.index}) == len(read.index)
    taken = f.name in state.program.outputs or state.plan(f.name).scheduled
    if not plain or readers != {stage.func} or taken:
        raise Unsuited(f"{f.name!r} is read at other places, too")
    p = reduction_of(stage.schedule[f.name], 1)
    if p.index != tuple(map(Var, p.free)):
        raise Unsuited(f"{f.name!r} is no product")
    inner = {e.name: v for v, e in zip(p.free, read.index, strict=True) if isinstance(e, Var)}
    if {*inner} != {*d.free, column}:
        raise Unsuited(f"it does not reduce rows of {f.name!r}")
    term = p.ranges[0][0]
    row, sources = _operands(p, {v: inner[v] for v in d.free}, inner[column], term)
    known_sizes(stage)
    known_sizes(stage.schedule[f.name])
    return ReducedProduct(row, column, f.name, inner[row], inner[column], term, sources)


def _operands(
    p: Definition, rows: Mapping[str, str], column: str, term: str
) -> tuple[str, tuple[tuple[str, str | None, frozenset[str]], ...]]:
    """The variable of the rows, and what the terms of a product read along these and along its columns."""
    reads = [*reads_in(p.values)]
    used = [variables(r) for r in reads]
    along = [v for v in rows if any(rows[v] in u and term in u and column not in u for u in used)]
    alone = [v for v in along if not any(column in u and rows[v] in u for u in used)]
    if not alone or not any(column in u and term in u for u in used) or any(term not in u for u in used):
        raise Unsuited("the terms do not read something along its rows, and something else along its columns")
    row = alone[-1]
    sides = (rows[row], column)
    separate = separate_operands((r for r in reads if {*sides} & variables(r)), sides)
    separate += [(n, None) for n in dict.fromkeys(r.name for r in reads if not {*sides} & variables(r))]
    sources = []
    for name, side in separate:
        moving = [variables(r) & {*sides, term} for r in reads if r.name == name and uses_variable(r, side)]
        if any(m != moving[0] for m in moving):
            raise Unsuited(f"{name!r} is read along rows and along columns at once")
        sources.append((name, side, frozenset(moving[0])))
    return row, tuple(sources)


def _plan(stage: Stage, reduced: ReducedProduct, machine: Machine) -> ReducedTiles:
    schedule = stage.schedule
    product = schedule[reduced.product]
    p, sizes, outer = definition_of(product), known_sizes(product), known_sizes(stage)
    rows, columns, terms = (sizes[v] for v in (reduced.inner_row, reduced.inner_column, reduced.term))
    if min(rows, columns) < LEAST:
        raise Unsuited(f"{rows} rows and {columns} columns are no tiles")
    size = max(schedule.state.program.func(reduced.product).dtypes[0].bytes, 4)
    across = [r for r in reads_in(p.values) if reduced.inner_column in variables(r)]
    chunks = any(r.index[-1] != Var(reduced.term) for r in across)  # what neighbours read is in one row
    most = EACH // size, (WIDEST if chunks else EACH) // size
    each = [
        min(m, 1 << (ceil(n / count) - 1).bit_length())
        for m, n, count in zip(most, (rows, columns), THREADS, strict=True)
    ]
    tile = each[0] * THREADS[0], each[1] * THREADS[1]
    widest = max(r.dtype.bytes for r in reads_in(p.values))
    step = STEP // widest
    whole = [n for n in (step, step // 2) if n and terms % n == 0]
    step = whole[0] if whole else min(step, 1 << (terms - 1).bit_length())
    blocks = prod(outer[v] for v in definition_of(stage).free if v != reduced.row) * ceil(rows / tile[0])
    parts = count_parts(blocks, ceil(columns / tile[1]), machine.threads)
    stages = STAGES if ceil(terms / step) * ceil(columns / tile[1]) > 1 else 1
    return ReducedTiles(reduced.product, (*tile, step), (each[0], each[1]), stages, parts)


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


def open_blocks(
    stage: Stage, reduced: ReducedProduct, tile: tuple[int, ...], parts: int
) -> tuple[Stage, list[str], str, str, Loop]:
    """Split a reduction into rows for blocks and tiles of the columns, in parts merged by another kernel.

    Returns the stage that blocks reduce, its loops over blocks, over tiles and inside of one, and the loop
    over a block's rows.
    """
    owner, loops = stage, [v for v in definition_of(stage).free if v != reduced.row]
    over, inside = (x.name for x in stage.split(reduced.column, tile[1]))
    if parts > 1:
        owner, part, over = in_parts(stage, over, nparts=parts)
        loops.append(part)
        add_parts(stage, reader_of(stage))
    block, rows = owner.split(reduced.row, tile[0])
    return owner, [*loops, block.name], over, inside, rows


def _write(stage: Stage, reduced: ReducedProduct, plan: ReducedTiles) -> None:
    owner, blocks, tile, inner, rows = open_blocks(stage, reduced, plan.tile, plan.parts)
    ty, r = owner.split(rows, plan.each[0])
    tx, c = owner.split(inner, plan.each[1])
    owner.reorder(*blocks, ty, r, tile, tx, c)
    bind_blocks(owner, blocks)
    owner.bind(ty, "threadIdx.y")
    results = owner.rfactor(tx)
    owner.bind(tx.name, "threadIdx.x").unroll(r)
    following(owner, ty, SHARED, reader_of(owner, ty) if plan.parts == 1 else None)
    results.compute_at(owner, ty).set_scope(REGISTER)
    _, lane = results.split(tx.name, plan.tile[1] // plan.each[1])
    results.bind(lane, "threadIdx.x")
    first = [x.name for x in results.loops if x.name not in (reduced.row, tile, c.name)]
    results.reorder(*first, tile, reduced.row, c.name).unroll(reduced.row).unroll(c.name)
    product = stage.schedule[reduced.product].compute_at(results, tile).set_scope(REGISTER)
    _product(product, reduced, plan)


def _product(stage: Stage, reduced: ReducedProduct, plan: ReducedTiles) -> None:
    """Place the tile of a thread in registers, and its operands in shared memory."""
    d, (down, across) = definition_of(stage), (reduced.inner_row, reduced.inner_column)
    ko, ki = stage.split(reduced.term, plan.tile[2])
    stage.reorder(*[v for v in d.free if v not in (down, across)], ko, ki, down, across)
    stage.unroll(ki).unroll(down).unroll(across)
    for name, along, moving in reduced.sources:
        read = next(r for r in reads_in(d.values) if r.name == name and uses_variable(r, along))
        _copy(stage, read, along, ko.name, reduced if across in moving else None, plan)
    if plan.stages > 1:
        stage.pipeline(ko, plan.stages)


def _copy(
    stage: Stage, read: Read, along: str | None, at: str, by_columns: ReducedProduct | None,
    plan: ReducedTiles,
) -> None:  # fmt: skip
    """Copy a step of an operand to shared memory; `by_columns`, neighbouring threads read columns of it.

    Chunks of the terms are then packed, such that these threads' accesses have no bank conflicts.
    """
    index, chunk, vector = read.index, WIDEST // read.dtype.bytes, load_width(stage, read.name, along)
    p, last = by_columns, len(index) - 1
    across = [n for n, e in enumerate(index) if p is not None and p.inner_column in variables(e)]
    packed = p is not None and len(across) == 1 and index[-1] == Var(p.term) and plan.tile[2] % chunk == 0
    copy = stage.schedule.cache_read(
        read.name, stage.func, at=at, scope=SHARED, filled=True, along=along,
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
