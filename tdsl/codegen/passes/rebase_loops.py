"""A pass that starts split loops at a bound that varies, so that only their last vector is partial."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.analysis.facts import facts_inside, last_value, narrow_range
from tdsl.codegen.analysis.lane_dependence import lanes_are_independent
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import PARALLEL, For, If, Kernel, Let, Stmt
from tdsl.codegen.ir.statements import (
    exprs_of,
    loads_of,
    map_exprs,
    map_parts,
    rebuilt,
    scalars_of,
    stored_in,
    walk,
)
from tdsl.codegen.passes.bound_loops import guards, nonpositive_sums, without_guards
from tdsl.lang.affine import as_sum
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Expr, Size, Var
from tdsl.lang.simplify import (
    add,
    ceildiv,
    floordiv,
    multiply,
    simplify,
    substitute,
    subtract,
)


def rebase_loops(kernel: Kernel) -> Kernel:
    """Start and end the loops of a split range at its first and last point, where conditions give them.

    The loops of a constant first point keep it, and their vectors' alignment. Others are moved to the first
    point: in a triangle, the vectors that contain its diagonal would be partial at both ends. The body may
    then use the two loops in the sum o * factor + i only.

    >>> from tdsl.codegen.ir.loops import SERIAL, VECTORIZED, Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import const
    >>> x = Binary("add", Binary("mul", Var("o"), const(4)), Var("i"))
    >>> inner = For("i", ZERO, const(4), VECTORIZED, If(Binary("lt", Var("k"), x), Store("a", (x,), x)))
    >>> nest = For("k", ZERO, const(9), SERIAL, For("o", ZERO, const(8), SERIAL, inner))
    >>> print(show(rebase_loops(Kernel("f", (), nest)).body))
    for k in range(0, 9):
      for o in range(0, (k * -1 + 2) // 4 + 8):
        for i in range(0, 4):  # vectorized
          if o * 4 + i < k * -1 + 31:
            a[o * 4 + i + k + 1] = o * 4 + i + k + 1
    """
    return dataclasses.replace(kernel, body=_rebase(kernel.body, NO_FACTS, FreshNames(kernel)))


def _rebase(s: Stmt, facts: Facts, fresh: FreshNames) -> Stmt:
    match s:
        case For(_, _, _, "serial" | "parallel", For(_, Const(0), Const(), "vectorized") as inner):
            return _rebased(s, inner, facts, fresh)
        case _:
            return map_parts(s, lambda part: _rebase(part, facts_inside(facts, s), fresh))


def _rebased(outer: For, inner: For, facts: Facts, fresh: FreshNames) -> Stmt:
    """The pair of loops from the first to the last point that the conditions around the body admit."""
    point, factor = f"{outer.name} {inner.name}", inner.extent
    start = multiply(Var(outer.name), factor)
    at = subtract(Var(point), start)
    given = lo, hi = multiply(outer.lo, factor), _last_point(outer, factor, facts)
    used = []
    for c in guards(inner.body, lambda c: not loads_of(c)):
        if loads_of(c):
            continue
        limits = nonpositive_sums(simplify(substitute(c, {inner.name: at})), point)
        if limits and not any({outer.name, inner.name} & scalars_of(e) for d in limits for e in d.terms):
            used.append(c)
            for limit in limits:
                lo, hi = narrow_range(limit, point, lo, hi, facts)
    if all(isinstance(e, Const) for e in (lo, hi)) or (lo, hi) == given:
        return outer
    if (loads_of(lo) | loads_of(hi)) & stored_in(outer):
        return outer  # the bounds are evaluated before the loop, the conditions on them in it
    body = without_guards(inner.body, used)
    if isinstance(lo, Const) or lo == given[0]:  # vectors stay where they are
        begin, last = floordiv(lo, factor, facts), floordiv(hi, factor, facts)
        body = If(Binary("le", add(start, Var(inner.name)), hi), body)
        if lo not in (given[0], multiply(begin, factor)):
            body = If(Binary("le", lo, add(start, Var(inner.name))), body)
        extent = add(subtract(last, begin, facts), ONE, facts)
        return rebuilt(outer, lo=begin, extent=extent, body=rebuilt(inner, body=body))
    moved = _substituted(body, inner.name, at)
    if any(outer.name in scalars_of(e) for x in walk(moved) for e in exprs_of(x)):
        return outer
    count = add(subtract(hi, lo, facts), ONE, facts)
    points = For(point, lo, count, PARALLEL, moved)
    if outer.kind == PARALLEL and not lanes_are_independent(points, facts):
        return outer  # points of one iteration, which may depend on each other, would be in two
    here = add(start, Var(inner.name))
    plain = all(isinstance(atom, Var | Size) for atom in as_sum(lo).terms)
    first: Expr = lo if plain else Var(fresh.name(f"{outer.name}_first"))
    body = If(Binary("lt", here, count), _substituted(moved, point, add(first, here)))
    blocks = ceildiv(count, factor, facts)
    loop = rebuilt(outer, lo=ZERO, extent=blocks, body=rebuilt(inner, body=body))
    return Let(first.name, lo, loop) if isinstance(first, Var) and not plain else loop


def _last_point(outer: For, factor: Expr, facts: Facts) -> Expr:
    return subtract(multiply(add(last_value(outer, facts), ONE), factor), ONE)


def _substituted(s: Stmt, name: str, value: Expr) -> Stmt:
    new = map_exprs(s, lambda e: simplify(substitute(e, {name: value})))
    return map_parts(new, lambda part: _substituted(part, name, value))
