"""Stores of which none changes what another one loads: their values can be computed before all of them."""

from __future__ import annotations

from collections.abc import Sequence

from tdsl.codegen.ir.loops import Stmt, Store
from tdsl.codegen.ir.statements import loads_of
from tdsl.codegen.transforms.extract_lanes import lane_count


def independent_stores(body: Sequence[Stmt]) -> list[Store]:
    """The first statements that are stores of scalars to registers, none of which the others load.

    >>> from tdsl.lang.expr import Load, const
    >>> from tdsl.lang.types import f32
    >>> x, y = Store("x", (), Load("a", (), f32)), Store("y", (), const(1))
    >>> later = Store("z", (), Load("x", (), f32))
    >>> [s.buffer for s in independent_stores([x, y, later])]
    ['x', 'y']
    """
    run: list[Store] = []
    written: set[str] = set()
    for s in body:
        if not isinstance(s, Store) or s.mask is not None or s.atomic or s.index or lane_count(s) > 1:
            break
        if s.buffer in written or loads_of(s.value) & written:
            break
        run.append(s)
        written.add(s.buffer)
    return [] if any(loads_of(s.value) & written for s in run) else run
