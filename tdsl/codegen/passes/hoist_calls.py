"""A pass that hoists loop-invariant function calls out of unrolled loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    FRAGMENT,
    REGISTER,
    UNROLLED,
    VECTORIZED,
    Alloc,
    Block,
    For,
    Kernel,
    Let,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.statements import loads_of, map_exprs, map_parts, stored_in, walk
from tdsl.core.node import Node, children, map_children, post_order
from tdsl.lang.affine import variables
from tdsl.lang.expr import Call, Const, Expr, Param, dtype_of

_KINDS = (UNROLLED, VECTORIZED)


def hoist_calls(kernel: Kernel) -> Kernel:
    """Bind loop-invariant expressions with function calls to lets before unrolled and vectorized loops.

    Only expressions that read nothing but registers and fragments that the loop does not store are hoisted.
    A compiler that unrolls the loop does not eliminate such common subexpressions in the arms of a select.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, Binary, Load, Var, const
    >>> from tdsl.lang.types import f32
    >>> factor = Call("exp", (Load("m", (ZERO,), f32),), f32)
    >>> store = Store("s", (Var("e"),), Binary("mul", Load("s", (Var("e"),), f32), factor))
    >>> loop = For("e", ZERO, const(4), UNROLLED, store)
    >>> print(show(hoist_calls(Kernel("k", (), Alloc("m", f32, (const(1),), REGISTER, loop))).body))
    m = alloc(f32, [1])  # register
    same = exp(m[0])
    for e in range(0, 4):  # unrolled
      s[e] = s[e] * same
    """
    registers = {
        s.name for s in walk(kernel.body) if isinstance(s, Alloc) and s.scope in (REGISTER, FRAGMENT)
    }
    return dataclasses.replace(kernel, body=_hoist(kernel.body, frozenset(registers), FreshNames(kernel)))


def _hoist(s: Stmt, registers: frozenset[str], fresh: FreshNames) -> Stmt:
    if isinstance(s, For) and s.kind in _KINDS and isinstance(s.extent, Const) and s.extent.value > 0:
        unchanged = registers - stored_in(s) - {x.name for x in walk(s) if isinstance(x, Alloc)}
        bound = {x.name for x in walk(s) if isinstance(x, For | Let)}
        values = (x.value for x in _unconditional_stores(s))
        calls = dict.fromkeys(e for v in values for e in _invariant_calls(v, unchanged, bound))
        names = {e: fresh.name("same") for e in calls}
        if names:
            hoisted: Stmt = _replace_exprs(s, names)
            for e, name in names.items():
                hoisted = Let(name, e, hoisted)
            return hoisted
    return map_parts(s, lambda part: _hoist(part, registers, fresh))


def _unconditional_stores(s: Stmt) -> Iterator[Store]:
    """The stores of a statement that run unconditionally."""
    match s:
        case Store():
            yield s
        case For(_, _, Const(n), _, body) if n > 0:
            yield from _unconditional_stores(body)
        case Alloc(body=body):
            yield from _unconditional_stores(body)
        case Block(parts):
            for part in parts:
                yield from _unconditional_stores(part)
        case _:
            pass


def _invariant_calls(e: Expr, unchanged: frozenset[str], bound: set[str]) -> Iterator[Expr]:
    """The largest subexpressions that call a function and read only `unchanged`, no variables of `bound`."""
    if not any(isinstance(n, Call) for n in post_order(e)):
        return
    if loads_of(e) <= unchanged and not variables(e) & bound:
        yield e
        return
    for child in children(e):
        yield from _invariant_calls(child, unchanged, bound)  # type: ignore[arg-type]  # children of an Expr are Exprs


def _replace_exprs(s: Stmt, names: dict[Expr, str]) -> Stmt:
    def replace(n: Node) -> Node:
        if n in names:
            return Param(names[n], dtype_of(n))  # type: ignore[index,arg-type]  # as above
        return map_children(n, replace)

    return map_parts(map_exprs(s, replace), lambda part: _replace_exprs(part, names))  # type: ignore[arg-type]  # as above
