"""Histograms, sparse products, element-wise work, iterations per point."""

import math
from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.numba_peers import prange
from benchmarks.unknown.npbench.kernel import case

BINS, ROUNDS = 1000, 60


@td.op
def azimint_naive(data: td.f64["N"], radius: td.f64["N"], edges: td.f64["E"]):
    """Means of 40000 values in 100 rings, each found by a pass over all of them."""
    n, ring = td.vars("n ring")
    inside, total, count, out = (td.Func(name) for name in ("inside", "total", "count", "out"))
    inside[ring, n] = (edges[ring] <= radius[n]) & (radius[n] < edges[ring + 1])
    total[ring] = td.sum(td.where(inside[ring, n], data[n], 0.0), axis=n)
    count[ring] = td.sum(td.where(inside[ring, n], 1.0, 0.0), axis=n)
    out[ring] = total[ring] / count[ring]
    return out


def numpy_azimint_naive(data: Array, radius: Array, edges: Array) -> Any:
    out = np.empty(len(edges) - 1)
    for i in range(len(out)):
        out[i] = data[(edges[i] <= radius) & (radius < edges[i + 1])].mean()
    return out


def loops_azimint_naive(data: Array, radius: Array, edges: Array) -> Array:
    out = np.empty(len(edges) - 1)
    for i in prange(len(out)):
        low, high = edges[i], edges[i + 1]
        total, count = 0.0, 0
        for n in range(len(data)):
            if low <= radius[n] and radius[n] < high:
                total += data[n]
                count += 1
        out[i] = total / count
    return out


@td.op
def azimint_hist(data: td.f64["N"], radius: td.f64["N"]):
    """Means of 400000 values in 1000 rings, by two histograms and their quotient."""
    n, ring = td.vars("n ring")
    most, at = td.Func("most"), td.Func("at")
    total, count, out = td.Func("total"), td.Func("count"), td.Func("out")
    most[()] = td.max(radius[n], axis=n)
    at[n] = td.clip(td.cast(radius[n] / most[()] * BINS, td.i32), 0, BINS - 1)
    total[ring], count[ring] = td.cast(0, td.f64), td.cast(0, td.f64)
    total[at[n]] += data[n]
    count[at[n]] += 1
    out[ring] = total[ring] / count[ring]
    return out.with_shape(BINS)


def numpy_azimint_hist(data: Array, radius: Array) -> Any:
    at = np.minimum((radius / radius.max() * BINS).astype(np.int32), BINS - 1)
    return np.bincount(at, data, BINS) / np.bincount(at, minlength=BINS)


def loops_azimint_hist(data: Array, radius: Array) -> Array:
    most, total, count = radius.max(), np.zeros(BINS), np.zeros(BINS)
    for n in range(len(data)):
        at = min(int(radius[n] / most * BINS), BINS - 1)
        total[at] += data[n]
        count[at] += 1
    return total / count


@td.op
def spmv(start: td.i32["S"], columns: td.i32["Z"], values: td.f64["Z"], x: td.f64["N"]):
    """A sparse matrix by rows, 8192 x 8192 with 32 entries a row, times a vector."""
    i = td.vars("i")
    entries = values.shape[0]
    r = td.range("r", td.clip(start[i], 0, entries), td.clip(start[i + 1], 0, entries))
    y = td.Func("y", shape=start.shape[0] - 1)
    y[i] = td.sum(values[r] * x[td.clip(columns[r], 0, x.shape[0] - 1)], axis=r)
    return y


def numpy_spmv(start: Array, columns: Array, values: Array, x: Array) -> Any:
    return np.add.reduceat(values * x[columns], start[:-1])


def loops_spmv(start: Array, columns: Array, values: Array, x: Array) -> Array:
    y = np.empty(len(start) - 1)
    for i in prange(len(y)):
        total = 0.0
        for r in range(start[i], start[i + 1]):
            total += values[r] * x[columns[r]]
        y[i] = total
    return y


def sparse(rng: np.random.Generator) -> tuple[Array, ...]:
    rows = 8192
    lengths = rng.integers(1, 64, rows)
    start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    columns = rng.integers(0, rows, start[-1], dtype=np.int32)
    return start, columns, rng.random(start[-1]), rng.random(rows)


@td.op
def compute(x: td.i64["M", "N"], y: td.i64["M", "N"], a: td.i64, b: td.i64, c: td.i64):
    """clip(x, 2, 10) a + y b + c of integers, 1000 x 1000."""
    i, j = td.vars("i j")
    out = td.Func("out")
    out[i, j] = td.clip(x[i, j], 2, 10) * a + y[i, j] * b + c
    return out


