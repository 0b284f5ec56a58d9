"""Element-wise programs, permutations, stencils, windows and gathers."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.cuda.unknown.program import program

i, j, k = td.vars("i j k")
b, c, y, x_, f = td.vars("b c y x f")


@program("f16 transpose", sizes={"m": 8192, "n": 8192}, small={"m": 70, "n": 90}, expected=np.transpose)
def transpose(m: int, n: int) -> td.Func:
    """Rows become columns."""
    x, out = td.Tensor("x", (m, n), td.f16), td.Func("out")
    out[j, i] = x[i, j]
    return out


@program(
    "abcd->dcba", sizes={"a": 64, "b": 64, "c": 64, "d": 64}, small={"a": 6, "b": 5, "c": 7, "d": 9},
    expected=np.transpose,
)  # fmt: skip
def reversed_axes(a: int, b: int, c: int, d: int) -> td.Func:
    """All axes in reverse order."""
    x, out = td.Tensor("x", (a, b, c, d), td.f32), td.Func("out")
    p, q, r, s = td.vars("p q r s")
    out[s, r, q, p] = x[p, q, r, s]
    return out


@program(
    "odd rows, f16",
    sizes={"m": 16384, "n": 4095},
    small={"m": 30, "n": 77},
    expected=lambda x: np.maximum(x, 0) * 2,
)
def odd_rows(m: int, n: int) -> td.Func:
    """Element-wise, without the last column of each row of the input."""
    x, out = td.Tensor("x", (m, n), td.f16), td.Func("out")
    out[i, j] = td.maximum(x[i, j], 0) * 2
    return out


@program(
    "inner columns",
    sizes={"m": 16384, "n": 4096},
    small={"m": 30, "n": 80},
    expected=lambda x: x[:, 1:-1] * 2,
)
def inner_columns(m: int, n: int) -> td.Func:
    """Rows that begin one element after an aligned place."""
    x, out = td.Tensor("x", (m, n), td.f32), td.Func("out", shape=(m, n - 2))
    out[i, j] = x[i, j + 1] * 2
    return out


IMAGES = {"n": 64, "c": 256, "h": 56, "w": 56}
FEW = {"n": 2, "c": 5, "h": 9, "w": 11}


@program(
    "channels scaled", sizes=IMAGES, small=FEW,
    expected=lambda x, s, t: np.maximum(x * s[:, None, None] + t[:, None, None], 0),
)  # fmt: skip
def channels(n: int, c: int, h: int, w: int) -> td.Func:
    """A scale and a shift for each channel of images in planes."""
    x, s, t = td.Tensor("x", (n, c, h, w), td.f32), td.Tensor("s", (c,), td.f32), td.Tensor("t", (c,), td.f32)
    out, ch = td.Func("out"), td.vars("c")
    out[b, ch, y, x_] = td.maximum(x[b, ch, y, x_] * s[ch] + t[ch], 0)
    return out


@program(
    "stage at the root", sizes={"n": 1 << 24}, small={"n": 3000},
    expected=lambda x: np.exp(-((x * 2 + 1) ** 2)) * 0.5,
)  # fmt: skip
def at_root(n: int) -> td.Schedule:
    """A stage that its author puts at the root, and leaves to the default otherwise."""
    x, inner, out = td.Tensor("x", (n,), td.f32), td.Func("inner"), td.Func("out")
    inner[i] = (x[i] * 2 + 1) ** 2
    out[i] = td.exp(-inner[i]) * 0.5
    s = td.Schedule(out)
    s[inner].compute_root()
    return s


def seven(u: Array) -> Array:
    """The Laplacian of the inner points."""
    m = u[1:-1, 1:-1, 1:-1]
    across = u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1] + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:]
    return np.asarray(u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + across - 6 * m)


@program("7 points in 3d", sizes={"n": 514}, small={"n": 20}, expected=seven)
def laplacian(n: int) -> td.Func:
    """A stencil in three dimensions."""
    u, out = td.Tensor("u", (n, n, n), td.f32), td.Func("out", shape=(n - 2, n - 2, n - 2))
    across = u[i + 1, j, k + 1] + u[i + 1, j + 2, k + 1] + u[i + 1, j + 1, k] + u[i + 1, j + 1, k + 2]
    out[i, j, k] = u[i, j + 1, k + 1] + u[i + 2, j + 1, k + 1] + across - 6 * u[i + 1, j + 1, k + 1]
    return out


@program(
    "moving average", sizes={"m": 4096, "n": 16384 + 63}, small={"m": 5, "n": 200},
    expected=lambda x: np.lib.stride_tricks.sliding_window_view(x, 64, 1).mean(-1),
)  # fmt: skip
def moving_average(m: int, n: int) -> td.Func:
    """Means of windows of 64."""
    x, out = td.Tensor("x", (m, n), td.f32), td.Func("out", shape=(m, n - 63))
    out[i, j] = td.mean(x[i, j + td.range("r", 0, 64)], axis=td.range("r", 0, 64))
    return out


def convolved(x: Array, w: Array) -> Array:
    """A convolution of images in planes, by NumPy."""
    height, width = x.shape[2] - 2, x.shape[3] - 2
    taps = (
        np.einsum("nchw,fc->nfhw", x[:, :, r : r + height, s : s + width], w[:, :, r, s])
        for r in range(3)
        for s in range(3)
    )
    return np.asarray(sum(taps))


for name, dtype in (("f32", td.f32), ("f16", td.f16)):

    @program(
        f"convolution NCHW {name}", sizes={"n": 32, "c": 64, "h": 58, "w": 58, "o": 64},
        small={"n": 2, "c": 16, "h": 9, "w": 11, "o": 16}, expected=convolved,
        tensor="f16" if dtype is td.f16 else "",
    )  # fmt: skip
    def convolution(n: int, c: int, h: int, w: int, o: int, dtype: td.DType = dtype) -> td.Func:
        """Windows of 3 x 3 of images in planes."""
        image, weights = td.Tensor("x", (n, c, h, w), dtype), td.Tensor("w", (o, c, 3, 3), dtype)
        r, s, ch, out = td.range("r", 0, 3), td.range("s", 0, 3), td.vars("c"), td.Func("out")
        wide = (td.cast(v, td.f32) for v in (image[b, ch, y + r, x_ + s], weights[f, ch, r, s]))
        one, other = wide
        out[b, f, y, x_] = td.cast(td.sum(one * other, axis=(ch, r, s)), dtype)
        return out


def depthwise_of(x: Array, w: Array) -> Array:
    """By NumPy."""
    height, width = x.shape[1] - 2, x.shape[2] - 2
    return np.asarray(sum(x[:, r : r + height, s : s + width] * w[r, s] for r in range(3) for s in range(3)))


@program(
    "depthwise NHWC", sizes={"n": 32, "h": 114, "w": 114, "c": 96}, small={"n": 2, "h": 9, "w": 11, "c": 24},
    expected=depthwise_of,
)  # fmt: skip
def depthwise(n: int, h: int, w: int, c: int) -> td.Func:
    """A window of 3 x 3 for each channel."""
    image, weights = td.Tensor("x", (n, h, w, c), td.f16), td.Tensor("w", (3, 3, c), td.f16)
    r, s, ch, out = td.range("r", 0, 3), td.range("s", 0, 3), td.vars("c"), td.Func("out")
    out[b, y, x_, ch] = td.sum(image[b, y + r, x_ + s, ch] * weights[r, s, ch], axis=(r, s))
    return out


@program(
    "embedding", sizes={"m": 16384, "v": 50_000, "n": 1024}, small={"m": 9, "v": 50, "n": 64},
    below={"at": 50}, expected=lambda table, at: table[at],
)  # fmt: skip
def embedding(m: int, v: int, n: int) -> td.Func:
    """Rows of a table at places that are data."""
    table, at, out = td.Tensor("table", (v, n), td.f16), td.Tensor("at", (m,), td.i32), td.Func("out")
    out[i, j] = table[td.clip(at[i], 0, v - 1), j]
    return out


def doubled(x: Array) -> Array:
    """Bilinear interpolation to twice the size."""
    h, w = x.shape[1:]
    rows, columns = (np.arange(2 * m) for m in (h, w))

    def weights(at: Array, m: int) -> tuple[Any, ...]:
        place = np.maximum((at + 0.5) / 2 - 0.5, 0)
        low = place.astype(int)
        return low, np.minimum(low + 1, m - 1), place - low

    (y0, y1, v), (x0, x1, u) = weights(rows, h), weights(columns, w)
    v = v[:, None]
    upper, lower = (x[:, at][:, :, x0] * (1 - u) + x[:, at][:, :, x1] * u for at in (y0, y1))
    return np.asarray(upper * (1 - v) + lower * v)


@program(
    "bilinear to twice",
    sizes={"n": 16, "h": 1024, "w": 1024},
    small={"n": 2, "h": 9, "w": 11},
    expected=doubled,
)
def interpolated(n: int, h: int, w: int) -> td.Func:
    """Images of twice the size, by bilinear interpolation."""
    image, out = td.Tensor("x", (n, h, w), td.f32), td.Func("out", shape=(n, 2 * h, 2 * w))

    def place(at: Any, m: int) -> tuple[Any, ...]:
        where = td.maximum(td.cast(at, td.f32) * 0.5 - 0.25, 0)
        low = td.cast(where, td.i32)
        low = td.clip(low, 0, m - 1)
        return low, td.minimum(low + 1, m - 1), where - td.cast(low, td.f32)

    (y0, y1, v), (x0, x1, u) = place(y, h), place(x_, w)
    upper = image[b, y0, x0] * (1 - u) + image[b, y0, x1] * u
    lower = image[b, y1, x0] * (1 - u) + image[b, y1, x1] * u
    out[b, y, x_] = upper * (1 - v) + lower * v
    return out
