"""Views as index expressions: from the index of an element of a view to its index in the base array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tdsl.graph.values import Spec, View
from tdsl.lang.affine import AffineSum, as_expr
from tdsl.lang.bounds import NO_FACTS
from tdsl.lang.expr import ZERO, Binary, Expr, Var, const
from tdsl.lang.simplify import simplify, substitute


def dense_offset(view: View, base: Spec) -> int | None:
    """The offset in bytes of a view in its base array of spec `base`; None if its elements have gaps.

    >>> from tdsl.graph.values import Argument
    >>> row = View(Argument(0), (lambda a: a[2], lambda a: a.reshape(3, 2)), Spec((3, 2), np.dtype("f4")))
    >>> dense_offset(row, Spec((4, 6), np.dtype("f4")))
    48
    """
    memory = np.empty(base.shape, base.dtype)  # only address and strides are used
    strided = view.apply(memory)
    if not strided.flags.c_contiguous:
        return None
    return strided.ctypes.data - memory.ctypes.data if strided.size else 0


def index_of_base(view: View, base: Spec, index: Sequence[Expr]) -> tuple[Expr, ...]:
    """The index into the base array, of spec `base`, of the element of `view` at `index`.

    A NumPy view of a contiguous array is an offset and a stride for each axis. The linear offset of the
    element is computed from the strides, then delinearised by the extents of the base.

    >>> from tdsl.graph.values import Argument
    >>> from tdsl.lang.show import show_expr
    >>> base, reshaped = Spec((4, 6), np.dtype("f4")), Spec((6, 2, 2), np.dtype("f4"))
    >>> view = View(Argument(0), (np.transpose, lambda a: a.reshape(6, 2, 2)), reshaped)
    >>> [show_expr(e) for e in index_of_base(view, base, (Var("i"), Var("j"), Var("k")))]
    ['j * 2 + k', 'i']
    """
    memory = np.empty(base.shape, base.dtype)  # only address and strides are used
    strided = view.apply(memory)
    if not strided.size:
        return (ZERO,) * len(base.shape)
    names = [f"v{n}" for n in range(strided.ndim)]
    facts = NO_FACTS
    for name, extent in zip(names, strided.shape, strict=True):
        facts = facts.with_range(name, ZERO, const(extent - 1))
    strides = {Var(n): s // base.dtype.itemsize for n, s in zip(names, strided.strides, strict=True)}
    view_offset = (strided.ctypes.data - memory.ctypes.data) // base.dtype.itemsize
    offset = as_expr(AffineSum({v: s for v, s in strides.items() if s}, view_offset))
    values, base_index = dict(zip(names, index, strict=True)), []
    for extent in reversed(base.shape):
        digit = Binary("mod", offset, const(extent))
        base_index.append(substitute(simplify(digit, facts), values))
        offset = simplify(Binary("floordiv", offset, const(extent)), facts)
    return tuple(map(simplify, reversed(base_index)))
