"""A pass that replaces the size parameters of a kernel by numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tdsl.codegen.ir.loops import BufferParam, Kernel, SizeParam, Stmt
from tdsl.codegen.ir.statements import map_exprs, map_parts
from tdsl.lang.program import bind_expr


def bind_sizes(kernel: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """Replace the size parameters of a kernel that `sizes` has by their values.

    >>> from tdsl.codegen.ir.loops import For, Store
    >>> from tdsl.lang.expr import Size, Var, const
    >>> loop = For("x", const(0), Size("N"), "serial", Store("a", (Var("x"),), Var("x")))
    >>> from tdsl.codegen.ir.show import show
    >>> print(show(bind_sizes(Kernel("k", (SizeParam("N"),), loop), {"N": 4})))
    def k():
      for x in range(0, 4):
        a[x] = x
    """

    def bound(s: Stmt) -> Stmt:
        return map_exprs(map_parts(s, bound), lambda e: bind_expr(e, sizes))

    params = tuple(
        replace(p, extents=tuple(bind_expr(e, sizes) for e in p.extents)) if isinstance(p, BufferParam) else p
        for p in kernel.params
        if not (isinstance(p, SizeParam) and p.name in sizes)
    )
    return replace(kernel, params=params, body=bound(kernel.body))
