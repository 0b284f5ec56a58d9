"""A pass that cuts loops of vectors into pieces, between which the update of a point changes its form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise

from tdsl.codegen.analysis.facts import facts_inside, last_value
from tdsl.codegen.analysis.lane_dependence import lanes_are_independent
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import For, If, Kernel, Stmt, Store
from tdsl.codegen.ir.statements import (
    conditional,
    exprs_of,
    loads_of,
    map_exprs,
    map_parts,
    rebuilt,
    scalars_of,
    sequence,
    walk,
)  # fmt: skip
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.core.node import post_order
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.expr import ONE, Binary, Const, Expr, Load, Var
from tdsl.lang.pieces import first_values, in_piece, is_point
from tdsl.lang.simplify import add, conjunction, multiply, simplify, substitute, subtract


def cut_at_conflicts(kernel: Kernel) -> Kernel:
    """Cut loops of vectors before and after a point that writes what others read, and where selects change.

    In each of these pieces (`lang/pieces.py`) the lanes are independent, or accumulate into one element. The
    body is one store, under conditions, and uses the two loops in the sum o * factor + v only.

    >>> from tdsl.codegen.ir.loops import SERIAL, VECTORIZED
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, const
    >>> from tdsl.lang.types import f32
    >>> x = Binary("add", Binary("mul", Var("o"), const(4)), Var("v"))
    >>> value = Binary("add", Load("a", (x,), f32), Load("a", (Var("k"),), f32))
    >>> inner = For("v", ZERO, const(4), VECTORIZED, Store("a", (x,), value))
    >>> nest = For("k", ZERO, const(9), SERIAL, For("o", ZERO, const(8), SERIAL, inner))
    >>> print(show(cut_at_conflicts(Kernel("f", (), nest)).body))
    for k in range(0, 9):
      for o in range(0, 8):
        for v in range(0, 4):  # vectorized
          if o * 4 + v < k:
            a[o * 4 + v] = a[o * 4 + v] + a[k]
      a[k] = a[k] + a[k]
      for o_1 in range(0, 8):
        for v_1 in range(0, 4):  # vectorized
          if k + 1 <= o_1 * 4 + v_1:
            a[o_1 * 4 + v_1] = a[o_1 * 4 + v_1] + a[k]
    """
    body = _cut(kernel.body, NO_FACTS, FreshNames(kernel))
    return kernel if body is kernel.body else simplify_loops(dataclasses.replace(kernel, body=body))


def _cut(s: Stmt, facts: Facts, fresh: FreshNames) -> Stmt:
    match s:
        case For(_, _, _, "serial", For(_, Const(0), Const(), "vectorized") as inner):
            return _segments(s, inner, facts, fresh)
        case _:
            return map_parts(s, lambda part: _cut(part, facts_inside(facts, s), fresh))


def _segments(outer: For, inner: For, facts: Facts, fresh: FreshNames) -> Stmt:
    """The loops of each piece, and the points between them; the loops as they are if there is one piece."""
    store = _only_store(inner.body)
    if store is None or not loads_of(store.value) & {store.buffer}:
        return outer
    if (loads_of(outer.lo) | loads_of(outer.extent)) & {store.buffer}:
        return outer  # the bounds of the later pieces would be those after the first ones
    if lanes_are_independent(inner, facts_inside(facts, outer)):
        return outer
    start, name = multiply(Var(outer.name), inner.extent), fresh.name(f"{inner.name}_at")
    body = _substituted(inner.body, inner.name, subtract(Var(name), start))
    whole = _only_store(body)
    if whole is None or any(outer.name in scalars_of(e) for x in walk(body) for e in exprs_of(x)):
        return outer
    reads = [n.index for n in post_order(whole.value) if isinstance(n, Load) and n.buffer == whole.buffer]
    firsts = first_values((whole.value,), whole.index, reads, name, facts, lambda e: not loads_of(e))
    if not firsts:
        return outer
    first = multiply(outer.lo, inner.extent)
    end = multiply(add(last_value(outer, facts), ONE), inner.extent)
    parts: list[Stmt] = []
    for lo, hi in pairwise((first, *firsts, end)):
        piece = _mapped(body, lambda e, lo=lo, hi=hi: in_piece(e, name, lo, hi, facts))  # type: ignore[misc]
        inside = conjunction([Binary("le", x, y) for x, y in ((first, lo), (hi, end)) if x != y])
        if is_point(lo, hi):
            parts.append(conditional(inside, _substituted(piece, name, lo)))
            continue
        piece = _substituted(piece, name, add(start, Var(inner.name)))
        point = add(start, Var(inner.name))
        tests = [Binary("le", lo, point)] if lo is not first else []
        tests += [Binary("lt", point, hi)] if hi is not end else []
        loops = rebuilt(outer, body=rebuilt(inner, body=conditional(conjunction(tests), piece)))
        parts.append(fresh.copy(loops) if parts else loops)
    return sequence(parts)


def _only_store(s: Stmt) -> Store | None:
    match s:
        case Store() if s.mask is None and not s.atomic:
            return s
        case If(_, then, None):
            return _only_store(then)
        case _:
            return None


def _substituted(s: Stmt, name: str, value: Expr) -> Stmt:
    return _mapped(s, lambda e: simplify(substitute(e, {name: value})))


def _mapped(s: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    return map_parts(map_exprs(s, f), lambda part: _mapped(part, f))
