"""A pass that turns conditions into loop bounds, so that guarded tails and triangles need no tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tdsl.codegen.analysis.elements import Arrays, is_in_bounds
from tdsl.codegen.analysis.facts import facts_inside, facts_where, last_value, narrow_range
from tdsl.codegen.ir.loops import (
    PARALLEL,
    PIPELINED,
    SERIAL,
    Alloc,
    Block,
    BufferParam,
    For,
    If,
    Kernel,
    Stmt,
)
from tdsl.codegen.ir.statements import (
    conditional,
    loads_of,
    map_parts,
    rebuilt,
    sequence,
    stored_in,
)  # fmt: skip
from tdsl.core.node import post_order
from tdsl.lang.affine import AffineSum, as_sum, variables
from tdsl.lang.bounds import NO_FACTS, Facts, lower
from tdsl.lang.expr import ONE, Binary, Const, Expr, Load, Unary, Var, dtype_of
from tdsl.lang.simplify import add, conjunction, conjuncts, simplify, subtract
from tdsl.lang.types import i64


def bound_loops(kernel: Kernel) -> Kernel:
    """Narrow loops to the iterations in which the condition around their body holds; hoist invariant tests.

    Affine comparisons of the variable of a serial, parallel or pipelined loop become bounds; conditions that
    do not depend on a loop, of any kind, are tested outside it. Loads in them are hoisted only if the loop
    certainly runs, or if their indices are certainly in bounds. The outer loop of a split range whose bounds
    are read from memory is narrowed to the iterations in which the inner loop has points of the range.

    >>> from tdsl.codegen.ir.loops import Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, Size, const
    >>> i, j = Var("i"), Var("j")
    >>> cond = Binary("and", Binary("le", j, i), Binary("lt", i, Size("n")))
    >>> inner = For("j", ZERO, const(8), "serial", If(cond, Store("a", (i, j), i)))
    >>> print(show(bound_loops(Kernel("k", (), For("i", ZERO, const(8), "serial", inner))).body))
    for i in range(0, min(8, n)):
      for j in range(0, i + 1):
        a[i, j] = i
    """
    arrays = {p.name: p.extents for p in kernel.params if isinstance(p, BufferParam)}
    return dataclasses.replace(kernel, body=_bound_loops(kernel.body, NO_FACTS, arrays))


def _bound_loops(s: Stmt, facts: Facts, arrays: Arrays) -> Stmt:
    match s:
        case For():
            body = _bound_loops(s.body, facts_inside(facts, s), arrays)
            return _narrow(rebuilt(s, body=body), facts, arrays)
        case If(cond, then, orelse):
            yes = _bound_loops(then, facts_where(facts, cond), arrays)
            no = None
            if orelse is not None:
                no = _bound_loops(orelse, facts_where(facts, simplify(Unary("not", cond))), arrays)
            return conditional(cond, yes, no, s)
        case Alloc(name, extents=extents):
            return rebuilt(s, body=_bound_loops(s.body, facts, {**arrays, name: extents}))
        case _:
            return map_parts(s, lambda part: _bound_loops(part, facts_inside(facts, s), arrays))


def _narrow(loop: For, facts: Facts, arrays: Arrays) -> Stmt:
    bounded = loop.kind in (SERIAL, PARALLEL, PIPELINED)
    if isinstance(loop.body, For) and bounded:
        return _narrow_to_inner(loop, facts, arrays)
    around = guards(loop.body, lambda c: _loads_are_valid(c, facts, arrays))
    if not around:
        return loop
    outside, used = [], []
    lo, hi = loop.lo, last_value(loop, facts)
    for c in around:
        if loads_of(c) and not _may_hoist(c, loop, facts, arrays):
            continue
        limits = nonpositive_sums(c, loop.name) if bounded else []
        if loop.name not in variables(c):
            outside.append(c)
        elif limits:
            for limit in limits:
                lo, hi = narrow_range(limit, loop.name, lo, hi, facts)
        else:
            continue
        used.append(c)
    if not used:
        return loop
    changes: dict[str, object] = {"body": without_guards(loop.body, used)}
    if len(used) > len(outside):
        changes |= {"lo": lo, "extent": add(subtract(hi, lo, facts), ONE, facts)}
    return (
        conditional(conjunction(outside), rebuilt(loop, **changes)) if outside else rebuilt(loop, **changes)
    )


def _narrow_to_inner(loop: For, facts: Facts, arrays: Arrays) -> For:
    """The loop over those iterations in which loaded bounds leave the loop nested in it any iterations."""
    lo, hi = first, last = loop.lo, last_value(loop, facts)
    for d in _inner_sums(loop.body, loop, lambda c: _loads_are_valid(c, facts, arrays)):
        lo, hi = narrow_range(d, loop.name, lo, hi, facts)
    if (lo, hi) == (first, last):
        return loop
    return rebuilt(loop, lo=lo, extent=add(subtract(hi, lo, facts), ONE, facts))


def _inner_sums(s: Stmt, loop: For, may_evaluate: Callable[[Expr], bool]) -> list[AffineSum]:
    """Sums that are at most 0 in all iterations of `loop` in which the guards of `s` that load data hold."""
    match s:
        case For(name):
            sums = _inner_sums(s.body, loop, may_evaluate)
            least = (_least_sum(d, name, s.lo, last_value(s, NO_FACTS)) for d in sums)
            return [d for d in least if d is not None and Var(loop.name) in d.terms]
        case If():
            # if the loop runs, those nested in it need not: only loads that are in bounds may be hoisted
            known = [c for c in guards(s, may_evaluate) if loads_of(c) and may_evaluate(c)]
            data = [c for c in known if not loads_of(c) & stored_in(loop.body)]
            return [d for c in data for d in nonpositive_sums(c, loop.name)]
        case _:
            return []


def _least_sum(d: AffineSum, name: str, first: Expr, last: Expr) -> AffineSum | None:
    """The least value of a sum for `name` in first..last; None if the sum is not linear in the variable."""
    rest, c = d.without(Var(name)), d.terms.get(Var(name), 0)
    if any(name in variables(atom) for atom in rest.terms):
        return None
    return rest.plus(as_sum(first if c > 0 else last), c)


def _may_hoist(c: Expr, loop: For, facts: Facts, arrays: Arrays) -> bool:
    """True if the loads in a condition are valid before the loop, which does not write their buffers."""
    runs = (lower(loop.extent, facts) or 0) > 0
    return (runs or _loads_are_valid(c, facts, arrays)) and not loads_of(c) & stored_in(loop.body)


def _loads_are_valid(c: Expr, facts: Facts, arrays: Arrays) -> bool:
    """True if all loads in a condition are certainly in bounds of arguments or enclosing allocations."""
    loads = (n for n in post_order(c) if isinstance(n, Load))
    return all(n.mask is None and is_in_bounds(n.buffer, n.index, arrays, facts) for n in loads)


def guards(s: Stmt, may_evaluate: Callable[[Expr], bool]) -> list[Expr]:
    """The conditions around a whole statement; nested ones only if their loads are valid (`may_evaluate`)."""
    match s:
        case If(cond, then, None):
            return conjuncts(cond) + [c for c in guards(then, may_evaluate) if may_evaluate(c)]
        case Block((first, *rest)):
            shared = [c for c in guards(first, may_evaluate) if not loads_of(c)]
            for other in rest:
                if not shared:
                    break
                other_guards = guards(other, may_evaluate)
                shared = [c for c in shared if c in other_guards]
            return shared
        case _:
            return []


def without_guards(s: Stmt, removed: list[Expr]) -> Stmt:
    """The statement without those of its `guards` that are in `removed`."""
    match s:
        case If(cond, then, None):
            left = [c for c in conjuncts(cond) if c not in removed]
            inner = without_guards(then, removed)
            return conditional(conjunction(left), inner, None, s) if left else inner
        case Block(body):
            return sequence(without_guards(part, removed) for part in body)
        case _:
            return s


def nonpositive_sums(c: Expr, name: str) -> list[AffineSum]:
    """Sums, linear in a variable, that are all at most 0 exactly where `c` holds; [] if there are none.

    >>> from tdsl.lang.affine import as_expr
    >>> from tdsl.lang.expr import const
    >>> from tdsl.lang.show import show_expr
    >>> c = Binary("lt", Binary("floordiv", Var("f"), const(4)), Var("n"))
    >>> [show_expr(as_expr(d)) for d in nonpositive_sums(c, "f")]
    ['f - n * 4 + 1']
    """
    match c:
        case Binary("lt" | "le" | "gt" | "ge" | "eq" as op, a, b) if dtype_of(a) == i64:
            d = as_sum(a).plus(as_sum(b), -1)
            if op in ("gt", "ge"):
                d = d.times(-1)
            if op in ("lt", "gt"):
                d = d.plus(AffineSum({}, 1))
            sides = [d, d.times(-1)] if op == "eq" else [d]
            solved = [_linear(side, name) for side in sides]
            known = [d for d in solved if d is not None]
            return known if len(known) == len(solved) else []
        case _:
            return []


def _linear(d: AffineSum, name: str) -> AffineSum | None:
    """A sum that is linear in the variable and at most 0 exactly where `d` is; None if `d` has none."""
    atoms = [a for a in d.terms if name in variables(a)]
    if len(atoms) != 1:
        return None
    atom = atoms[0]
    c, rest = d.terms[atom], d.without(atom)
    match atom:
        case Var():
            return d
        case Binary("floordiv", x, Const(k)) if k > 0 and c in (1, -1):
            # x // k <= -rest is x <= -rest * k + k - 1; -(x // k) <= -rest is x >= rest * k
            inner = as_sum(x).times(c).plus(rest, int(k))
            return _linear(inner.plus(AffineSum({}, 1 - int(k))) if c > 0 else inner, name)
        case _:
            return None
