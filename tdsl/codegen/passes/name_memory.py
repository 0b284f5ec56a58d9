"""A pass that gives each allocation of a kernel a unique name."""

from __future__ import annotations

from dataclasses import replace

from tdsl.codegen.ir.fresh_names import FreshNames, Renaming, renamed
from tdsl.codegen.ir.loops import Alloc, Kernel, Stmt
from tdsl.codegen.ir.statements import map_parts


def name_memory(kernel: Kernel) -> Kernel:
    """Rename each allocation whose name an earlier one has, as in the copies of a loop and its tail.

    Afterwards the properties of an allocation (its offset in shared memory, its size) can be stored by name.

    >>> from tdsl.codegen.ir.loops import Block, Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import const
    >>> from tdsl.lang.types import i32
    >>> parts = [Alloc("x", i32, (const(n),), "shared", Store("x", (const(0),), const(7))) for n in (4, 2)]
    >>> print(show(name_memory(Kernel("k", (), Block(tuple(parts)))).body))
    x = alloc(i32, [4])  # shared
    x[0] = 7
    x_1 = alloc(i32, [2])  # shared
    x_1[0] = 7
    """
    fresh, seen = FreshNames(kernel), set[str]()

    def named(s: Stmt) -> Stmt:
        if isinstance(s, Alloc):
            if s.name in seen:
                new_names = {s.name: fresh.name(s.name)}
                s = renamed(s, Renaming(buffers=new_names), new_names)
                assert isinstance(s, Alloc)
            seen.add(s.name)
        return map_parts(s, named)

    return replace(kernel, body=named(kernel.body))
