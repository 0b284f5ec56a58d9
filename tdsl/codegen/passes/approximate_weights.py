"""A pass that computes exponentials by the power of two of a GPU where tensor cores read them rounded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import e, log2

from tdsl.codegen.ir.loops import FRAGMENT, Alloc, Kernel, Stmt, Store
from tdsl.codegen.ir.statements import loads_of, map_parts, rebuilt, walk
from tdsl.core.node import Node, post_order, transform
from tdsl.lang.expr import Binary, Call, Cast, Const, dtype_of
from tdsl.lang.types import f32

LOG2_E = log2(e)


def approximate_weights(kernel: Kernel) -> Kernel:
    """Compute the exponentials in fragments of f32 that are copied to narrower fragments as powers of two.

    Tensor cores read these copies, of 16 bits or less. The hardware's power of two of x * log2(e) differs by
    about 2 + 1.2 |x| ulp of f32, far less than the rounding of the copies.

    >>> from tdsl.codegen.ir.loops import Block
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ONE, ZERO, Load
    >>> from tdsl.lang.types import bf16
    >>> weight = Store("p", (ZERO,), Call("exp", (Load("x", (ZERO,), f32),), f32))
    >>> copy = Store("q", (ZERO,), Cast(Load("p", (ZERO,), f32), bf16))
    >>> body = Alloc("q", bf16, (ONE,), FRAGMENT, Block((weight, copy)))
    >>> print(show(approximate_weights(Kernel("k", (), Alloc("p", f32, (ONE,), FRAGMENT, body))).body))
    p = alloc(f32, [1])  # fragment
    q = alloc(bf16, [1])  # fragment
    p[0] = exp2(x[0] * 1.442695)
    q[0] = cast(p[0], bf16)
    """
    types = {x.name: x.dtype for x in walk(kernel.body) if isinstance(x, Alloc) and x.scope == FRAGMENT}
    stores = [x for x in walk(kernel.body) if isinstance(x, Store) and x.buffer in types]
    narrow = [x for x in stores if types[x.buffer].is_narrow]
    weights = {name for x in narrow for name in _rounded(x) if types.get(name) == f32}
    return dataclasses.replace(kernel, body=_visit(kernel.body, weights)) if weights else kernel


def _rounded(s: Store) -> Iterator[str]:
    """The buffers whose elements a store rounds."""
    for n in post_order(s.value):
        if isinstance(n, Cast) and n.dtype.is_narrow:
            yield from loads_of(n)


def _visit(s: Stmt, weights: set[str]) -> Stmt:
    if isinstance(s, Store) and s.buffer in weights and not s.fast:
        value = transform(s.value, _power)
        return s if value == s.value else rebuilt(s, value=value, fast=True)
    return map_parts(s, lambda part: _visit(part, weights))


def _power(n: Node) -> Node:
    match n:
        case Call("exp", (x,)) if dtype_of(n) == f32:
            return Call("exp2", (Binary("mul", x, Const(LOG2_E, f32)),), f32)
        case _:
            return n
