"""Support for serial kernels, whose statements run once per iteration: detection, cached evaluation order."""

from __future__ import annotations

import functools
from math import prod

from tdsl.codegen.analysis.launch_axes import needs_all_threads
from tdsl.codegen.gpu.launches import Launch
from tdsl.codegen.ir.loops import BLOCKS, CopyTile, InitBarriers, Invoke, Stmt, Store
from tdsl.codegen.ir.statements import walk
from tdsl.core.node import post_order
from tdsl.lang.expr import Expr


def is_single_threaded(launch: Launch) -> bool:
    """True if a launch has one thread and nothing asynchronous, so that its accesses have one order only."""
    if prod(launch.block) * prod(map(launch.extent, BLOCKS)) != 1:
        return False
    return not any(
        isinstance(s, CopyTile | Invoke | InitBarriers) or (isinstance(s, Store) and s.asynchronous)
        for s in walk(launch.body)
    )


def is_of_leaders(s: Stmt, known: dict[int, bool]) -> bool:
    """True if the first thread of the axes without a loop around `s` runs it alone; `known` by identity."""
    if id(s) not in known:
        known[id(s)] = not any(map(needs_all_threads, walk(s)))
    return known[id(s)]


@functools.lru_cache(maxsize=1024)
def evaluation_order(e: Expr) -> tuple[Expr, ...]:
    """The nodes of an expression in the order of evaluation, the expression itself last."""
    return tuple(post_order(e))  # type: ignore[arg-type]  # expressions hold only such
