"""Casts between element types, as LLVM IR.

Conversion of floats to integers rounds toward zero and saturates; NaN gives 0. LLVM expands its own
saturating conversions lane by lane, so the clamps are written out.
"""

from __future__ import annotations

import math
import struct

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import literal, register_type, suffix
from tdsl.codegen.cpu.narrow_floats import narrow, round_to_odd, widen
from tdsl.codegen.cpu.values import Value, full, select, splat
from tdsl.lang.types import DType, f16, f32, f64, i32


def cast(b: Builder, x: Value, t: DType, saturate: bool = False) -> Value:
    """`x` converted to type `t` by the rules of `lang.expr.Cast`."""
    if x.dtype == t:
        return x
    if x.uniform:
        return Value(cast(b, x.lane(), t, saturate).name, t, x.lanes, True)
    return Value(_convert(b, x, t, saturate), t, x.lanes)


def _convert(b: Builder, x: Value, t: DType, saturate: bool) -> str:
    if x.dtype.is_narrow and t.kind != "b":
        x = Value(widen(b, x.name, x.dtype, x.lanes), f32, x.lanes)
        return x.name if t == f32 else _convert(b, x, t, saturate)
    if t.kind == "b":
        return _to_bool(b, x)
    if x.dtype.is_float:
        return _float_to_float(b, x, t) if t.is_float else _float_to_int(b, x, t)
    if t.is_float:
        wide = f64 if t == f64 else f32
        to = register_type(wide, x.lanes)
        name = b.v(f"{'sitofp' if x.dtype.kind == 'i' else 'uitofp'} {x.type} {x.name} to {to}")
        return name if wide == t else narrow(b, name, t, x.lanes)
    if saturate and x.dtype.kind != "b":
        x = _clamp(b, x, t)
    if x.dtype.kind != "b" and x.dtype.bits == t.bits:
        return x.name
    widening = x.dtype.kind == "b" or x.dtype.bits < t.bits
    instruction = ("sext" if x.dtype.kind == "i" else "zext") if widening else "trunc"
    return b.v(f"{instruction} {x.type} {x.name} to {register_type(t, x.lanes)}")


def _to_bool(b: Builder, x: Value) -> str:
    zero = splat(b, register_type(x.dtype), literal(0, x.dtype), x.lanes)
    if x.dtype.is_narrow:  # all bits but the sign
        word = f"i{x.dtype.bits}"
        bits = b.v(f"shl {x.type} {x.name}, {splat(b, word, '1', x.lanes)}")
        return b.v(f"icmp ne {x.type} {bits}, {splat(b, word, '0', x.lanes)}")
    return b.v(f"{'fcmp une' if x.dtype.is_float else 'icmp ne'} {x.type} {x.name}, {zero}")


def _float_to_float(b: Builder, x: Value, t: DType) -> str:
    if t.is_narrow:
        name = x.name
        if x.dtype == f64 and t == f16:
            name = round_to_odd(b, name, x.lanes)
        elif x.dtype == f64:  # rounds to f32 first, like ml_dtypes
            name = b.v(f"fptrunc {x.type} {name} to {register_type(f32, x.lanes)}")
        return narrow(b, name, t, x.lanes)
    instruction = "fpext" if t.bits > x.dtype.bits else "fptrunc"
    return b.v(f"{instruction} {x.type} {x.name} to {register_type(t, x.lanes)}")


def _float_to_int(b: Builder, x: Value, t: DType) -> str:
    lanes, type_ = x.lanes, x.type
    # Narrow integers are truncated from 32-bit ones: CPUs convert floats to no narrower type.
    via = register_type(t if t.bits >= 32 else i32, lanes)
    low, high = _largest_below(float(t.low), x.dtype), _largest_below(float(t.high), x.dtype)
    name = x.name
    if t.kind == "i":  # NaN gives 0; for unsigned integers the clamp below ensures that
        number = b.v(f"fcmp ord {type_} {name}, {name}")
        name = select(b, type_, number, name, _float(b, x, 0.0))
    lowest, highest = _float(b, x, low), _float(b, x, high)
    name = select(b, type_, b.v(f"fcmp ogt {type_} {name}, {lowest}"), name, lowest)
    clamped = select(b, type_, b.v(f"fcmp olt {type_} {name}, {highest}"), name, highest)
    signed = t.kind == "i" or t.bits < 32  # signed conversions exist everywhere
    result = b.v(f"{'fptosi' if signed else 'fptoui'} {type_} {clamped} to {via}")
    if int(high) != t.high:
        overflows = b.v(f"fcmp ogt {type_} {name}, {highest}")
        largest = splat(b, register_type(t), str(t.high), lanes)
        return select(b, via, overflows, largest, result)
    return result if t.bits >= 32 else b.v(f"trunc {via} {result} to {register_type(t, lanes)}")


def _largest_below(value: float, t: DType) -> float:
    """The float of type `t` closest to an end of an integer range, inside the range.

    >>> _largest_below(2.0**31 - 1, f32), _largest_below(255.0, f32)
    (2147483520.0, 255.0)
    """
    if t == f64:
        is_power = value in (2.0**63, 2.0**64)  # 2**63 - 1 as a float
        return math.nextafter(value, 0.0) if is_power else value
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    if abs(rounded) <= abs(value) and rounded not in (2.0**63, 2.0**64):
        return rounded
    bits = struct.unpack("<i", struct.pack("<f", rounded))[0]
    below: float = struct.unpack("<f", struct.pack("<i", bits - 1))[0]
    return below


def _float(b: Builder, like: Value, value: float) -> str:
    return splat(b, register_type(like.dtype), literal(value, like.dtype), like.lanes)


def _clamp(b: Builder, x: Value, t: DType) -> Value:
    """An integer clipped to the range of type `t`, in its own type."""
    name, sign = full(b, x), "s" if x.dtype.kind == "i" else "u"
    for op, end in (("max", t.low), ("min", t.high)):
        needed = end > x.dtype.low if op == "max" else end < x.dtype.high
        if needed:
            bound = splat(b, register_type(x.dtype), str(end), x.lanes)
            function = f"llvm.{sign}{op}.{suffix(x.type)}"
            name = b.call(x.type, function, (x.type, name), (x.type, bound))
    return Value(name, x.dtype, x.lanes)
