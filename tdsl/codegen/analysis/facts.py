"""The ranges of variables that hold inside loops and conditions, as `Facts`."""

from __future__ import annotations

from tdsl.codegen.ir.loops import For, If, Let, Stmt
from tdsl.codegen.ir.statements import loads_of
from tdsl.lang.affine import AffineSum, as_expr, variables
from tdsl.lang.bounds import Facts, lower, upper
from tdsl.lang.expr import ONE, ZERO, Const, Expr, Var, const, dtype_of
from tdsl.lang.regions import restrict_ranges
from tdsl.lang.simplify import add, ceildiv, conjuncts, floordiv, maximum, minimum, subtract
from tdsl.lang.types import i64


def facts_inside(facts: Facts, s: Stmt) -> Facts:
    """The facts in the body of a statement: of a loop, a let, an `If` without `else`."""
    match s:
        case For():
            return _facts_in_loop(facts, s)
        case Let(name, value) if dtype_of(value) == i64 and not loads_of(value):
            return facts.with_range(name, value, value)
        case If(cond, _, None):
            return facts_where(facts, cond)
        case _:
            return facts


def _facts_in_loop(facts: Facts, loop: For) -> Facts:
    """The facts in a loop; bounds that load memory, which may change, are replaced by constant limits."""
    first, last = loop.lo, last_value(loop, facts)
    if loads_of(first):
        bound = lower(first, facts)
        if bound is None:
            return facts
        first = const(bound)
    if loads_of(last):
        bound = upper(last, facts)
        if bound is None:
            return facts
        last = const(bound)
    return facts.with_range(loop.name, first, last)


def last_value(loop: For, facts: Facts) -> Expr:
    """The last value of a loop variable."""
    if isinstance(loop.lo, Const) and isinstance(loop.extent, Const):
        return const(loop.lo.value + loop.extent.value - 1)
    return subtract(add(loop.lo, loop.extent, facts), ONE, facts)


def narrow_range(d: AffineSum, name: str, lo: Expr, hi: Expr, facts: Facts) -> tuple[Expr, Expr]:
    """The subrange of lo..hi of variable `name` in which `d`, linear in it, is at most 0."""
    c, rest = d.terms[Var(name)], as_expr(d.without(Var(name)))
    if c > 0:
        return lo, minimum(hi, floordiv(subtract(ZERO, rest, facts), const(c), facts), facts)
    return maximum(lo, ceildiv(rest, const(-c), facts), facts), hi


def facts_where(facts: Facts, cond: Expr) -> Facts:
    """The facts where a condition holds.

    Each affine comparison bounds each of its variables: the innermost one in terms of the others, an outer
    one by the limits for which some value of the inner ones satisfies it.

    >>> from tdsl.lang.bounds import NO_FACTS, upper
    >>> from tdsl.lang.expr import ZERO, Binary, Var
    >>> i, j = Var("i"), Var("j")
    >>> facts = NO_FACTS.with_range("i", ZERO, const(9)).with_range("j", ZERO, const(9))
    >>> some = facts_where(facts, Binary("lt", Binary("add", Binary("mul", const(10), i), j), const(25)))
    >>> upper(i, some), upper(Binary("add", Binary("mul", const(10), i), j), some)
    (2, 24)
    """
    for c in conjuncts(cond):
        if loads_of(c):
            continue
        used = variables(c)
        names = [name for name in facts.ranges if name in used]
        for k, name in enumerate(names):
            here = {n: facts.ranges[n] for n in names[k:]}
            lo, hi = restrict_ranges(here, c, facts, name)[name]
            if (lo, hi) == here[name] or lo is None or hi is None:
                continue
            if _uses_outer_only(facts, name, lo) and _uses_outer_only(facts, name, hi):
                facts = facts.with_range(name, lo, hi)
    return facts


def _uses_outer_only(facts: Facts, name: str, bound: Expr) -> bool:
    """True if a bound of variable `name` depends only on variables whose ranges come before its own."""
    if loads_of(bound):
        return False
    allowed = set()
    for other in facts.ranges:
        if other == name:
            break
        allowed.add(other)
    return all(v in allowed or v not in facts.ranges for v in variables(bound)) and (
        name not in variables(bound)
    )
