"""Reductions across rows on a GPU, such as sums of columns: neighbours in memory are results of their own.

for parts of the rows, for some neighbouring columns (blocks):
  threads: a column for each on threadIdx.x, every few rows of it for each on threadIdx.y
  these put together in shared memory
the parts put together by another kernel, where there are several
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tdsl.autoschedule.recipes.block_rows import ACCESS, fused, reduce_by_lines
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe, reduction_of
from tdsl.autoschedule.recipes.elements import elements
from tdsl.autoschedule.recipes.stage_facts import even_width, known_sizes
from tdsl.core.node import frozen
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Read, Var
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.state import REGISTER
from tdsl.target import as_target

_WARP = 32
_THREADS = 256  # of a block
_FEWEST = 4  # columns of a block: one thread of each adds up what the others have
_LEAST = 64  # terms of a column that are worth several threads
_BLOCKS = 2  # for each multiprocessor, that keep a GPU busy
_EACH = 16  # terms of a thread, at least
_TILE = 32  # registers for the tiles of a thread whose sums depend on other reductions


@frozen
class BlockColumns:
    """A block has `columns` times `lines` threads, with `vector` neighbours each; the rows are in `parts`.

    A sum that depends on other reductions of its column is computed with these in tiles of `terms`.
    """

    columns: int
    lines: int
    parts: int
    vector: int = 1
    terms: int = 0


@recipe
def block_columns(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> BlockColumns:
    """Reduce over variables that move across memory, while results are contiguous.

    A reduction that reads others of the same columns is computed in one pass with them (`online`), if it can
    be corrected for their results. `choices` replace what is chosen: the numbers of `BlockColumns`. Float
    sums are in another order. Returns what was chosen. A column has at least 64 terms, and the schedule has
    to know all sizes.

    >>> import tdsl as td
    >>> j, k, a, f = *td.vars("j k"), td.Tensor("a", (100_000, 64), td.f32), td.Func("f")
    >>> f[j] = td.sum(a[k, j], axis=k)
    >>> s = td.Schedule(f)
    >>> plan = td.recipes.block_columns(s[f])
    >>> plan.columns, plan.lines, plan.vector
    (16, 16, 4)
    """
    machine = machine or as_target("cuda").machine()
    d = reduction_of(stage)
    if not d.free or not _is_across(d):
        raise Unsuited("neighbouring results do not read neighbours in memory, or neighbouring terms do")
    sizes = known_sizes(stage)
    terms, points = prod(sizes[v] for v, _, _ in d.ranges), [sizes[v] for v in d.free]
    if terms < _LEAST or not all(points):
        raise Unsuited(f"a column has {terms} terms, and less than {_LEAST} are one thread's work")
    results = stage.schedule.state.program.func(stage.func).dtypes
    width = ACCESS // max(t.bytes for t in (*results, *(r.dtype for r in _of_columns(d))))
    vector = even_width(min(width, points[-1] // _FEWEST), points[-1])
    threads = -(-points[-1] // vector)
    columns = max(min(1 << (threads - 1).bit_length(), _WARP), _FEWEST)
    lines, blocks = _THREADS // columns, prod(points[:-1]) * -(-threads // columns)
    parts = 1
    while parts * blocks < _BLOCKS * machine.threads and 2 * parts * lines * _EACH <= terms:
        parts *= 2
    plan = choose(BlockColumns(columns, lines, parts, vector, _TILE // vector), choices)
    running = _online(stage, d, plan.terms) if plan.terms else None
    if running is None:
        plan = replace(plan, terms=0)
        _write(stage, d, plan, ())
        return plan
    program = stage.schedule.state.program
    for f in program.funcs:
        if running.func not in f.definitions[0].sources or f.name == running.func:
            continue
        if f.name in program.outputs:
            elements(stage.schedule[f.name])
        else:
            stage.schedule[f.name].inline()
    _write(running, program.func(running.func).definitions[0], plan, _tiles(running))
    return plan


def _online(stage: Stage, d: Definition, terms: int) -> Stage | None:
    """The reduction over tiles of a reduction and those that it reads; None where it reads none."""
    state, (term, *others) = stage.schedule.state, (v for v, _, _ in d.ranges)
    if others or not any(state.program.has_func(r.name) for r in reads_in(d.values)):
        return None
    try:
        with stage.schedule.all_or_nothing():
            return stage.online(term, terms)
    except ScheduleError:
        return None  # its terms need nothing, or nothing that can be corrected


def _tiles(running: Stage) -> tuple[str, ...]:
    """The reductions over a tile, producers first."""
    program = running.schedule.state.program
    read = {r.name for r in reads_in(program.func(running.func).definitions[0].values)}
    return tuple(f.name for f in program.funcs if f.name in read and f.definitions[0].ranges)


def _of_columns(d: Definition) -> list[Read]:
    """The reads of a definition along memory."""
    return [r for r in reads_in(d.values) if r.index and r.index[-1] == Var(d.free[-1])]


def _is_across(d: Definition) -> bool:
    """True where neighbouring results read neighbours, and neighbouring terms do not.

    What all results of a row read, such as x of `a[k, j] * x[k]`, may lie along the terms; where other
    results read others of it, as in a product of two matrices, it is an operand.
    """
    last, terms = d.free[-1], {v for v, _, _ in d.ranges}
    reads = {r: {v for e in r.index for v in variables(e)} for r in reads_in(d.values) if r.index}
    rows = [used for r, used in reads.items() if r.index[-1] == Var(last)]
    contiguous = all(
        r.index[-1] == Var(last)
        or not variables(r.index[-1]) & {last, *terms}
        or any(terms & used <= row and used <= row - {last} for row in rows)
        for r, used in reads.items()
    )
    return contiguous and bool(rows) and d.index[-1:] == (Var(last),)


def _write(stage: Stage, d: Definition, plan: BlockColumns, tiles: tuple[str, ...]) -> None:
    terms, parts, free = [v for v, _, _ in d.ranges], stage, [*d.free]
    stage.reorder(*free, *terms)
    term = fused(stage, terms)
    if plan.parts > 1:
        part, inner = (x.name for x in stage.split(term, nparts=plan.parts))
        parts = stage.rfactor(part)
        term, free = inner, [part, *free]
        parts.reorder_storage(*free)
    lines = reduce_by_lines(parts, free, term, plan.columns, plan.lines, plan.vector)
    if tiles:
        _fill_tiles(lines, tiles, plan.vector)
    if parts is not stage:
        reduce_by_lines(stage, list(d.free), free[0], _WARP, _THREADS // _WARP)


def _fill_tiles(lines: Stage, tiles: tuple[str, ...], vector: int) -> None:
    """Compute the reductions over a tile, and fetch what they read, where a thread merges it."""
    schedule, at = lines.schedule, lines.loops[-2 if vector > 1 else -1]
    for name in tiles:
        f = schedule.state.program.func(name)
        last = f.variables[-2]  # before the number of the tile
        tile = schedule[name].compute_at(lines, at).set_scope(REGISTER)
        tile.reorder(*(x.name for x in tile.loops if x.name != last), last)
        for x in tile.loops:
            tile.unroll(x)
    reads = [r for n in tiles for r in reads_in(schedule.state.program.func(n).definitions[0].values)]
    names = [r.name for r in reads if r.name not in tiles]
    for name in dict.fromkeys(n for n in names if names.count(n) > 1):
        copy = schedule.cache_read(name, lines, at=at, inside=True, scope=REGISTER)
        if vector > 1:
            copy.vectorize(copy.split(copy.loops[-1], vector)[1])
        for x in copy.loops[: -1 if vector > 1 else None]:
            copy.unroll(x)
