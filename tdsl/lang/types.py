"""`DType`: the element types, with their sizes, value ranges and NumPy's promotion rules."""

from __future__ import annotations

import functools
import math
import sys
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TypeMismatch, did_you_mean


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. `kind` is b (bool), i, u (integers), f (IEEE float) or e (a float of ml_dtypes).

    Each type is a single object, compared and hashed by identity. Indexing a type with extents gives the type
    of a tensor, for the parameters of an operator:

    >>> f32["M", 4]
    f32['M', 4]
    """

    name: str
    kind: str
    bits: int

    __iter__: ClassVar[None] = None  # or Python would iterate by indexing, without an end

    def __getitem__(self, shape: Any) -> TensorType:
        return TensorType(self, shape if isinstance(shape, tuple) else (shape,))

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name  # a copy is the type itself: the variable of this module

    @property
    def bytes(self) -> int:
        """The size of an element in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """True for floats of all widths."""
        return self.kind in "fe"

    @property
    def is_narrow(self) -> bool:
        """True for floats of 8 or 16 bits, which are computed in f32 and rounded."""
        return self.is_float and self.bits < 32

    @property
    def summed(self) -> DType:
        """The type in which sums of values of this type accumulate: f32 for a narrow float, as in NumPy."""
        return f32 if self.is_narrow else self

    @property
    def fraction(self) -> int:
        """The number of explicit bits of a float's significand."""
        return _FLOATS[self.name][0]

    @property
    def largest(self) -> float:
        """The largest finite value of a float."""
        return _FLOATS[self.name][1]

    @property
    def is_integer(self) -> bool:
        """True for integers; false for bool."""
        return self.kind in "iu"

    @property
    def order(self) -> int:
        """0 for bool, 1 for integers, 2 for floats: conversions upwards are implicit, others need a cast."""
        return {"b": 0, "u": 1, "i": 1, "f": 2, "e": 2}[self.kind]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype with the same bits."""
        dtype: np.dtype[Any]
        if self.kind == "e":
            import ml_dtypes  # only programs that use these types pay for it

            dtype = np.dtype(getattr(ml_dtypes, _ML_DTYPES_NAMES[self.name]))
        else:
            dtype = np.dtype(f"{self.kind}{self.bits // 8}")
        return dtype

    @property
    def low(self) -> int | float:
        """The smallest value; -inf for floats that have it."""
        if self.is_float:
            return -self.high
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def high(self) -> int | float:
        """The largest value; inf for floats that have it."""
        if self.is_float:
            return self.largest if self.name == "f8e4m3" else math.inf
        if self.kind == "b":
            return 1
        return (1 << (self.bits - (self.kind == "i"))) - 1


@dataclass(frozen=True, slots=True, eq=False)
class AbstractDType:
    """An element type that the arrays of a call decide: all of an operator's parameters of it have one type.

    Indexing it with extents annotates a tensor, as with element types; `x.dtype` is the decided type.

    >>> floating["M", "K"], bf16 in floating, i8 in floating
    (floating['M', 'K'], True, False)
    """

    name: str
    kinds: str
    example: DType

    __iter__: ClassVar[None] = None  # or Python would iterate by indexing, without an end

    def __getitem__(self, shape: Any) -> TensorType:
        return TensorType(self, shape if isinstance(shape, tuple) else (shape,))

    def __contains__(self, t: object) -> bool:
        return isinstance(t, DType) and t.kind in self.kinds

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name  # a copy is the type itself: the variable of this module


@frozen
class TensorType:
    """The annotation of a tensor parameter: an element type and extents (names or integers)."""

    dtype: DType | AbstractDType
    shape: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(repr, self.shape))}]"


bool_ = DType("bool_", "b", 8)
i8, i16, i32, i64 = (DType(f"i{b}", "i", b) for b in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{b}", "u", b) for b in (8, 16, 32, 64))
f16, f32, f64 = (DType(f"f{b}", "f", b) for b in (16, 32, 64))
bf16 = DType("bf16", "e", 16)
f8e4m3, f8e5m2 = DType("f8e4m3", "e", 8), DType("f8e5m2", "e", 8)
floating = AbstractDType("floating", "fe", f32)
integer = AbstractDType("integer", "iu", i32)
number = AbstractDType("number", "feiu", f32)

# explicit bits of the significand, largest finite value
_FLOATS = {
    "f8e4m3": (3, 448.0), "f8e5m2": (2, 57344.0), "bf16": (7, (2 - 2.0**-7) * 2.0**127),
    "f16": (10, 65504.0), "f32": (23, (2 - 2.0**-23) * 2.0**127), "f64": (52, sys.float_info.max),
}  # fmt: skip
_ML_DTYPES_NAMES = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}

UNSIGNED = {
    i8: u8,
    i16: u16,
    i32: u32,
}  # for signed integers that are offset by half of their range
ALL = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f8e4m3, f8e5m2, f16, bf16, f32, f64)
BY_NAME = {t.name: t for t in ALL}
ABSTRACT = {t.name: t for t in (floating, integer, number)}
_BY_NUMPY = {(t.kind, t.bits // 8): t for t in ALL if t.kind != "e"}
ML_DTYPES = {name: BY_NAME[ours] for ours, name in _ML_DTYPES_NAMES.items()}  # by ml_dtypes' names


def as_dtype(t: Any) -> DType:
    """The element type for a `DType`, a NumPy dtype, or a name of either.

    >>> as_dtype("float32"), as_dtype(np.uint8), as_dtype("bf16")
    (f32, u8, bf16)
    """
    if isinstance(t, DType):
        return t
    if isinstance(t, str) and (t in BY_NAME or t in ML_DTYPES):
        return BY_NAME.get(t) or ML_DTYPES[t]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # no deprecated aliases
            d = np.dtype(t)
    except (TypeError, ValueError):  # ValueError: an object whose own `dtype` is none of NumPy's
        d = None
    if d is None or t is None:  # NumPy takes None for float64
        names = [*BY_NAME, *(u.numpy.name for u in ALL if u.kind != "e")]
        raise TypeMismatch(
            f"{t!r} is not an element type",
            loc=here(),
            label="this element type",
            hint=f"it annotates parameters of operators: x: td.{t}[...]"
            if isinstance(t, AbstractDType)
            else did_you_mean(t, names),
        )
    return from_numpy(d)


def from_numpy(d: np.dtype[Any]) -> DType:
    """The element type with NumPy dtype `d`; TypeMismatch for dtypes that tdsl does not support."""
    dtype = ML_DTYPES.get(d.name) or _BY_NUMPY.get((d.kind, d.itemsize))
    if dtype is None:
        raise TypeMismatch(
            f"NumPy dtype {d} has no element type in tdsl",
            loc=here(),
            label="this element type",
            hint=f"there are: {', '.join(BY_NAME)}",
        )
    return dtype


@functools.cache
def promote(a: DType, b: DType) -> DType:
    """The common type of two strongly typed values, as NumPy's `promote_types`.

    bf16 and floats of 8 bits keep their type with integers; with another float they give f32 or wider.

    >>> promote(i32, f32), promote(u8, i8), promote(bf16, f16), promote(f8e5m2, i32)
    (f64, i16, f32, f8e5m2)
    """
    if a == b:
        return a
    if "e" in (a.kind, b.kind):
        if a.is_float and b.is_float:
            return f64 if f64 in (a, b) else f32
        return a if a.is_float else b
    return from_numpy(np.promote_types(a.numpy, b.numpy))


def default_int(value: int) -> DType:
    """The type of a Python integer that is used with no typed value: i64, or u64 if it does not fit."""
    return i64 if i64.low <= value <= i64.high else u64
