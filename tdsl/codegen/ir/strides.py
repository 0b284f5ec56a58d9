"""Strides and element counts of dense arrays whose extents may be known only when the kernel is called."""

from __future__ import annotations

from math import prod

from tdsl.codegen.ir.loops import row_major
from tdsl.lang.expr import ONE, Binary, Const, Expr
from tdsl.lang.simplify import simplify

Strides = tuple[int | Expr, ...]
_MAX_ELEMENTS = 2**31 - 1  # the element count given to TVM if it is known only in a call


def dense_strides(extents: tuple[Expr, ...]) -> Strides:
    """The row-major strides of a dense array in elements; an int where the stride is known.

    >>> from tdsl.lang.expr import Size, const
    >>> dense_strides((Size("M"), const(3), const(4))), dense_strides((const(5), Size("N")))[1]
    ((12, 4, 1), 1)
    """
    if all(isinstance(e, Const) for e in extents):
        return row_major(tuple(int(e.value) for e in extents if isinstance(e, Const)))
    step: Expr = ONE
    strides: list[int | Expr] = []
    for extent in reversed(extents):
        strides.append(int(step.value) if isinstance(step, Const) else step)
        step = simplify(Binary("mul", extent, step))
    return tuple(reversed(strides))


def element_count(extents: tuple[Expr, ...]) -> int:
    """The number of elements, or an upper limit if an extent is not known."""
    constant = [int(e.value) for e in extents if isinstance(e, Const)]
    return prod(constant) if len(constant) == len(extents) else _MAX_ELEMENTS


def constant_strides(strides: Strides) -> tuple[int, ...]:
    """Strides for alignment analysis: 1 for a stride that is known only in a call."""
    return tuple(n if isinstance(n, int) else 1 for n in strides)
