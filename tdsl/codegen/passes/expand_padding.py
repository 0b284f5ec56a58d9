"""A pass that expands padding calls (pad_edge, pad_reflect, ...) into index arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.loops import Kernel, Stmt
from tdsl.codegen.ir.statements import exprs_of, map_exprs, map_parts, walk
from tdsl.core.node import Node, map_children, post_order
from tdsl.lang.bounds import NO_FACTS, Facts, at_most
from tdsl.lang.expr import ONE, ZERO, Binary, Call, Expr, Select, const
from tdsl.lang.simplify import add, maximum, minimum, simplify_node, subtract


def expand_padding(kernel: Kernel) -> Kernel:
    """Replace pad_edge, pad_reflect, pad_symmetric and pad_wrap by arithmetic on indices.

    There is no division if an index is proved to be less than one period outside of the array.

    >>> from tdsl.codegen.ir.loops import SERIAL, For, Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Var
    >>> from tdsl.lang.types import i64
    >>> i = Var("i")
    >>> at = lambda x: Call("pad_symmetric", (x, const(4)), i64)
    >>> both = lambda n: For("i", ZERO, const(n), SERIAL, Store("a", (at(i),), ZERO))
    >>> print(show(expand_padding(Kernel("k", (), both(6))).body))
    for i in range(0, 6):
      a[min(i, i * -1 + 7)] = 0
    >>> print(show(expand_padding(Kernel("k", (), both(20))).body))
    for i in range(0, 20):
      a[min(i % 8, i % 8 * -1 + 7)] = 0
    """
    if not any(isinstance(n, Call) and n.fn in _MODES for n in post_order(*_exprs(kernel))):
        return kernel
    return dataclasses.replace(kernel, body=_expand(kernel.body, NO_FACTS))


def _exprs(kernel: Kernel) -> Iterator[Expr]:
    return (e for s in walk(kernel.body) for e in exprs_of(s))


def _expand(s: Stmt, facts: Facts) -> Stmt:
    memo: dict[int, tuple[Node, Node]] = {}
    s = map_exprs(s, lambda e: _expand_expr(e, facts, memo))
    return map_parts(s, lambda part: _expand(part, facts_inside(facts, s)))


def _expand_expr(e: Expr, facts: Facts, memo: dict[int, tuple[Node, Node]]) -> Expr:
    for n in post_order(e):
        if id(n) in memo:
            continue
        new = map_children(n, lambda child: memo[id(child)][1])
        if new is not n:
            new = simplify_node(new, facts)
        if isinstance(new, Call) and new.fn in _MODES:
            new = _MODES[new.fn](new.args[0], new.args[1], facts)
        memo[id(n)] = n, new
    return memo[id(e)][1]  # type: ignore[return-value]  # an Expr stays one


def _edge(i: Expr, n: Expr, facts: Facts) -> Expr:
    return maximum(minimum(i, subtract(n, ONE, facts), facts), ZERO, facts)


def _reflect(i: Expr, n: Expr, facts: Facts) -> Expr:
    last = subtract(n, ONE, facts)
    period = add(last, last, facts)
    if _within(subtract(ZERO, last), i, period, facts):
        inner = maximum(i, subtract(ZERO, i), facts)
    else:
        inner = _modulo(i, maximum(period, ONE, facts), facts)
    return minimum(inner, subtract(period, inner, facts), facts)


def _symmetric(i: Expr, n: Expr, facts: Facts) -> Expr:
    period = add(n, n, facts)
    if _within(subtract(ZERO, n), i, subtract(period, ONE), facts):
        inner = maximum(i, subtract(const(-1), i), facts)
    else:
        inner = _modulo(i, period, facts)
    return minimum(inner, subtract(subtract(period, ONE, facts), inner, facts), facts)


def _wrap(i: Expr, n: Expr, facts: Facts) -> Expr:
    if not _within(subtract(ZERO, n), i, subtract(add(n, n), ONE), facts):
        return _modulo(i, n, facts)
    low, high = _simplified(Binary("lt", i, ZERO), facts), _simplified(Binary("ge", i, n), facts)
    beyond = _simplified(Select(high, subtract(i, n), i), facts)
    return _simplified(Select(low, add(i, n), beyond), facts)


_MODES = {
    "pad_edge": _edge, "pad_reflect": _reflect, "pad_symmetric": _symmetric, "pad_wrap": _wrap,
}  # fmt: skip


def _within(lo: Expr, i: Expr, hi: Expr, facts: Facts) -> bool:
    return at_most(lo, i, facts) and at_most(i, hi, facts)


def _modulo(i: Expr, n: Expr, facts: Facts) -> Expr:
    return _simplified(Binary("mod", i, n), facts)


def _simplified(e: Expr, facts: Facts) -> Expr:
    return simplify_node(e, facts)  # type: ignore[return-value]  # an Expr stays one
