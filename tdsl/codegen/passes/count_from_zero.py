"""A pass that shifts loops so that their first value is 0."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.ir.fresh_names import Renaming
from tdsl.codegen.ir.loops import CONCURRENT, For, Kernel, Stmt
from tdsl.codegen.ir.statements import loads_of, map_exprs, map_parts, rebuilt
from tdsl.lang.expr import ZERO, Const, Var
from tdsl.lang.simplify import add


def count_from_zero(kernel: Kernel) -> Kernel:
    """Shift loops whose first value is not constant to start at 0, so that it cancels in indices.

    >>> from tdsl.codegen.ir.loops import SERIAL, Store
    >>> from tdsl.codegen.passes.simplify_loops import simplify_loops
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Binary, const
    >>> t, j = Var("t"), Var("j")
    >>> store = Store("r", (Binary("sub", j, t),), j)
    >>> nest = For("t", ZERO, const(9), SERIAL, For("j", t, const(4), SERIAL, store))
    >>> print(show(simplify_loops(count_from_zero(Kernel("k", (), nest))).body))
    for t in range(0, 9):
      for j in range(0, 4):
        r[j] = j + t
    """
    return dataclasses.replace(kernel, body=_shift_loops(kernel.body))


def _shift_loops(s: Stmt) -> Stmt:
    s = map_parts(s, _shift_loops)
    if not isinstance(s, For) or isinstance(s.lo, Const) or loads_of(s.lo):
        return s
    if s.kind in CONCURRENT:
        return s
    value = Renaming({s.name: add(s.lo, Var(s.name))})
    return rebuilt(s, lo=ZERO, body=_substitute(s.body, value))


def _substitute(s: Stmt, value: Renaming) -> Stmt:
    return map_parts(map_exprs(s, value.expr), lambda part: _substitute(part, value))
