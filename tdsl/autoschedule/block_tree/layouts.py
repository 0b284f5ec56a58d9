"""Layouts of copies in shared memory, chosen by the wavefronts of their stores and loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import gcd, prod

from tdsl.autoschedule.block_tree.price import (
    distinct,
    layout_of,
    sectors_of_rows,
    shared_load,
    store_conflicts,
    unrolled_terms,
    whole_vectors,
    window_axes,
    window_of,
)
from tdsl.autoschedule.block_tree.tree import BlockTree, Shared
from tdsl.autoschedule.problem import Access, Operand, Problem
from tdsl.cost.sectors import BANKS, SECTOR, WARP, WIDEST, WORD

ASYNCHRONOUS = 4  # bytes of the smallest asynchronous copy


def best_layout(p: Problem, x: Operand, s: Shared, t: BlockTree) -> Shared:
    """The layout of a copy of an operand whose stores and loads, by the threads of a tree, take least.

    >>> import tdsl as td
    >>> from tdsl.autoschedule.block_tree.tree import Cut
    >>> i, j, k = td.vars("i j k")
    >>> a, b, c = td.Tensor("a", (512, 64), td.f32), td.Tensor("b", (512, 64), td.f32), td.Func("c")
    >>> c[i, j] = td.sum(a[i, k] * b[j, k], axis=k)
    >>> p, cuts = Problem.of(td.Schedule(c)["c"]), (Cut("i", 16, 4), Cut("j", 16, 4))
    >>> tree = BlockTree("c", cuts, (("j", 16), ("i", 16)), (("k", 64),))
    >>> str(best_layout(p, p.operands[1], copy_of(p, p.operands[1], tree, dense=False), tree))
    'b(tv68:8)'
    """
    unrolled, _ = unrolled_terms(t)
    return min(_layouts(p, x, s, t), key=lambda s: _wavefronts(p, x, s, t, unrolled))


def best_row(uses: Sequence[tuple[Access, BlockTree]], box: tuple[int, ...]) -> int:
    """The elements of a row of an array in shared memory, with the padding for the fewest wavefronts.

    Threads load or store the array as the access of a tree says; the array has the extents `box` in a block.
    """
    order, last = tuple(range(len(box))), box[-1]

    def wavefronts(row: int) -> float:
        total, s = 0.0, Shared("", None, 1, order, row)
        for r, t in uses:
            unrolled, _ = unrolled_terms(t)
            vector, served, _ = shared_load(Operand(r.array, None, (r,)), r, t, s, unrolled, box=box)
            total += distinct(r, t, unrolled) / vector * served
        return total

    return min(range(last, last + BANKS), key=wavefronts)


def copy_of(p: Problem, x: Operand, t: BlockTree, *, dense: bool = True, shifted: bool = False) -> Shared:
    """A copy in the order of the source, as many elements at a time as rows of it and of tiles allow.

    If `dense`, vectors go across the ends of whole rows where these are wider then, and rows that begin in
    the middle of sectors are copied from sectors on, in groups of their size. If `shifted`, rows that begin
    anywhere are copied in vectors, where whole ones make up those of the copy.
    """
    box, wide = p.tile_of(x, t.sizes), x.reads[0].row_width
    copy = Shared(x.array, x.along, min(_aligned(p, x, t, 1), wide) if box else 1, tuple(range(len(box))))
    sector = max(SECTOR // x.reads[0].size, 1)
    rows = 1
    while rows < len(box) and _is_covered(p, x, t, len(box) - rows):
        rows += 1
    if rows > 1 and _has_edge(p, x, t, len(box) - rows):  # lanes of a vector would be tested one by one
        rows -= 1
    if dense and (vector := _aligned(p, x, t, rows)) > copy.vector and rows > 1:
        return replace(copy, vector=vector, rows=rows)
    if dense and copy.vector < wide and _is_shifted(p, x, t) and x.reads[0].shape[-1] % sector == 0:
        return replace(copy, vector=wide, group=sector, row=sector)
    widest = max(WIDEST // x.reads[0].size, 1)
    narrow = x.reads[0].has_narrow_rows and copy.vector * x.reads[0].size <= WORD
    if shifted and narrow and (box[-1] % widest == 0 if x.padded else box[-1] >= widest):
        return replace(copy, vector=widest, shifted=True)
    return copy


def _is_covered(p: Problem, x: Operand, t: BlockTree, dim: int) -> bool:
    """True if a tile has all of a dimension, and nothing beyond."""
    ends = [r.starts[dim] + sum(max(c, 0) * (t.sizes.get(v, 1) - 1) for v, c in r.dims[dim]) for r in x.reads]
    return p.tile_of(x, t.sizes)[dim] == x.reads[0].shape[dim] == max(ends) + 1


def _has_edge(p: Problem, x: Operand, t: BlockTree, dim: int) -> bool:
    """True if a tile may go beyond the end of a dimension."""
    axes = {v for r in x.reads for v, _ in r.dims[dim]}
    return any(not p.axis(v).known or p.axis(v).extent % t.sizes.get(v, 1) for v in axes)


def _aligned(p: Problem, x: Operand, t: BlockTree, rows: int) -> int:
    """The neighbours that 16 bytes hold of whole vectors of a tile's last `rows` dimensions, as one.

    One dimension of a copy that is filled is extended to whole vectors.
    """
    box, r = p.tile_of(x, t.sizes), x.reads[0]
    inner = [prod(r.shape[n + 1 :]) for n in range(len(box))]
    starts = (min(y.starts[n] for y in x.reads) * inner[n] for n in range(len(box) - rows, len(box)))
    steps = [inner[n] for n in range(len(box) - rows) if box[n] > 1 or rows > 1]
    ends = [prod(r.shape[-rows:])] if rows > 1 else []  # where a vector is cut by the edge of the array
    row = 1 << (box[-1] - 1).bit_length() if rows == 1 and not x.padded else prod(box[-rows:])
    return _widest(r.size, row, *ends, *starts, *steps, *_moves_of(p, x, t, rows))


def _widest(size: int, *counts: int) -> int:
    """The elements of `size` bytes that 16 bytes hold, as many as divide all counts."""
    most = gcd(max(WIDEST // size, 1), *counts)
    return most & -most


def _moves_of(p: Problem, x: Operand, t: BlockTree, rows: int) -> list[int]:
    """The elements from a tile to the next along each axis, in the last `rows` dimensions as one."""
    shape = x.reads[0].shape
    return [
        c * t.sizes.get(v, 1) * prod(shape[n + 1 :])
        for r in x.reads for n in range(len(shape) - rows, len(shape)) for v, c in r.dims[n]
        if t.sizes.get(v, 1) < p.axis(v).extent or not p.axis(v).known
    ]  # fmt: skip


def _wavefronts(p: Problem, x: Operand, s: Shared, t: BlockTree, unrolled: Sequence[str]) -> float:
    """The wavefronts of loads and of the copy, and its instructions, for each piece of code of a block."""
    total, box = 0.0, whole_vectors(p.tile_of(x, t.sizes), s)
    for r in x.reads:
        vector, served, _ = shared_load(x, r, t, s, unrolled, box=box)
        total += distinct(r, t, unrolled) / vector * served
    size = x.reads[0].size
    wide = 1 if s.is_scattered else s.vector
    stored = prod(box) / wide / WARP * max(1, wide * size / WORD)
    total += stored * store_conflicts(box, s, size) ** 2 + prod(box) / s.vector / WARP
    return total + 1e-6 * layout_of(s, box)[1]


def _is_shifted(p: Problem, x: Operand, t: BlockTree) -> bool:
    """True if rows of a copy do not begin where sectors do."""
    moves = [*(r.starts[-1] for r in x.reads), *_moves_of(p, x, t, 1)]
    return gcd(*moves) * x.reads[0].size % SECTOR != 0


def _padded_runs(p: Problem, x: Operand, s: Shared, t: BlockTree, dims: int) -> Iterator[Shared]:
    """Layouts with padding after the indices that a thread has along one of the first `dims` dimensions."""
    box = whole_vectors(p.tile_of(x, t.sizes), s)
    for n in range(dims):
        each = {t.cut(v).each for v, _ in x.reads[0].dims[n]}
        run = each.pop() if len(each) == 1 and len(x.reads) == 1 else 1
        if 1 < run < box[n] and box[n] % run == 0:
            yield replace(s, padded=n, run=run, row=run + 1)


def _has_window(p: Problem, x: Operand, t: BlockTree) -> bool:
    """True if a thread can load the window of its points once."""
    return len(x.reads) > 1 or (bool(p.summed) and bool(window_axes(x, t)))


def _is_whole(p: Problem, x: Operand, t: BlockTree, s: Shared) -> bool:
    """True if whole vectors hold the last dimension of the window of a thread."""
    unrolled, _ = unrolled_terms(t)
    vector, *_ = shared_load(x, x.reads[0], t, s, unrolled, box=whole_vectors(p.tile_of(x, t.sizes), s))
    return window_of(x, t, unrolled)[-1] % vector == 0


def _layouts(p: Problem, x: Operand, s: Shared, t: BlockTree) -> Iterator[Shared]:
    """The layouts of a copy: rows with padding, groups with padding, and columns as rows."""
    box, size = whole_vectors(p.tile_of(x, t.sizes), s), x.reads[0].size
    yield s
    if not box:
        return
    if s.group or s.rows > 1:
        whole = replace(s, window=True)
        if s.rows > 1 and _has_window(p, x, t) and _is_whole(p, x, t, whole):
            yield whole
        if s.rows > 1:
            yield from _padded_runs(p, x, s, t, len(box) - s.rows)
        s = copy_of(p, x, t, dense=False)
        yield s
    widest = max(WIDEST // size, 1)
    for vector in sorted({s.vector, min(s.vector, max(ASYNCHRONOUS // size, 1))}, reverse=True):
        for n in range(1, 9):
            step = max(vector, 1)
            yield replace(s, vector=vector, row=-(-box[-1] // step) * step + n * step)
    for n in range(1, len(box) - 1):
        yield replace(s, padded=n, row=box[n] | 1)
        yield replace(s, padded=n, row=box[n] + 1)
    yield from _padded_runs(p, x, s, t, len(box) - 1)
    group = BANKS * WORD // size
    known = all(p.axis(v).known for v, _ in x.reads[0].dims[-1])
    if known and group >= 2 and box[-1] % group == 0 and box[-1] > group and len(x.reads) == 1:
        yield replace(s, group=group, row=group + widest)
    if _has_window(p, x, t):
        whole = replace(s, window=True)
        if shared_load(x, x.reads[0], t, whole, unrolled_terms(t)[0], box=box)[0] == 1:
            yield whole
        for n in range(8):  # the last vector may go beyond the box, and rows begin with a whole one
            row = -(-(box[-1] + widest - 1) // widest) * widest + n * widest
            yield replace(s, window=True, row=row, vector=gcd(row, s.vector))
    registers, lanes = {c.axis for c in t.cuts if c.each > 1}, SECTOR // size
    for d, dim in enumerate(x.reads[0].dims[:-1]):
        if any(v in registers and c == 1 for v, c in dim) and box[d] > 1 and size >= ASYNCHRONOUS:
            order = (*(n for n in s.order if n != d), d)
            for n, vector in product(range(1, 9), dict.fromkeys((1, s.vector))):
                row = -(-box[d] // widest) * widest + n * widest
                by_rows = replace(s, vector=vector, order=order, row=row, shifted=s.shifted and vector > 1)
                yield by_rows
                by_lanes = replace(by_rows, lanes=lanes)
                if (
                    known
                    and box[-1] > lanes
                    and box[-1] % lanes == 0
                    and lanes % vector == 0
                    and sectors_of_rows(x, t, box, by_lanes) <= sectors_of_rows(x, t, box, by_rows)
                ):
                    yield by_lanes
