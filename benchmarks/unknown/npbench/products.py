"""Products of matrices and vectors, and statistics that are such products."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.numba_peers import prange
from benchmarks.unknown.npbench.kernel import Values, case

ALPHA, BETA = np.float64(1.5), np.float64(1.2)


def arrays(*shapes: tuple[int, ...] | np.float64 | np.int64) -> Values:
    """Inputs: arrays of these shapes, and numbers as they are."""
    return lambda rng: tuple(rng.random(s) if isinstance(s, tuple) else s for s in shapes)


@td.op
def gemm(alpha: td.f64, beta: td.f64, c: td.f64["I", "J"], a: td.f64["I", "K"], b: td.f64["K", "J"]):
    """alpha a b + beta c, 500 x 600 x 550."""
    i, j, k = td.vars("i j k")
    out = td.Func("out")
    out[i, j] = alpha * td.sum(a[i, k] * b[k, j], axis=k) + beta * c[i, j]
    return out


def numpy_gemm(alpha: float, beta: float, c: Array, a: Array, b: Array) -> Any:
    return alpha * (a @ b) + beta * c


def loops_gemm(alpha: float, beta: float, c: Array, a: Array, b: Array) -> Array:
    out = np.empty_like(c)
    for i in prange(c.shape[0]):
        out[i] = beta * c[i]
        for k in range(a.shape[1]):
            for j in range(c.shape[1]):
                out[i, j] += alpha * a[i, k] * b[k, j]
    return out


@td.op
def k2mm(
    alpha: td.f64,
    beta: td.f64,
    a: td.f64["I", "K"],
    b: td.f64["K", "J"],
    c: td.f64["J", "L"],
    d: td.f64["I", "L"],
):
    """alpha a b c + beta d, sides of 350 to 500."""
    i, j, k, l = td.vars("i j k l")
    t, out = td.Func("t"), td.Func("out")
    t[i, j] = alpha * td.sum(a[i, k] * b[k, j], axis=k)
    out[i, l] = td.sum(t[i, j] * c[j, l], axis=j) + beta * d[i, l]
    return out


def numpy_k2mm(alpha: float, beta: float, a: Array, b: Array, c: Array, d: Array) -> Any:
    return alpha * (a @ b) @ c + beta * d


def loops_k2mm(alpha: float, beta: float, a: Array, b: Array, c: Array, d: Array) -> Array:
    out = np.empty_like(d)
    for i in prange(a.shape[0]):
        t = np.zeros(b.shape[1])
        for k in range(a.shape[1]):
            for j in range(b.shape[1]):
                t[j] += alpha * a[i, k] * b[k, j]
        out[i] = beta * d[i]
        for j in range(c.shape[0]):
            for m in range(c.shape[1]):
                out[i, m] += t[j] * c[j, m]
    return out


@td.op
def k3mm(a: td.f64["I", "K"], b: td.f64["K", "J"], c: td.f64["J", "M"], d: td.f64["M", "L"]):
    """(a b) (c d), sides of 300 to 500."""
    i, j, k, l, m = td.vars("i j k l m")
    e, f, g = td.Func("e"), td.Func("f"), td.Func("g")
    e[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    f[j, l] = td.sum(c[j, m] * d[m, l], axis=m)
    g[i, l] = td.sum(e[i, j] * f[j, l], axis=j)
    return g


def numpy_k3mm(a: Array, b: Array, c: Array, d: Array) -> Any:
    return (a @ b) @ (c @ d)


def loops_k3mm(a: Array, b: Array, c: Array, d: Array) -> Array:
    f, out = np.zeros((c.shape[0], d.shape[1])), np.zeros((a.shape[0], d.shape[1]))
    for j in prange(c.shape[0]):
        for m in range(c.shape[1]):
            for k in range(d.shape[1]):
                f[j, k] += c[j, m] * d[m, k]
    for i in prange(a.shape[0]):
        e = np.zeros(b.shape[1])
        for k in range(a.shape[1]):
            for j in range(b.shape[1]):
                e[j] += a[i, k] * b[k, j]
        for j in range(f.shape[0]):
            for k in range(f.shape[1]):
                out[i, k] += e[j] * f[j, k]
    return out


@td.op
def atax(a: td.f64["M", "N"], x: td.f64["N"]):
    """a^T (a x), 1400 x 1250."""
    i, j = td.vars("i j")
    t, y = td.Func("t"), td.Func("y")
    t[i] = td.sum(a[i, j] * x[j], axis=j)
    y[j] = td.sum(a[i, j] * t[i], axis=i)
    return y


def numpy_atax(a: Array, x: Array) -> Any:
    return (a @ x) @ a


def loops_atax(a: Array, x: Array) -> Array:
    y = np.zeros(a.shape[1])
    for i in range(a.shape[0]):
        t = 0.0
        for j in range(a.shape[1]):
            t += a[i, j] * x[j]
        for j in range(a.shape[1]):
            y[j] += a[i, j] * t
    return y


@td.op
def bicg(a: td.f64["N", "M"], p: td.f64["M"], r: td.f64["N"]):
    """r a and a p, 1400 x 1250."""
    i, j = td.vars("i j")
    s, q = td.Func("s"), td.Func("q")
    s[j] = td.sum(r[i] * a[i, j], axis=i)
    q[i] = td.sum(a[i, j] * p[j], axis=j)
    return s, q


def numpy_bicg(a: Array, p: Array, r: Array) -> Any:
    return r @ a, a @ p


def loops_bicg(a: Array, p: Array, r: Array) -> Any:
    s, q = np.zeros(a.shape[1]), np.empty(a.shape[0])
    for i in range(a.shape[0]):
        total = 0.0
        for j in range(a.shape[1]):
            s[j] += r[i] * a[i, j]
            total += a[i, j] * p[j]
        q[i] = total
    return s, q


@td.op
def mvt(x1: td.f64["N"], x2: td.f64["N"], y1: td.f64["N"], y2: td.f64["N"], a: td.f64["N", "N"]):
    """x1 + a y1 and x2 + a^T y2, 1300 x 1300."""
    i, j = td.vars("i j")
    z1, z2 = td.Func("z1"), td.Func("z2")
    z1[i] = x1[i] + td.sum(a[i, j] * y1[j], axis=j)
    z2[i] = x2[i] + td.sum(a[j, i] * y2[j], axis=j)
    return z1, z2


def numpy_mvt(x1: Array, x2: Array, y1: Array, y2: Array, a: Array) -> Any:
    return x1 + a @ y1, x2 + y2 @ a


def loops_mvt(x1: Array, x2: Array, y1: Array, y2: Array, a: Array) -> Any:
    z1, z2 = x1.copy(), x2.copy()
    for i in range(a.shape[0]):
        total = 0.0
        for j in range(a.shape[1]):
            total += a[i, j] * y1[j]
            z2[j] += a[i, j] * y2[i]
        z1[i] += total
    return z1, z2


@td.op
def gemver(
    alpha: td.f64, beta: td.f64, a: td.f64["N", "N"], u1: td.f64["N"], v1: td.f64["N"], u2: td.f64["N"],
    v2: td.f64["N"], w: td.f64["N"], x: td.f64["N"], y: td.f64["N"], z: td.f64["N"],
):  # fmt: skip
    """A matrix plus two of rank 1, and products with it, 1000 x 1000."""
    i, j = td.vars("i j")
    b, x2, w2 = td.Func("b"), td.Func("x2"), td.Func("w2")
    b[i, j] = a[i, j] + u1[i] * v1[j] + u2[i] * v2[j]
    x2[i] = x[i] + beta * td.sum(b[j, i] * y[j], axis=j) + z[i]
    w2[i] = w[i] + alpha * td.sum(b[i, j] * x2[j], axis=j)
    return b, x2, w2


def numpy_gemver(
    alpha: float, beta: float, a: Array, u1: Array, v1: Array, u2: Array, v2: Array, w: Array, x: Array,
    y: Array, z: Array,
) -> Any:  # fmt: skip
    b = a + np.outer(u1, v1) + np.outer(u2, v2)
    x2 = x + beta * (y @ b) + z
    return b, x2, w + alpha * (b @ x2)


def loops_gemver(
    alpha: float, beta: float, a: Array, u1: Array, v1: Array, u2: Array, v2: Array, w: Array, x: Array,
    y: Array, z: Array,
) -> Any:  # fmt: skip
    b, x2, w2 = np.empty_like(a), x + z, w.copy()
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            b[i, j] = a[i, j] + u1[i] * v1[j] + u2[i] * v2[j]
            x2[j] += beta * b[i, j] * y[i]
    for i in prange(a.shape[0]):
        total = 0.0
        for j in range(a.shape[1]):
            total += b[i, j] * x2[j]
        w2[i] += alpha * total
    return b, x2, w2


@td.op
def gesummv(alpha: td.f64, beta: td.f64, a: td.f64["N", "N"], b: td.f64["N", "N"], x: td.f64["N"]):
    """alpha a x + beta b x, 1000 x 1000."""
    i, j = td.vars("i j")
    y = td.Func("y")
    y[i] = alpha * td.sum(a[i, j] * x[j], axis=j) + beta * td.sum(b[i, j] * x[j], axis=j)
    return y


def numpy_gesummv(alpha: float, beta: float, a: Array, b: Array, x: Array) -> Any:
    return alpha * (a @ x) + beta * (b @ x)


def loops_gesummv(alpha: float, beta: float, a: Array, b: Array, x: Array) -> Array:
    y = np.empty_like(x)
    for i in prange(a.shape[0]):
        s, t = 0.0, 0.0
        for j in range(a.shape[1]):
            s += a[i, j] * x[j]
            t += b[i, j] * x[j]
        y[i] = alpha * s + beta * t
    return y


@td.op
def doitgen(a: td.f64["R", "Q", "S"], c4: td.f64["S", "P"]):
    """A product along the last axis of three, 60 x 50 x 128."""
    r, q, s, p = td.vars("r q s p")
    out = td.Func("out")
    out[r, q, p] = td.sum(a[r, q, s] * c4[s, p], axis=s)
    return out


def numpy_doitgen(a: Array, c4: Array) -> Any:
    return (a.reshape(-1, a.shape[2]) @ c4).reshape(a.shape)


def loops_doitgen(a: Array, c4: Array) -> Array:
    out = np.zeros_like(a)
    for r in prange(a.shape[0]):
        for q in range(a.shape[1]):
            for s in range(a.shape[2]):
                for p in range(a.shape[2]):
                    out[r, q, p] += a[r, q, s] * c4[s, p]
    return out


@td.op
def covariance(data: td.f64["N", "M"]):
    """Covariances of the columns of 600 x 500."""
    i, j, k = td.vars("i j k")
    n = data.shape[0]
    mean, d, cov = td.Func("mean"), td.Func("d"), td.Func("cov")
    mean[j] = td.sum(data[k, j], axis=k) / n
    d[k, j] = data[k, j] - mean[j]
    cov[i, j] = td.sum(d[k, i] * d[k, j], axis=k) / (n - 1)
    return cov


def numpy_covariance(data: Array) -> Any:
    d = data - np.sum(data, axis=0) / data.shape[0]
    return (d.T @ d) / (data.shape[0] - 1)


def loops_covariance(data: Array) -> Array:
    n, m = data.shape
    mean = np.zeros(m)
    for k in range(n):
        for j in range(m):
            mean[j] += data[k, j]
    d = np.empty((m, n))
    for j in prange(m):
        for k in range(n):
            d[j, k] = data[k, j] - mean[j] / n
    cov = np.empty((m, m))
    for i in prange(m):
        for j in range(i, m):
            total = 0.0
            for k in range(n):
                total += d[i, k] * d[j, k]
            cov[i, j] = cov[j, i] = total / (n - 1)
    return cov


@td.op
def correlation(data: td.f64["N", "M"]):
    """Correlations of the columns of 600 x 500."""
    i, j, k = td.vars("i j k")
    n = data.shape[0]
    mean, spread, d, corr = td.Func("mean"), td.Func("spread"), td.Func("d"), td.Func("corr")
    mean[j] = td.sum(data[k, j], axis=k) / n
    spread[j] = td.sqrt(td.sum((data[k, j] - mean[j]) ** 2, axis=k) / n)
    d[k, j] = (data[k, j] - mean[j]) / (
        td.sqrt(td.cast(n, td.f64)) * td.where(spread[j] <= 0.1, 1.0, spread[j])
    )
    corr[i, j] = td.where(i == j, 1.0, td.sum(d[k, i] * d[k, j], axis=k))
    return corr


def numpy_correlation(data: Array) -> Any:
    n = data.shape[0]
    centred = data - np.sum(data, axis=0) / n
    spread = np.sqrt(np.sum(centred * centred, axis=0) / n)
    d = centred / (np.sqrt(n) * np.where(spread <= 0.1, 1.0, spread))
    corr = d.T @ d
    np.fill_diagonal(corr, 1.0)
    return corr


def loops_correlation(data: Array) -> Array:
    n, m = data.shape
    d = np.empty((m, n))
    for j in prange(m):
        mean, square = 0.0, 0.0
        for k in range(n):
            mean += data[k, j]
        mean /= n
        for k in range(n):
            d[j, k] = data[k, j] - mean
            square += d[j, k] * d[j, k]
        spread = np.sqrt(square / n)
        scale = 1.0 / (np.sqrt(n) * (1.0 if spread <= 0.1 else spread))
        for k in range(n):
            d[j, k] *= scale
    corr = np.empty((m, m))
    for i in prange(m):
        corr[i, i] = 1.0
        for j in range(i + 1, m):
            total = 0.0
            for k in range(n):
                total += d[i, k] * d[j, k]
            corr[i, j] = corr[j, i] = total
    return corr


N = 1000
CASES = (
    case(
        "gemm",
        gemm,
        arrays(ALPHA, BETA, (500, 550), (500, 600), (600, 550)),
        numpy_gemm,
        loops_gemm,
        numpy_gemm,
    ),
    case(
        "k2mm",
        k2mm,
        arrays(ALPHA, BETA, (350, 400), (400, 450), (450, 500), (350, 500)),
        numpy_k2mm,
        loops_k2mm,
        numpy_k2mm,
    ),
    case(
        "k3mm",
        k3mm,
        arrays((300, 450), (450, 350), (350, 500), (500, 400)),
        numpy_k3mm,
        loops_k3mm,
        numpy_k3mm,
    ),
    case("atax", atax, arrays((1400, 1250), (1250,)), numpy_atax, loops_atax, numpy_atax),
    case("bicg", bicg, arrays((1400, 1250), (1250,), (1400,)), numpy_bicg, loops_bicg, numpy_bicg),
    case("mvt", mvt, arrays(*[(1300,)] * 4, (1300, 1300)), numpy_mvt, loops_mvt, numpy_mvt),
    case(
        "gemver", gemver, arrays(ALPHA, BETA, (N, N), *[(N,)] * 8), numpy_gemver, loops_gemver, numpy_gemver
    ),
    case(
        "gesummv",
        gesummv,
        arrays(ALPHA, BETA, (N, N), (N, N), (N,)),
        numpy_gesummv,
        loops_gesummv,
        numpy_gesummv,
    ),
    case("doitgen", doitgen, arrays((60, 50, 128), (128, 128)), numpy_doitgen, loops_doitgen, numpy_doitgen),
    case("covariance", covariance, arrays((600, 500)), numpy_covariance, loops_covariance, numpy_covariance),
    case(
        "correlation",
        correlation,
        arrays((600, 500)),
        numpy_correlation,
        loops_correlation,
        numpy_correlation,
    ),
)
