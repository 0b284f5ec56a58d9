"""Implicit steps along an axis, and stencils of weather models."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.numba_peers import prange
from benchmarks.unknown.npbench.kernel import case
from benchmarks.unknown.npbench.products import arrays

ADI_SIDE, ADI_STEPS = 200, 4


def adi_factors(n: int) -> tuple[float, ...]:
    """The coefficients a, b and d, e of the two sweeps; c is a, f is d."""
    along_y, along_x = 2.0 / ADI_STEPS * n * n, 1.0 / ADI_STEPS * n * n
    return -along_y / 2.0, 1.0 + along_y, -along_x / 2.0, 1.0 + along_x


def sweep(source: Any, a: float, b: float, d: float, name: str) -> td.Func:
    """Tridiagonal systems for each i: `source(j, i)` is line j of their right sides."""
    n = ADI_SIDE
    i, j = td.vars("i j")
    pq, v = td.Func(f"pq{name}", shape=(n, n)), td.Func(f"v{name}", shape=(n, n))
    pq[i, j] = (td.cast(0, td.f64), td.cast(1, td.f64))
    r = td.range("r", 1, n - 1)
    p, q = pq[i, r - 1]
    sides = source(r, td.maximum(i - 1, 0)) + source(r, td.minimum(i + 1, n - 1))
    right = (1.0 + 2.0 * d) * source(r, i) - d * sides
    pq[i, r] = (-a / (a * p + b), (right - a * q) / (a * p + b))
    v[j, i] = td.cast(1, td.f64)
    p, q = pq[i, n - 1 - r]
    v[n - 1 - r, i] = p * v[n - r, i] + q
    return v


@td.op
def adi(u: td.f64[ADI_SIDE, ADI_SIDE]):
    """4 steps of implicit diffusion on 200 x 200 points, along columns and along rows."""
    i, j = td.vars("i j")
    a, b, d, e = adi_factors(ADI_SIDE)
    for t in range(ADI_STEPS):
        v, new = td.Func(f"v{t}", shape=u.shape), td.Func(f"u{t}", shape=u.shape)
        columns = sweep(lambda j, i, u=u: u[j, i], a, b, d, f"c{t}")
        v[j, i] = td.where((i > 0) & (i < ADI_SIDE - 1), columns[j, i], 0.0)
        rows = sweep(lambda j, i, v=v: v[i, j], d, e, a, f"r{t}")
        new[i, j] = td.where((i > 0) & (i < ADI_SIDE - 1), rows[j, i], u[i, j])
        u = new
    return u


def numpy_adi(u: Array) -> Any:
    n = ADI_SIDE
    a, b, d, e = adi_factors(n)
    u = u.copy()
    v, p, q = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    for _ in range(ADI_STEPS):
        for x, y, (a1, b1, d1) in ((u, v, (a, b, d)), (v.T, u.T, (d, e, a))):
            y[0, 1:-1], y[-1, 1:-1], p[0, 1:-1], q[0, 1:-1] = 1.0, 1.0, 0.0, 1.0
            for j in range(1, n - 1):
                p[j, 1:-1] = -a1 / (a1 * p[j - 1, 1:-1] + b1)
                right = -d1 * x[j, :-2] + (1.0 + 2.0 * d1) * x[j, 1:-1] - d1 * x[j, 2:]
                q[j, 1:-1] = (right - a1 * q[j - 1, 1:-1]) / (a1 * p[j - 1, 1:-1] + b1)
            for j in range(n - 2, 0, -1):
                y[j, 1:-1] = p[j, 1:-1] * y[j + 1, 1:-1] + q[j, 1:-1]
    return u


def loops_adi(u: Array) -> Array:
    n = u.shape[0]
    along_y, along_x = 2.0 / ADI_STEPS * n * n, 1.0 / ADI_STEPS * n * n
    a, b, d, e = -along_y / 2.0, 1.0 + along_y, -along_x / 2.0, 1.0 + along_x
    u = u.copy()
    v = np.zeros((n, n))
    for _ in range(ADI_STEPS):
        p, q = np.zeros((n, n)), np.ones((n, n))
        v[0, 1:-1] = 1.0
        v[-1, 1:-1] = 1.0
        for j in range(1, n - 1):
            for i in range(1, n - 1):
                scale = 1.0 / (a * p[j - 1, i] + b)
                p[j, i] = -a * scale
                right = -d * u[j, i - 1] + (1.0 + 2.0 * d) * u[j, i] - d * u[j, i + 1]
                q[j, i] = (right - a * q[j - 1, i]) * scale
        for j in range(n - 2, 0, -1):
            for i in range(1, n - 1):
                v[j, i] = p[j, i] * v[j + 1, i] + q[j, i]
        for i in prange(1, n - 1):
            u[i, 0] = u[i, n - 1] = 1.0
            p[i, 0] = 0.0
            q[i, 0] = 1.0
            for j in range(1, n - 1):
                scale = 1.0 / (d * p[i, j - 1] + e)
                p[i, j] = -d * scale
                right = -a * v[i - 1, j] + (1.0 + 2.0 * a) * v[i, j] - a * v[i + 1, j]
                q[i, j] = (right - d * q[i, j - 1]) * scale
            for j in range(n - 2, 0, -1):
                u[i, j] = p[i, j] * u[i, j + 1] + q[i, j]
    return u


@td.op
def hdiff(field: td.f64["I4", "J4", "K"], coeff: td.f64["I", "J", "K"]):
    """Horizontal diffusion with limited fluxes on 128 x 128 x 64 points."""
    i, j, k = td.vars("i j k")
    lap, flx, fly, out = (td.Func(name) for name in ("lap", "flx", "fly", "out"))
    around = field[i + 1, j, k] + field[i - 1, j, k] + field[i, j + 1, k] + field[i, j - 1, k]
    lap[i, j, k] = 4.0 * field[i, j, k] - around
    rise = lap[i + 1, j, k] - lap[i, j, k]
    flx[i, j, k] = td.where(rise * (field[i + 1, j, k] - field[i, j, k]) > 0, 0.0, rise)
    rise = lap[i, j + 1, k] - lap[i, j, k]
    fly[i, j, k] = td.where(rise * (field[i, j + 1, k] - field[i, j, k]) > 0, 0.0, rise)
    fluxes = flx[i + 2, j + 2, k] - flx[i + 1, j + 2, k] + fly[i + 2, j + 2, k] - fly[i + 2, j + 1, k]
    out[i, j, k] = field[i + 2, j + 2, k] - coeff[i, j, k] * fluxes
    return out


def numpy_hdiff(field: Array, coeff: Array) -> Any:
    around = field[2:, 1:-1] + field[:-2, 1:-1] + field[1:-1, 2:] + field[1:-1, :-2]
    lap = 4.0 * field[1:-1, 1:-1] - around
    rise = lap[1:, 1:-1] - lap[:-1, 1:-1]
    flx = np.where(rise * (field[2:-1, 2:-2] - field[1:-2, 2:-2]) > 0, 0.0, rise)
    rise = lap[1:-1, 1:] - lap[1:-1, :-1]
    fly = np.where(rise * (field[2:-2, 2:-1] - field[2:-2, 1:-2]) > 0, 0.0, rise)
    return field[2:-2, 2:-2] - coeff * (flx[1:] - flx[:-1] + fly[:, 1:] - fly[:, :-1])


def loops_hdiff(field: Array, coeff: Array) -> Array:
    out = np.empty_like(coeff)
    height, width, depth = coeff.shape
    for i in prange(height):
        lap = np.empty((3, width + 2, depth))
        for r in range(3):
            for j in range(width + 2):
                y, x = i + 1 + r, j + 1
                for k in range(depth):
                    around = field[y + 1, x, k] + field[y - 1, x, k] + field[y, x + 1, k] + field[y, x - 1, k]
                    lap[r, j, k] = 4.0 * field[y, x, k] - around
        for j in range(width):
            y, x = i + 2, j + 2
            for k in range(depth):
                here = field[y, x, k]
                below, above = lap[2, j + 1, k] - lap[1, j + 1, k], lap[1, j + 1, k] - lap[0, j + 1, k]
                right, left = lap[1, j + 2, k] - lap[1, j + 1, k], lap[1, j + 1, k] - lap[1, j, k]
                below = 0.0 if below * (field[y + 1, x, k] - here) > 0 else below
                above = 0.0 if above * (here - field[y - 1, x, k]) > 0 else above
                right = 0.0 if right * (field[y, x + 1, k] - here) > 0 else right
                left = 0.0 if left * (here - field[y, x - 1, k]) > 0 else left
                out[i, j, k] = here - coeff[i, j, k] * (below - above + right - left)
    return out


@td.op
def vadv(
    utens_stage: td.f64["I", "J", "K"], u_stage: td.f64["I", "J", "K"], wcon: td.f64["I1", "J", "K"],
    u_pos: td.f64["I", "J", "K"], utens: td.f64["I", "J", "K"], dtr: td.f64,
):  # fmt: skip
    """Vertical advection: a tridiagonal system for each of 64 x 64 columns of 60."""
    i, j, k = td.vars("i j k")
    shape = u_stage.shape
    depth = shape[2]
    below, above, cd = (
        td.Func("below", shape=shape),
        td.Func("above", shape=shape),
        td.Func("cd", shape=shape),
    )
    w, u = td.pad(wcon, mode="edge"), td.pad(u_stage, mode="edge")
    below[i, j, k] = td.where(k == 0, 0.0, -0.125 * (w[i + 1, j, k] + w[i, j, k]))
    above[i, j, k] = td.where(k == depth - 1, 0.0, 0.125 * (w[i + 1, j, k + 1] + w[i, j, k + 1]))

    def right(k: Any) -> Any:
        change = below[i, j, k] * (u[i, j, k - 1] - u_stage[i, j, k])
        change += above[i, j, k] * (u[i, j, k + 1] - u_stage[i, j, k])
        return dtr * u_pos[i, j, k] + utens[i, j, k] + utens_stage[i, j, k] - change

    first = dtr - below[i, j, k] - above[i, j, k]
    cd[i, j, k] = (above[i, j, k] / first, right(k) / first)
    r = td.range("r", 1, depth)
    c, d = cd[i, j, r - 1]
    scale = 1.0 / (dtr - below[i, j, r] - above[i, j, r] - c * below[i, j, r])
    cd[i, j, r] = (above[i, j, r] * scale, (right(r) - d * below[i, j, r]) * scale)
    data, out = td.Func("data", shape=shape), td.Func("out", shape=shape)
    data[i, j, k] = cd[i, j, k][1]
    back = depth - 1 - r
    data[i, j, back] -= cd[i, j, back][0] * data[i, j, back + 1]
    out[i, j, k] = dtr * (data[i, j, k] - u_pos[i, j, k])
    return out


def numpy_vadv(
    utens_stage: Array, u_stage: Array, wcon: Array, u_pos: Array, utens: Array, dtr: float
) -> Any:
    depth = u_stage.shape[2]
    w = 0.125 * (wcon[1:] + wcon[:-1])
    below, above = np.zeros_like(u_stage), np.zeros_like(u_stage)
    below[:, :, 1:], above[:, :, :-1] = -w[:, :, 1:], w[:, :, 1:]
    d = dtr * u_pos + utens + utens_stage
    d[:, :, 1:] -= below[:, :, 1:] * (u_stage[:, :, :-1] - u_stage[:, :, 1:])
    d[:, :, :-1] -= above[:, :, :-1] * (u_stage[:, :, 1:] - u_stage[:, :, :-1])
    c = above.copy()
    scale = 1.0 / (dtr - above[:, :, 0])
    c[:, :, 0] *= scale
    d[:, :, 0] *= scale
    for k in range(1, depth):
        scale = 1.0 / (dtr - below[:, :, k] - above[:, :, k] - c[:, :, k - 1] * below[:, :, k])
        c[:, :, k] *= scale
        d[:, :, k] = (d[:, :, k] - d[:, :, k - 1] * below[:, :, k]) * scale
    for k in range(depth - 2, -1, -1):
        d[:, :, k] -= c[:, :, k] * d[:, :, k + 1]
    return dtr * (d - u_pos)


def loops_vadv(
    utens_stage: Array, u_stage: Array, wcon: Array, u_pos: Array, utens: Array, dtr: float
) -> Array:
    height, width, depth = u_stage.shape
    out = np.empty_like(u_stage)
    for i in prange(height):
        c, d = np.empty(depth), np.empty(depth)
        for j in range(width):
            for k in range(depth):
                low = -0.125 * (wcon[i + 1, j, k] + wcon[i, j, k]) if k > 0 else 0.0
                high = 0.125 * (wcon[i + 1, j, k + 1] + wcon[i, j, k + 1]) if k < depth - 1 else 0.0
                right = dtr * u_pos[i, j, k] + utens[i, j, k] + utens_stage[i, j, k]
                if k > 0:
                    right -= low * (u_stage[i, j, k - 1] - u_stage[i, j, k])
                if k < depth - 1:
                    right -= high * (u_stage[i, j, k + 1] - u_stage[i, j, k])
                scale = 1.0 / (dtr - low - high - (c[k - 1] * low if k > 0 else 0.0))
                c[k] = high * scale
                d[k] = (right - (d[k - 1] * low if k > 0 else 0.0)) * scale
            data = d[depth - 1]
            out[i, j, depth - 1] = dtr * (data - u_pos[i, j, depth - 1])
            for k in range(depth - 2, -1, -1):
                data = d[k] - c[k] * data
                out[i, j, k] = dtr * (data - u_pos[i, j, k])
    return out


COLUMNS = (64, 64, 60)
CASES = (
    case("adi", adi, arrays((ADI_SIDE, ADI_SIDE)), numpy_adi, loops_adi),
    case("hdiff", hdiff, arrays((132, 132, 64), (128, 128, 64)), numpy_hdiff, loops_hdiff),
    case(
        "vadv",
        vadv,
        arrays(COLUMNS, COLUMNS, (65, 64, 60), COLUMNS, COLUMNS, np.float64(3.0 / 20.0)),
        numpy_vadv,
        loops_vadv,
    ),
)
