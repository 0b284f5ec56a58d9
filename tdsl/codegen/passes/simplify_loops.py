"""A pass that simplifies expressions under the enclosing loops and conditions, and drops empty statements."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from tdsl.codegen.analysis.facts import facts_inside, facts_where
from tdsl.codegen.ir.loops import (
    AXES,
    BLOCKS,
    PIPELINED,
    SERIAL,
    UNROLLED,
    Alloc,
    Block,
    Check,
    For,
    If,
    InitBarriers,
    Kernel,
    Let,
    Print,
    Stmt,
    WarpSpecialize,
)  # fmt: skip
from tdsl.codegen.ir.statements import (
    EMPTY,
    conditional,
    is_empty,
    loads_of,
    map_exprs,
    map_parts,
    rebuilt,
    sequence,
)  # fmt: skip
from tdsl.core.node import Node, map_children, post_order
from tdsl.lang.bounds import NO_FACTS, Facts, lower, upper
from tdsl.lang.expr import FALSE, ONE, TRUE, ZERO, Binary, Const, Expr, Param, Size, Unary, Var
from tdsl.lang.simplify import conjunction, simplify, simplify_node


def simplify_loops(kernel: Kernel) -> Kernel:
    """Simplify every expression under the ranges of its loops, and drop decided tests and empty loops.

    Loops of extent 1 become their body, serial ones of at most 1 iteration a test and their body; loops
    without iterations are dropped, nested blocks are flattened.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.codegen.ir.loops import Store
    >>> from tdsl.lang.expr import Binary, const
    >>> i = Var("i")
    >>> clipped = Binary("min", Binary("add", i, Var("j")), const(9))
    >>> guarded = If(Binary("lt", i, const(8)), Store("a", (clipped,), i))
    >>> nest = For("j", const(1), const(1), "serial", For("i", const(0), const(8), "serial", guarded))
    >>> print(show(simplify_loops(Kernel("k", (), nest)).body))
    for i in range(0, 8):
      a[i + 1] = i
    >>> rest = For("j", i, Binary("sub", ONE, i), "serial", Store("a", (Var("j"),), ONE))
    >>> short = For("i", const(0), const(8), "serial", If(Binary("lt", i, ONE), rest))
    >>> print(show(simplify_loops(Kernel("k", (), short)).body))
    for i in range(0, 8):
      if i < 1:
        a[i] = 1
    """
    return dataclasses.replace(kernel, body=_Simplifier().statement(kernel.body))


@dataclass(slots=True)
class _Simplifier:
    """The facts at a statement, the values of eliminated variables, and the GPU axes of enclosing loops."""

    facts: Facts = NO_FACTS
    values: dict[str, Expr] = field(default_factory=dict)
    memo: dict[Node, Node] = field(default_factory=dict)
    axes: frozenset[str] = frozenset()

    def expr(self, e: Expr) -> Expr:
        """The expression simplified under the facts, memoised."""
        memo = self.memo
        if e not in memo:
            for n in post_order(e):
                if n in memo:
                    continue
                if isinstance(n, Var | Param) and n.name in self.values:
                    memo[n] = self.values[n.name]
                else:
                    memo[n] = simplify_node(map_children(n, memo.__getitem__), self.facts)
        return memo[e]  # type: ignore[return-value]  # an Expr stays one

    def with_facts(self, facts: Facts) -> _Simplifier:
        return self if facts is self.facts else _Simplifier(facts, self.values, axes=self.axes)

    def with_value(self, name: str, value: Expr) -> _Simplifier:
        return _Simplifier(self.facts, {**self.values, name: value}, axes=self.axes)

    def inside_loop(self, kind: str) -> _Simplifier:
        """The simplifier inside of a loop of the given kind."""
        if kind not in AXES or kind in self.axes:
            return self
        return _Simplifier(self.facts, self.values, axes=self.axes | {kind})

    def statement(self, s: Stmt) -> Stmt:
        match s:
            case For():
                return self.loop(s)
            case Let(name, value, body):
                return self.let(s, name, self.expr(value), body)
            case If():
                return self.branch(s)
            case Block(body):
                return sequence(self.statement(part) for part in body)
            case Check(cond):
                return EMPTY if self.expr(cond) == TRUE else map_exprs(s, self.expr)
            case Print(cond):
                return EMPTY if self.expr(cond) == FALSE else map_exprs(s, self.expr)
            case Alloc() | InitBarriers() | WarpSpecialize():
                return map_parts(map_exprs(s, self.expr), self.statement)
            case _:
                return map_exprs(s, self.expr)

    def loop(self, s: For) -> Stmt:
        lo, extent = self.expr(s.lo), self.expr(s.extent)
        most = upper(extent, self.facts)
        if most is not None and most <= 0:
            return EMPTY
        if most == 1 == lower(extent, self.facts):
            extent = ONE
        if extent == ONE and s.kind != PIPELINED:
            # kept: it marks a kernel, or binds a repeated GPU axis
            if (s.kind in BLOCKS or s.kind in self.axes) and not loads_of(lo):
                inner = self.with_value(s.name, lo).inside_loop(s.kind).statement(s.body)
                return EMPTY if is_empty(inner) else rebuilt(s, lo=lo, extent=ONE, body=inner)
            if not loads_of(lo):
                return self.with_value(s.name, lo).statement(s.body)
            return self.let(Let(s.name, lo, s.body, loc=s.loc), s.name, lo, s.body)
        if most == 1 and s.kind in (SERIAL, UNROLLED) and not loads_of(extent):
            one = rebuilt(s, lo=lo, extent=ONE)
            return self.branch(If(_is_positive(extent), one, loc=s.loc))
        loop = rebuilt(s, lo=lo, extent=extent)
        body = self.with_facts(facts_inside(self.facts, loop)).inside_loop(s.kind).statement(s.body)
        return EMPTY if is_empty(body) else rebuilt(loop, body=body)

    def let(self, s: Let, name: str, value: Expr, body: Stmt) -> Stmt:
        if isinstance(value, Const | Var | Size | Param):
            return self.with_value(name, value).statement(body)
        scope = self.with_facts(facts_inside(self.facts, rebuilt(s, value=value)))
        inner = scope.statement(body)
        return EMPTY if is_empty(inner) else rebuilt(s, value=value, body=inner)

    def branch(self, s: If) -> Stmt:
        cond = self.expr(s.cond)
        if cond == TRUE:
            return self.statement(s.then)
        if cond == FALSE:
            return EMPTY if s.orelse is None else self.statement(s.orelse)
        then = self.with_facts(facts_where(self.facts, cond)).statement(s.then)
        if s.orelse is None:
            return conditional(cond, then, None, s)
        unless = simplify(Unary("not", cond))
        orelse = self.with_facts(facts_where(self.facts, unless)).statement(s.orelse)
        return conditional(cond, then, orelse, s)


def _is_positive(e: Expr) -> Expr:
    """The condition that an index expression is above 0."""
    match e:
        case Binary("min", x, y):
            return conjunction((_is_positive(x), _is_positive(y)))
        case _:
            return simplify(Binary("lt", ZERO, e))
