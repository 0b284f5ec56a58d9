"""Particles, flows, paths in graphs, recursive filters."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.numba_peers import prange
from benchmarks.unknown.npbench.kernel import case
from benchmarks.unknown.npbench.products import arrays

BODY_STEPS, DT, SOFTENING = 5, 0.01, 0.1
CAVITY_STEPS, PRESSURE_STEPS, RHO, NU = 2, 10, 1.0, 0.1


def acceleration(pos: Any, mass: td.Tensor, t: int) -> td.Func:
    """The pull of all bodies on each."""
    i, j, c = td.vars("i j c")
    inverse, acc = td.Func(f"inverse{t}"), td.Func(f"acc{t}")
    square = sum((pos[j, m] - pos[i, m]) ** 2 for m in range(3))
    inverse[i, j] = (square + SOFTENING**2) ** -1.5
    acc[i, c] = td.sum((pos[j, c] - pos[i, c]) * inverse[i, j] * mass[j], axis=j)
    return acc


@td.op
def nbody(pos: td.f64["N", 3], vel: td.f64["N", 3], mass: td.f64["N"]):
    """5 leapfrog steps of 300 bodies under gravity: positions, velocities and kinetic energy."""
    i, c = td.vars("i c")
    acc = acceleration(pos, mass, 0)
    for t in range(1, BODY_STEPS + 1):
        half, moved, turned = td.Func(f"half{t}"), td.Func(f"pos{t}"), td.Func(f"vel{t}")
        half[i, c] = vel[i, c] + acc[i, c] * (DT / 2)
        moved[i, c] = pos[i, c] + half[i, c] * DT
        acc = acceleration(moved, mass, t)
        turned[i, c] = half[i, c] + acc[i, c] * (DT / 2)
        pos, vel = moved, turned
    energy = td.Func("energy")
    energy[()] = 0.5 * td.sum(mass[i] * vel[i, c] ** 2, axis=(i, c))
    return pos, vel, energy


def numpy_acceleration(pos: Array, mass: Array) -> Any:
    d = pos[None, :, :] - pos[:, None, :]
    inverse = ((d * d).sum(axis=2) + SOFTENING**2) ** -1.5
    return (d * (inverse * mass)[:, :, None]).sum(axis=1)


def numpy_nbody(pos: Array, vel: Array, mass: Array) -> Any:
    acc = numpy_acceleration(pos, mass)
    for _ in range(BODY_STEPS):
        vel = vel + acc * (DT / 2)
        pos = pos + vel * DT
        acc = numpy_acceleration(pos, mass)
        vel = vel + acc * (DT / 2)
    return pos, vel, 0.5 * (mass[:, None] * vel**2).sum()


def loops_nbody(pos: Array, vel: Array, mass: Array) -> Any:
    n = len(mass)
    pos, vel, acc = pos.copy(), vel.copy(), np.zeros((n, 3))
    for t in range(BODY_STEPS + 1):
        if t:
            for i in range(n):
                for c in range(3):
                    vel[i, c] += acc[i, c] * (DT / 2)
                    pos[i, c] += vel[i, c] * DT
        for i in prange(n):
            ax, ay, az = 0.0, 0.0, 0.0
            for j in range(n):
                dx, dy, dz = pos[j, 0] - pos[i, 0], pos[j, 1] - pos[i, 1], pos[j, 2] - pos[i, 2]
                square = dx * dx + dy * dy + dz * dz + SOFTENING**2
                factor = mass[j] / (square * np.sqrt(square))
                ax += dx * factor
                ay += dy * factor
                az += dz * factor
            acc[i, 0], acc[i, 1], acc[i, 2] = ax, ay, az
        if t:
            for i in range(n):
                for c in range(3):
                    vel[i, c] += acc[i, c] * (DT / 2)
    energy = 0.0
    for i in range(n):
        for c in range(3):
            energy += 0.5 * mass[i] * vel[i, c] ** 2
    return pos, vel, energy


def bodies(rng: np.random.Generator) -> tuple[Array, ...]:
    return rng.standard_normal((300, 3)), rng.standard_normal((300, 3)), 20 * rng.random(300) / 300


@td.op
def floyd_warshall(graph: td.i32["N", "N"]):
    """All shortest paths among 200 nodes."""
    i, j, k = *td.vars("i j"), td.range("k", 0, graph.shape[0])
    path = td.Func("path")
    path[i, j] = graph[i, j]
    path[i, j] = td.minimum(path[i, j], path[i, k] + path[k, j])
    return path


def numpy_floyd_warshall(graph: Array) -> Any:
    path = graph.copy()
    for k in range(len(path)):
        np.minimum(path, path[:, k, None] + path[k], out=path)
    return path


def loops_floyd_warshall(graph: Array) -> Array:
    path = graph.copy()
    n = len(path)
    for k in range(n):
        for i in prange(n):
            for j in range(n):
                path[i, j] = min(path[i, j], path[i, k] + path[k, j])
    return path


ALPHA = 0.25
SCALE = (1 - np.exp(-ALPHA)) ** 2 / (1 + ALPHA * np.exp(-ALPHA) - np.exp(2 * ALPHA))
A1, A2 = float(SCALE), float(SCALE * np.exp(-ALPHA) * (ALPHA - 1))
A3, A4 = float(SCALE * np.exp(-ALPHA) * (ALPHA + 1)), float(-SCALE * np.exp(-2 * ALPHA))
B1, B2 = float(2**-ALPHA), float(-np.exp(-2 * ALPHA))


def filter_both_ways(x: Any, shape: Any, name: str, *, rows: bool) -> td.Func:
    """Two recursive filters of second order along an axis, forward and backward, added."""
    i, j = td.vars("i j")
    n = shape[1] if rows else shape[0]
    ahead, back, out = (td.Func(f"{name}_{word}", shape=shape) for word in ("ahead", "back", "out"))
    zero = td.pad(x, shape=shape)

    def at(f: Any, m: Any) -> Any:
        return f[i, m] if rows else f[m, j]

    def put(f: td.Func, m: Any, value: Any) -> None:
        f[(i, m) if rows else (m, j)] = value

    m = j if rows else i
    ahead[i, j] = A1 * zero[i, j] + A2 * at(zero, m - 1)
    put(ahead, 1, at(ahead, 1) + B1 * at(ahead, 0))
    r = td.range("r", 2, n)
    put(ahead, r, at(ahead, r) + B1 * at(ahead, r - 1) + B2 * at(ahead, r - 2))
    back[i, j] = A3 * at(zero, m + 1) + A4 * at(zero, m + 2)
    put(back, n - 2, at(back, n - 2) + B1 * at(back, n - 1))
    put(back, n - 1 - r, at(back, n - 1 - r) + B1 * at(back, n - r) + B2 * at(back, n - r + 1))
    out[i, j] = ahead[i, j] + back[i, j]
    return out


@td.op
def deriche(image: td.f64["H", "W"]):
    """Deriche's recursive edge filter on 400 x 500 pixels, along rows, then along columns."""
    along_rows = filter_both_ways(image, image.shape, "rows", rows=True)
    return filter_both_ways(along_rows, image.shape, "columns", rows=False)


