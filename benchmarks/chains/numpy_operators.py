"""The operators of the chains by NumPy: what the results are held against."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import erf, expit

from benchmarks.case import Array


def einsum(subscripts: str, x: Array, y: Array) -> Array:
    return np.asarray(np.einsum(subscripts, x, y, optimize=True))


def exp(x: Array) -> Array:
    return np.asarray(np.exp(x))


def tanh(x: Array) -> Array:
    return np.asarray(np.tanh(x))


def relu(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0))


def relu6(x: Array) -> Array:
    return np.clip(x, 0, 6)


def gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + erf(x * 0.5**0.5)))


def silu(x: Array) -> Array:
    return np.asarray(x * expit(x))


def row_max(x: Array) -> Array:
    return np.asarray(x.max(-1))


def row_sum(x: Array) -> Array:
    return np.asarray(x.sum(-1))


def minus_rows(x: Array, rows: Array) -> Array:
    return np.asarray(x - rows[..., None])


def over_rows(x: Array, rows: Array) -> Array:
    return np.asarray(x / rows[..., None])


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def causal(x: Array) -> Array:
    i, j = np.ogrid[: x.shape[-2], : x.shape[-1]]
    return np.where(j <= i, x, -math.inf)


def column_sums(x: Array) -> Array:
    return np.asarray(x.sum(-2))


def any_above(x: Array, least: float) -> Array:
    return np.asarray((x >= least).any(-2))


def layer_norm(x: Array, gain: Array, shift: Array) -> Array:
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return np.asarray(normal * gain + shift)


def layer_norm2d(x: Array, gain: Array, shift: Array) -> Array:
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return np.asarray(normal * gain[:, None, None] + shift[:, None, None])


def rms_norm(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5))


def conv(x: Array, w: Array, step: int = 1) -> Array:
    return _windows(x, w, step, "ncyq,fc->nfyq")


def depthwise(x: Array, w: Array, step: int = 1) -> Array:
    return _windows(x, w, step, "ncyq,c->ncyq")


def _windows(x: Array, w: Array, step: int, subscripts: str) -> Array:
    size, (height, width) = w.shape[-1], x.shape[2:]
    half = size // 2
    around = np.pad(x, ((0, 0), (0, 0), (half, half), (half, half)))
    total: Any = 0
    for r in range(size):
        for s in range(size):
            part = around[:, :, r : r + height : step, s : s + width : step]
            total = total + np.einsum(subscripts, part, w[..., r, s], optimize=True)
    return np.asarray(total)


def max_pool(x: Array, size: int, step: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return np.asarray(windows[:, :, ::step, ::step].max((-2, -1)))


def gate(x: Array) -> Array:
    one, other = np.split(x, 2, 1)
    return np.asarray(one * other)


def gelu_gate(x: Array) -> Array:
    one, other = np.split(x, 2, 1)
    return np.asarray(gelu(one) * other)


def scale_channels(x: Array, scale: Array) -> Array:
    return np.asarray(x * scale[:, None, None])


def pixel_shuffle(x: Array, by: int) -> Array:
    n, channels, height, width = x.shape
    split = x.reshape(n, channels // by**2, by, by, height, width)
    return split.transpose(0, 1, 4, 2, 5, 3).reshape(n, -1, by * height, by * width)


def concat(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts, 1)


def decayed(similarity: Array, total: Array, dt: Array) -> Array:
    t, u = np.ogrid[: total.shape[1], : total.shape[1]]
    transposed = total.transpose(0, 2, 1)
    elapsed = np.where(u <= t, transposed[..., None] - transposed[..., None, :], -math.inf)
    return np.asarray(similarity[:, None] * np.exp(elapsed) * dt.transpose(0, 2, 1)[:, :, None])


def left_over(total: Array, dt: Array) -> Array:
    return np.asarray(np.exp(total[:, -1:] - total) * dt)


def times_steps(x: Array, steps: Array) -> Array:
    return np.asarray(x * steps[..., None])
