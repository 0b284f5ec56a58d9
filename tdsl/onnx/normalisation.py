"""ONNX operators that normalise, losses, and recurrent cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import DefinitionError
from tdsl.lang.functions import rsqrt
from tdsl.onnx.elements import cast_array, elements, in_f32
from tdsl.onnx.movement import OPERATORS as MOVEMENT
from tdsl.onnx.reductions import log_softmax


def _channels(x: Any, rank: int) -> Any:
    """An array with a number for each channel, shaped to broadcast with arrays of `rank` dimensions."""
    return x.reshape((1, -1) + (1,) * (rank - 2))


def _inverse_root(x: Any, epsilon: float) -> Any:
    return elements(in_f32(lambda v: rsqrt(v + epsilon)), x)


def _standardised(x: Any, axes: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any]:
    """The centred elements over their standard deviation, the means, and the inverse deviations."""
    mean = np.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    inverse = _inverse_root(np.mean(centred * centred, axis=axes, keepdims=True), epsilon)
    return centred * inverse, mean, inverse


def _batch_normalization(
    X: Any, scale: Any, B: Any, input_mean: Any, input_var: Any, *, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0, spatial: int = 1, is_test: int = 1,
) -> Any:  # fmt: skip
    if not spatial:
        raise DefinitionError(
            "BatchNormalization with spatial=0",
            loc=here(),
            label="this model",
            hint="it was removed in version 9",
        )
    if not training_mode:
        factor = scale * _inverse_root(input_var, epsilon)
        shifted = (X - _channels(input_mean, X.ndim)) * _channels(factor, X.ndim) + _channels(B, X.ndim)
        return cast_array(shifted, X.dtype)
    axes = (0, *range(2, X.ndim))
    mean, variance = np.mean(X, axis=axes), np.var(X, axis=axes)
    factor = scale * _inverse_root(variance, epsilon)
    result = (X - _channels(mean, X.ndim)) * _channels(factor, X.ndim) + _channels(B, X.ndim)
    running = [
        old * momentum + new * (1 - momentum) for old, new in ((input_mean, mean), (input_var, variance))
    ]
    return result, *running


def _instance_normalization(input: Any, scale: Any, B: Any, *, epsilon: float = 1e-5) -> Any:
    result, _, _ = _standardised(input, tuple(range(2, input.ndim)), epsilon)
    return result * _channels(scale, input.ndim) + _channels(B, input.ndim)


def _group_normalization(
    X: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1, opset: int
) -> Any:
    groups = cast_array(X, np.dtype(np.float32)).reshape((X.shape[0], num_groups, -1))
    result = cast_array(_standardised(groups, (2,), epsilon)[0].reshape(X.shape), X.dtype)
    if opset < 21:  # a number for each group
        scale, bias = (np.repeat(v, X.shape[1] // num_groups) for v in (scale, bias))
    return result * _channels(scale, X.ndim) + _channels(bias, X.ndim)


def _layer_normalization(
    X: Any, Scale: Any, B: Any = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    wide = cast_array(X, np.result_type(X.dtype, np.float32))
    standard, mean, inverse = _standardised(wide, tuple(range(axis % X.ndim, X.ndim)), epsilon)
    result = cast_array(standard, X.dtype) * Scale
    return result if B is None else result + B, mean, inverse


def _rms_normalization(
    X: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    wide = cast_array(X, np.result_type(X.dtype, np.float32))
    squares = np.mean(wide * wide, axis=tuple(range(axis % X.ndim, X.ndim)), keepdims=True)
    return cast_array(cast_array(wide * _inverse_root(squares, epsilon), X.dtype) * scale, X.dtype)


def _mean_variance_normalization(X: Any, *, axes: Any = (0, 2, 3)) -> Any:
    centred = X - np.mean(X, axis=tuple(axes), keepdims=True)
    deviation = np.sqrt(np.mean(centred * centred, axis=tuple(axes), keepdims=True))
    return centred / (deviation + np.float32(1e-9))


def _local_response(X: Any, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Any:
    before = (size - 1) // 2
    widths = [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (X.ndim - 2)
    squares = np.lib.stride_tricks.sliding_window_view(np.pad(X * X, widths), size, 1)
    total = np.sum(squares, axis=-1) * (alpha / size) + bias
    return X / total**beta


def _negative_log_likelihood(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: Any = None,
    reduction: str = "mean",
) -> Any:
    """The losses of the classes in `target`, which are along axis 1 of the logarithms of probabilities."""
    is_ignored = None if ignore_index is None else target == ignore_index
    classes = target if is_ignored is None else np.where(is_ignored, np.zeros((), target.dtype), target)
    places = np.expand_dims(classes, 1)
    losses = -np.squeeze(MOVEMENT["GatherElements"](input, places, axis=1), 1)
    weights = None if weight is None else np.take(weight, classes, axis=0)
    if is_ignored is not None:
        ones = np.ones((), input.dtype) if weights is None else weights
        weights = np.where(is_ignored, np.zeros((), input.dtype), ones)
    losses = losses if weights is None else losses * weights
    if reduction == "none":
        return losses
    total = np.sum(losses, dtype=input.dtype)
    if reduction == "sum":
        return total
    return total / (losses.size if weights is None else np.sum(weights, dtype=input.dtype))


def _softmax_cross_entropy(
    scores: Any, labels: Any, weights: Any = None, *, ignore_index: Any = None, reduction: str = "mean"
) -> Any:
    logarithms = log_softmax(scores, axis=1, opset=13)
    loss = _negative_log_likelihood(
        logarithms, labels, weights, ignore_index=ignore_index, reduction=reduction
    )
    return loss, logarithms


OPERATORS: Mapping[str, Any] = {
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "LRN": _local_response,
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": _softmax_cross_entropy,
}
