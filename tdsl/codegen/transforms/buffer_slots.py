"""Adds a first index (a slot) to all accesses to some buffers, for multi-buffering."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import partial

from tdsl.codegen.ir.loops import CopyTile, Invoke, Prefetch, Stmt, Store
from tdsl.codegen.ir.statements import loads_of, map_exprs, map_parts, rebuilt
from tdsl.core.node import Node, transform
from tdsl.lang.expr import Expr, Load


def index_by_slot(s: Stmt, buffers: Collection[str], slot: Expr) -> Stmt:
    """The statement with `slot` as a new first index of all accesses to `buffers`."""
    s = map_parts(
        map_exprs(s, partial(_loads_in_slot, buffers=buffers, slot=slot)),
        lambda part: index_by_slot(part, buffers, slot),
    )
    match s:
        case Store(buffer, index) | Prefetch(buffer, index) | CopyTile(buffer, index) if buffer in buffers:
            return rebuilt(s, index=(slot, *index))
        case Invoke(_, operands):
            in_slot = (
                rebuilt(o, index=(slot, *o.index), axes=tuple(a + 1 for a in o.axes))
                if o.buffer in buffers
                else o
                for o in operands
            )
            return rebuilt(s, operands=tuple(in_slot))
        case _:
            return s


def _loads_in_slot(e: Expr, buffers: Collection[str], slot: Expr) -> Expr:
    def in_slot(n: Node) -> Node:
        if isinstance(n, Load) and n.buffer in buffers:
            return dataclasses.replace(n, index=(slot, *n.index))
        return n

    return transform(e, in_slot) if not loads_of(e).isdisjoint(buffers) else e
