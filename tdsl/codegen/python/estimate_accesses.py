"""Estimates how many elements a kernel loads and stores, without running it."""

from __future__ import annotations

from tdsl.codegen.ir.loops import For, If, Let, Stmt, Store
from tdsl.codegen.ir.statements import exprs_of, parts_of
from tdsl.core.node import Node, children
from tdsl.lang.bounds import upper
from tdsl.lang.expr import FALSE, Const, Expr, Load, Select, const
from tdsl.lang.simplify import simplify, substitute


def estimate_accesses(s: Stmt, at: dict[str, Expr] | None = None) -> float:
    """The estimated loads and stores of a statement, for variables with the values `at`.

    The body of a loop counts as in its middle iteration; guarded tails count as whole.

    >>> from tdsl.codegen.ir.loops import For, Store
    >>> from tdsl.lang.expr import ONE, ZERO, Var, const
    >>> triangle = For("j", ZERO, Var("i"), "serial", Store("b", (Var("j"),), ONE))
    >>> estimate_accesses(For("i", ZERO, const(9), "serial", triangle))
    36.0
    """
    at = at or {}
    loads = float(sum(map(_loads, exprs_of(s))))
    match s:
        case For(name, lo, extent, _, body):
            iterations, first = max(_value(extent, at), 0), _value(lo, at)
            return loads + iterations * estimate_accesses(
                body, {**at, name: const(first + max(iterations - 1, 0) // 2)}
            )
        case Let(name, value, body):
            known = simplify(substitute(value, at))
            return loads + estimate_accesses(body, {**at, name: known} if isinstance(known, Const) else at)
        case If(cond, then, orelse):
            if simplify(substitute(cond, at)) != FALSE:
                return loads + estimate_accesses(then, at)
            return loads + (0.0 if orelse is None else estimate_accesses(orelse, at))
        case _:
            return loads + isinstance(s, Store) + sum(estimate_accesses(part, at) for part in parts_of(s))


def _loads(e: Node) -> int:
    """The number of loads of an expression; of a select, those of the branch with more."""
    match e:
        case Select(cond, yes, no):
            return _loads(cond) + max(_loads(yes), _loads(no))
        case _:
            return isinstance(e, Load) + sum(map(_loads, children(e)))


def _value(e: Expr, at: dict[str, Expr]) -> int:
    """The value of an index or extent, or its upper bound; 1 if neither is known."""
    most = upper(simplify(substitute(e, at)))
    return 1 if most is None else most
