"""ONNX operators of elements: arithmetic, comparisons, activations, conversions of types."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import DefinitionError
from tdsl.graph.elementwise import element_type, map_elements
from tdsl.graph.symbol import Symbol
from tdsl.lang import functions
from tdsl.lang.casts import cast as cast_value
from tdsl.lang.casts import saturating_cast
from tdsl.lang.types import f32, from_numpy
from tdsl.onnx.model import numpy_type

Body = Callable[..., Any]


def elements(body: Body, *args: Any, dtype: Any = None) -> Any:
    """`body` of each element of arrays that broadcast, and of numbers; of the type of the first by default.

    Arrays that are all known are computed at once.
    """
    result_type = args[0].dtype if dtype is None else dtype

    def result(*_: Any) -> Any:
        return np.empty(0, result_type)

    result.__name__ = "elements"
    trace = next((x.trace for x in args if isinstance(x, Symbol)), None)
    return map_elements(trace, result, args, body)


def in_f32(body: Body) -> Body:
    """The body of elements computed in f32 where they are narrower, as their functions are defined."""

    def apply(x: Any, *others: Any) -> Any:
        return body(cast_value(x, f32) if x.dtype.is_float and x.dtype.bits < 32 else x, *others)

    return apply


def cast_array(x: Any, dtype: Any) -> Any:
    """The array with another element type."""
    return x if x.dtype == dtype else x.astype(dtype)


def _activation(body: Body, **defaults: float) -> Body:
    """The function of an operator whose attributes are numbers with these defaults."""
    names = tuple(defaults)

    def apply(X: Any, *, alpha: Any = None, beta: Any = None, gamma: Any = None) -> Any:
        given = {"alpha": alpha, "beta": beta, "gamma": gamma}
        numbers = [defaults[n] if given[n] is None else given[n] for n in names]
        return elements(in_f32(lambda x: body(x, *numbers)), X)

    return apply


def _unary(body: Body) -> Body:
    return lambda X: body(X)


def _binary(body: Body) -> Body:
    return lambda A, B: body(A, B)


def _variadic(body: Body) -> Body:
    return lambda *arrays: reduce(body, arrays)


def _mean(*arrays: Any) -> Any:
    return reduce(np.add, arrays) / len(arrays)


def _divide(A: Any, B: Any) -> Any:
    """Quotients, truncated for integers."""
    if A.dtype.kind == "f" or A.dtype.kind not in "iu":
        return np.true_divide(A, B)
    if A.dtype.kind == "u":
        return np.floor_divide(A, B)

    def truncated(a: Any, b: Any) -> Any:
        quotient = a // b
        return quotient + cast_value((a - quotient * b != 0) & ((a < 0) != (b < 0)), a.dtype)

    return elements(truncated, A, B)


def _mod(A: Any, B: Any, *, fmod: int = 0) -> Any:
    return np.fmod(A, B) if fmod else np.remainder(A, B)


def _power(X: Any, Y: Any) -> Any:
    common = np.result_type(X.dtype, Y.dtype) if Y.dtype.kind in "iuf" else X.dtype
    return cast_array(np.power(cast_array(X, common), cast_array(Y, common)), X.dtype)


def _shift(X: Any, Y: Any, *, direction: str) -> Any:
    bits = X.dtype.itemsize * 8
    shifted = np.left_shift if direction == "LEFT" else np.right_shift
    by_less = shifted(X, np.minimum(Y, bits - 1).astype(X.dtype))
    if direction == "RIGHT" and X.dtype.kind == "i":
        return by_less  # only the sign remains
    return np.where(np.greater_equal(Y, bits), np.zeros((), X.dtype), by_less)


def _clip(X: Any, min: Any = None, max: Any = None) -> Any:
    limits = [
        (np.maximum, min),
        (np.minimum, max),
    ]
    for function, limit in limits:
        if limit is not None:
            X = function(X, limit if isinstance(limit, Symbol) else np.asarray(limit, X.dtype))
    return X


def _is_inf(X: Any, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    infinite = elements(functions.isinf, X, dtype=np.bool_)
    if detect_negative and detect_positive:
        return infinite
    return infinite & ((X < 0) if detect_negative else (X > 0) & bool(detect_positive))


def _gelu(X: Any, *, approximate: str = "none") -> Any:
    def exact(v: Any) -> Any:
        return v * 0.5 * (1 + functions.erf(v * math.sqrt(0.5)))

    def by_tanh(v: Any) -> Any:
        return v * 0.5 * (1 + functions.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v)))

    return elements(in_f32(by_tanh if approximate == "tanh" else exact), X)


def _shrink(X: Any, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    def body(x: Any) -> Any:
        return functions.where(x < -lambd, x + bias, functions.where(x > lambd, x - bias, x * 0))

    return elements(body, X)


def _leaky(x: Any, alpha: Any) -> Any:
    return functions.where(x < 0, x * alpha, x)


def _softplus(x: Any) -> Any:
    return functions.maximum(x, 0) + functions.log1p(functions.exp(-functions.absolute(x)))


def _elu(x: Any, alpha: float) -> Any:
    return functions.where(x > 0, x, functions.expm1(functions.minimum(x, 0)) * alpha)


def _sign(x: Any) -> Any:
    return cast_value(x > 0, x.dtype) - cast_value(x < 0, x.dtype)


def _cast(input: Any, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    return _converted(input, numpy_type(to), saturate)


def _cast_like(input: Any, target_type: Any, *, saturate: int = 1, round_mode: str = "up") -> Any:
    return _converted(input, target_type.dtype, saturate)


def _converted(x: Any, dtype: np.dtype[Any], saturate: int) -> Any:
    """The array in another type; floats of 8 bits saturate, or refuse to be infinite."""
    to = from_numpy(dtype)
    if to.is_float and to.bits == 8 and x.dtype != dtype:
        if not saturate:
            raise DefinitionError(
                "a cast to floats of 8 bits without saturation",
                loc=here(),
                label="this model",
                hint="saturate=1 is the default of ONNX",
            )
        return elements(lambda v: saturating_cast(v, to), x, dtype=dtype)
    return cast_array(x, dtype)


def _bit_cast(input: Any, *, to: int) -> Any:
    dtype = numpy_type(to)
    if dtype.itemsize != input.dtype.itemsize:
        raise DefinitionError(
            f"BitCast from {input.dtype} to {dtype}, of another size",
            loc=here(),
            label="this model",
            hint="both types have as many bits",
        )
    return elements(lambda x: functions.reinterpret(x, element_type(dtype)), input, dtype=dtype)


def _dropout(
    data: Any,
    ratio: Any = None,
    training_mode: Any = None,
    *,
    seed: int = 0,
    is_test: int = 1,
    outputs: int = 1,
) -> Any:
    if training_mode is not None and training_mode.any() and (ratio is None or np.any(ratio)):
        raise DefinitionError(
            "Dropout in training mode chooses at random",
            loc=here(),
            label="this model",
            hint="export the model for inference",
        )
    return (data, np.ones(data.shape, np.bool_))[:outputs]


def _identity(input: Any) -> Any:
    return input


FLOAT_FUNCTIONS: Mapping[str, Body] = {
    "Acos": functions.arccos, "Acosh": functions.arccosh, "Asin": functions.arcsin,
    "Asinh": functions.arcsinh, "Atan": functions.arctan, "Atanh": functions.arctanh, "Cos": functions.cos,
    "Cosh": functions.cosh, "Sin": functions.sin, "Sinh": functions.sinh, "Tan": functions.tan,
    "Tanh": functions.tanh, "Exp": functions.exp, "Log": functions.log, "Sqrt": functions.sqrt,
    "Erf": functions.erf, "Sigmoid": functions.sigmoid, "Softplus": _softplus,
    "Reciprocal": lambda x: 1 / x,
    "Softsign": lambda x: x / (1 + functions.absolute(x)),
    "HardSwish": lambda x: x * functions.clip(x / 6 + 0.5, 0, 1),
    "Mish": lambda x: x * functions.tanh(_softplus(x)),
}  # fmt: skip

OPERATORS: Mapping[str, Any] = {
    **{name: _activation(body) for name, body in FLOAT_FUNCTIONS.items()},
    "Abs": _unary(np.absolute),
    "Neg": _unary(np.negative),
    "Floor": _unary(np.floor),
    "Ceil": _unary(np.ceil),
    "Round": _unary(np.round),
    "Sign": lambda X: elements(_sign, X),
    "Not": _unary(np.logical_not),
    "BitwiseNot": _unary(np.invert),
    "IsNaN": lambda X: elements(functions.isnan, X, dtype=np.bool_),
    "IsInf": _is_inf,
    "Relu": lambda X: np.maximum(X, np.zeros((), X.dtype)),
    "Elu": _activation(_elu, alpha=1.0),
    "Selu": _activation(
        lambda x, alpha, gamma: _elu(x, alpha) * gamma, alpha=1.67326319217681884765625,
        gamma=1.05070102214813232421875,
    ),
    "Celu": _activation(lambda x, alpha: _elu(x / alpha, 1.0) * alpha, alpha=1.0),
    "LeakyRelu": _activation(_leaky, alpha=0.01),
    "ThresholdedRelu": _activation(lambda x, alpha: functions.where(x > alpha, x, x * 0), alpha=1.0),
    "HardSigmoid": _activation(lambda x, alpha, beta: functions.clip(x * alpha + beta, 0, 1), alpha=0.2,
        beta=0.5),
    "Swish": _activation(lambda x, alpha: x * functions.sigmoid(x * alpha), alpha=1.0),
    "Gelu": _gelu,
    "Shrink": _shrink,
    "PRelu": lambda X, slope: elements(_leaky, X, slope),
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _divide,
    "Pow": _power,
    "Mod": _mod,
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Xor": _binary(np.not_equal),
    "BitwiseAnd": _binary(np.bitwise_and),
    "BitwiseOr": _binary(np.bitwise_or),
    "BitwiseXor": _binary(np.bitwise_xor),
    "BitShift": _shift,
    "Equal": _binary(np.equal),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "Max": _variadic(np.maximum),
    "Min": _variadic(np.minimum),
    "Sum": _variadic(np.add),
    "Mean": _mean,
    "Where": lambda condition, X, Y: np.where(condition, X, Y),
    "Clip": _clip,
    "Cast": _cast,
    "CastLike": _cast_like,
    "BitCast": _bit_cast,
    "Dropout": (_dropout, "ratio training_mode"),
    "Identity": _identity,
}  # fmt: skip
