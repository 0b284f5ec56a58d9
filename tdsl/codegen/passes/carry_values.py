"""A pass that keeps the value stored by the previous iteration of a serial loop in a register."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import REGISTER, Alloc, For, If, Kernel, Stmt, Store
from tdsl.codegen.ir.statements import loads_of, map_parts, rebuilt, sequence
from tdsl.core.node import post_order, transform
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, Facts, at_most
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Expr, Load, Var
from tdsl.lang.simplify import simplify, substitute, subtract


def carry_values(kernel: Kernel) -> Kernel:
    """Pass the value stored by one iteration of a loop to the next one in a register.

    Store-to-load forwarding through memory takes several cycles more than an addition. A serial loop
    qualifies if its body is one store whose index depends on the loop's variable and whose value loads the
    element stored by the previous iteration; or an unrolled loop of such stores, with one register for each.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.codegen.ir.loops import SERIAL
    >>> from tdsl.lang.expr import const
    >>> from tdsl.lang.types import f32
    >>> r = Var("r")
    >>> before, x = (Load("s", (i,), f32) for i in (subtract(r, ONE), r))
    >>> loop = For("r", ONE, const(9), SERIAL, Store("s", (r,), Binary("add", x, before)))
    >>> print(show(carry_values(Kernel("k", (), loop)).body))
    s_last = alloc(f32, [1])  # register
    s_last[0] = s[0]
    for r in range(1, 10):
      s_last[0] = s[r] + s_last[0]
      s[r] = s_last[0]
    """
    return dataclasses.replace(kernel, body=_carry(kernel.body, FreshNames(kernel), NO_FACTS))


def _carry(s: Stmt, fresh: FreshNames, facts: Facts) -> Stmt:
    match s:
        case For(kind="serial", body=Store() as store):
            before = _previous_element(s.name, store)
            if before is not None:
                return _with_registers(s, store, before, None, fresh, facts)
        case For(kind="serial", body=For(_, _, Const(), "unrolled", Store() as store) as inner):
            before = _previous_element(s.name, store)
            if before is not None and _are_disjoint(inner, store, s.name):
                return _with_registers(s, store, before, inner, fresh, facts)
        case _:
            pass
    return map_parts(s, lambda part: _carry(part, fresh, facts_inside(facts, s)))


def _previous_element(loop: str, s: Store) -> Load | None:
    """The load, in the value of a store, of the element stored by the previous iteration, or None."""
    if s.mask is not None or s.atomic or not any(loop in variables(i) for i in s.index):
        return None
    if any(loads_of(i) & {s.buffer} for i in s.index):
        return None
    last = {loop: subtract(Var(loop), ONE)}
    index = tuple(simplify(substitute(i, last)) for i in s.index)
    for n in post_order(s.value):
        match n:
            case Load(buffer, at, _, None) if buffer == s.buffer:
                if tuple(map(simplify, at)) == index:
                    return n
            case _:
                pass
    return None


def _are_disjoint(inner: For, store: Store, loop: str) -> bool:
    """True if the iterations of `inner` store to disjoint elements in all iterations of the outer loop."""
    moving = {inner.name, loop}
    offsets = (variables(simplify(subtract(i, Var(inner.name)))) for i in store.index)
    return loop not in variables(inner.lo) and any(map(moving.isdisjoint, offsets))


def _with_registers(
    s: For, store: Store, before: Load, inner: For | None, fresh: FreshNames, facts: Facts
) -> Stmt:
    """The loop with its stored values carried in registers, one for each iteration of `inner`."""
    name = fresh.name(f"{store.buffer}_last")
    at = ZERO if inner is None else subtract(Var(inner.name), inner.lo)
    kept = Load(name, (at,), before.dtype)
    index = tuple(simplify(substitute(i, {s.name: s.lo})) for i in before.index)
    start: Stmt = Store(name, (at,), dataclasses.replace(before, index=index))
    body = sequence(
        (
            Store(name, (at,), _replace(store.value, before, kept), fast=store.fast),
            rebuilt(store, value=kept),
        )
    )
    if inner is not None:
        start = fresh.copy(rebuilt(inner, body=start))
        body = rebuilt(inner, body=body)
    both = sequence((start, rebuilt(s, body=body)))
    if not at_most(ONE, s.extent, facts):  # an empty loop reads nothing
        both = If(Binary("lt", ZERO, s.extent), both)
    size = ONE if inner is None else inner.extent
    return Alloc(name, before.dtype, (size,), REGISTER, both, loc=s.loc)


def _replace(e: Expr, old: Expr, new: Expr) -> Expr:
    return transform(e, lambda n: new if n == old else n)
