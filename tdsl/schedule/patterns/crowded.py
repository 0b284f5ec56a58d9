"""Rows that lie in few sets of a cache: products that use them often copy them first."""

from __future__ import annotations

from math import prod

from tdsl.lang.expr import Const, Read, Var
from tdsl.lang.program import Program

PAGE = 4096  # bytes: the sets of a first cache together
WAYS = 8  # rows that a set of it holds
ROWS = 16  # of a result, from which such rows are copied


def is_crowded(program: Program, moving: Read, term: str, element: int) -> bool:
    """True where the terms of what is read lie whole pages apart in an input.

    >>> import tdsl as td
    >>> i, k, j = td.vars("i k j")
    >>> f, g = td.Func("f"), td.Func("g")
    >>> a, b = td.Tensor("a", (8, 1024), td.f32), td.Tensor("b", (8, 1000), td.f32)
    >>> f[j], g[j] = td.sum(a[k, j], axis=k), td.sum(b[k, j], axis=k)
    >>> def crowded(f):
    ...     program = td.Schedule(f).program
    ...     (moving,) = (program.funcs[0].definitions[0].values)
    ...     return is_crowded(program, moving, "k", 4)
    >>> crowded(f), crowded(g)
    (True, False)
    """
    shape = next((t.shape for t in program.inputs if t.name == moving.name), ())
    axis = next((n for n, e in enumerate(moving.index) if e == Var(term)), len(shape))
    after = [int(e.value) for e in shape[axis + 1 :] if isinstance(e, Const)]
    known = len(after) == len(shape) - axis - 1 > 0
    return known and element * prod(after) % PAGE == 0
