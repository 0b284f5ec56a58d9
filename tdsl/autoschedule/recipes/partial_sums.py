"""Sums over parts of the terms (split-K), and the kernel that adds them up in a fixed order."""

from __future__ import annotations

from tdsl.autoschedule.recipes.epilogue import following, in_vectors
from tdsl.autoschedule.recipes.grid import share_points
from tdsl.autoschedule.recipes.stage_facts import definition_of, even_width, sizes_of, vector_of
from tdsl.schedule.fluent import Stage
from tdsl.schedule.naming import LoopLike
from tdsl.schedule.state import REGISTER

_THREADS = 128  # of a block that adds parts up
_LANES = 4  # sums of a thread


def in_parts(
    stage: Stage, loop: LoopLike, size: int | None = None, *, nparts: int | None = None
) -> tuple[Stage, str, str]:
    """Reduce parts of a loop in a stage of their own, the part outermost in memory.

    Returns this stage, with its loops over parts and inside of one.

    >>> import tdsl as td
    >>> i, k, a, f = *td.vars("i k"), td.Tensor("a", (8, 64), td.f32), td.Func("f")
    >>> f[i] = td.sum(a[i, k], axis=k)
    >>> stage, *loops = in_parts(td.Schedule(f)[f], "k", 16)
    >>> stage.func, loops
    ('f_partial', ['k_o', 'k_i'])
    """
    free = definition_of(stage).free
    part, rest = (x.name for x in stage.split(loop, size, nparts=nparts))
    partial = stage.rfactor(part)
    partial.reorder_storage(part, *free)
    return partial, part, rest


def add_parts(stage: Stage, reader: Stage | None) -> None:
    """Have threads add up the parts of neighbours, and the `reader` computed of the sums in registers."""
    d = definition_of(stage)
    width = even_width(_LANES, sizes_of(stage).get(d.free[-1]))
    share_points(stage, d.free, _THREADS, width)
    points = 2 + (width > 1)  # blocks, threads, lanes
    *_, thread = stage.loops[:2]
    *lanes, term = stage.loops[2:]
    assert len(stage.loops) == points + 1
    stage.reorder(term, *lanes)
    out = following(stage, thread, REGISTER, reader)
    in_vectors(out, min(vector_of(out), width))
