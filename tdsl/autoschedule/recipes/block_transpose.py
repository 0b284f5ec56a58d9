"""Stages on a GPU that read along one dimension and write along another, through square tiles.

    for tiles (blocks):
      a tile of what is read, neighbours by neighbouring threads, in shared memory
      the tile of the stage, its neighbours by neighbouring threads

A row of a tile in shared memory is one element longer than it has to be: then 32 neighbours of a column lie
in different banks, as those of a row do.
"""

from __future__ import annotations

from typing import Any

from tdsl.autoschedule.recipes.block_rows import fused
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe
from tdsl.autoschedule.recipes.conv import known
from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in
from tdsl.schedule.fluent import Stage
from tdsl.schedule.properties import coefficient, extents, has_effects
from tdsl.schedule.state import SHARED

_LEAST = 16  # elements on both sides that are worth tiles


@frozen
class BlockTranspose:
    """Square tiles of `rows` and `columns` of what is written; along `rows` the `sources` are read.

    A block has `tile` times `lines` threads.
    """

    rows: str
    columns: str
    sources: tuple[str, ...]
    tile: int = 32
    lines: int = 8


@recipe
def block_transpose(stage: Stage, **choices: Any) -> BlockTranspose:
    """Schedule an element-wise stage that reads along another dimension than it writes.

    `choices` replace what is chosen: the numbers of `BlockTranspose`. Dimensions beside the two are batches.
    Returns what was chosen. Sides that are known have at least 16 elements.

    >>> import tdsl as td
    >>> i, j, a, f = *td.vars("i j"), td.Tensor("a", (1000, 500), td.f32), td.Func("f")
    >>> f[i, j] = a[j, i] * 2
    >>> s = td.Schedule(f)
    >>> td.recipes.block_transpose(s[f])
    BlockTranspose(rows='i', columns='j', sources=('a',), tile=32, lines=8)
    """
    f = stage.schedule.state.program.func(stage.func)
    d = f.definitions[0]
    planned = _find_transpose(d) if len(f.definitions) == 1 and not has_effects(d) else None
    if planned is None:
        raise Unsuited("it does not read an array along another variable than it writes, element by element")
    state, boxes = known(stage.schedule)
    bound = state.program.func(stage.func)
    sizes = extents(bound, bound.definitions[0], boxes[f.name]) if f.name in boxes else {}
    for v in (planned.rows, planned.columns):
        if (n := sizes.get(v)) is not None and n < _LEAST:
            raise Unsuited(f"{v!r} goes through {n} elements, and less than {_LEAST} are no tile")
    plan = choose(planned, choices)
    _write(stage, d, plan)
    return plan


def _find_transpose(d: Definition) -> BlockTranspose | None:
    """The two dimensions, and what is read along the first of them."""
    if d.ranges or len(d.free) < 2 or not d.index or not isinstance(d.index[-1], Var):
        return None
    columns = d.index[-1].name
    turned: dict[str, str] = {}  # the dimension of each source
    others: set[str] = set()
    for r in reads_in(d.values):
        along = variables(r.index[-1]) if r.index else frozenset()
        outer = {v for e in r.index[:-1] for v in variables(e)}
        unit_stride = [v for v in along if v in d.free and coefficient(r.index[-1], v) == 1]
        if columns in outer and len(along) == len(unit_stride) == 1 and not along & outer:
            if turned.setdefault(r.name, unit_stride[0]) != unit_stride[0]:
                others.add(r.name)
        else:
            others.add(r.name)
    consistent = {name: v for name, v in turned.items() if name not in others}
    rows = next(iter(consistent.values()), None)
    if rows is None:
        return None
    return BlockTranspose(rows, columns, tuple(n for n, v in consistent.items() if v == rows))


def _write(stage: Stage, d: Definition, plan: BlockTranspose) -> None:
    batches = [v for v in d.free if v not in (plan.rows, plan.columns)]
    ro, co, ri, ci = (x.name for x in stage.tile((plan.rows, plan.columns), (plan.tile, plan.tile)))
    part, line = (x.name for x in stage.split(ri, plan.lines))
    stage.reorder(*batches, ro, co, part, line, ci)
    block = fused(stage, [*batches, ro, co])
    stage.bind(block, "blockIdx.x")
    stage.bind(line, "threadIdx.y").bind(ci, "threadIdx.x").unroll(part)
    for source in plan.sources:
        tile = stage.schedule.cache_read(source, stage, at=block, scope=SHARED)
        *outer, last = (x.name for x in tile.loops)
        tile.align_storage(len(outer), plan.tile + 1)
        part, line = (x.name for x in tile.split(fused(tile, outer), plan.lines))
        tile.bind(line, "threadIdx.y").bind(last, "threadIdx.x").unroll(part)