def numpy_deriche(image: Array) -> Any:
    def both_ways(x: Array) -> Array:
        ahead, back = A1 * x, np.zeros_like(x)
        ahead[:, 1:] += A2 * x[:, :-1]
        back[:, :-1] += A3 * x[:, 1:]
        back[:, :-2] += A4 * x[:, 2:]
        n = x.shape[1]
        ahead[:, 1] += B1 * ahead[:, 0]
        back[:, n - 2] += B1 * back[:, n - 1]
        for j in range(2, n):
            ahead[:, j] += B1 * ahead[:, j - 1] + B2 * ahead[:, j - 2]
            back[:, n - 1 - j] += B1 * back[:, n - j] + B2 * back[:, n - j + 1]
        return ahead + back

    return both_ways(both_ways(image).T).T


def loops_deriche(image: Array) -> Array:
    height, width = image.shape
    rows, out = np.empty_like(image), np.empty_like(image)
    for i in prange(height):
        y1, y2, x1 = 0.0, 0.0, 0.0
        for j in range(width):
            y = A1 * image[i, j] + A2 * x1 + B1 * y1 + B2 * y2
            rows[i, j] = y
            x1, y2, y1 = image[i, j], y1, y
        y1, y2, x1, x2 = 0.0, 0.0, 0.0, 0.0
        for j in range(width - 1, -1, -1):
            y = A3 * x1 + A4 * x2 + B1 * y1 + B2 * y2
            rows[i, j] += y
            x2, x1, y2, y1 = x1, image[i, j], y1, y
    back = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            out[i, j] = A1 * rows[i, j]
            if i > 0:
                out[i, j] += A2 * rows[i - 1, j] + B1 * out[i - 1, j]
            if i > 1:
                out[i, j] += B2 * out[i - 2, j]
    for i in range(height - 2, -1, -1):
        for j in range(width):
            back[i, j] = A3 * rows[i + 1, j] + B1 * back[i + 1, j]
            if i < height - 2:
                back[i, j] += A4 * rows[i + 2, j] + B2 * back[i + 2, j]
    return out + back