def numpy_compute(x: Array, y: Array, a: int, b: int, c: int) -> Any:
    return np.clip(x, 2, 10) * a + y * b + c


def loops_compute(x: Array, y: Array, a: int, b: int, c: int) -> Array:
    out = np.empty_like(x)
    for i in prange(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = min(max(x[i, j], 2), 10) * a + y[i, j] * b + c
    return out


def integers(rng: np.random.Generator) -> tuple[Any, ...]:
    side = (1000, 1000)
    return rng.integers(0, 1000, side), rng.integers(0, 1000, side), np.int64(4), np.int64(3), np.int64(9)


@td.op
def go_fast(a: td.f64["N", "N"]):
    """A matrix of side 1000 plus the sum of tanh of its diagonal."""
    i, j = td.vars("i j")
    trace, out = td.Func("trace"), td.Func("out")
    trace[()] = td.sum(td.tanh(a[i, i]), axis=i)
    out[i, j] = a[i, j] + trace[()]
    return out


def numpy_go_fast(a: Array) -> Any:
    return a + np.tanh(np.diagonal(a)).sum()


def loops_go_fast(a: Array) -> Array:
    trace = 0.0
    for i in range(a.shape[0]):
        trace += math.tanh(a[i, i])
    out = np.empty_like(a)
    for i in prange(a.shape[0]):
        for j in range(a.shape[1]):
            out[i, j] = a[i, j] + trace
    return out


@td.op
def mandelbrot(re: td.f64["X"], im: td.f64["Y"]):
    """Steps until escape of 250 x 250 points, 60 at most."""
    y, x = td.vars("y x")
    z, count = td.Func("z"), td.Func("count")
    z[y, x] = (0.0 * re[x], 0.0 * im[y], td.cast(0, td.i64))
    step = td.range("step", 0, ROUNDS)
    a, b, n = z[y, x]
    inside = (a * a + b * b < 4.0) & (step < ROUNDS)
    z[y, x] = (
        td.where(inside, a * a - b * b + re[x], a),
        td.where(inside, 2.0 * a * b + im[y], b),
        td.where(inside, n + 1, n),
    )
    count[y, x] = z[y, x][2]
    return count


def numpy_mandelbrot(re: Array, im: Array) -> Any:
    c = re + im[:, None] * 1j
    z, count = np.zeros_like(c), np.zeros(c.shape, np.int64)
    for _ in range(ROUNDS):
        inside = z.real * z.real + z.imag * z.imag < 4.0
        z[inside] = z[inside] ** 2 + c[inside]
        count += inside
    return count


def loops_mandelbrot(re: Array, im: Array) -> Array:
    count = np.empty((len(im), len(re)), np.int64)
    for y in prange(len(im)):
        for x in range(len(re)):
            a, b, n = 0.0, 0.0, 0
            while n < ROUNDS and a * a + b * b < 4.0:
                a, b = a * a - b * b + re[x], 2.0 * a * b + im[y]
                n += 1
            count[y, x] = n
    return count


def plane(rng: np.random.Generator) -> tuple[Array, Array]:
    return np.linspace(-2.0, 0.5, 250), np.linspace(-1.25, 1.25, 250)


def nearly_all(result: Array, arrays: tuple[Any, ...]) -> bool:
    """Whether no more than 1 of 1000 points, at the border, escapes at another step: rounding grows there."""
    return bool((result != numpy_mandelbrot(*arrays)).mean() < 1e-3)


def rings(rng: np.random.Generator) -> tuple[Array, ...]:
    return rng.random(40_000), rng.random(40_000), np.linspace(0.0, 1.0, 101)


def values_and_radii(rng: np.random.Generator) -> tuple[Array, ...]:
    return rng.random(400_000), rng.random(400_000)


CASES = (
    case("azimint_naive", azimint_naive, rings, numpy_azimint_naive, loops_azimint_naive),
    case("azimint_hist", azimint_hist, values_and_radii, numpy_azimint_hist, loops_azimint_hist),
    case("spmv", spmv, sparse, numpy_spmv, loops_spmv),
    case("compute", compute, integers, numpy_compute, loops_compute, numpy_compute),
    case("go_fast", go_fast, lambda rng: (rng.random((1000, 1000)),), numpy_go_fast, loops_go_fast),
    case("mandelbrot", mandelbrot, plane, numpy_mandelbrot, loops_mandelbrot, judge=nearly_all),
)
