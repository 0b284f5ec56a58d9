"""`cast` and `saturating_cast`: conversion of values to other element types."""

from __future__ import annotations

from typing import Any

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang.expr import Cast, Const
from tdsl.lang.types import DType, as_dtype, f32
from tdsl.lang.value import Value, binary, convert, convert_const, lift


def cast(x: Any, dtype: Any) -> Value:
    """`x` cast to another element type, as `ndarray.astype`: integers wrap, floats round to nearest even.

    A float outside the range of an integer type saturates; NaN becomes 0.
    """
    loc, t = here(), _cast_type(x, dtype)
    v = lift(x, loc)
    if isinstance(v.node, Const) and (t.is_float or t.low <= v.node.value <= t.high):
        return Value(convert_const(v.node, t, loc))
    return Value(v.node if v.dtype == t else Cast(v.node, t, loc=loc))


def saturating_cast(x: Any, dtype: Any) -> Value:
    """`x` cast to another element type and clipped to the range of that type, instead of wrapping.

    NaN becomes 0 in an integer type. A float type is clipped to its finite values, and keeps NaN.
    """
    loc, t = here(), _cast_type(x, dtype)
    v = lift(x, loc)
    if v.dtype == t:
        return Value(v.node)
    if not t.is_float:
        return Value(Cast(v.node, t, saturate=True, loc=loc))
    wide = Value(convert(v, f32, loc)) if v.dtype.is_narrow else v
    source = wide.dtype
    if t.largest < (source.largest if source.is_float else source.high):
        high = t.largest if source.is_float else int(t.largest)
        low = max(-high, source.low)
        wide = binary("min", binary("max", wide, Value(Const(low, source))), Value(Const(high, source)))
    return Value(convert(wide, t, loc))


def _cast_type(x: Any, dtype: Any) -> DType:
    if isinstance(x, DType):
        raise TypeMismatch(
            f"{x} is an element type, not the value of a cast",
            loc=here(),
            label="in this cast",
            hint=f"the value comes first: td.cast(value, td.{x})",
        )
    return as_dtype(dtype)
