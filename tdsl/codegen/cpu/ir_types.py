"""The spelling of element types, vectors and constants in LLVM IR."""

from __future__ import annotations

import struct
from typing import Any

from tdsl.lang.types import DType, f32, f64

# LLVM has no floats of 8 bits, and lowers operations on bfloat, and on half if the processor has no F16C, to
# calls of a run-time library that a process need not have: narrow floats are represented by their bits.
_FLOATS = {"f32": "float", "f64": "double"}


def scalar_type(t: DType) -> str:
    """The LLVM type of an element in a register: a bool is i1.

    >>> from tdsl.lang.types import bool_, u8, bf16
    >>> [scalar_type(t) for t in (bool_, u8, bf16, f32)]
    ['i1', 'i8', 'i16', 'float']
    """
    if t.kind == "b":
        return "i1"
    return _FLOATS.get(t.name) or f"i{t.bits}"


def memory_type(t: DType) -> str:
    """The LLVM type of an element in memory: a bool is i8."""
    return "i8" if t.kind == "b" else scalar_type(t)


def vector(element: str, lanes: int) -> str:
    """The LLVM type of a vector; the element's type for one lane.

    >>> vector("float", 4), vector("float", 1)
    ('<4 x float>', 'float')
    """
    return element if lanes == 1 else f"<{lanes} x {element}>"


def register_type(t: DType, lanes: int = 1) -> str:
    """The LLVM type of a value of `lanes` lanes in a register."""
    return vector(scalar_type(t), lanes)


_SUFFIX = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}


def suffix(type_: str) -> str:
    """The suffix of an intrinsic's name for a type.

    >>> suffix("<16 x float>"), suffix("i64"), suffix("<4 x ptr>")
    ('v16f32', 'i64', 'v4p0')
    """
    if type_.startswith("<"):
        lanes, element = type_[1:-1].split(" x ")
        return f"v{lanes}{suffix(element)}"
    return _SUFFIX.get(type_, type_)


def literal(value: Any, t: DType) -> str:
    """The text of a constant; floats by their bits, because LLVM rejects inexact decimals.

    >>> from tdsl.lang.types import bool_, f16, i32
    >>> literal(0.1, f32), literal(1.5, f16), literal(True, bool_), literal(-3, i32)
    ('0x3FB99999A0000000', '15872', 'true', '-3')
    """
    if t.kind == "b":
        return "true" if value else "false"
    if t.is_integer:
        return str(wrap(int(value), t))
    if t == f64:
        return f"0x{_bits('<d', float(value)):016X}"
    rounded = t.numpy.type(value)
    if t == f32:
        return f"0x{_bits('<d', float(rounded)):016X}"
    return str(int.from_bytes(rounded.tobytes(), "little"))


def wrap(value: int, t: DType) -> int:
    """An integer reduced to the range of an integer type, as arithmetic that wraps.

    >>> from tdsl.lang.types import i8, u8
    >>> wrap(200, i8), wrap(-1, u8)
    (-56, 255)
    """
    value &= (1 << t.bits) - 1
    return value - (1 << t.bits) if t.kind == "i" and value >> (t.bits - 1) else value


def constants(element: str, values: Any) -> str:
    """The text of a constant vector of integers.

    >>> constants("i32", range(3))
    '<i32 0, i32 1, i32 2>'
    """
    return "<" + ", ".join(f"{element} {x}" for x in values) + ">"


def _bits(form: str, value: float) -> int:
    return int.from_bytes(struct.pack(form, value), "little")
