"""A pass that splits the body of a loop by ranges of its variable where a select on it chooses between loads.

A concatenation of arrays, such as of channels, is a select between them by index. Vector code would load from
all of the arrays, and blend.
"""

from __future__ import annotations

import dataclasses

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import PARALLEL, SERIAL, For, Kernel, Stmt
from tdsl.codegen.ir.statements import conditional, exprs_of, loads_of, map_parts, rebuilt, walk
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.core.node import post_order
from tdsl.lang.affine import as_sum
from tdsl.lang.bounds import NO_FACTS, Facts, lower, upper
from tdsl.lang.expr import Binary, Select, Var, const
from tdsl.lang.simplify import conjuncts, subtract

_LARGEST_BODY = 4000  # nodes of expressions in all copies
# For x + d (key 1) or -x + d (key -1) compared with 0: the result changes at x = -d, or d, plus this offset.
_BEGINS = {"lt": {1: 0, -1: 1}, "ge": {1: 0, -1: 1}, "le": {1: 1, -1: 0}, "gt": {1: 1, -1: 0}}


def split_on_selects(kernel: Kernel) -> Kernel:
    """Split the body of a loop by ranges of its variable, so that no select on it chooses between loads.

    >>> from tdsl.codegen.ir.loops import Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, Load
    >>> from tdsl.lang.types import i64
    >>> x = Var("x")
    >>> first, other = Load("a", (x,), i64), Load("b", (Binary("sub", x, const(4)),), i64)
    >>> store = Store("c", (x,), Select(Binary("lt", x, const(4)), first, other))
    >>> print(show(split_on_selects(Kernel("k", (), For("x", ZERO, const(10), SERIAL, store))).body))
    for x in range(0, 10):
      if x < 4:
        c[x] = a[x]
      else:
        c[x] = b[x - 4]
    """
    cuts = _cut_points(kernel.body)
    if not cuts:
        return kernel
    body = _split_loops(kernel.body, cuts, NO_FACTS, FreshNames(kernel))
    if body is kernel.body:
        return kernel
    return simplify_loops(dataclasses.replace(kernel, body=body))


def _cut_points(s: Stmt) -> dict[str, set[int]]:
    """For each variable, the values at which a select between loads changes its choice."""
    cuts: dict[str, set[int]] = {}
    for n in post_order(*(e for part in walk(s) for e in exprs_of(part))):
        if not isinstance(n, Select) or not loads_of(n.yes) or not loads_of(n.no):
            continue
        for c in conjuncts(n.cond):
            if not isinstance(c, Binary) or c.op not in _BEGINS:
                continue
            difference = as_sum(subtract(c.left, c.right))
            match [*difference.terms.items()]:
                case [(Var(name), 1 | -1 as sign)]:
                    begin = _BEGINS[c.op][sign] - sign * difference.constant
                    cuts.setdefault(name, set()).add(begin)
                case _:
                    pass
    return cuts


def _split_loops(s: Stmt, cuts: dict[str, set[int]], facts: Facts, fresh: FreshNames) -> Stmt:
    within = facts_inside(facts, s)
    if isinstance(s, For) and s.kind in (SERIAL, PARALLEL) and s.name in cuts:
        lo, hi = lower(Var(s.name), within), upper(Var(s.name), within)
        if lo is not None and hi is not None:
            values = sorted(at for at in cuts[s.name] if lo < at <= hi)
            if values and (len(values) + 1) * _count_nodes(s.body) <= _LARGEST_BODY:
                s = rebuilt(s, body=_split_body(s, values, fresh))
    return map_parts(s, lambda part: _split_loops(part, cuts, within, fresh))


def _split_body(s: For, cuts: list[int], fresh: FreshNames) -> Stmt:
    """The body of a loop, copied for the values of its variable below each of `cuts`, and for the rest."""
    *parts, body = s.body, *(fresh.copy(s.body) for _ in cuts)
    for at, part in zip(reversed(cuts), reversed(parts), strict=True):
        body = conditional(Binary("lt", Var(s.name), const(at)), part, body)
    return body


def _count_nodes(s: Stmt) -> int:
    return sum(1 for part in walk(s) for _ in post_order(*exprs_of(part)))
