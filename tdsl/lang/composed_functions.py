"""Functions of NumPy that are short expressions of the language, such as `np.sign`; used through NumPy only.

A value `x` may be of integers or floats; results have the types that NumPy gives for floats of its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tdsl.lang import functions as f
from tdsl.lang.casts import cast
from tdsl.lang.types import f32, f64
from tdsl.lang.value import Value, lift

Function = Callable[..., Value]


def _sign(x: Any) -> Value:
    return f.where(x > 0, 1, f.where(x < 0, -1, x if x.dtype.is_float else 0))


def _fmod(x: Any, y: Any) -> Value:
    """The remainder with the sign of the dividend."""
    x, y = lift(x), lift(y)
    if x.dtype.is_float or y.dtype.is_float:
        return f.copysign(f.remainder(f.absolute(x), f.absolute(y)), x)
    rest = f.remainder(x, y)
    return f.where((rest != 0) & ((x < 0) != (y < 0)), rest - y, rest)


def _reciprocal(x: Any) -> Value:
    return 1 / x if x.dtype.is_float else f.where(f.absolute(x) == 1, x, 0)


def _float(x: Any) -> Value:
    x = lift(x)
    return x if x.dtype.is_float else cast(x, f32 if x.dtype.bits <= 16 else f64)


def _cbrt(x: Any) -> Value:
    """The cube root: a power of the magnitude, and a step of Newton's method."""
    x = _float(x)
    y = f.power(f.absolute(x), 1 / 3)
    exact = (f.absolute(x) == math.inf) | (x == 0)
    return f.copysign(f.where(exact, y, y - (y - f.absolute(x) / (y * y)) / 3), x)


def _logaddexp(x: Any, y: Any) -> Value:
    x, y = _float(x), _float(y)
    difference = f.where(x == y, 0, f.absolute(x - y))  # of equal infinities
    return f.maximum(x, y) + f.log1p(f.exp(-difference))


def _heaviside(x: Any, at_zero: Any) -> Value:
    return f.where(x > 0, 1, f.where(x < 0, 0, f.where(x == 0, at_zero, x)))


def _degrees(x: Any) -> Value:
    return _float(x) * (180 / math.pi)


def _radians(x: Any) -> Value:
    return _float(x) * (math.pi / 180)


def _isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Value:
    """Equal up to a tolerance; infinities are close to themselves alone."""
    a, b = _float(a), _float(b)
    close = f.where(f.absolute(b) == math.inf, a == b, f.absolute(a - b) <= atol + rtol * f.absolute(b))
    return close | ((a != a) & (b != b)) if equal_nan else close


def _nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Value:
    """The value, with numbers in place of NaN and infinities: by default 0 and the largest floats."""
    if not x.dtype.is_float:
        return lift(x)
    largest = float(np.finfo(x.dtype.numpy).max) if x.dtype.kind == "f" else float(x.dtype.largest)
    high, low = (largest if posinf is None else posinf), (-largest if neginf is None else neginf)
    finite = f.where(x == math.inf, high, f.where(x == -math.inf, low, x))
    return f.where(x != x, nan, finite)


COMPOSED: Mapping[Any, Function] = {
    np.sign: _sign,
    np.fmod: _fmod,
    np.reciprocal: _reciprocal,
    np.cbrt: _cbrt,
    np.logaddexp: _logaddexp,
    np.heaviside: _heaviside,
    np.degrees: _degrees,
    np.rad2deg: _degrees,
    np.radians: _radians,
    np.deg2rad: _radians,
    np.fabs: lambda x: f.absolute(_float(x)),
    np.positive: lift,
    np.signbit: lambda x: f.copysign(1, x) < 0,
    np.float_power: lambda x, y: f.power(cast(x, f64), cast(y, f64)),
    np.isclose: _isclose,
    np.nan_to_num: _nan_to_num,
}
"""The expression of a function of NumPy by values of the language."""
