"""Element-wise operators of torch on the symbols of a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from tdsl.graph.arguments import trace_of
from tdsl.graph.elementwise import map_elements
from tdsl.graph.symbol import Symbol
from tdsl.lang import functions

aten = torch.ops.aten
Body = Callable[..., Any]


def elements(name: str, dtype: np.dtype[Any], body: Body, *args: Any) -> Any:
    """The symbol of `body` for each element of arrays that broadcast, and numbers; its type is `dtype`."""

    def result(*_: Any) -> Any:
        return np.empty(0, dtype)

    result.__name__ = name
    return map_elements(trace_of(*args), result, args, body)


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
    def body(v: Any) -> Any:
        v = v if low is None else functions.maximum(v, low)
        return v if high is None else functions.minimum(v, high)

    return arithmetic(body)(dtype, x)


def _power(dtype: np.dtype[Any], x: Any, exponent: Any) -> Any:
    return arithmetic(lambda v: v * v if exponent == 2 else functions.power(v, exponent))(dtype, x)


def _where(dtype: np.dtype[Any], condition: Any, x: Any, y: Any) -> Any:
    return elements("where", dtype, functions.where, condition, cast_to(dtype, x), cast_to(dtype, y))


def _convert(dtype: np.dtype[Any], x: Any, /, **_: Any) -> Any:
    return cast_to(dtype, x)


UNARY = {
    aten.abs: functions.absolute,
    aten.acos: functions.arccos,
    aten.asin: functions.arcsin,
    aten.atan: functions.arctan,
    aten.ceil: functions.ceil,
    aten.cos: functions.cos,
    aten.cosh: functions.cosh,
    aten.erf: functions.erf,
    aten.exp: functions.exp,
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
    aten.sigmoid: functions.sigmoid,
    aten.silu: lambda v: v * functions.sigmoid(v),
    aten.sin: functions.sin,
    aten.sinh: functions.sinh,
    aten.sqrt: functions.sqrt,
    aten.tan: functions.tan,
    aten.tanh: functions.tanh,
    aten.trunc: functions.trunc,
}
COMPARISONS = {
    aten.eq: operator.eq, aten.ne: operator.ne, aten.lt: operator.lt, aten.le: operator.le,
    aten.gt: operator.gt, aten.ge: operator.ge,
}  # fmt: skip

# Each takes the type of the result, then the arguments of the torch operator.
ELEMENTS: dict[Any, Body] = {
    **{packet.default: arithmetic(body) for packet, body in UNARY.items()},
    **{packet.Scalar: comparison(body) for packet, body in COMPARISONS.items()},
    **{packet.Tensor: comparison(body) for packet, body in COMPARISONS.items()},
    aten.add.Tensor: _scaled(_add),
    aten.add.Scalar: _scaled(_add),
    aten.sub.Tensor: _scaled(_sub),
    aten.sub.Scalar: _scaled(_sub),
    aten.mul.Tensor: arithmetic(operator.mul),
    aten.mul.Scalar: arithmetic(operator.mul),
    aten.div.Tensor: arithmetic(operator.truediv),
    aten.div.Scalar: arithmetic(operator.truediv),
    aten.maximum.default: arithmetic(functions.maximum),
    aten.minimum.default: arithmetic(functions.minimum),
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: arithmetic(functions.power),
    aten.clamp.default: _clamp,
    aten.clamp_min.default: _clamp,
    aten.hardtanh.default: lambda dtype, x, low=-1, high=1: _clamp(dtype, x, low, high),
    aten.gelu.default: _gelu,
    aten.where.self: _where,
    aten.logical_not.default: comparison(lambda v: v == 0),
    aten.bitwise_not.default: arithmetic(operator.invert),
    aten.bitwise_and.Tensor: arithmetic(operator.and_),
    aten.bitwise_or.Tensor: arithmetic(operator.or_),
    aten.logical_and.default: comparison(lambda a, b: (a != 0) & (b != 0)),
    aten.logical_or.default: comparison(lambda a, b: (a != 0) | (b != 0)),
    aten._to_copy.default: _convert,
    aten.clone.default: _convert,
    aten.alias.default: _convert,
    aten.detach.default: _convert,
}
