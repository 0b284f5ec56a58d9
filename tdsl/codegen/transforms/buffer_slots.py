"""Multi-buffering: accesses to buffers get a slot as a new first index."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import partial

from tdsl.codegen.ir.loops import CopyTile, Invoke, Prefetch, Stmt, Store
from tdsl.codegen.ir.statements import loads_of, map_exprs, map_parts, rebuilt
from tdsl.core.node import Node, transform
from tdsl.lang.expr import Expr, Load


def index_by_slot(s: Stmt, rings: Collection[str], slot: Expr) -> Stmt:
    """The statement with `slot` as a new first index of all accesses to the buffers `rings`."""
    s = map_parts(
        map_exprs(s, partial(_loads_in_slot, rings=rings, slot=slot)),
        lambda part: index_by_slot(part, rings, slot),
    )
    match s:
        case Store(buffer, index) | Prefetch(buffer, index) | CopyTile(buffer, index) if buffer in rings:
            return rebuilt(s, index=(slot, *index))
        case Invoke(_, operands):
            moved = (
                rebuilt(o, index=(slot, *o.index), axes=tuple(a + 1 for a in o.axes))
                if o.buffer in rings
                else o
                for o in operands
            )
            return rebuilt(s, operands=tuple(moved))
        case _:
            return s


def _loads_in_slot(e: Expr, rings: Collection[str], slot: Expr) -> Expr:
    def moved(n: Node) -> Node:
        if isinstance(n, Load) and n.buffer in rings:
            return dataclasses.replace(n, index=(slot, *n.index))
        return n

    return transform(e, moved) if not loads_of(e).isdisjoint(rings) else e
