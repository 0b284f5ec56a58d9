"""Element-wise operators of torch on the symbols of a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from tdsl.compile import compile
from tdsl.graph.arguments import trace_of
from tdsl.graph.elementwise import map_elements
from tdsl.graph.symbol import Symbol
from tdsl.lang import functions
from tdsl.lang.casts import cast
from tdsl.lang.tensor import Tensor
from tdsl.lang.types import from_numpy, i8

aten = torch.ops.aten
Body = Callable[..., Any]


def elements(name: str, dtype: np.dtype[Any], body: Body, *args: Any) -> Any:
    """The symbol of `body` for each element of arrays that broadcast, and numbers; its type is `dtype`."""

    def result(*_: Any) -> Any:
        return np.empty(0, dtype)

    result.__name__ = name
    return map_elements(trace_of(*args), result, args, body)


def tensor_of(name: str, x: Any) -> Tensor:
    """A tensor of the shape and type of an array."""
    return Tensor(name, x.shape, from_numpy(x.dtype))


def record_funcs(outputs: Any, inputs: dict[Tensor, Any]) -> Any:
    """Records a call of the operator of some funcs with arrays by tensor; its results are symbols."""
    return trace_of(*inputs.values()).call(compile(outputs), (), {t.name: x for t, x in inputs.items()})


def cast_to(dtype: np.dtype[Any], x: Any) -> Any:
    """The array with another element type; numbers unchanged."""
    return x.astype(dtype) if isinstance(x, Symbol | np.ndarray) and x.dtype != dtype else x


def arithmetic(body: Body) -> Body:
    """An operator that converts its arguments to the type of its result, as torch does."""

    def apply(dtype: np.dtype[Any], *args: Any) -> Any:
        return elements("arithmetic", dtype, body, *(cast_to(dtype, x) for x in args))

    return apply


def comparison(body: Body) -> Body:
    """An operator that converts its arguments to their common type; the result is bool."""

    def apply(dtype: np.dtype[Any], *args: Any) -> Any:
        common = _common_type(args)
        return elements("comparison", dtype, body, *(cast_to(common, x) for x in args))

    return apply


def _common_type(args: tuple[Any, ...]) -> np.dtype[Any]:
    """The type that arrays and numbers are compared in: that of the arrays if it holds the numbers."""
    dtypes: set[np.dtype[Any]] = {x.dtype for x in args if not isinstance(x, int | float)}
    is_integer = all(d.kind in "biu" for d in dtypes)
    if len(dtypes) == 1 and not (is_integer and any(isinstance(x, float) for x in args)):
        return next(iter(dtypes))
    return np.result_type(*dtypes, *([np.float32] if is_integer else []))


def _add(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a + (b if alpha == 1 else b * alpha)


def _sub(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a - (b if alpha == 1 else b * alpha)


def _scaled(body: Body) -> Body:
    def apply(dtype: np.dtype[Any], a: Any, b: Any, *, alpha: Any = 1) -> Any:
        return arithmetic(partial(body, alpha=alpha))(dtype, a, b)

    return apply


def _gelu(dtype: np.dtype[Any], x: Any, *, approximate: str = "none") -> Any:
    def exact(v: Any) -> Any:
        return v * 0.5 * (1 + functions.erf(v * 0.7071067811865476))

    def by_tanh(v: Any) -> Any:
        return v * 0.5 * (1 + functions.tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)))

    return arithmetic(by_tanh if approximate == "tanh" else exact)(dtype, x)


def _clamp(dtype: np.dtype[Any], x: Any, low: Any = None, high: Any = None) -> Any:
    bounds = [(f, b) for f, b in ((functions.maximum, low), (functions.minimum, high)) if b is not None]

    def body(v: Any, *values: Any) -> Any:
        for (function, _), bound in zip(bounds, values, strict=True):
            v = function(v, bound)
        return v

    return arithmetic(body)(dtype, x, *(b for _, b in bounds))


def _power(dtype: np.dtype[Any], x: Any, exponent: Any) -> Any:
    return arithmetic(lambda v: v * v if exponent == 2 else functions.power(v, exponent))(dtype, x)


def _divide(dtype: np.dtype[Any], a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return arithmetic(operator.truediv)(dtype, a, b)
    if rounding_mode == "floor":
        return arithmetic(functions.floor_divide)(dtype, a, b)
    if dtype.kind in "iu":
        return arithmetic(lambda x, y: (x - np.fmod(x, y)) // y)(dtype, a, b)
    return arithmetic(lambda x, y: functions.trunc(x / y))(dtype, a, b)


def _sign(v: Any) -> Any:
    return cast(v > 0, i8) - cast(v < 0, i8)


def _without_nan(function: Body) -> Body:
    """An extremum of two values that ignores one NaN of them."""

    def body(a: Any, b: Any) -> Any:
        return functions.where(a != a, b, functions.where(b != b, a, function(a, b)))

    return arithmetic(body)


def _round(dtype: np.dtype[Any], x: Any, *, decimals: int = 0) -> Any:
    scale = 10.0**decimals
    return arithmetic(lambda v: functions.round(v * scale) / scale if decimals else functions.round(v))(
        dtype, x
    )


def _elu(dtype: np.dtype[Any], x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    def body(v: Any) -> Any:
        return functions.where(v > 0, v * scale, functions.expm1(v * input_scale) * (alpha * scale))

    return arithmetic(body)(dtype, x)


def _leaky_relu(dtype: np.dtype[Any], x: Any, slope: Any = 0.01) -> Any:
    return arithmetic(lambda v: functions.where(v > 0, v, v * slope))(dtype, x)


def _fill(dtype: np.dtype[Any], x: Any, value: Any, **_: Any) -> Any:
    """A constant of the shape of an array, without memory of its own."""
    return np.broadcast_to(np.asarray(value, dtype), x.shape)


def _where(dtype: np.dtype[Any], condition: Any, x: Any, y: Any) -> Any:
    return elements("where", dtype, functions.where, condition, cast_to(dtype, x), cast_to(dtype, y))


def _convert(dtype: np.dtype[Any], x: Any, /, **_: Any) -> Any:
    return cast_to(dtype, x)


UNARY: dict[Any, Body] = {
    aten.abs: functions.absolute,
    aten.acos: functions.arccos,
    aten.acosh: functions.arccosh,
    aten.asin: functions.arcsin,
    aten.asinh: functions.arcsinh,
    aten.atan: functions.arctan,
    aten.atanh: functions.arctanh,
    aten.ceil: functions.ceil,
    aten.cos: functions.cos,
    aten.cosh: functions.cosh,
    aten.erf: functions.erf,
    aten.exp: functions.exp,
    aten.exp2: functions.exp2,
    aten.expm1: functions.expm1,
    aten.floor: functions.floor,
    aten.log: functions.log,
    aten.log1p: functions.log1p,
    aten.log2: functions.log2,
    aten.log10: functions.log10,
    aten.neg: operator.neg,
    aten.relu: lambda v: functions.maximum(v, 0),
    aten.reciprocal: lambda v: 1 / v,
    aten.rsqrt: functions.rsqrt,
    aten.sgn: _sign,
    aten.sigmoid: functions.sigmoid,
    aten.sign: _sign,
    aten.silu: lambda v: v * functions.sigmoid(v),
    aten.sin: functions.sin,
    aten.sinh: functions.sinh,
    aten.sqrt: functions.sqrt,
    aten.tan: functions.tan,
    aten.tanh: functions.tanh,
    aten.trunc: functions.trunc,
}
BINARY: dict[Any, Body] = {
    aten.atan2: functions.arctan2,
    aten.copysign: functions.copysign,
    aten.fmod: np.fmod,
    aten.hypot: functions.hypot,
    aten.remainder: functions.remainder,
    aten.bitwise_and: operator.and_,
    aten.bitwise_left_shift: operator.lshift,
    aten.bitwise_or: operator.or_,
    aten.bitwise_right_shift: operator.rshift,
    aten.bitwise_xor: operator.xor,
}
COMPARISONS = {
    aten.eq: operator.eq, aten.ne: operator.ne, aten.lt: operator.lt, aten.le: operator.le,
    aten.gt: operator.gt, aten.ge: operator.ge,
}  # fmt: skip


def _overloads(packet: Any, body: Body) -> dict[Any, Body]:
    """A body for the overloads of an operator of two tensors, or of a tensor and a number."""
    names = {"default", "Tensor", "Scalar", "Scalar_Tensor", "Tensor_Scalar"} & {*packet.overloads()}
    return {getattr(packet, name): body for name in names}


# Each takes the type of the result, then the arguments of the torch operator.
ELEMENTS: dict[Any, Body] = {
    **{packet.default: arithmetic(body) for packet, body in UNARY.items()},
    **{o: b for packet, f in COMPARISONS.items() for o, b in _overloads(packet, comparison(f)).items()},
    **{o: b for packet, f in BINARY.items() for o, b in _overloads(packet, arithmetic(f)).items()},
    aten.add.Tensor: _scaled(_add),
    aten.add.Scalar: _scaled(_add),
    aten.sub.Tensor: _scaled(_sub),
    aten.sub.Scalar: _scaled(_sub),
    aten.mul.Tensor: arithmetic(operator.mul),
    aten.mul.Scalar: arithmetic(operator.mul),
    aten.div.Tensor: _divide,
    aten.div.Scalar: _divide,
    aten.div.Tensor_mode: _divide,
    aten.div.Scalar_mode: _divide,
    aten.floor_divide.default: arithmetic(functions.floor_divide),
    aten.maximum.default: arithmetic(functions.maximum),
    aten.minimum.default: arithmetic(functions.minimum),
    aten.fmax.default: _without_nan(functions.maximum),
    aten.fmin.default: _without_nan(functions.minimum),
    aten.pow.Scalar: arithmetic(functions.power),
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: arithmetic(functions.power),
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.clamp_min.default: _clamp,
    aten.clamp_min.Tensor: _clamp,
    aten.clamp_max.default: lambda dtype, x, high: _clamp(dtype, x, None, high),
    aten.clamp_max.Tensor: lambda dtype, x, high: _clamp(dtype, x, None, high),
    aten.round.default: _round,
    aten.round.decimals: _round,
    aten.elu.default: _elu,
    aten.leaky_relu.default: _leaky_relu,
    aten.hardtanh.default: lambda dtype, x, low=-1, high=1: _clamp(dtype, x, low, high),
    aten.gelu.default: _gelu,
    aten.where.self: _where,
    aten.logical_not.default: comparison(lambda v: v == 0),
    aten.bitwise_not.default: arithmetic(operator.invert),
    aten.isinf.default: comparison(functions.isinf),
    aten.isnan.default: comparison(functions.isnan),
    aten.signbit.default: comparison(np.signbit),
    aten.logical_and.default: comparison(lambda a, b: (a != 0) & (b != 0)),
    aten.logical_or.default: comparison(lambda a, b: (a != 0) | (b != 0)),
    aten.logical_xor.default: comparison(lambda a, b: (a != 0) ^ (b != 0)),
    aten._to_copy.default: _convert,
    aten.fill.Scalar: _fill,
    aten.full_like.default: _fill,
    aten.copy.default: lambda dtype, x, source: np.broadcast_to(cast_to(dtype, source), x.shape),
    aten.clone.default: _convert,
    aten.alias.default: _convert,
    aten.detach.default: _convert,
}
