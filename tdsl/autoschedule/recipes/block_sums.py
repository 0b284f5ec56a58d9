"""Reductions by blocks of threads on a GPU: a block for each result, or many where results are few.

for results, for parts of the terms (blocks):
  for terms of a part (threads, 16 bytes each): partial results, combined by shuffles
for results (blocks): the results of the parts (threads), combined by shuffles
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tdsl.autoschedule.recipes.block_rows import fused, reduce_by_threads
from tdsl.autoschedule.recipes.choices import Unsuited, recipe, reduction_of
from tdsl.autoschedule.recipes.stage_facts import definition_of, load_width, sizes_of
from tdsl.core.node import frozen
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in
from tdsl.machine.devices import describe_gpu
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.gathering import uses_variable
from tdsl.schedule.state import is_ordered
from tdsl.target import as_target

_WARP = 32
_EACH = 16  # terms of a thread, at least, where many blocks reduce to one element


@frozen
class BlockSums:
    """`parts` blocks for each result, whose threads reduce over `along`; with several, another one merges.

    With 0 they are as many as the terms need, of which only a call tells the number.
    """

    along: str
    threads: int
    parts: int = 1


@recipe
def block_sums(
    stage: Stage, *, threads: int = 256, parts: int | None = None, machine: Machine | None = None
) -> BlockSums:
    """Reduce each element of a stage by a block of threads; float sums are then in another order.

    A stage of one element, or of few with many terms, is reduced by many blocks, and their results by one
    more for each: by so many that they occupy the GPU, or by `parts`. Returns what was chosen. The order of
    the terms must not matter.

    >>> import tdsl as td
    >>> i, k, a, f = *td.vars("i k"), td.Tensor("a", (100, 5000), td.f32), td.Func("f")
    >>> f[i] = td.sum(a[i, k], axis=k)
    >>> s = td.Schedule(f, target="cuda:sm_80")
    >>> td.recipes.block_sums(s[f])
    BlockSums(along='k', threads=256, parts=1)
    """
    d = definition_of(stage) if stage.definition else reduction_of(stage)
    f = stage.schedule.state.program.func(stage.func)
    in_order = not d.ranges or is_ordered(f, stage.definition) or d.index != tuple(map(Var, d.free))
    if stage.definition and in_order:
        raise Unsuited("it is no update of which points may run in any order, to an element each")
    machine = machine or describe_gpu(as_target(stage.schedule.target).arch)
    names, sizes = [name for name, _, _ in d.ranges], sizes_of(stage)
    if parts is None:
        parts = _parts(d, sizes, threads, machine)
    if parts != 1 or stage.definition or not d.free:
        parts = _sum_parts(stage, d, names, threads, parts)
    else:
        _sum_in_blocks(stage, names, threads, _loaded(stage, d, names[-1]))
    return BlockSums(names[-1], threads, parts)


def is_long(d: Definition, sizes: Mapping[str, int | None], machine: Machine) -> bool:
    """True for so few sums that a block for each leaves a GPU idle, of terms for several blocks each."""
    return _parts(d, sizes, machine.block_threads, machine) > 1


def _parts(d: Definition, sizes: Mapping[str, int | None], threads: int, machine: Machine) -> int:
    """The blocks for each result: 1 where results occupy the GPU; else as many as it runs at once."""
    points = prod(sizes.get(v) or 0 for v in d.free)
    terms = prod(sizes.get(v) or 0 for v, _, _ in d.ranges)
    if not d.free and any(sizes.get(v) is None for v, _, _ in d.ranges):
        return 0
    if not 0 < points < machine.threads:
        return 1
    resident = max(machine.gpu.warps * _WARP // threads, 1) if machine.gpu is not None else 1
    return max(min(machine.threads * resident // points, terms // (threads * _EACH)), 1)


def _sum_parts(stage: Stage, d: Definition, names: list[str], threads: int, parts: int) -> int:
    """Reduce each element by `parts` blocks, and their results by one for each; the parts that it needs."""
    sizes, merged = sizes_of(stage), _WARP if d.free else threads
    terms = prod(sizes.get(v) or 0 for v in names)
    vector = _loaded(stage, d, names[-1]) if terms else 1
    lanes = None
    if vector > 1:
        outer, lane = stage.split(names[-1], vector)
        names, lanes = [*names[:-1], outer.name], lane.name
    each = -(-max(terms // vector, 1) // (parts * threads)) * threads if parts else threads * _EACH // vector
    block, _ = stage.split(fused(stage, names), each)
    partial = stage.rfactor(block)
    inside = [x.name for x in partial.loops if x.name not in (*d.free, block.name, lanes)]
    _sum_in_blocks(partial, inside, threads, vector, lanes)
    _merge_parts(stage, block.name, merged)
    return -(-max(terms // vector, 1) // each) if parts else 0


def _merge_parts(stage: Stage, block: str, threads: int) -> None:
    """Reduce the results of parts by the threads of a block for each element."""
    rows = [x.name for x in stage.loops if x.name != block]
    if rows and not stage.definition:
        _sum_in_blocks(stage, [block], threads)
        return
    if rows:
        stage.bind(fused(stage, rows), "blockIdx.x")
    _, part = stage.split(block, threads)
    stage.bind(part, "threadIdx.x")


def _sum_in_blocks(
    stage: Stage, names: list[str], threads: int, vector: int = 1, lanes: str | None = None
) -> None:
    whole = fused(stage, [x.name for x in stage.loops if x.name not in (*names, lanes)])
    stage.bind(whole, "blockIdx.x")
    stage.schedule.cache_write(stage, at=whole)
    reduce_by_threads(stage, names, threads, vector, lanes=lanes)


def _loaded(stage: Stage, d: Definition, along: str) -> int:
    """How many terms that are neighbours in memory 16 bytes hold of all that is read along a range."""
    sources = dict.fromkeys(r.name for r in reads_in(d.values) if uses_variable(r, along))
    return min((load_width(stage, source, along) for source in sources), default=1)