def cavity_pressure(p: Any, right: td.Func, shape: Any, h: float, name: str) -> td.Func:
    """A step for the pressure; no flux through three walls, no pressure at the fourth one."""
    y, x = td.vars("y x")
    inside, out = td.Func(f"{name}_inside"), td.Func(name, shape=shape)
    inside[y, x] = 0.25 * (p[y, x + 1] + p[y, x - 1] + p[y + 1, x] + p[y - 1, x]) - h * h / 4 * right[y, x]
    edge = td.pad(inside, mode="edge")
    out[y, x] = td.where(y == shape[0] - 1, 0.0, edge[y, x])
    return out


@td.op
def cavity_flow(u: td.f64["N", "N"], v: td.f64["N", "N"], p: td.f64["N", "N"]):
    """2 steps of flow in a driven cavity, 100 x 100, with 10 steps of the pressure in each."""
    y, x = td.vars("y x")
    h, dt = 2 / 99, 0.001
    shape, n = u.shape, u.shape[0]
    for t in range(CAVITY_STEPS):
        right = td.Func(f"right{t}")
        ux, vy = (u[y, x + 1] - u[y, x - 1]) / (2 * h), (v[y + 1, x] - v[y - 1, x]) / (2 * h)
        uy, vx = (u[y + 1, x] - u[y - 1, x]) / (2 * h), (v[y, x + 1] - v[y, x - 1]) / (2 * h)
        right[y, x] = RHO * ((ux + vy) / dt - ux * ux - 2 * uy * vx - vy * vy)
        for q in range(PRESSURE_STEPS):
            p = cavity_pressure(p, right, shape, h, f"p{t}_{q}")
        moved = []
        for f, slope, name in ((u, p[y, x + 1] - p[y, x - 1], "u"), (v, p[y + 1, x] - p[y - 1, x], "v")):
            new = td.Func(f"{name}{t}_inside")
            carried = u[y, x] * (f[y, x] - f[y, x - 1]) + v[y, x] * (f[y, x] - f[y - 1, x])
            spread = f[y, x + 1] + f[y, x - 1] + f[y + 1, x] + f[y - 1, x] - 4 * f[y, x]
            new[y, x] = f[y, x] - dt / h * carried - dt / (2 * RHO * h) * slope + NU * dt / (h * h) * spread
            lid = 1.0 if name == "u" else 0.0
            walls, border = td.Func(f"{name}{t}", shape=shape), (x == 0) | (x == n - 1) | (y == 0)
            whole = td.pad(new)
            walls[y, x] = td.where(y == n - 1, lid, td.where(border, 0.0, whole[y, x]))
            moved.append(walls)
        u, v = moved
    return u, v, p


