"""How many blocks and threads a kernel of a GPU takes."""

from __future__ import annotations

from collections.abc import Callable

from tdsl.codegen.loops import AXES, LANES, Alloc, Block, For, If, Invoke, Let, Stmt
from tdsl.codegen.passes.scope import inside
from tdsl.codegen.passes.statements import map_parts, parts_of
from tdsl.errors import ScheduleError
from tdsl.lang.bounds import NOTHING, Facts, upper
from tdsl.lang.expr import Const, Expr
from tdsl.schedule.instruction import INSTRUCTIONS


def map_kernels(s: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """A statement with each kernel changed: what stands outside of all others but memory, lets and tests."""
    if isinstance(s, Block | Let | If | Alloc):
        return map_parts(s, lambda part: map_kernels(part, change))
    return change(s)


def launch_extents(body: Stmt) -> dict[str, int]:
    """How many blocks and threads a kernel takes along each axis: those of its longest loop there.

    The threads that run an instruction together lie along threadIdx.x.
    """
    extents = dict.fromkeys(AXES, 1)
    _grow(body, NOTHING, extents)
    return extents


def _grow(s: Stmt, facts: Facts, extents: dict[str, int]) -> None:
    if isinstance(s, Invoke):
        extents[LANES] = max(extents[LANES], INSTRUCTIONS[s.instruction].threads)
    if isinstance(s, For) and s.kind in AXES:
        extents[s.kind] = max(extents[s.kind], _most(s, facts))
    facts = inside(facts, s)
    for part in parts_of(s):
        _grow(part, facts, extents)


def _most(s: For, facts: Facts) -> int:
    most = upper(s.extent, facts)
    if most is None:
        raise ScheduleError(
            f"how many iterations of {s.name!r} run on {s.kind} is not known before the launch",
            loc=s.loc,
            label="this loop",
            hint="split it by a constant, or fix the sizes",
        )
    return most


def is_whole(s: For, extents: dict[str, int]) -> bool:
    """True when every block or thread along a loop's axis runs an iteration of it."""
    extent: Expr = s.extent
    return isinstance(extent, Const) and extent.value == extents[s.kind]
