"""A pass that turns selects between a load and 0 into masked loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from math import copysign

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.loops import Alloc, For, Kernel, Stmt
from tdsl.codegen.ir.statements import loads_of, map_exprs, map_parts
from tdsl.core.node import Node, children, frozen, map_children, transform
from tdsl.lang.affine import as_expr, as_sum, variables
from tdsl.lang.bounds import NO_FACTS, Facts, at_most
from tdsl.lang.expr import ONE, TRUE, ZERO, Binary, Call, Const, Expr, Load, Select, dtype_of
from tdsl.lang.regions import interval_where, nonpositive_sums
from tdsl.lang.simplify import conjunction, conjuncts, subtract
from tdsl.lang.types import i64


def mask_loads(kernel: Kernel) -> Kernel:
    """Replace each select between a load of global memory and 0 by a load masked by the condition.

    Clamps of the load's index that the condition implies are dropped. The zero-filled copy of a padded array
    is then a plain masked copy again, which can be vectorized or asynchronous. Loads in its index, those
    of a gather, are masked, too.

    >>> from tdsl.codegen.ir.loops import SERIAL, BufferParam, Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Var, const
    >>> from tdsl.lang.types import f32
    >>> a, i = BufferParam("a", f32, (const(5),), (1,), False), Var("i")
    >>> clamped = Load("a", (Binary("min", i, const(4)),), f32)
    >>> value = Select(Binary("le", i, const(4)), clamped, Const(0.0, f32))
    >>> loop = For("i", ZERO, const(8), SERIAL, Store("b", (i,), value))
    >>> print(show(mask_loads(Kernel("k", (a,), loop)).body))
    for i in range(0, 8):
      b[i] = a[i] if i <= 4 else 0
    """
    global_buffers = {p.name for p in kernel.params} | _root_allocs(kernel.body)
    return dataclasses.replace(kernel, body=_mask(kernel.body, global_buffers, NO_FACTS))


def _root_allocs(s: Stmt) -> set[str]:
    """The names of the allocations outside of all loops."""
    names = {s.name} if isinstance(s, Alloc) else set()

    def visit(part: Stmt) -> Stmt:
        names.update(_root_allocs(part))
        return part

    if not isinstance(s, For):
        map_parts(s, visit)
    return names


def _mask(s: Stmt, global_buffers: Collection[str], facts: Facts) -> Stmt:
    def step(n: Node) -> Node:
        match n:
            case Select(cond, Load() as load, Const(0 | 0.0 as zero)) if (
                load.buffer in global_buffers and copysign(1, zero) > 0 and not loads_of(cond)
            ):
                index = tuple(_with_masks(_unclamped(e, cond, facts), cond) for e in load.index)
                inner = () if load.mask is None else conjuncts(_unclamped(load.mask, cond, facts))
                mask = conjunction((cond, *inner))
                return dataclasses.replace(load, index=index, mask=mask)
            case _:
                return n

    def expr(e: Expr) -> Expr:
        return transform(e, step) if loads_of(e) else e

    return map_parts(map_exprs(s, expr), lambda part: _mask(part, global_buffers, facts_inside(facts, s)))


def _with_masks(e: Expr, cond: Expr) -> Expr:
    """An index whose loads are masked by the conditions on what they depend on: it is always evaluated."""

    def masked(n: Node) -> Node:
        if not isinstance(n, Load):
            return n
        used = {v for x in n.index for v in variables(x)}
        limits = (c for c in conjuncts(cond) if not used.isdisjoint(variables(c)))
        mask = conjunction((*limits, *(() if n.mask is None else conjuncts(n.mask))))
        return n if mask == TRUE else dataclasses.replace(n, mask=mask)

    return transform(e, masked) if loads_of(e) else e


def _unclamped(e: Expr, cond: Expr, facts: Facts) -> Expr:
    """`e` without the clamps and edge padding that have no effect where `cond` holds."""
    proof = _Proof(cond, facts)
    match e:
        case Binary("min" | "max" as op, a, b) if dtype_of(e) == i64:
            for x, y in ((a, b), (b, a)):
                if proof.at_most(*((x, y) if op == "min" else (y, x))):
                    return _unclamped(x, cond, facts)
        case Call("pad_edge", (at, extent)):
            if proof.at_most(ZERO, at) and proof.at_most(at, subtract(extent, ONE)):
                return _unclamped(at, cond, facts)
        case _:
            pass
    inner = {child: _unclamped(child, cond, facts) for child in _parts(e)}
    return map_children(e, inner.__getitem__)  # type: ignore[arg-type]  # of expressions


def _parts(e: Expr) -> tuple[Expr, ...]:
    return children(e)  # type: ignore[return-value]  # an expression holds expressions only


@frozen
class _Proof:
    """Proofs of inequalities where a condition holds."""

    cond: Expr
    facts: Facts

    def at_most(self, a: Expr, b: Expr) -> bool:
        """True if a <= b is proved; a maximum as `a`, or a minimum as `b`, is split into its operands."""
        match a, b:
            case Binary("max", x, y), _:
                return self.at_most(x, b) and self.at_most(y, b)
            case _, Binary("min", x, y):
                return self.at_most(a, x) and self.at_most(a, y)
            case _:
                pass
        d = as_sum(a).plus(as_sum(b), -1)
        for known in nonpositive_sums(self.cond):
            if at_most(as_expr(d.plus(known, -1)), ZERO, self.facts):
                return True
        most = interval_where(as_expr(d), self.facts.ranges, self.cond, self.facts)[1]
        return most is not None and at_most(most, ZERO, self.facts)
