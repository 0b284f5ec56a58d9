"""Element types: names, sizes, NumPy's promotion, value ranges."""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tdsl.errors import TypeMismatch, did_you_mean
from tdsl.source import here


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `kind` is b (bool), i, u (integers), f (IEEE float) or e (bfloat16).

    Indexing one with extents gives the type of a tensor, for the parameters of an operator:

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

    @property
    def bytes(self) -> int:
        """The size of an element in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a float, also one of 16 bits."""
        return self.kind in "fe"

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer; a bool is none."""
        return self.kind in "iu"

    @property
    def order(self) -> int:
        """0 for bool, 1 for integers, 2 for floats: values go up by themselves, and down by a cast."""
        return {"b": 0, "u": 1, "i": 1, "f": 2, "e": 2}[self.kind]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype with the same bits."""
        found: np.dtype[Any]
        if self.kind == "e":
            import ml_dtypes  # only programs that use bfloat16 pay for it

            found = np.dtype(ml_dtypes.bfloat16)
        else:
            found = np.dtype(f"{self.kind}{self.bits // 8}")
        return found

    @property
    def low(self) -> int | float:
        """The smallest value; -inf for floats."""
        if self.is_float:
            return -math.inf
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def high(self) -> int | float:
        """The largest value; inf for floats."""
        if self.is_float:
            return math.inf
        if self.kind == "b":
            return 1
        return (1 << (self.bits - (self.kind == "i"))) - 1


@dataclass(frozen=True, slots=True)
class TensorType:
    """The annotation of a tensor parameter: an element type and extents (names or integers)."""

    dtype: DType
    shape: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(repr, self.shape))}]"


bool_ = DType("bool_", "b", 8)
i8, i16, i32, i64 = (DType(f"i{b}", "i", b) for b in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{b}", "u", b) for b in (8, 16, 32, 64))
f16, f32, f64 = (DType(f"f{b}", "f", b) for b in (16, 32, 64))
bf16 = DType("bf16", "e", 16)

ALL = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)
BY_NAME = {t.name: t for t in ALL}
_BY_NUMPY = {(t.kind, t.bits // 8): t for t in ALL if t.kind != "e"}


def as_dtype(t: Any) -> DType:
    """The element type for a `DType`, a NumPy dtype, or a name of either.

    >>> as_dtype("float32"), as_dtype(np.uint8), as_dtype("bf16")
    (f32, u8, bf16)
    """
    if isinstance(t, DType):
        return t
    if isinstance(t, str) and t in BY_NAME:
        return BY_NAME[t]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # an old alias is no name here
            d = np.dtype(t)
    except (TypeError, ValueError):  # ValueError: an object whose own `dtype` is none of NumPy's
        d = None
    if d is None or t is None:  # NumPy takes None for float64
        names = [*BY_NAME, *(u.numpy.name for u in ALL if u != bf16)]
        raise TypeMismatch(
            f"{t!r} is not an element type",
            loc=here(),
            label="this element type",
            hint=did_you_mean(t, names),
        )
    return from_numpy(d)


def from_numpy(d: np.dtype[Any]) -> DType:
    """The element type with NumPy dtype `d`; TypeMismatch for those tdsl does not have."""
    if d.name == "bfloat16":
        return bf16
    found = _BY_NUMPY.get((d.kind, d.itemsize))
    if found is None:
        raise TypeMismatch(
            f"NumPy dtype {d} has no element type in tdsl",
            loc=here(),
            label="this element type",
            hint=f"there are: {', '.join(BY_NAME)}",
        )
    return found


@functools.cache
def promote(a: DType, b: DType) -> DType:
    """The common type of two strongly typed values, as NumPy's `promote_types`.

    bfloat16 joins as a float of 8 exponent bits: with f16 or wider it gives f32 or wider.

    >>> promote(i32, f32), promote(u8, i8), promote(bf16, f16), promote(bf16, i32)
    (f64, i16, f32, bf16)
    """
    if a == b:
        return a
    if "e" in (a.kind, b.kind):
        other = b if a.kind == "e" else a
        if other.is_float:
            return f64 if other == f64 else f32
        return bf16
    return from_numpy(np.promote_types(a.numpy, b.numpy))


def default_int(value: int) -> DType:
    """The type of a Python integer that nothing else decides."""
    return i64 if i64.low <= value <= i64.high else u64
