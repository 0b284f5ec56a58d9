"""Linear algebra on triangles: products, factorizations, solutions. Many of them update a matrix in order."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.numba_peers import prange
from benchmarks.unknown.npbench.kernel import case
from benchmarks.unknown.npbench.products import ALPHA, BETA, arrays


@td.op
def syrk(alpha: td.f64, beta: td.f64, c: td.f64["N", "N"], a: td.f64["N", "M"]):
    """The lower triangle of alpha a a^T + beta c, 400 x 350."""
    i, j, k = td.vars("i j k")
    out = td.Func("out")
    out[i, j] = td.where(j <= i, alpha * td.sum(a[i, k] * a[j, k], axis=k) + beta * c[i, j], c[i, j])
    return out


def numpy_syrk(alpha: float, beta: float, c: Array, a: Array) -> Any:
    return np.tril(alpha * (a @ a.T) + beta * c) + np.triu(c, 1)


def loops_syrk(alpha: float, beta: float, c: Array, a: Array) -> Array:
    out = c.copy()
    for i in prange(c.shape[0]):
        for j in range(i + 1):
            total = 0.0
            for k in range(a.shape[1]):
                total += a[i, k] * a[j, k]
            out[i, j] = alpha * total + beta * c[i, j]
    return out


@td.op
def syr2k(alpha: td.f64, beta: td.f64, c: td.f64["N", "N"], a: td.f64["N", "M"], b: td.f64["N", "M"]):
    """The lower triangle of alpha (a b^T + b a^T) + beta c, 400 x 350."""
    i, j, k, row = *td.vars("i j k"), td.range("row", 0, c.shape[0])
    out = td.Func("out", shape=c.shape)
    column = td.range("column", 0, row + 1)
    out[i, j] = c[i, j]
    total = td.sum(a[column, k] * b[row, k] + b[column, k] * a[row, k], axis=k)
    out[row, column] = beta * c[row, column] + alpha * total
    return out


def numpy_syr2k(alpha: float, beta: float, c: Array, a: Array, b: Array) -> Any:
    product = a @ b.T
    return np.tril(alpha * (product + product.T) + beta * c) + np.triu(c, 1)


def loops_syr2k(alpha: float, beta: float, c: Array, a: Array, b: Array) -> Array:
    out = c.copy()
    for i in prange(c.shape[0]):
        for j in range(i + 1):
            total = 0.0
            for k in range(a.shape[1]):
                total += a[j, k] * b[i, k] + b[j, k] * a[i, k]
            out[i, j] = alpha * total + beta * c[i, j]
    return out


@td.op
def trmm(alpha: td.f64, a: td.f64["M", "M"], b: td.f64["M", "N"]):
    """alpha times the transpose of a unit lower triangle times b, 350 x 400."""
    i, j = td.vars("i j")
    k = td.range("k", i + 1, a.shape[0])
    out = td.Func("out")
    out[i, j] = alpha * (b[i, j] + td.sum(a[k, i] * b[k, j], axis=k))
    return out


def numpy_trmm(alpha: float, a: Array, b: Array) -> Any:
    return alpha * (b + np.triu(a.T, 1) @ b)


def loops_trmm(alpha: float, a: Array, b: Array) -> Array:
    out = b.copy()
    for i in prange(b.shape[0]):
        for k in range(i + 1, a.shape[0]):
            for j in range(b.shape[1]):
                out[i, j] += a[k, i] * b[k, j]
        out[i] *= alpha
    return out


@td.op
def symm(alpha: td.f64, beta: td.f64, c: td.f64["M", "N"], a: td.f64["M", "M"], b: td.f64["M", "N"]):
    """alpha a b + beta c with a symmetric matrix a of which the lower triangle is given, 350 x 400."""
    i, j, k = td.vars("i j k")
    whole, out = td.Func("whole"), td.Func("out")
    whole[i, k] = td.where(k <= i, a[i, k], a[k, i])
    out[i, j] = alpha * td.sum(whole[i, k] * b[k, j], axis=k) + beta * c[i, j]
    return out


def numpy_symm(alpha: float, beta: float, c: Array, a: Array, b: Array) -> Any:
    return alpha * ((np.tril(a) + np.tril(a, -1).T) @ b) + beta * c


def loops_symm(alpha: float, beta: float, c: Array, a: Array, b: Array) -> Array:
    out = beta * c
    for i in prange(b.shape[0]):
        for k in range(b.shape[0]):
            factor = alpha * (a[i, k] if k <= i else a[k, i])
            for j in range(b.shape[1]):
                out[i, j] += factor * b[k, j]
    return out


def definite(side: int) -> Any:
    """Inputs: a symmetric positive definite matrix."""

    def make(rng: np.random.Generator) -> tuple[Array]:
        a = rng.random((side, side))
        return (a @ a.T + side * np.eye(side),)

    return make


@td.op
def cholesky(a: td.f64["N", "N"]):
    """The Cholesky factor of a matrix of side 300, over its lower triangle."""
    x, y = td.vars("x y")
    n = a.shape[0]
    f = td.Func("f", shape=(n, n))
    k = td.range("k", 0, n)
    i = td.range("i", k, n)
    j = td.range("j", k, i + 1)
    f[x, y] = a[x, y]
    column = td.where(i == k, td.sqrt(f[k, k]), f[i, k] / f[k, k])
    f[i, j] = td.where(j == k, column, f[i, j] - f[i, k] * f[j, k])
    return f


def numpy_cholesky(a: Array) -> Any:
    return np.linalg.cholesky(a) + np.triu(a, 1)


def loops_cholesky(a: Array) -> Array:
    f = a.copy()
    for i in range(a.shape[0]):
        for j in range(i):
            total = 0.0
            for k in range(j):
                total += f[i, k] * f[j, k]
            f[i, j] = (f[i, j] - total) / f[j, j]
        total = 0.0
        for k in range(i):
            total += f[i, k] * f[i, k]
        f[i, i] = np.sqrt(f[i, i] - total)
    return f


@td.op
def lu(a: td.f64["N", "N"]):
    """Both factors of a matrix of side 300, over one another."""
    x, y = td.vars("x y")
    n = a.shape[0]
    f = td.Func("f", shape=(n, n))
    k = td.range("k", 0, n)
    i, j = td.range("i", k + 1, n), td.range("j", k, n)
    f[x, y] = a[x, y]
    f[i, j] = td.where(j == k, f[i, k] / f[k, k], f[i, j] - f[i, k] * f[k, j])
    return f


def numpy_lu(a: Array) -> Any:
    f = a.copy()
    for k in range(a.shape[0]):
        f[k + 1 :, k] /= f[k, k]
        f[k + 1 :, k + 1 :] -= np.outer(f[k + 1 :, k], f[k, k + 1 :])
    return f


def loops_lu(a: Array) -> Array:
    f = a.copy()
    n = a.shape[0]
    for k in range(n):
        for i in prange(k + 1, n):
            f[i, k] /= f[k, k]
            for j in range(k + 1, n):
                f[i, j] -= f[i, k] * f[k, j]
    return f


@td.op
def trisolv(lower: td.f64["N", "N"], b: td.f64["N"]):
    """The solution of a lower triangular system of 1000 equations."""
    x = td.Func("x", shape=b.shape)
    m = td.vars("m")
    i = td.range("i", 0, b.shape[0])
    j = td.range("j", 0, i + 1)
    x[m] = b[m]
    x[i] = td.where(j < i, x[i] - lower[i, j] * x[j], x[i] / lower[i, i])
    return x


def numpy_trisolv(lower: Array, b: Array) -> Any:
    x = np.empty_like(b)
    for i in range(len(b)):
        x[i] = (b[i] - lower[i, :i] @ x[:i]) / lower[i, i]
    return x


def loops_trisolv(lower: Array, b: Array) -> Array:
    x = np.empty_like(b)
    for i in range(len(b)):
        total = b[i]
        for j in range(i):
            total -= lower[i, j] * x[j]
        x[i] = total / lower[i, i]
    return x


def triangle(rng: np.random.Generator) -> tuple[Array, Array]:
    return np.tril(rng.random((1000, 1000))) / 1000 + np.eye(1000), rng.random(1000)


@td.op
def durbin(r: td.f64["N"]):
    """The Yule-Walker equations of 500 unknowns by the recursion of Levinson and Durbin."""
    n = r.shape[0]
    m, row = td.vars("m row")
    # Row k holds the solution of k + 1 equations; its last two columns are beta and the sum for alpha.
    f = td.Func("f", shape=(n, n + 2))
    beta, sum_ = n, n + 1
    first = td.where(m == beta, 1.0, 0.0)
    f[row, m] = td.where(row > 0, 0.0, td.where(m == 0, -r[0], first))
    k = td.range("k", 1, n)
    step = td.range("step", 0, 2 * k + 3)  # the sum's terms, beta and alpha, then the entries of the row
    i = td.clip(step - k - 2, 0, k - 1)
    alpha = -(r[k] + f[k, sum_]) / f[k, beta]
    before = f[k - 1, td.clip(step, 0, k - 1)]
    last = f[k - 1, k - 1]
    column = td.where(step < k, sum_, td.where(step == k, beta, td.where(step == k + 1, k, i)))
    total = f[k, sum_] + r[td.clip(k - 1 - step, 0, n - 1)] * before
    shrunk = (1 - last * last) * f[k - 1, beta]
    entry = f[k - 1, i] + f[k, k] * f[k - 1, k - 1 - i]
    f[k, column] = td.where(
        step < k, total, td.where(step == k, shrunk, td.where(step == k + 1, alpha, entry))
    )
    y = td.Func("y")
    y[m] = f[n - 1, m]
    return y.with_shape(n)


def numpy_durbin(r: Array) -> Any:
    y = np.empty_like(r)
    alpha, beta, y[0] = -r[0], 1.0, -r[0]
    for k in range(1, len(r)):
        beta *= 1.0 - alpha * alpha
        alpha = -(r[k] + r[:k][::-1] @ y[:k]) / beta
        y[:k] += alpha * y[:k][::-1]
        y[k] = alpha
    return y


def loops_durbin(r: Array) -> Array:
    n = len(r)
    y, z = np.empty_like(r), np.empty_like(r)
    alpha, beta, y[0] = -r[0], 1.0, -r[0]
    for k in range(1, n):
        beta *= 1.0 - alpha * alpha
        total = r[k]
        for i in range(k):
            total += r[k - 1 - i] * y[i]
        alpha = -total / beta
        for i in range(k):
            z[i] = y[i] + alpha * y[k - 1 - i]
        for i in range(k):
            y[i] = z[i]
        y[k] = alpha
    return y


@td.op
def gramschmidt(a: td.f64["M", "N"]):
    """Orthogonal columns and their factors, 240 x 200, by the modified process of Gram and Schmidt."""
    m, n = a.shape
    x, y = td.vars("x y")
    # Below the rows of the matrix: the products of a column with the later ones, none of them normalized.
    f = td.Func("f", shape=(m + n, n))
    f[x, y] = td.where(x < m, a[td.clip(x, 0, m - 1), y], 0.0)
    step = td.range("step", 0, 2 * n)  # for each column the products with it, then what they leave
    k = step // 2
    i, j = td.range("i", 0, m), td.range("j", k, n)
    total = f[m + k, j] + f[i, k] * f[i, j]
    rest = td.where(j > k, f[i, j] - f[i, k] * f[m + k, j] / f[m + k, k], f[i, j])
    f[td.where(step % 2 == 0, m + k, i), j] = td.where(step % 2 == 0, total, rest)
    q, r = td.Func("q", shape=(m, n)), td.Func("r", shape=(n, n))
    q[x, y] = f[x, y] / td.sqrt(f[m + y, y])
    r[x, y] = f[m + x, y] / td.sqrt(f[m + x, x])
    return q, r


def numpy_gramschmidt(a: Array) -> Any:
    q, r = a.copy(), np.zeros((a.shape[1], a.shape[1]))
    for k in range(a.shape[1]):
        r[k, k] = np.sqrt(q[:, k] @ q[:, k])
        q[:, k] /= r[k, k]
        r[k, k + 1 :] = q[:, k] @ q[:, k + 1 :]
        q[:, k + 1 :] -= np.outer(q[:, k], r[k, k + 1 :])
    return q, r


def loops_gramschmidt(a: Array) -> Any:
    m, n = a.shape
    q, r = a.copy(), np.zeros((n, n))
    for k in range(n):
        total = 0.0
        for i in range(m):
            total += q[i, k] * q[i, k]
        r[k, k] = np.sqrt(total)
        for i in range(m):
            q[i, k] /= r[k, k]
        for i in range(m):
            for j in range(k + 1, n):
                r[k, j] += q[i, k] * q[i, j]
        for i in range(m):
            for j in range(k + 1, n):
                q[i, j] -= q[i, k] * r[k, j]
    return q, r


def toeplitz(rng: np.random.Generator) -> tuple[Array]:
    return (rng.random(500) * 0.5 ** np.arange(500),)


N, M = 400, 350
CASES = (
    case("syrk", syrk, arrays(ALPHA, BETA, (N, N), (N, M)), numpy_syrk, loops_syrk),
    case("syr2k", syr2k, arrays(ALPHA, BETA, (N, N), (N, M), (N, M)), numpy_syr2k, loops_syr2k),
    case("trmm", trmm, arrays(ALPHA, (M, M), (M, N)), numpy_trmm, loops_trmm),
    case("symm", symm, arrays(ALPHA, BETA, (M, N), (M, M), (M, N)), numpy_symm, loops_symm),
    case("cholesky", cholesky, definite(300), numpy_cholesky, loops_cholesky),
    case("lu", lu, definite(300), numpy_lu, loops_lu),
    case("trisolv", trisolv, triangle, numpy_trisolv, loops_trisolv),
    case("durbin", durbin, toeplitz, numpy_durbin, loops_durbin),
    case("gramschmidt", gramschmidt, arrays((240, 200)), numpy_gramschmidt, loops_gramschmidt),
)
