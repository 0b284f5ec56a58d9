"""Vectorized loops that combine lanes into one element, as trees."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.loops import REGISTER, VECTORIZED, Alloc, For, Kernel, Stmt, Store
from tdsl.codegen.passes.fresh import Fresh
from tdsl.codegen.passes.statements import map_parts, rebuilt, sequence
from tdsl.lang.affine import variables
from tdsl.lang.expr import ZERO, Binary, Const, Expr, Load, Var, const
from tdsl.lang.simplify import add

_ASSOCIATIVE = ("add", "mul", "min", "max", "and", "or", "xor")


def merge_lanes(kernel: Kernel) -> Kernel:
    """Combine halves of the lanes, then halves of these, and so on, in vectorized loops.

    A vectorized loop over 4, 8, 16, ... lanes is taken that does nothing but t = t op lane, where the
    operator is associative but for rounding. Any other stays as it is.

    >>> from tdsl.codegen.show import show
    >>> from tdsl.lang.types import f32
    >>> total, lane = Load("t", (ZERO,), f32), Load("x", (Var("i"),), f32)
    >>> loop = For("i", ZERO, const(4), VECTORIZED, Store("t", (ZERO,), Binary("add", total, lane)))
    >>> print(show(merge_lanes(Kernel("k", (), loop)).body))
    t_half = alloc(f32, [2])  # register
    for i_1 in range(0, 2):  # vectorized
      t_half[i_1] = x[i_1] + x[i_1 + 2]
    t[0] = t[0] + (t_half[0] + t_half[1])
    """
    fresh = Fresh(kernel)
    return dataclasses.replace(kernel, body=_merged(kernel.body, fresh))


def _merged(s: Stmt, fresh: Fresh) -> Stmt:
    match s:
        case For(name, lo, Const(count), "vectorized", Store() as store) if _is_power(int(count)):
            found = _merge(store, name)
            if found is not None:
                return _tree(store, found, (name, lo), int(count), fresh)
        case _:
            pass
    return map_parts(s, lambda part: _merged(part, fresh))


def _is_power(n: int) -> bool:
    return n >= 4 and n & (n - 1) == 0


def _merge(s: Store, loop: str) -> tuple[str, Load] | None:
    """(operator, lane) of t[c] = t[c] op lane[..., loop]."""
    if s.mask is not None or s.atomic or any(loop in variables(i) for i in s.index):
        return None
    match s.value:
        case Binary(op, Load(t, at, _, None), Load(x, (*outer, Var(name)), _, None) as lane) if (
            op in _ASSOCIATIVE and t == s.buffer != x and at == s.index and name == loop
        ):
            return None if any(loop in variables(i) for i in outer) else (op, lane)
        case _:
            return None


def _tree(
    s: Store, merge: tuple[str, Load], over: tuple[str, Expr], count: int, fresh: Fresh
) -> Stmt:
    op, lane = merge
    name, first = over
    halves: list[tuple[str, int]] = []
    steps: list[Stmt] = []
    source, index, half = lane.buffer, (*lane.index[:-1], first), count // 2
    while half > 1:
        made, i = fresh.name(f"{s.buffer}_half"), fresh.name(name)
        low, high = (
            Load(source, (*index[:-1], add(index[-1], add(Var(i), const(k)))), lane.dtype)
            for k in (0, half)
        )
        store = Store(made, (Var(i),), Binary(op, low, high), fast=s.fast)
        steps.append(For(i, ZERO, const(half), VECTORIZED, store, loc=s.loc))
        halves.append((made, half))
        source, index, half = made, (ZERO,), half // 2
    low, high = (Load(source, (const(k),), lane.dtype) for k in (0, 1))
    both = Binary(op, low, high)
    kept = rebuilt(s, value=Binary(op, Load(s.buffer, s.index, lane.dtype), both))
    body = sequence((*steps, kept))
    for made, size in reversed(halves):
        body = Alloc(made, lane.dtype, (const(size),), REGISTER, body, loc=s.loc)
    return body
