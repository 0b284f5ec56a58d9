"""ONNX operators of quantised integers: conversions to and from floats, products, convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import DefinitionError
from tdsl.onnx.elements import cast_array
from tdsl.onnx.model import numpy_type
from tdsl.onnx.windows import OPERATORS as WINDOWS

i32 = np.dtype(np.int32)


def _along(parameter: Any, x: Any, axis: int, block_size: int) -> Any:
    """A scale or a zero point, shaped to broadcast: one, one for each index of an axis, or for each block."""
    if block_size:
        return np.repeat(parameter, block_size, axis)[
            (slice(None),) * (axis % x.ndim) + (slice(x.shape[axis]),)
        ]
    if parameter.ndim == 0 or parameter.size == 1:
        return parameter.reshape(())
    return parameter.reshape([-1 if n == axis % x.ndim else 1 for n in range(x.ndim)])


def _quantize(
    x: Any, y_scale: Any, y_zero_point: Any = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Any:  # fmt: skip
    """Floats over their scale, rounded to even, plus the zero point, within the range of the integers."""
    dtype = numpy_type(output_dtype) if output_dtype else np.dtype(np.uint8)
    dtype = dtype if y_zero_point is None else y_zero_point.dtype
    if dtype.kind not in "iu":
        raise DefinitionError(
            f"QuantizeLinear to {dtype}",
            loc=here(),
            label="this model",
            hint="integers of 8 and 16 bits are known",
        )
    scaled = np.round(x / _along(y_scale, x, axis, block_size))
    if y_zero_point is not None:
        scaled = scaled + cast_array(_along(y_zero_point, x, axis, block_size), x.dtype)
    limits = np.iinfo(dtype)
    return cast_array(np.clip(scaled, float(limits.min), float(limits.max)), dtype)


def _dequantize(
    x: Any,
    x_scale: Any,
    x_zero_point: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Any:
    scale = _along(x_scale, x, axis, block_size)
    if x_zero_point is None:
        return cast_array(x, scale.dtype) * scale
    zero = _along(x_zero_point, x, axis, block_size)
    wide = i32 if x.dtype.kind in "iu" else np.dtype(np.float32)
    return cast_array(cast_array(x, wide) - cast_array(zero, wide), scale.dtype) * scale


def _dynamic_quantize(x: Any) -> Any:
    """Floats as bytes, with the scale and the zero point of their own range, which has 0."""
    zero = np.zeros((), np.float32)
    high, low = np.maximum(np.max(x), zero), np.minimum(np.min(x), zero)
    scale = (high - low) / np.float32(255)
    point = np.clip(np.round(-low / scale), 0.0, 255.0)
    quantised = np.clip(np.round(x / scale) + point, 0.0, 255.0)
    return cast_array(quantised, np.dtype(np.uint8)), scale, cast_array(point, np.dtype(np.uint8))


def _centred(x: Any, zero: Any, axis: int | None) -> Any:
    """Integers in 32 bits less their zero point, which has one number, or one for each index of an axis."""
    wide = cast_array(x, i32)
    if zero is None:
        return wide
    zero = cast_array(zero, i32)
    if axis is None or zero.size == 1:
        return wide - zero.reshape(())
    return wide - zero.reshape([-1 if n == axis % x.ndim else 1 for n in range(x.ndim)])


def _integer_product(A: Any, B: Any, a_zero_point: Any = None, b_zero_point: Any = None) -> Any:
    return np.matmul(_centred(A, a_zero_point, -2), _centred(B, b_zero_point, -1))


def _integer_convolution(
    x: Any, w: Any, x_zero_point: Any = None, w_zero_point: Any = None, *, auto_pad: str = "NOTSET",
    dilations: Any = None, group: int = 1, kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    return WINDOWS["Conv"](
        _centred(x, x_zero_point, None), _centred(w, w_zero_point, 0), auto_pad=auto_pad,
        dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip


def _requantized(sums: Any, scale: Any, zero: Any) -> Any:
    """Sums of 32 bits by a scale, in the type of the zero point."""
    limits = np.iinfo(zero.dtype)
    rounded = np.round(cast_array(sums, np.dtype(np.float32)) * scale) + cast_array(
        zero, np.dtype(np.float32)
    )
    return cast_array(np.clip(rounded, float(limits.min), float(limits.max)), zero.dtype)


def _quantised_product(
    a: Any, a_scale: Any, a_zero_point: Any, b: Any, b_scale: Any, b_zero_point: Any, y_scale: Any,
    y_zero_point: Any,
) -> Any:  # fmt: skip
    scale = cast_array(a_scale, np.dtype(np.float32)) * cast_array(b_scale, np.dtype(np.float32))
    return _requantized(
        _integer_product(a, b, a_zero_point, b_zero_point),
        scale / cast_array(y_scale, np.dtype(np.float32)), y_zero_point,
    )  # fmt: skip


def _quantised_convolution(
    x: Any, x_scale: Any, x_zero_point: Any, w: Any, w_scale: Any, w_zero_point: Any, y_scale: Any,
    y_zero_point: Any, B: Any = None, **options: Any,
) -> Any:  # fmt: skip
    sums = _integer_convolution(x, w, x_zero_point, w_zero_point, **options)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    sums = sums if B is None else sums + B.reshape(shape)
    scale = x_scale * w_scale / y_scale
    return _requantized(sums, scale.reshape(shape) if scale.ndim else scale, y_zero_point)


OPERATORS: Mapping[str, Any] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _integer_product,
    "ConvInteger": _integer_convolution,
    "QLinearMatMul": _quantised_product,
    "QLinearConv": _quantised_convolution,
}
