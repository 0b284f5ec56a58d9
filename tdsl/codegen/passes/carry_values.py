"""What a serial loop reads of its last iteration, kept in a register."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.loops import REGISTER, SERIAL, Alloc, For, If, Kernel, Stmt, Store
from tdsl.codegen.passes.fresh import Fresh
from tdsl.codegen.passes.scope import inside
from tdsl.codegen.passes.statements import loads_of, map_parts, rebuilt, sequence
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NOTHING, Facts, at_most
from tdsl.lang.expr import ONE, ZERO, Binary, Expr, Load, Var, const
from tdsl.lang.simplify import simplify, substitute, subtract
from tdsl.node import post_order, transform


def carry_values(kernel: Kernel) -> Kernel:
    """Pass what one iteration stores to the next one in a register, where that is all that it does.

    Through memory, the processor takes several cycles longer from a store to a load that waits for it than
    for an addition. A loop qualifies if its body is one store to an element that moves with the loop and
    whose value reads the element stored before.

    >>> from tdsl.codegen.show import show
    >>> from tdsl.lang.types import f32
    >>> r = Var("r")
    >>> before, own = (Load("s", (i,), f32) for i in (subtract(r, ONE), r))
    >>> loop = For("r", ONE, const(9), SERIAL, Store("s", (r,), Binary("add", own, before)))
    >>> print(show(carry_values(Kernel("k", (), loop)).body))
    s_last = alloc(f32, [1])  # register
    s_last[0] = s[0]
    for r in range(1, 10):
      s_last[0] = s[r] + s_last[0]
      s[r] = s_last[0]
    """
    return dataclasses.replace(kernel, body=_carried(kernel.body, Fresh(kernel), NOTHING))


def _carried(s: Stmt, fresh: Fresh, facts: Facts) -> Stmt:
    match s:
        case For(_, _, _, kind, Store() as store) if kind == SERIAL:
            before = _element_before(s.name, store)
            if before is not None:
                return _with_register(s, store, before, fresh, facts)
        case _:
            pass
    return map_parts(s, lambda part: _carried(part, fresh, inside(facts, s)))


def _element_before(loop: str, s: Store) -> Load | None:
    """The load, in the value of a store, of the element that the last iteration stored."""
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


def _with_register(s: For, store: Store, before: Load, fresh: Fresh, facts: Facts) -> Stmt:
    name = fresh.name(f"{store.buffer}_last")
    kept = Load(name, (ZERO,), before.dtype)
    first = {s.name: s.lo}
    index = tuple(simplify(substitute(i, first)) for i in before.index)
    start = dataclasses.replace(before, index=index)
    body = sequence(
        (
            Store(name, (ZERO,), _replaced(store.value, before, kept), fast=store.fast),
            rebuilt(store, value=kept),
        )
    )
    both = sequence((Store(name, (ZERO,), start), rebuilt(s, body=body)))
    if not at_most(ONE, s.extent, facts):  # an empty loop reads nothing
        both = If(Binary("lt", ZERO, s.extent), both)
    return Alloc(name, before.dtype, (const(1),), REGISTER, both, loc=s.loc)


def _replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    return transform(e, lambda n: new if n == old else n)
