"""Layers of neural networks, in f32."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.numba_peers import prange
from benchmarks.unknown.npbench.kernel import Values, case


def single(*shapes: tuple[int, ...]) -> Values:
    """Inputs: arrays of these shapes, in f32."""
    return lambda rng: tuple(rng.random(s, dtype=np.float32) - np.float32(0.4) for s in shapes)


@td.op
def conv2d_bias(x: td.f32["N", "H", "W", "C"], w: td.f32["R", "S", "C", "F"], bias: td.f32["F"]):
    """A convolution 5 x 5 of 8 images 64 x 64 x 3 to 16 channels, channels last."""
    n, y, x_, f, r, s, c = td.vars("n y x f r s c")
    out = td.Func("out")
    out[n, y, x_, f] = td.sum(x[n, y + r, x_ + s, c] * w[r, s, c, f], axis=(r, s, c)) + bias[f]
    return out


def numpy_conv2d(x: Array, w: Array, bias: Array) -> Any:
    height, width = x.shape[1] - w.shape[0] + 1, x.shape[2] - w.shape[1] + 1
    out = np.empty((x.shape[0], height, width, w.shape[3]), np.float32)
    out[:] = bias
    for r in range(w.shape[0]):
        for s in range(w.shape[1]):
            out += x[:, r : r + height, s : s + width] @ w[r, s]
    return out


def loops_conv2d(x: Array, w: Array, bias: Array) -> Array:
    size, _, channels, outputs = w.shape
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    out = np.empty((x.shape[0], height, width, outputs), np.float32)
    for line in prange(x.shape[0] * height):
        n, i = line // height, line % height
        for j in range(width):
            out[n, i, j] = bias
            for r in range(size):
                for s in range(size):
                    for c in range(channels):
                        for f in range(outputs):
                            out[n, i, j, f] += x[n, i + r, j + s, c] * w[r, s, c, f]
    return out


@td.op
def softmax(x: td.f32["N", "H", "M", "S"]):
    """The softmax of 4 x 8 x 128 rows of 128."""
    n, h, i, j = td.vars("n h i j")
    most, e, out = td.Func("most"), td.Func("e"), td.Func("out")
    most[n, h, i] = td.max(x[n, h, i, j], axis=j)
    e[n, h, i, j] = td.exp(x[n, h, i, j] - most[n, h, i])
    out[n, h, i, j] = e[n, h, i, j] / td.sum(e[n, h, i, j], axis=j)
    return out


def numpy_softmax(x: Array) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def loops_softmax(x: Array) -> Array:
    rows, columns = x.reshape(-1, x.shape[3]), x.shape[3]
    out = np.empty_like(rows)
    for i in prange(len(rows)):
        most = rows[i, 0]
        for j in range(columns):
            most = max(most, rows[i, j])
        total = np.float32(0)
        for j in range(columns):
            out[i, j] = np.exp(rows[i, j] - most)
            total += out[i, j]
        for j in range(columns):
            out[i, j] /= total
    return out.reshape(x.shape)


def dense(x: td.Tensor | td.Func, w: td.Tensor, bias: td.Tensor, name: str) -> td.Func:
    i, j, k = td.vars("i j k")
    out = td.Func(name)
    out[i, j] = td.sum(x[i, k] * w[k, j], axis=k) + bias[j]
    return out


def relu(x: td.Func, name: str) -> td.Func:
    i, j = td.vars("i j")
    out = td.Func(name)
    out[i, j] = td.maximum(x[i, j], 0)
    return out


@td.op
def mlp(
    x: td.f32["N", "A"], w1: td.f32["A", "B"], b1: td.f32["B"], w2: td.f32["B", "C"], b2: td.f32["C"],
    w3: td.f32["C", "D"], b3: td.f32["D"],
):  # fmt: skip
    """Three dense layers of 64 rows, 784 to 500 to 300 to 10, then softmax."""
    i, j = td.vars("i j")
    h1 = relu(dense(x, w1, b1, "s1"), "h1")
    h2 = relu(dense(h1, w2, b2, "s2"), "h2")
    y, e, out = dense(h2, w3, b3, "y"), td.Func("e"), td.Func("out")
    e[i, j] = td.exp(y[i, j] - td.max(y[i, j], axis=j))
    out[i, j] = e[i, j] / td.sum(e[i, j], axis=j)
    return out


def numpy_mlp(x: Array, w1: Array, b1: Array, w2: Array, b2: Array, w3: Array, b3: Array) -> Any:
    y = np.maximum(np.maximum(x @ w1 + b1, 0) @ w2 + b2, 0) @ w3 + b3
    e = np.exp(y - y.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def numba_mlp(x: Array, w1: Array, b1: Array, w2: Array, b2: Array, w3: Array, b3: Array) -> Array:
    zero = np.float32(0)
    y = np.maximum(np.maximum(x @ w1 + b1, zero) @ w2 + b2, zero) @ w3 + b3
    for i in range(len(y)):
        y[i] = np.exp(y[i] - y[i].max())
        y[i] /= y[i].sum()
    return y


def normalized(x: td.Func, name: str) -> td.Func:
    """Each point less its mean over the batch, by its deviation."""
    n, y, x_, c = td.vars("n y x c")
    mean, spread, out = td.Func(f"{name}_mean"), td.Func(f"{name}_spread"), td.Func(f"{name}_norm")
    mean[y, x_, c] = td.mean(x[n, y, x_, c], axis=n)
    spread[y, x_, c] = td.sqrt(td.mean((x[n, y, x_, c] - mean[y, x_, c]) ** 2, axis=n) + 1e-5)
    out[n, y, x_, c] = (x[n, y, x_, c] - mean[y, x_, c]) / spread[y, x_, c]
    return out


@td.op
def resnet(
    x: td.f32["N", "H", "W", "C"], w1: td.f32["C", "B"], w2: td.f32[3, 3, "B", "B2"], w3: td.f32["B2", "C"]
):
    """A bottleneck of three convolutions with batch norm, 8 images 28 x 28 x 64."""
    n, y, x_, b, c, d, r, s = td.vars("n y x b c d r s")
    s1, h1, s2, h2, s3, out = (td.Func(name) for name in ("s1", "h1", "s2", "h2", "s3", "out"))
    s1[n, y, x_, b] = td.sum(x[n, y, x_, c] * w1[c, b], axis=c)
    h1[n, y, x_, b] = td.maximum(normalized(s1, "n1")[n, y, x_, b], 0)
    p = td.pad(h1, shape=(x.shape[0], x.shape[1], x.shape[2], w1.shape[1]))
    s2[n, y, x_, d] = td.sum(p[n, y + r - 1, x_ + s - 1, b] * w2[r, s, b, d], axis=(r, s, b))
    s2.with_shape(x.shape[0], x.shape[1], x.shape[2], w2.shape[3])
    h2[n, y, x_, d] = td.maximum(normalized(s2, "n2")[n, y, x_, d], 0)
    s3[n, y, x_, c] = td.sum(h2[n, y, x_, d] * w3[d, c], axis=d)
    out[n, y, x_, c] = td.maximum(normalized(s3, "n3")[n, y, x_, c] + x[n, y, x_, c], 0)
    return out


def numpy_norm(x: Array) -> Any:
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + np.float32(1e-5))


def numpy_resnet(x: Array, w1: Array, w2: Array, w3: Array) -> Any:
    h1 = np.pad(np.maximum(numpy_norm(x @ w1), 0), ((0, 0), (1, 1), (1, 1), (0, 0)))
    h2 = np.maximum(numpy_norm(numpy_conv2d(h1, w2, np.zeros(w2.shape[3], np.float32))), 0)
    return np.maximum(numpy_norm(h2 @ w3) + x, 0)


def loops_resnet(x: Array, w1: Array, w2: Array, w3: Array) -> Array:  # noqa: C901
    size, height, width, channels = x.shape
    inner = w1.shape[1]
    h1 = np.zeros((size, height + 2, width + 2, inner), np.float32)
    h2 = np.empty((size, height, width, inner), np.float32)
    out = np.empty_like(x)
    for y in prange(height):
        for i in range(width):
            t = np.zeros((size, inner), np.float32)
            for n in range(size):
                for c in range(channels):
                    for b in range(inner):
                        t[n, b] += x[n, y, i, c] * w1[c, b]
            for b in range(inner):
                mean = t[:, b].sum() / np.float32(size)
                square = ((t[:, b] - mean) ** 2).sum() / np.float32(size)
                scale = np.float32(1) / np.sqrt(square + np.float32(1e-5))
                for n in range(size):
                    h1[n, y + 1, i + 1, b] = max((t[n, b] - mean) * scale, np.float32(0))
    for y in prange(height):
        for i in range(width):
            t = np.zeros((size, inner), np.float32)
            for n in range(size):
                for r in range(3):
                    for s in range(3):
                        for b in range(inner):
                            for d in range(inner):
                                t[n, d] += h1[n, y + r, i + s, b] * w2[r, s, b, d]
            for b in range(inner):
                mean = t[:, b].sum() / np.float32(size)
                square = ((t[:, b] - mean) ** 2).sum() / np.float32(size)
                scale = np.float32(1) / np.sqrt(square + np.float32(1e-5))
                for n in range(size):
                    h2[n, y, i, b] = max((t[n, b] - mean) * scale, np.float32(0))
            u = np.zeros((size, channels), np.float32)
            for n in range(size):
                for d in range(inner):
                    for c in range(channels):
                        u[n, c] += h2[n, y, i, d] * w3[d, c]
            for c in range(channels):
                mean = u[:, c].sum() / np.float32(size)
                square = ((u[:, c] - mean) ** 2).sum() / np.float32(size)
                scale = np.float32(1) / np.sqrt(square + np.float32(1e-5))
                for n in range(size):
                    out[n, y, i, c] = max((u[n, c] - mean) * scale + x[n, y, i, c], np.float32(0))
    return out


def small_weights(rng: np.random.Generator) -> tuple[Array, ...]:
    """Rows, and weights that keep the size of what they multiply."""
    return tuple(rng.standard_normal(s, dtype=np.float32) / np.float32(s[0] ** 0.5) for s in LAYERS)


LAYERS = ((64, 784), (784, 500), (500,), (500, 300), (300,), (300, 10), (10,))
CASES = (
    case(
        "conv2d_bias", conv2d_bias, single((8, 64, 64, 3), (5, 5, 3, 16), (16,)), numpy_conv2d, loops_conv2d
    ),
    case("softmax_4d", softmax, single((4, 8, 128, 128)), numpy_softmax, loops_softmax),
    case("mlp_3", mlp, small_weights, numpy_mlp, numba_mlp),
    case(
        "resnet",
        resnet,
        single((8, 28, 28, 64), (64, 16), (3, 3, 16, 16), (16, 64)),
        numpy_resnet,
        loops_resnet,
    ),
)
