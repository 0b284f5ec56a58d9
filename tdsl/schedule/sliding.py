"""Sliding windows: boxes that move forward with a loop, so that only their new part is computed."""

from __future__ import annotations

from tdsl.lang.affine import variables
from tdsl.lang.expr import Binary, Const, Expr, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box


def is_monotone(e: Expr, name: str, *, rising: bool = True) -> bool:
    """True if an expression is provably non-decreasing in a variable (non-increasing if not `rising`)."""
    if name not in variables(e):
        return True
    match e:
        case Binary("min" | "max", x, y):
            return is_monotone(x, name, rising=rising) and is_monotone(y, name, rising=rising)
        case Binary("floordiv", x, Const(k)) if k > 0:
            return is_monotone(x, name, rising=rising)
        case Binary("mul", x, Const(k)):
            return is_monotone(x, name, rising=rising == (k >= 0))
        case Binary("mul", Const(k), x):
            return is_monotone(x, name, rising=rising == (k >= 0))
        case Binary("add", x, y):
            return is_monotone(x, name, rising=rising) and is_monotone(y, name, rising=rising)
        case Binary("sub", x, y):
            return is_monotone(x, name, rising=rising) and is_monotone(y, name, rising=not rising)
        case _:
            return rising and getattr(e, "name", None) == name


def sliding_axis(box: Box, loop: str) -> int | None:
    """The one axis along which a box moves forward as a loop advances, or None."""
    moving = [
        axis
        for axis, (lo, hi) in enumerate(box)
        if lo is not None and hi is not None and loop in variables(lo) | variables(hi)
    ]
    if len(moving) != 1:
        return None
    lo, hi = box[moving[0]]
    assert lo is not None and hi is not None
    return moving[0] if is_monotone(lo, loop) and is_monotone(hi, loop) else None


def window_axis(f: FuncDef, box: Box, loop: str) -> int | None:
    """The axis along which the box of a func slides and can be computed in parts, or None.

    In every definition the index of this axis must be a free variable.
    """
    axis = sliding_axis(box, loop)
    if axis is None:
        return None
    indices = [(d, d.index[axis]) for d in f.definitions]
    return axis if all(isinstance(e, Var) and e.name in d.free for d, e in indices) else None


def ring_size(needed: int) -> int:
    """The smallest power of two that holds `needed` elements."""
    return 1 << max(needed - 1, 0).bit_length()
