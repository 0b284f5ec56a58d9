"""Element types that hold all values of an expression, so that storing it as such a type changes none."""

from __future__ import annotations

import numpy as np

from tdsl.lang.bounds import value_range
from tdsl.lang.expr import Binary, Cast, Const, Expr, Select, Unary, dtype_of
from tdsl.lang.types import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64

_WIDER = {
    f8e4m3: (f16, bf16, f32, f64), f8e5m2: (f16, bf16, f32, f64), f16: (f32, f64), bf16: (f32, f64),
    f32: (f64,), f64: (),
}  # fmt: skip


def holds(t: DType, values: DType) -> bool:
    """True if each value of the type `values` is a value of `t`.

    >>> from tdsl.lang.types import i8, i16
    >>> holds(f16, f8e4m3), holds(f16, bf16), holds(bf16, i8), holds(f16, i16)
    (True, False, True, False)
    """
    if t == values:
        return True
    if values.is_float:
        return t in _WIDER[values]
    return _holds_range(t, int(values.low), int(values.high))


def _holds_range(t: DType, low: int, high: int) -> bool:
    """True if all integers from `low` to `high` are values of `t`."""
    if t.is_float:
        return bool(max(-low, high) <= min(2 ** (t.fraction + 1), t.largest))
    return bool(t.low <= low and high <= t.high)


def is_exact(e: Expr, t: DType) -> bool:
    """True if each value of an expression is known to be a value of `t`; False says nothing.

    >>> from tdsl.lang.expr import Read, Var
    >>> element = Cast(Read("a", (Var("i"),), 0, f16), f32)
    >>> positive = Binary("max", element, Const(0.0, f32))
    >>> is_exact(positive, f16), is_exact(positive, bf16), is_exact(Binary("mul", element, element), f16)
    (True, False, False)
    """
    written = dtype_of(e)
    if holds(t, written):
        return True
    match e:
        case Const(value):
            with np.errstate(all="ignore"):
                return bool(
                    np.asarray(value, t.numpy).astype(written.numpy) == np.asarray(value, written.numpy)
                )
        case Cast(x) if holds(written, dtype_of(x)):
            return is_exact(x, t)
        case Select(_, yes, no):
            return is_exact(yes, t) and is_exact(no, t)
        case Binary("max" | "min", x, y) if written.is_float:
            return is_exact(x, t) and is_exact(y, t)
        case Unary("neg" | "abs", x) if written.is_float:
            return is_exact(x, t)
        case Cast(x) if written.is_float and dtype_of(x).is_integer:
            return _is_in_range(x, written) and _is_in_range(x, t)
        case _:
            return written.is_integer and _is_in_range(e, t)


def _is_in_range(e: Expr, t: DType) -> bool:
    low, high = value_range(e)
    return low is not None and high is not None and _holds_range(t, low, high)
