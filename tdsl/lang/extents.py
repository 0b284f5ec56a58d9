"""Conversion of the user's extents and shapes (integers, names, values built of extents) to expressions."""

from __future__ import annotations

import operator
from typing import Any

from tdsl.core.node import post_order
from tdsl.core.source import Loc
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.lang.expr import Binary, Cast, Const, Expr, Size, Unary, const
from tdsl.lang.types import i64
from tdsl.lang.value import Value, as_index, check_name


def as_extent(e: Any, loc: Loc | None) -> Expr:
    """The expression of an extent given as a non-negative integer, a name, or a value built of extents."""
    if isinstance(e, str):
        check_name(e, loc)
        return Size(e)
    if isinstance(e, Value):
        extent = as_index(e, loc)
        if all(isinstance(n, Const | Size | Binary | Unary | Cast) for n in post_order(extent)):
            return extent
    if isinstance(e, Const | Size):
        return e
    number = None if isinstance(e, bool | Value) else _integer(e)
    if number is None:
        raise TypeMismatch(
            f"an extent is made of integers and named extents, not {e!r}",
            loc=loc,
            label="this shape",
            hint='shape=("H", "W", 3), or from other shapes: (x.shape[0] // 2,)',
        )
    if number < 0:
        raise ShapeError(
            f"an extent cannot be negative: {e}",
            loc=loc,
            label="this shape",
            hint="0 makes an empty tensor; a name defers it to the call",
        )
    if number > i64.high:
        raise ShapeError(
            f"an extent of {number} is too large",
            loc=loc,
            label="this shape",
            hint="fewer than 2**63",
        )
    return const(number)


def _integer(x: Any) -> int | None:
    try:
        return operator.index(x)
    except TypeError:
        return None


def as_shape(shape: Any, loc: Loc | None) -> tuple[Expr, ...]:
    """The expressions of a shape given as a tuple or list of extents, or as a single extent."""
    if isinstance(shape, int | str | Value):
        shape = (shape,)
    if not isinstance(shape, list | tuple):
        raise TypeMismatch(
            f"a shape is a tuple of extents, not {shape!r}",
            loc=loc,
            label="this shape",
            hint='shape=("H", "W", 3), and () for a single value',
        )
    return tuple(as_extent(e, loc) for e in shape)


def extent_value(e: Expr) -> Any:
    """An extent as the user sees it: an int if it is constant, else a weakly typed value."""
    return int(e.value) if isinstance(e, Const) else Value(e, weak=True)
