"""Stencils in time, by explicit steps and in place."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.numba_peers import prange
from benchmarks.unknown.npbench.kernel import case
from benchmarks.unknown.npbench.products import arrays


@td.op
def jacobi_1d(steps: td.i64, a: td.f64["N"], b: td.f64["N"]):
    """200 double steps on 4000 points: two arrays, of which each step reads one and writes the other."""
    n = a.shape[0]
    p, x = td.vars("p x")
    f, a2, b2 = td.Func("f", shape=(2, n)), td.Func("a2"), td.Func("b2")
    f[p, x] = td.where(p == 0, a[x], b[x])
    t, i = td.range("t", 0, 2 * steps), td.range("i", 1, n - 1)
    f[(t + 1) % 2, i] = 0.33333 * (f[t % 2, i - 1] + f[t % 2, i] + f[t % 2, i + 1])
    a2[x] = f[0, x]
    b2[x] = f[1, x]
    return a2.with_shape(n), b2.with_shape(n)


def numpy_jacobi_1d(steps: int, a: Array, b: Array) -> Any:
    a, b = a.copy(), b.copy()
    for _ in range(steps):
        b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
        a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])
    return a, b


def loops_jacobi_1d(steps: int, a: Array, b: Array) -> Any:
    a, b = a.copy(), b.copy()
    for _ in range(steps):
        for i in range(1, len(a) - 1):
            b[i] = 0.33333 * (a[i - 1] + a[i] + a[i + 1])
        for i in range(1, len(a) - 1):
            a[i] = 0.33333 * (b[i - 1] + b[i] + b[i + 1])
    return a, b


@td.op
def jacobi_2d(a: td.f64["N", "N"], b: td.f64["N", "N"]):
    """10 double steps on 400 x 400 points, each an update of the points inside."""
    n = a.shape[0]
    i, j = td.vars("i j")
    y, x = td.range("y", 1, n - 1), td.range("x", 1, n - 1)
    for step in range(10):
        for letter in "ba":
            new = td.Func(f"{letter}{step}", shape=(n, n))
            new[i, j] = b[i, j]
            new[y, x] = 0.2 * (a[y, x] + a[y, x - 1] + a[y, x + 1] + a[y + 1, x] + a[y - 1, x])
            a, b = new, a
    return a, b


def numpy_jacobi_2d(a: Array, b: Array) -> Any:
    a, b = a.copy(), b.copy()
    for _ in range(10):
        b[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1])
        a[1:-1, 1:-1] = 0.2 * (b[1:-1, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] + b[2:, 1:-1] + b[:-2, 1:-1])
    return a, b


def loops_jacobi_2d(a: Array, b: Array) -> Any:
    a, b = a.copy(), b.copy()
    n = a.shape[0]
    for _ in range(10):
        for i in prange(1, n - 1):
            for j in range(1, n - 1):
                b[i, j] = 0.2 * (a[i, j] + a[i, j - 1] + a[i, j + 1] + a[i + 1, j] + a[i - 1, j])
        for i in prange(1, n - 1):
            for j in range(1, n - 1):
                a[i, j] = 0.2 * (b[i, j] + b[i, j - 1] + b[i, j + 1] + b[i + 1, j] + b[i - 1, j])
    return a, b


@td.op
def heat_3d(a: td.f64["N", "N", "N"], b: td.f64["N", "N", "N"]):
    """3 double steps on 70 x 70 x 70 points."""
    n = a.shape[0]
    i, j, k = td.vars("i j k")
    z, y, x = (td.range(name, 1, n - 1) for name in "zyx")
    for step in range(3):
        for letter in "ba":
            new = td.Func(f"{letter}{step}", shape=(n, n, n))
            new[i, j, k] = b[i, j, k]
            along_z = 0.125 * (a[z + 1, y, x] - 2.0 * a[z, y, x] + a[z - 1, y, x])
            along_y = 0.125 * (a[z, y + 1, x] - 2.0 * a[z, y, x] + a[z, y - 1, x])
            along_x = 0.125 * (a[z, y, x + 1] - 2.0 * a[z, y, x] + a[z, y, x - 1])
            new[z, y, x] = along_z + along_y + along_x + a[z, y, x]
            a, b = new, a
    return a, b


def numpy_heat_3d(a: Array, b: Array) -> Any:
    a, b = a.copy(), b.copy()

    def step(u: Array, v: Array) -> None:
        inside = u[1:-1, 1:-1, 1:-1]
        v[1:-1, 1:-1, 1:-1] = (
            0.125 * (u[2:, 1:-1, 1:-1] - 2.0 * inside + u[:-2, 1:-1, 1:-1])
            + 0.125 * (u[1:-1, 2:, 1:-1] - 2.0 * inside + u[1:-1, :-2, 1:-1])
            + 0.125 * (u[1:-1, 1:-1, 2:] - 2.0 * inside + u[1:-1, 1:-1, :-2])
            + inside
        )

    for _ in range(3):
        step(a, b)
        step(b, a)
    return a, b


def loops_heat_3d(a: Array, b: Array) -> Any:
    n = a.shape[0]
    source, target = a.copy(), b.copy()
    for _ in range(6):
        for i in prange(1, n - 1):
            for j in range(1, n - 1):
                for k in range(1, n - 1):
                    target[i, j, k] = (
                        0.125 * (source[i + 1, j, k] - 2.0 * source[i, j, k] + source[i - 1, j, k])
                        + 0.125 * (source[i, j + 1, k] - 2.0 * source[i, j, k] + source[i, j - 1, k])
                        + 0.125 * (source[i, j, k + 1] - 2.0 * source[i, j, k] + source[i, j, k - 1])
                        + source[i, j, k]
                    )
        source, target = target, source
    return source, target


@td.op
def fdtd_2d(ex: td.f64["Y", "X"], ey: td.f64["Y", "X"], hz: td.f64["Y", "X"], fict: td.f64["T"]):
    """10 steps of an electric and a magnetic field on 400 x 500 points."""
    y, x = td.vars("y x")
    height, width = ex.shape
    for t in range(10):
        ey2, ex2, hz2 = (td.Func(f"{name}{t}", shape=(height, width)) for name in ("ey", "ex", "hz"))
        h = td.pad(hz, mode="edge")
        ey2[y, x] = td.where(y == 0, fict[t], ey[y, x] - 0.5 * (h[y, x] - h[y - 1, x]))
        ex2[y, x] = td.where(x == 0, ex[y, x], ex[y, x] - 0.5 * (h[y, x] - h[y, x - 1]))
        hz2[y, x] = hz[y, x]
        i, j = td.range("i", 0, height - 1), td.range("j", 0, width - 1)
        hz2[i, j] -= 0.7 * (ex2[i, j + 1] - ex2[i, j] + ey2[i + 1, j] - ey2[i, j])
        ex, ey, hz = ex2, ey2, hz2
    return ex, ey, hz


def numpy_fdtd_2d(ex: Array, ey: Array, hz: Array, fict: Array) -> Any:
    ex, ey, hz = ex.copy(), ey.copy(), hz.copy()
    for t in range(10):
        ey[0, :] = fict[t]
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    return ex, ey, hz


def loops_fdtd_2d(ex: Array, ey: Array, hz: Array, fict: Array) -> Any:
    ex, ey, hz = ex.copy(), ey.copy(), hz.copy()
    height, width = ex.shape
    for t in range(10):
        for i in prange(height):
            for j in range(width):
                ey[i, j] = fict[t] if i == 0 else ey[i, j] - 0.5 * (hz[i, j] - hz[i - 1, j])
            for j in range(1, width):
                ex[i, j] -= 0.5 * (hz[i, j] - hz[i, j - 1])
        for i in prange(height - 1):
            for j in range(width - 1):
                hz[i, j] -= 0.7 * (ex[i, j + 1] - ex[i, j] + ey[i + 1, j] - ey[i, j])
    return ex, ey, hz


@td.op
def seidel_2d(steps: td.i64, a: td.f64["N", "N"]):
    """10 steps in place on 200 x 200 points, each the mean of nine of which four are new."""
    n = a.shape[0]
    i, j = td.vars("i j")
    f = td.Func("f", shape=(n, n))
    f[i, j] = a[i, j]
    t, y, x = td.range("t", 0, steps), td.range("y", 1, n - 1), td.range("x", 1, n - 1)
    rows = [f[y + r, x - 1] + f[y + r, x] + f[y + r, x + 1] for r in (-1, 0, 1)]
    f[0 * t + y, x] = (rows[0] + rows[1] + rows[2]) / 9.0  # t is written first: it is the outermost loop
    return f


def numpy_seidel_2d(steps: int, a: Array) -> Any:
    a = a.copy()
    n = a.shape[0]
    for _ in range(steps):
        for i in range(1, n - 1):
            a[i, 1:-1] += a[i - 1, :-2] + a[i - 1, 1:-1] + a[i - 1, 2:] + a[i, 2:]
            a[i, 1:-1] += a[i + 1, :-2] + a[i + 1, 1:-1] + a[i + 1, 2:]
            for j in range(1, n - 1):
                a[i, j] += a[i, j - 1]
                a[i, j] /= 9.0
    return a


def loops_seidel_2d(steps: int, a: Array) -> Array:
    a = a.copy()
    n = a.shape[0]
    for _ in range(steps):
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                a[i, j] = (
                    a[i - 1, j - 1] + a[i - 1, j] + a[i - 1, j + 1] + a[i, j - 1] + a[i, j] + a[i, j + 1]
                    + a[i + 1, j - 1] + a[i + 1, j] + a[i + 1, j + 1]
                ) / 9.0  # fmt: skip
    return a


CASES = (
    case("jacobi_1d", jacobi_1d, arrays(np.int64(200), (4000,), (4000,)), numpy_jacobi_1d, loops_jacobi_1d),
    case("jacobi_2d", jacobi_2d, arrays((400, 400), (400, 400)), numpy_jacobi_2d, loops_jacobi_2d),
    case("heat_3d", heat_3d, arrays((70, 70, 70), (70, 70, 70)), numpy_heat_3d, loops_heat_3d),
    case("fdtd_2d", fdtd_2d, arrays((400, 500), (400, 500), (400, 500), (10,)), numpy_fdtd_2d, loops_fdtd_2d),
    case("seidel_2d", seidel_2d, arrays(np.int64(10), (200, 200)), numpy_seidel_2d, loops_seidel_2d),
)
