"""Reductions across rows on a GPU, such as sums of columns: neighbours in memory are results of their own.

for parts of the rows, for some neighbouring columns (blocks):
  threads: a column for each on threadIdx.x, every few rows of it for each on threadIdx.y
  these put together in shared memory
the parts put together by another kernel, where there are several
"""

from __future__ import annotations

from math import prod
from typing import Any

from tdsl.autoschedule.recipes.block_rows import reduce_by_lines
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe, reduction_of
from tdsl.autoschedule.recipes.elements import elements, known_sizes
from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in
from tdsl.schedule.fluent import Stage

_WARP = 32
_THREADS = 256  # of a block
_FEWEST = 4  # columns of a block: one thread of each adds up what the others have
_LEAST = 64  # terms of a column that are worth several threads
_BLOCKS = 264  # that keep a GPU busy
_ROWS = 512  # of a part, at least


@frozen
class BlockColumns:
    """A block has `columns` times `lines` threads; the rows are in so many `parts`."""

    columns: int
    lines: int
    parts: int


@recipe
def block_columns(stage: Stage, **choices: Any) -> BlockColumns:
    """Reduce over one variable that moves across memory, while results are contiguous.

    `choices` replace what is chosen: the numbers of `BlockColumns`. Float sums are in another order.
    Returns what was chosen. A column has at least 64 terms, and the schedule has to know all sizes.

    >>> import tdsl as td
    >>> j, k, a, f = *td.vars("j k"), td.Tensor("a", (100_000, 64), td.f32), td.Func("f")
    >>> f[j] = td.sum(a[k, j], axis=k)
    >>> s = td.Schedule(f)
    >>> td.recipes.block_columns(s[f])
    BlockColumns(columns=32, lines=8, parts=128)
    """
    d = reduction_of(stage, 1)
    if not d.free or not _is_across(d):
        raise Unsuited("neighbouring results do not read neighbours in memory, or neighbouring terms do")
    sizes = known_sizes(stage)
    terms, points = sizes[d.ranges[0][0]], [sizes[v] for v in d.free]
    if terms < _LEAST or not all(points):
        raise Unsuited(f"a column has {terms} terms, and less than {_LEAST} are one thread's work")
    columns = max(min(1 << (points[-1] - 1).bit_length(), _WARP), _FEWEST)
    blocks = prod(points[:-1]) * -(-points[-1] // columns)
    parts = 1
    while 2 * parts * blocks <= _BLOCKS and 2 * parts * _ROWS <= terms:
        parts *= 2
    plan = choose(BlockColumns(columns, _THREADS // columns, parts), choices)
    _write(stage, d, plan)
    return plan


def _is_across(d: Definition) -> bool:
    """True where neighbouring results read neighbours, and neighbouring terms do not.

    What all results of a row read, such as x of `a[k, j] * x[k]`, may lie along the terms; where other
    results read others of it, as in a product of two matrices, it is an operand.
    """
    last, term = d.free[-1], d.ranges[0][0]
    reads = {r: {v for e in r.index for v in variables(e)} for r in reads_in(d.values) if r.index}
    rows = [used for r, used in reads.items() if r.index[-1] == Var(last)]
    contiguous = all(
        r.index[-1] == Var(last)
        or not variables(r.index[-1]) & {last, term}
        or any(term in row and used <= row - {last} for row in rows)
        for r, used in reads.items()
    )
    return contiguous and bool(rows) and d.index[-1:] == (Var(last),)


def _write(stage: Stage, d: Definition, plan: BlockColumns) -> None:
    term = d.ranges[0][0]
    if plan.parts == 1:
        reduce_by_lines(stage, list(d.free), term, plan.columns, plan.lines)
        return
    part, inner = stage.split(term, nparts=plan.parts)
    partial = stage.rfactor(part)
    partial.reorder_storage(part.name, *d.free)
    reduce_by_lines(partial, [part.name, *d.free], inner.name, plan.columns, plan.lines)
    elements(stage)
