"""`cast`, `saturating_cast` and `f4e2m1`: conversion of values to other element types."""

from __future__ import annotations

from typing import Any

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang.expr import Cast, Const
from tdsl.lang.functions import reinterpret, where
from tdsl.lang.types import DType, as_dtype, f8e4m3, f32, u8
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


def f4e2m1(byte: Any, half: Any = 0) -> Value:
    """The float of 4 bits (e2m1) in the lower half of a byte, or in the upper half where `half` is 1.

    `byte` is an integer, of which the lowest 8 bits count; TypeMismatch if it is none. The result is of type
    f8e4m3, which holds all values of such floats: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.

    >>> import numpy as np
    >>> import tdsl as td
    >>> k, packed, f = td.vars("k"), td.Tensor("packed", (2,), td.u8), td.Func("f")
    >>> f[k] = td.f4e2m1(packed[k // 2], k % 2)
    >>> td.compile(f.with_shape(4))(np.array([0x21, 0xF7], np.uint8)).astype(float)
    array([ 0.5,  1. ,  6. , -6. ])
    """
    loc = here()
    v = lift(byte, loc)
    if not v.dtype.is_integer:
        raise TypeMismatch(
            f"f4e2m1 needs an integer, not {v.dtype}",
            loc=loc,
            label="this call",
            hint="two such floats are in a byte: td.f4e2m1(bytes[k // 2], k % 2)",
        )
    bits = cast(v, u8) >> cast(lift(half, loc) * 4, u8)
    size = bits & 7
    return reinterpret(where(size < 2, size * 48, size * 4 + 48) | (bits & 8) << 4, f8e4m3)
