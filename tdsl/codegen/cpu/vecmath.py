"""Math functions of floats as LLVM IR on any number of lanes, without a vector math library.

Each is an argument reduction and a polynomial (`vecmath_exp`, `vecmath_log`, `vecmath_pow`, `vecmath_trig`),
inlined at each call. `ULP` bounds the errors; subnormal numbers, signed zeros, infinities and NaN are handled
as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tdsl.codegen.cpu import vecmath_exp, vecmath_log, vecmath_pow, vecmath_trig
from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.vecmath_arith import Arith
from tdsl.lang.types import DType, f32, f64

# The largest errors in f32 and in f64, rounded up: docs/math.md describes the measurements.
_BOUNDS = {
    "sqrt": (0.5, 0.5),
    "rsqrt": (1.6, 1.6),
    "exp": (1.1, 1.1),
    "exp2": (1.4, 1.4),
    "expm1": (1.4, 1.4),
    "log": (1.0, 1.1),
    "log2": (1.7, 1.6),
    "log10": (1.8, 1.6),
    "log1p": (1.0, 1.1),
    "pow": (0.6, 1.6),
    "sin": (2.2, 1.9),
    "cos": (2.2, 2.1),
    "tan": (0.6, 2.3),
    "arcsin": (1.4, 1.6),
    "arccos": (1.1, 1.2),
    "arctan": (2.0, 2.0),
    "arctan2": (2.0, 2.0),
    "sinh": (1.7, 1.7),
    "cosh": (1.5, 1.4),
    "tanh": (1.4, 1.4),
    "arcsinh": (0.6, 1.8),
    "arccosh": (0.6, 2.3),
    "arctanh": (0.6, 2.1),
    "erf": (1.4, 1.4),
    "sigmoid": (2.3, 2.3),
    "hypot": (0.6, 1.2),
    "floor": (0.0, 0.0),
    "ceil": (0.0, 0.0),
    "trunc": (0.0, 0.0),
    "round": (0.0, 0.0),
    "copysign": (0.0, 0.0),
    "fma": (0.5, 0.5),
}

# (function, name of the element type): a bound of the error, in units in the last place of the result.
ULP: dict[tuple[str, str], float] = {
    (fn, t): bound for fn, both in _BOUNDS.items() for t, bound in zip(("f32", "f64"), both, strict=True)
}

# Functions with a separate algorithm for each type.
_PER_TYPE: dict[str, Callable[..., str]] = {
    "exp": vecmath_exp.exp,
    "exp2": vecmath_exp.exp2,
    "expm1": vecmath_exp.expm1,
    "sigmoid": vecmath_exp.sigmoid,
    "sinh": vecmath_exp.sinh,
    "cosh": vecmath_exp.cosh,
    "tanh": vecmath_exp.tanh,
    "erf": vecmath_exp.erf,
    "log": vecmath_log.log,
    "log2": vecmath_log.log2,
    "log10": vecmath_log.log10,
    "log1p": vecmath_log.log1p,
    "arcsin": vecmath_trig.arcsin,
    "arccos": vecmath_trig.arccos,
    "arctan": vecmath_trig.arctan,
    "arctan2": vecmath_trig.arctan2,
    "pow": vecmath_pow.pow,
    "sin": vecmath_trig.sin,
    "cos": vecmath_trig.cos,
}

# Functions computed in f64 for both types, and so almost always correctly rounded in f32.
_IN_F64: dict[str, Callable[..., str]] = {
    "arcsinh": vecmath_log.arcsinh,
    "arccosh": vecmath_log.arccosh,
    "arctanh": vecmath_log.arctanh,
    "hypot": vecmath_trig.hypot,
    "tan": vecmath_trig.tan,
}

# Functions that are an LLVM intrinsic; rint rounds half to even.
_INTRINSICS = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint",
    "copysign": "copysign", "fma": "fma",
}  # fmt: skip

INFINITY = float("inf")


def math_call(b: Builder, fn: str, args: Sequence[str], dtype: DType, lanes: int) -> str:
    """Write a function of floats in `lang.expr.FUNCTIONS`, or `pow`; the name of its value.

    `args` are operands of type `<lanes x dtype>` (the plain type for one lane), `dtype` is f32 or f64. The
    result has that type; for isnan, isinf and isfinite it is i1 in each lane.
    """
    assert dtype in (f32, f64), dtype
    a = Arith(b, dtype, lanes)
    if fn in _INTRINSICS:
        return a.intrinsic(_INTRINSICS[fn], *args)
    if fn in _PER_TYPE:
        return _PER_TYPE[fn](a, *args)
    if fn in _IN_F64:
        return _in_f64(a, _IN_F64[fn], args)
    match fn, *args:
        case "rsqrt", x:
            return a.div(a.c(1.0), a.sqrt(x))
        case "isnan", x:
            return a.cmp("uno", x, x)
        case "isinf", x:
            return a.cmp("oeq", a.abs(x), a.c(INFINITY))
        case "isfinite", x:
            return a.cmp("olt", a.abs(x), a.c(INFINITY))
        case _:
            raise AssertionError(f"{fn} is not a function of floats")


def _in_f64(a: Arith, function: Callable[..., str], args: Sequence[str]) -> str:
    if a.t == f64:
        return function(a, *args)
    wide = Arith(a.b, f64, a.lanes)
    return wide.narrow(function(wide, *(a.widen(x, wide) for x in args)), a)
