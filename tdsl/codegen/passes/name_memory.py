"""A name of its own for each memory of a kernel."""

from __future__ import annotations

from dataclasses import replace

from tdsl.codegen.ir.fresh_names import Fresh, Renaming, renamed
from tdsl.codegen.ir.loops import Alloc, Kernel, Stmt
from tdsl.codegen.ir.statements import map_parts


def name_memory(kernel: Kernel) -> Kernel:
    """Rename memory that has the name of other memory, such as that of a loop and of its tail.

    Afterwards all that is known of memory (its place in a block, its size) may be kept by its name.

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
    fresh, seen = Fresh(kernel), set[str]()

    def named(s: Stmt) -> Stmt:
        if isinstance(s, Alloc):
            if s.name in seen:
                own = {s.name: fresh.name(s.name)}
                s = renamed(s, Renaming(buffers=own), own)
                assert isinstance(s, Alloc)
            seen.add(s.name)
        return map_parts(s, named)

    return replace(kernel, body=named(kernel.body))
