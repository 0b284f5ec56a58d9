"""Loops that combine partial results: the load of one iteration's share, and the code that combines two."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import Alloc, Block, Stmt, Store
from tdsl.codegen.ir.statements import exprs_of, map_exprs, map_parts, rebuilt, walk
from tdsl.core.node import Node, post_order, transform
from tdsl.lang.affine import variables
from tdsl.lang.expr import ZERO, Load, Var


def partial_loads(body: Stmt, pairs: tuple[tuple[str, str], ...], loop: str) -> dict[str, Load]:
    """For each result, the load of its partial result; empty if the variable `loop` is used anywhere else."""
    results = {x: t for t, x in pairs}
    stored = {s.name for s in walk(body) if isinstance(s, Alloc)} | {*results.values()}
    lanes: dict[str, Load] = {}
    for s in walk(body):
        if not isinstance(s, Alloc | Block | Store):
            return {}
        if isinstance(s, Store) and (s.mask is not None or s.atomic or s.buffer not in stored):
            return {}
        for n in post_order(*exprs_of(s)):
            if isinstance(n, Load) and n.buffer in results:
                lane = lanes.setdefault(results[n.buffer], n)
                outer = (variables(e) for e in n.index[:-1])
                if lane != n or n.index[-1:] != (Var(loop),) or any(loop in v for v in outer):
                    return {}
    rest = _map_nodes(body, lambda n: ZERO if n in lanes.values() else n)
    used = (loop in variables(e) for s in walk(rest) for e in exprs_of(s))
    return {} if any(used) else lanes


def _map_nodes(s: Stmt, f: Callable[[Node], Node]) -> Stmt:
    """A statement with `f` applied to the nodes of its expressions."""
    done: dict[int, Node] = {}

    def mapped(s: Stmt) -> Stmt:
        return map_parts(map_exprs(s, lambda e: transform(e, f, done)), mapped)

    return mapped(s)


def combine_results(
    body: Stmt,
    fresh: FreshNames,
    lanes: Mapping[str, Load],
    low: Mapping[str, Load],
    high: Mapping[str, Load],
    into: Mapping[str, Store],
) -> Stmt:
    """A copy of a loop's body that combines `low`, for its results, with `high`, for its `lanes`.

    All are given by name of the result; stores to results that are in `into` go to the targets there.
    """
    others = {x: high[t] for t, x in lanes.items()}

    def visit(n: Node) -> Node:
        if not isinstance(n, Load):
            return n
        return low.get(n.buffer) or others.get(n, n)

    def redirected(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.buffer in into:
            return rebuilt(s, buffer=into[s.buffer].buffer, index=into[s.buffer].index)
        return map_parts(s, redirected)

    return redirected(_map_nodes(fresh.copy(body), visit))
