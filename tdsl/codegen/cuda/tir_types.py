"""Element types, constants and casts in TIR."""

from __future__ import annotations

from typing import Any

from tvm import tirx as T  # noqa: N812  # as its own documentation calls it

from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.lang.types import DType, bf16, bool_, f8e4m3, f8e5m2, f16, u64

TIR = Any

BYTES = (f8e4m3, f8e5m2)
_NAMES = {"b": "bool", "i": "int", "u": "uint", "f": "float"}
C_TYPES = {
    "bool": "bool", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
    "uint64": "unsigned long long", "float32": "float", "float64": "double", "float16": "half",
    "bfloat16": "nv_bfloat16",
}  # fmt: skip


def tir_type(t: DType) -> str:
    """The name of an element type in TIR; 8-bit floats are stored as uint8.

    >>> tir_type(f16), tir_type(bf16), tir_type(f8e5m2), tir_type(bool_)
    ('float16', 'bfloat16', 'uint8', 'bool')
    """
    if t == bf16:
        return "bfloat16"
    if t in BYTES:
        return "uint8"
    kind = _NAMES.get("f" if t.is_float else t.kind)
    if kind is None:
        raise TargetError(
            f"kernels of a GPU do not compute with {t}",
            loc=here(),
            label="compiled here",
            hint="cast to another type",
        )
    return kind if kind == "bool" else f"{kind}{t.bits}"


def c_type(t: DType) -> str:
    """The name of an element type in CUDA C++."""
    return C_TYPES[tir_type(t)]


def bytes_of(kind: str) -> int:
    """The size in bytes of an element of a TVM type.

    >>> bytes_of("bool"), bytes_of("bfloat16")
    (1, 2)
    """
    return 1 if kind == "bool" else int("".join(c for c in kind if c.isdigit())) // 8


def constant(value: Any, dtype: DType) -> TIR:
    """The TIR of a constant of a type."""
    if dtype in BYTES:
        return T.const(int(dtype.numpy.type(value).view("u1")), "uint8")
    if dtype == bf16:  # TVM folds a cast of infinity to a name that CUDA does not have
        return T.call_pure_extern("bfloat16", "__float2bfloat16_rn", T.const(float(value), "float32"))
    if dtype == f16:
        return as_type(tir_type(dtype), T.const(float(value), "float32"))
    if dtype == bool_:
        return T.const(bool(value), "bool")
    if dtype.is_float:
        return T.const(float(value), tir_type(dtype))
    whole = int(value) % 2**dtype.bits
    signed = whole - 2**dtype.bits if whole >= 2 ** (dtype.bits - 1) else whole
    if dtype == u64 and signed < 0:  # TVM stores 64-bit constants signed
        return as_type("uint64", T.const(signed, "int64"))
    return T.const(whole if dtype.kind == "u" else signed, tir_type(dtype))


def as_type(name: str, x: TIR) -> TIR:
    """A TIR expression cast to the type `name`, unless it has it."""
    type_name = dtype_text(x)
    if type_name == name:
        return x
    if type_name.startswith("int") and name.startswith(
        "uint"
    ):  # TVM fails to fold this cast of a negative constant
        return T.call_pure_extern(name, f"({C_TYPES[name]})", x)
    return T.Cast(name, x)


def dtype_text(x: TIR) -> str:
    """The name of the type of a TIR expression."""
    return str(x.ty)


def wide_type(t: DType) -> str:
    """The type in which TIR computes with values of a type: f32 for narrow floats."""
    return "float32" if t.is_narrow else tir_type(t)
