"""Rows and columns: norms, softmax, their gradients, statistics across."""

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.cuda.unknown.program import program

i, j, k, n_, p = td.vars("i j k n p")
EPS = 1e-5


def softmax_of(x: Array) -> Array:
    """By NumPy."""
    e = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


for name, rows, columns in (("softmax 64x100000", 64, 100_000), ("softmax 8192x1000", 8192, 1000)):

    @program(name, sizes={"m": rows, "n": columns}, small={"m": 5, "n": 1000}, expected=softmax_of)
    def softmax(m: int, n: int) -> td.Func:
        """e^x of each row, divided by its sum."""
        x, top, e, total, out = td.Tensor("x", (m, n), td.f32), *map(td.Func, ("top", "e", "total", "out"))
        top[i] = td.max(x[i, j], axis=j)
        e[i, j] = td.exp(x[i, j] - top[i])
        total[i] = td.sum(e[i, j], axis=j)
        out[i, j] = e[i, j] / total[i]
        return out


def normal(x: Array) -> Array:
    """Rows of mean 0 and variance 1."""
    return np.asarray((x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPS))


NORM = {"m": 8192, "n": 4096}
FEW = {"m": 6, "n": 300}


@program("layer norm", sizes=NORM, small=FEW, expected=lambda x, g, b: normal(x) * g + b)
def layer_norm(m: int, n: int) -> td.Func:
    """Forward, in f16."""
    x, g, b = td.Tensor("x", (m, n), td.f16), td.Tensor("g", (n,), td.f16), td.Tensor("b", (n,), td.f16)
    mean, var, out = map(td.Func, ("mean", "var", "out"))
    wide = td.cast(x[i, j], td.f32)
    mean[i] = td.mean(wide, axis=j)
    var[i] = td.mean((wide - mean[i]) ** 2, axis=j)
    y = (wide - mean[i]) * td.rsqrt(var[i] + EPS) * td.cast(g[j], td.f32) + td.cast(b[j], td.f32)
    out[i, j] = td.cast(y, td.f16)
    return out


def gradients(dy: Array, x: Array, g: Array) -> tuple[Array, Array, Array]:
    """Of a layer norm for its input, gain and shift."""
    y, scale = normal(x), 1 / np.sqrt(x.var(1, keepdims=True) + EPS)
    dx = dy * g
    dx = scale * (dx - dx.mean(1, keepdims=True) - y * (dx * y).mean(1, keepdims=True))
    return dx, (dy * y).sum(0), dy.sum(0)


@program(
    "layer norm backward",
    sizes=NORM,
    small=FEW,
    expected=gradients,
)
def layer_norm_backward(m: int, n: int) -> td.Schedule:
    """The gradients for input, gain and shift."""
    dy, x, g = td.Tensor("dy", (m, n), td.f32), td.Tensor("x", (m, n), td.f32), td.Tensor("g", (n,), td.f32)
    mean, var, a, b, dx, dg, db = map(td.Func, ("mean", "var", "a", "b", "dx", "dg", "db"))
    mean[i] = td.mean(x[i, j], axis=j)
    var[i] = td.mean((x[i, j] - mean[i]) ** 2, axis=j)
    y = (x[i, j] - mean[i]) * td.rsqrt(var[i] + EPS)
    a[i] = td.mean(dy[i, j] * g[j], axis=j)
    b[i] = td.mean(dy[i, j] * g[j] * y, axis=j)
    dx[i, j] = td.rsqrt(var[i] + EPS) * (dy[i, j] * g[j] - a[i] - y * b[i])
    dg[j] = td.sum(dy[i, j] * y, axis=i)
    db[j] = td.sum(dy[i, j], axis=i)
    return td.Schedule(dx, dg, db)


def grouped(x: Array) -> Array:
    """Variance 1 in each group of channels of an image."""
    mean, var = x.mean((1, 3), keepdims=True), x.var((1, 3), keepdims=True)
    return np.asarray((x - mean) / np.sqrt(var + EPS))


@program(
    "group norm", sizes={"b": 32, "s": 4096, "g": 32, "c": 8}, small={"b": 2, "s": 50, "g": 3, "c": 8},
    expected=grouped,
)  # fmt: skip
def group_norm(b: int, s: int, g: int, c: int) -> td.Func:
    """Images with channels last, in groups of channels."""
    x, mean, var, out = td.Tensor("x", (b, s, g, c), td.f32), *map(td.Func, ("mean", "var", "out"))
    mean[n_, j] = td.mean(x[n_, p, j, k], axis=(p, k))
    var[n_, j] = td.mean((x[n_, p, j, k] - mean[n_, j]) ** 2, axis=(p, k))
    out[n_, p, j, k] = (x[n_, p, j, k] - mean[n_, j]) * td.rsqrt(var[n_, j] + EPS)
    return out


WIDE = {"m": 65536, "n": 768}


@program(
    "cosine similarity", sizes=WIDE, small=FEW,
    expected=lambda x, y: (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1)),
)  # fmt: skip
def cosine(m: int, n: int) -> td.Func:
    """Of pairs of rows."""
    x, y = td.Tensor("x", (m, n), td.f32), td.Tensor("y", (m, n), td.f32)
    xy, xx, yy, out = map(td.Func, ("xy", "xx", "yy", "out"))
    xy[i] = td.sum(x[i, j] * y[i, j], axis=j)
    xx[i] = td.sum(x[i, j] * x[i, j], axis=j)
    yy[i] = td.sum(y[i, j] * y[i, j], axis=j)
    out[i] = xy[i] * td.rsqrt(xx[i] * yy[i])
    return out


MATRIX = {"m": 16384, "n": 4096}


@program("norms across", sizes=MATRIX, small=FEW, expected=lambda x: np.sqrt((x * x).sum(0)))
def norms_across(m: int, n: int) -> td.Func:
    """The lengths of columns."""
    x, out = td.Tensor("x", (m, n), td.f32), td.Func("out")
    out[j] = td.sqrt(td.sum(x[i, j] * x[i, j], axis=i))
    return out


@program(
    "log-sum-exp across",
    sizes=MATRIX,
    small=FEW,
    expected=lambda x: np.log(np.exp(x).sum(0)),
)
def log_sum_exp(m: int, n: int) -> td.Func:
    """Of columns, with their maxima taken out."""
    x, top, out = td.Tensor("x", (m, n), td.f32), td.Func("top"), td.Func("out")
    top[j] = td.max(x[i, j], axis=i)
    out[j] = top[j] + td.log(td.sum(td.exp(x[i, j] - top[j]), axis=i))
    return out


@program(
    "sums of odd rows", sizes={"m": 16384, "n": 4097}, small={"m": 7, "n": 301}, expected=lambda x: x.sum(1)
)
def odd_rows(m: int, n: int) -> td.Func:
    """Rows that begin at odd places."""
    x, out = td.Tensor("x", (m, n), td.f32), td.Func("out")
    out[i] = td.sum(x[i, j], axis=j)
    return out