def numpy_cavity_flow(u: Array, v: Array, p: Array) -> Any:
    h, dt = 2 / 99, 0.001
    for _ in range(CAVITY_STEPS):
        ux, vy = (u[1:-1, 2:] - u[1:-1, :-2]) / (2 * h), (v[2:, 1:-1] - v[:-2, 1:-1]) / (2 * h)
        uy, vx = (u[2:, 1:-1] - u[:-2, 1:-1]) / (2 * h), (v[1:-1, 2:] - v[1:-1, :-2]) / (2 * h)
        right = RHO * ((ux + vy) / dt - ux * ux - 2 * uy * vx - vy * vy)
        for _ in range(PRESSURE_STEPS):
            around = p[1:-1, 2:] + p[1:-1, :-2] + p[2:, 1:-1] + p[:-2, 1:-1]
            p = np.pad(0.25 * around - h * h / 4 * right, 1, mode="edge")
            p[-1] = 0.0
        inner, moved = (slice(1, -1), slice(1, -1)), []
        for f, slope in ((u, p[1:-1, 2:] - p[1:-1, :-2]), (v, p[2:, 1:-1] - p[:-2, 1:-1])):
            here = f[inner]
            carried = u[inner] * (here - f[1:-1, :-2]) + v[inner] * (here - f[:-2, 1:-1])
            spread = f[1:-1, 2:] + f[1:-1, :-2] + f[2:, 1:-1] + f[:-2, 1:-1] - 4 * here
            new = here - dt / h * carried - dt / (2 * RHO * h) * slope + NU * dt / (h * h) * spread
            moved.append(np.pad(new, 1))
        u, v = moved
        u[-1] = 1.0
    return u, v, p


def loops_cavity_flow(u: Array, v: Array, p: Array) -> Any:
    n = len(u)
    h, dt = 2 / 99, 0.001
    u, v, p = u.copy(), v.copy(), p.copy()
    right, q = np.empty((n, n)), np.zeros((n, n))
    for _ in range(CAVITY_STEPS):
        for y in prange(1, n - 1):
            for x in range(1, n - 1):
                ux, vy = (u[y, x + 1] - u[y, x - 1]) / (2 * h), (v[y + 1, x] - v[y - 1, x]) / (2 * h)
                uy, vx = (u[y + 1, x] - u[y - 1, x]) / (2 * h), (v[y, x + 1] - v[y, x - 1]) / (2 * h)
                right[y, x] = RHO * ((ux + vy) / dt - ux * ux - 2 * uy * vx - vy * vy)
        for _ in range(PRESSURE_STEPS):
            for y in prange(1, n - 1):
                for x in range(1, n - 1):
                    around = p[y, x + 1] + p[y, x - 1] + p[y + 1, x] + p[y - 1, x]
                    q[y, x] = 0.25 * around - h * h / 4 * right[y, x]
                q[y, 0], q[y, n - 1] = q[y, 1], q[y, n - 2]
            for x in range(n):
                q[0, x], q[n - 1, x] = q[1, x], 0.0
            p, q = q, p
        new_u, new_v = np.zeros((n, n)), np.zeros((n, n))
        new_u[n - 1] = 1.0
        for y in prange(1, n - 1):
            for x in range(1, n - 1):
                a, b = u[y, x], v[y, x]
                carried = a * (a - u[y, x - 1]) + b * (a - u[y - 1, x])
                spread = u[y, x + 1] + u[y, x - 1] + u[y + 1, x] + u[y - 1, x] - 4 * a
                slope = p[y, x + 1] - p[y, x - 1]
                new_u[y, x] = a - dt / h * carried - dt / (2 * RHO * h) * slope + NU * dt / (h * h) * spread
                carried = a * (b - v[y, x - 1]) + b * (b - v[y - 1, x])
                spread = v[y, x + 1] + v[y, x - 1] + v[y + 1, x] + v[y - 1, x] - 4 * b
                slope = p[y + 1, x] - p[y - 1, x]
                new_v[y, x] = b - dt / h * carried - dt / (2 * RHO * h) * slope + NU * dt / (h * h) * spread
        u, v = new_u, new_v
    return u, v, p


def distances(rng: np.random.Generator) -> tuple[Array]:
    return (rng.integers(1, 1000, (200, 200), dtype=np.int32),)


CASES = (
    case("nbody", nbody, bodies, numpy_nbody, loops_nbody),
    case("floyd_warshall", floyd_warshall, distances, numpy_floyd_warshall, loops_floyd_warshall),
    case("deriche", deriche, arrays((400, 500)), numpy_deriche, loops_deriche),
    case("cavity_flow", cavity_flow, arrays(*[(100, 100)] * 3), numpy_cavity_flow, loops_cavity_flow),
)
