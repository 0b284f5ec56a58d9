"""Cases that were not looked at while the default schedule was tuned."""

import math
from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.numba_peers import prange
from benchmarks.unknown import contractions
from benchmarks.unknown.npbench.kernel import case
from benchmarks.unknown.npbench.networks import numpy_conv2d, single
from benchmarks.unknown.npbench.products import arrays

TABLE = (
    ("train", "ai,ibj,jck,kd->abcd", "a40 b36 c32 d30 i12 j14 k10"),
    ("factors", "ir,jr,kr->ijk", "i120 j110 k100 r16"),
    ("modes", "abcd,ebfd->aecf", "a30 b24 c28 d36 e26 f20"),
    ("bilinear", "bi,oij,bj->bo", "b128 i90 o60 j100"),
    ("slices", "ijk,ilk->jl", "i60 j120 k70 l110"),
    ("values", "bhqk,bkhd->bqhd", "b4 h6 q150 k170 d48"),
)


@td.op
def ludcmp(a: td.f64["N", "N"], b: td.f64["N"]):
    """The solution of 240 equations by both factors of their matrix."""
    n = a.shape[0]
    x, y = td.vars("x y")
    f, lower, out = td.Func("f", shape=(n, n)), td.Func("lower", shape=n), td.Func("out", shape=n)
    k = td.range("k", 0, n)
    i, j = td.range("i", k + 1, n), td.range("j", k, n)
    f[x, y] = a[x, y]
    f[i, j] = td.where(j == k, f[i, k] / f[k, k], f[i, j] - f[i, k] * f[k, j])
    row = td.range("row", 0, n)
    before, behind = td.range("before", 0, row), td.range("behind", 0, row + 1)
    lower[x] = b[x]
    lower[row] -= f[row, before] * lower[before]
    out[x] = lower[x]
    back, column = n - 1 - row, n - 1 - behind
    rest, last = out[back] - f[back, column] * out[column], out[back] / f[back, back]
    out[back] = td.where(behind < row, rest, last)
    return out


def numpy_ludcmp(a: Array, b: Array) -> Any:
    return np.linalg.solve(a, b)


def loops_ludcmp(a: Array, b: Array) -> Array:
    n = len(b)
    f, x = a.copy(), b.copy()
    for k in range(n):
        for i in range(k + 1, n):
            f[i, k] /= f[k, k]
            for j in range(k + 1, n):
                f[i, j] -= f[i, k] * f[k, j]
    for i in range(n):
        for j in range(i):
            x[i] -= f[i, j] * x[j]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            x[i] -= f[i, j] * x[j]
        x[i] /= f[i, i]
    return x


def system(rng: np.random.Generator) -> tuple[Array, Array]:
    return rng.random((240, 240)) + 240 * np.eye(240), rng.random(240)


@td.op
def arc_distance(theta1: td.f64["N"], phi1: td.f64["N"], theta2: td.f64["N"], phi2: td.f64["N"]):
    """Distances of 200000 pairs of points on a sphere."""
    n = td.vars("n")
    half, out = td.Func("half"), td.Func("out")
    across = td.cos(theta1[n]) * td.cos(theta2[n]) * td.sin((phi2[n] - phi1[n]) / 2) ** 2
    half[n] = td.sin((theta2[n] - theta1[n]) / 2) ** 2 + across
    out[n] = 2 * td.arctan2(td.sqrt(half[n]), td.sqrt(1 - half[n]))
    return out


def numpy_arc_distance(theta1: Array, phi1: Array, theta2: Array, phi2: Array) -> Any:
    across = np.cos(theta1) * np.cos(theta2) * np.sin((phi2 - phi1) / 2) ** 2
    half = np.sin((theta2 - theta1) / 2) ** 2 + across
    return 2 * np.arctan2(np.sqrt(half), np.sqrt(1 - half))


def loops_arc_distance(theta1: Array, phi1: Array, theta2: Array, phi2: Array) -> Array:
    out = np.empty_like(theta1)
    for n in prange(len(out)):
        across = math.cos(theta1[n]) * math.cos(theta2[n]) * math.sin((phi2[n] - phi1[n]) / 2) ** 2
        half = math.sin((theta2[n] - theta1[n]) / 2) ** 2 + across
        out[n] = 2 * math.atan2(math.sqrt(half), math.sqrt(1 - half))
    return out


@td.op
def lenet(
    x: td.f32["N", "H", "W", 1], w1: td.f32[5, 5, 1, 6], b1: td.f32[6], w2: td.f32[5, 5, 6, 16],
    b2: td.f32[16], w3: td.f32["A", "B"], b3: td.f32["B"], w4: td.f32["B", "C"], b4: td.f32["C"],
):  # fmt: skip
    """Two convolutions with pools and two dense layers, 16 images 28 x 28."""
    n, i, j, c, f, y, s = td.vars("n i j c f y s")
    down, right = td.range("down", 0, 2), td.range("right", 0, 2)
    images: Any = x
    for w, bias in ((w1, b1), (w2, b2)):
        sums, pooled = td.Func("sums"), td.Func("pooled")
        product = td.sum(images[n, i + y, j + s, c] * w[y, s, c, f], axis=(y, s, c))
        sums[n, i, j, f] = td.maximum(product + bias[f], 0)
        pooled[n, i, j, f] = td.max(sums[n, 2 * i + down, 2 * j + right, f], axis=(down, right))
        images = pooled
    rows, hidden, out = td.Func("rows"), td.Func("hidden"), td.Func("out")
    side, channels = images.shape[2], w2.shape[3]
    rows[n, c] = images[n, c // (side * channels), c // channels % side, c % channels]
    hidden[n, f] = td.maximum(td.sum(rows[n, c] * w3[c, f], axis=c) + b3[f], 0)
    out[n, i] = td.sum(hidden[n, f] * w4[f, i], axis=f) + b4[i]
    return out


def numpy_pool(x: Array) -> Any:
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def numpy_lenet(
    x: Array, w1: Array, b1: Array, w2: Array, b2: Array, w3: Array, b3: Array, w4: Array, b4: Array
) -> Any:
    first = numpy_pool(np.maximum(numpy_conv2d(x, w1, b1), 0))
    second = numpy_pool(np.maximum(numpy_conv2d(first, w2, b2), 0))
    return np.maximum(second.reshape(len(x), -1) @ w3 + b3, 0) @ w4 + b4


def loops_lenet(
    x: Array, w1: Array, b1: Array, w2: Array, b2: Array, w3: Array, b3: Array, w4: Array, b4: Array
) -> Array:
    out = np.empty((len(x), len(b4)), np.float32)
    first_side, second_side = (x.shape[1] - 4) // 2, ((x.shape[1] - 4) // 2 - 4) // 2
    for n in prange(len(x)):
        first = np.zeros((first_side, first_side, 6), np.float32)
        sums = np.empty(6, np.float32)
        for i in range(2 * first_side):
            for j in range(2 * first_side):
                sums[:] = b1
                for y in range(5):
                    for s in range(5):
                        for f in range(6):
                            sums[f] += x[n, i + y, j + s, 0] * w1[y, s, 0, f]
                for f in range(6):
                    first[i // 2, j // 2, f] = max(first[i // 2, j // 2, f], sums[f])
        second = np.zeros((second_side, second_side, 16), np.float32)
        sums = np.empty(16, np.float32)
        for i in range(2 * second_side):
            for j in range(2 * second_side):
                sums[:] = b2
                for y in range(5):
                    for s in range(5):
                        for c in range(6):
                            for f in range(16):
                                sums[f] += first[i + y, j + s, c] * w2[y, s, c, f]
                for f in range(16):
                    second[i // 2, j // 2, f] = max(second[i // 2, j // 2, f], sums[f])
        flat, hidden = second.ravel(), b3.copy()
        for c in range(len(flat)):
            for f in range(len(b3)):
                hidden[f] += flat[c] * w3[c, f]
        out[n] = b4
        for f in range(len(b3)):
            for m in range(len(b4)):
                out[n, m] += max(hidden[f], np.float32(0)) * w4[f, m]
    return out


@td.op
def nussinov(bases: td.i32["N"]):
    """The most pairs of bases of a strand of 160 that can be bound."""
    n = bases.shape[0]
    x, y = td.vars("x y")
    table = td.Func("table", shape=(n, n))
    table[x, y] = td.cast(0, td.i32)
    step = td.range("step", 1, n)
    i = n - 1 - step
    j = td.range("j", i + 1, n)
    k = td.range("k", i, j)
    pair = td.where((i < j - 1) & (bases[i] + bases[j] == 3), 1, 0)
    ends = td.maximum(td.maximum(table[i, j - 1], table[i + 1, j]), table[i + 1, j - 1] + pair)
    parts = table[i, k] + table[k + 1, j]
    table[i, j] = td.maximum(table[i, j], td.where(k == i, ends, parts))
    return table


def loops_nussinov(bases: Array) -> Array:
    n = len(bases)
    table = np.zeros((n, n), np.int32)
    for i in range(n - 2, -1, -1):
        for j in range(i + 1, n):
            pair = 1 if i < j - 1 and bases[i] + bases[j] == 3 else 0
            best = max(table[i, j - 1], table[i + 1, j], table[i + 1, j - 1] + pair)
            for k in range(i + 1, j):
                best = max(best, table[i, k] + table[k + 1, j])
            table[i, j] = best
    return table


def numpy_nussinov(bases: Array) -> Any:
    n = len(bases)
    table = np.zeros((n, n), np.int32)
    for i in range(n - 2, -1, -1):
        for j in range(i + 1, n):
            pair = 1 if i < j - 1 and bases[i] + bases[j] == 3 else 0
            best = max(table[i, j - 1], table[i + 1, j], table[i + 1, j - 1] + pair)
            table[i, j] = max(best, (table[i, i + 1 : j] + table[i + 2 : j + 1, j]).max(initial=0))
    return table


def strand(rng: np.random.Generator) -> tuple[Array]:
    return (rng.integers(0, 4, 160, dtype=np.int32),)


@td.op
def scattering_self_energies(
    neighbours: td.i32["A", "B"], dh: td.f64["A", "B", "I", "O", "O"], g: td.f64["K", "E", "A", "O", "O"],
    d: td.f64["Q", "W", "A", "B", "I", "I"],
):  # fmt: skip
    """Self-energies of electrons by phonons: 3 momenta, 24 energies, 20 atoms of 4 neighbours, 4 orbitals."""
    k, e, a, b, i, j, q, w, x, y, m = td.vars("k e a b i j q w x y m")
    hg, hd, sigma = td.Func("hg"), td.Func("hd"), td.Func("sigma", shape=g.shape)
    near = td.clip(neighbours[a, b], 0, g.shape[2] - 1)
    hg[k, e, a, b, i, x, y] = td.sum(g[k, e, near, x, m] * dh[a, b, i, m, y], axis=m)
    hd[w, a, b, i, x, y] = td.sum(dh[a, b, j, x, y] * d[q, w, a, b, i, j], axis=(q, j))
    w = td.range("w", 0, td.minimum(e + 1, d.shape[1]))
    product = hg[k, td.maximum(e - w, 0), a, b, i, x, m] * hd[w, a, b, i, m, y]
    sigma[k, e, a, x, y] = td.sum(product, axis=(w, b, i, m))
    return sigma


def numpy_scattering(neighbours: Array, dh: Array, g: Array, d: Array) -> Any:
    hg = np.einsum("keabxm,abimy->keabixy", g[:, :, neighbours], dh, optimize=True)
    hd = np.einsum("abjxy,qwabij->wabixy", dh, d, optimize=True)
    sigma = np.zeros_like(g)
    for w in range(d.shape[1]):
        energies = g.shape[1] - w
        sigma[:, w:] += np.einsum("keabixm,abimy->keaxy", hg[:, :energies], hd[w], optimize=True)
    return sigma


def loops_scattering(neighbours: Array, dh: Array, g: Array, d: Array) -> Array:
    momenta, energies, atoms, orbitals, _ = g.shape
    sigma = np.zeros_like(g)
    for a in prange(atoms):
        hd, hg = np.zeros((orbitals, orbitals)), np.empty((orbitals, orbitals))
        for b in range(neighbours.shape[1]):
            for i in range(dh.shape[2]):
                for w in range(d.shape[1]):
                    hd[:] = 0.0
                    for q in range(d.shape[0]):
                        for j in range(dh.shape[2]):
                            hd += dh[a, b, j] * d[q, w, a, b, i, j]
                    for k in range(momenta):
                        for e in range(w, energies):
                            near = neighbours[a, b]
                            for x in range(orbitals):
                                for y in range(orbitals):
                                    total = 0.0
                                    for m in range(orbitals):
                                        total += g[k, e - w, near, x, m] * dh[a, b, i, m, y]
                                    hg[x, y] = total
                            for x in range(orbitals):
                                for y in range(orbitals):
                                    for m in range(orbitals):
                                        sigma[k, e, a, x, y] += hg[x, m] * hd[m, y]
    return sigma


def atoms(rng: np.random.Generator) -> tuple[Array, ...]:
    neighbours = rng.integers(0, 20, (20, 4), dtype=np.int32)
    shapes = ((20, 4, 3, 4, 4), (3, 24, 20, 4, 4), (3, 5, 20, 4, 3, 3))
    return neighbours, *(rng.random(shape) for shape in shapes)


FLOW_STEPS, PRESSURE_STEPS, FORCE = 2, 10, 1.0


@td.op
def channel_flow(u: td.f64["N", "M"], v: td.f64["N", "M"], p: td.f64["N", "M"]):
    """2 steps of flow through a periodic channel, 80 x 120, with 10 steps of the pressure in each."""
    y, x = td.vars("y x")
    shape, n = u.shape, u.shape[0]
    h, dt = 2 / 79, 0.001
    inner = td.range("inner", 1, n - 1)
    for t in range(FLOW_STEPS):
        a, b = td.pad(u, mode="wrap", shape=shape), td.pad(v, mode="wrap", shape=shape)
        right, moved = td.Func(f"right{t}", shape=shape), []
        ux, vx = (a[y, x + 1] - a[y, x - 1]) / (2 * h), (b[y, x + 1] - b[y, x - 1]) / (2 * h)
        uy, vy = (a[y + 1, x] - a[y - 1, x]) / (2 * h), (b[y + 1, x] - b[y - 1, x]) / (2 * h)
        right[y, x] = (ux + vy) / dt - ux * ux - 2 * uy * vx - vy * vy
        for q in range(PRESSURE_STEPS):
            c, new = td.pad(p, mode="wrap", shape=shape), td.Func(f"p{t}_{q}", shape=shape)
            row = td.clip(y, 1, n - 2)  # no flux through the walls
            around = c[row, x + 1] + c[row, x - 1] + c[row + 1, x] + c[row - 1, x]
            new[y, x] = 0.25 * around - h * h / 4 * right[row, x]
            p = new
        c = td.pad(p, mode="wrap", shape=shape)
        slopes = (c[inner, x + 1] - c[inner, x - 1], c[inner + 1, x] - c[inner - 1, x])
        for f, slope, force, name in ((a, slopes[0], FORCE, "u"), (b, slopes[1], 0.0, "v")):
            here = f[inner, x]
            carried = a[inner, x] * (here - f[inner, x - 1]) + b[inner, x] * (here - f[inner - 1, x])
            spread = f[inner, x + 1] + f[inner, x - 1] + f[inner + 1, x] + f[inner - 1, x] - 4 * here
            new = td.Func(f"{name}{t}", shape=shape)
            new[y, x] = td.cast(0, td.f64)
            new[inner, x] = (
                here - dt / h * carried - dt / (2 * h) * slope + 0.1 * dt / h**2 * spread + force * dt
            )
            moved.append(new)
        u, v = moved
    return u, v, p


def numpy_channel_flow(u: Array, v: Array, p: Array) -> Any:
    h, dt = 2 / 79, 0.001

    def sides(f: Array) -> tuple[Array, Array, Array, Array]:
        return np.roll(f, -1, 1)[1:-1], np.roll(f, 1, 1)[1:-1], f[2:], f[:-2]

    for _ in range(FLOW_STEPS):
        (ue, uw, us, un), (ve, vw, vs, vn) = sides(u), sides(v)
        ux, vx, uy, vy = (ue - uw) / (2 * h), (ve - vw) / (2 * h), (us - un) / (2 * h), (vs - vn) / (2 * h)
        right = (ux + vy) / dt - ux * ux - 2 * uy * vx - vy * vy
        for _ in range(PRESSURE_STEPS):
            p = np.pad(0.25 * sum(sides(p)) - h * h / 4 * right, ((1, 1), (0, 0)), mode="edge")
        pe, pw, ps, pn = sides(p)
        moved = []
        for f, slope, force in ((u, pe - pw, FORCE), (v, ps - pn, 0.0)):
            here, (east, west, south, north) = f[1:-1], sides(f)
            carried = u[1:-1] * (here - west) + v[1:-1] * (here - north)
            spread = east + west + south + north - 4 * here
            new = here - dt / h * carried - dt / (2 * h) * slope + 0.1 * dt / h**2 * spread + force * dt
            moved.append(np.pad(new, ((1, 1), (0, 0))))
        u, v = moved
    return u, v, p


def loops_channel_flow(u: Array, v: Array, p: Array) -> Any:
    n, m = u.shape
    h, dt = 2 / 79, 0.001
    right, p, q = np.empty((n, m)), p.copy(), np.empty((n, m))
    for _ in range(FLOW_STEPS):
        for y in prange(1, n - 1):
            for x in range(m):
                e, w = (x + 1 if x < m - 1 else 0), (x - 1 if x > 0 else m - 1)
                ux, vx = (u[y, e] - u[y, w]) / (2 * h), (v[y, e] - v[y, w]) / (2 * h)
                uy, vy = (u[y + 1, x] - u[y - 1, x]) / (2 * h), (v[y + 1, x] - v[y - 1, x]) / (2 * h)
                right[y, x] = (ux + vy) / dt - ux * ux - 2 * uy * vx - vy * vy
        for _ in range(PRESSURE_STEPS):
            for y in prange(1, n - 1):
                for x in range(m):
                    e, w = (x + 1 if x < m - 1 else 0), (x - 1 if x > 0 else m - 1)
                    q[y, x] = 0.25 * (p[y, e] + p[y, w] + p[y + 1, x] + p[y - 1, x]) - h * h / 4 * right[y, x]
            for x in range(m):
                q[0, x], q[n - 1, x] = q[1, x], q[n - 2, x]
            p, q = q, p
        a, b = np.zeros((n, m)), np.zeros((n, m))
        for y in prange(1, n - 1):
            for x in range(m):
                e, w = (x + 1 if x < m - 1 else 0), (x - 1 if x > 0 else m - 1)
                c, d = u[y, x], v[y, x]
                carried = c * (c - u[y, w]) + d * (c - u[y - 1, x])
                spread = u[y, e] + u[y, w] + u[y + 1, x] + u[y - 1, x] - 4 * c
                change = 0.1 * dt / h**2 * spread - dt / h * carried - dt / (2 * h) * (p[y, e] - p[y, w])
                a[y, x] = c + change + FORCE * dt
                carried = c * (d - v[y, w]) + d * (d - v[y - 1, x])
                spread = v[y, e] + v[y, w] + v[y + 1, x] + v[y - 1, x] - 4 * d
                slope = p[y + 1, x] - p[y - 1, x]
                b[y, x] = d + 0.1 * dt / h**2 * spread - dt / h * carried - dt / (2 * h) * slope
        u, v = a, b
    return u, v, p


@td.op
def crc16(data: td.u8["N"]):
    """The checksum of 100000 bytes."""
    n, bit = td.range("n", 0, data.shape[0]), td.range("bit", 0, 8)
    state, out = td.Func("state"), td.Func("out")
    state[()] = td.cast(0xFFFF, td.i32)
    odd = (state[()] ^ (td.cast(data[n], td.i32) >> bit)) & 1
    state[()] = td.where(odd == 1, (state[()] >> 1) ^ 0x8408, state[()] >> 1)
    inverse = ~state[()] & 0xFFFF
    out[()] = ((inverse << 8) | (inverse >> 8)) & 0xFFFF
    return out


def numpy_crc16(data: Array) -> Any:
    state = 0xFFFF
    for byte in data.tolist():
        for bit in range(8):
            state = (state >> 1) ^ (0x8408 if (state ^ (byte >> bit)) & 1 else 0)
    inverse = ~state & 0xFFFF
    return np.int32(((inverse << 8) | (inverse >> 8)) & 0xFFFF)


def loops_crc16(data: Array) -> Any:
    state = 0xFFFF
    for n in range(len(data)):
        for bit in range(8):
            odd = (state ^ (data[n] >> bit)) & 1
            state = (state >> 1) ^ 0x8408 if odd == 1 else state >> 1
    inverse = ~state & 0xFFFF
    return ((inverse << 8) | (inverse >> 8)) & 0xFFFF


def message(rng: np.random.Generator) -> tuple[Array]:
    return (rng.integers(0, 256, 100_000, dtype=np.uint8),)


RADIX, STAGES = 4, 7


@td.op
def stockham_fft(re: td.f64["N"], im: td.f64["N"]):
    """A Fourier transform of 16384 points by Stockham's stages of radix 4."""
    n, count = td.vars("n"), RADIX**STAGES
    r = td.range("r", 0, RADIX)
    y: Any = td.Func("y")
    y[n] = (re[n], im[n])
    for stage in range(STAGES):
        inner = RADIX ** (STAGES - stage - 1)
        new, block, at = td.Func(f"y{stage}", shape=count), count // RADIX, n % (count // RADIX)
        turn = -2 * math.pi * r * ((n // block) / RADIX + (at // inner) / RADIX ** (stage + 1))
        a, b = y[(at // inner * RADIX + r) * inner + at % inner]
        new[n] = (
            td.sum(td.cos(turn) * a - td.sin(turn) * b, axis=r),
            td.sum(td.cos(turn) * b + td.sin(turn) * a, axis=r),
        )
        y = new
    return y


def numpy_stockham(re: Array, im: Array) -> Any:
    y, count = re + 1j * im, len(re)
    r = np.arange(RADIX)
    dft = np.exp(-2j * np.pi * np.outer(r, r) / RADIX)
    for stage in range(STAGES):
        parts = y.reshape(RADIX**stage, RADIX, -1).transpose(1, 0, 2)
        turn = np.outer(r, np.arange(RADIX**stage)) / RADIX ** (stage + 1)
        y = (dft @ (parts * np.exp(-2j * np.pi * turn)[:, :, None]).reshape(RADIX, -1)).reshape(count)
    return y.real, y.imag


def loops_stockham(re: Array, im: Array) -> Any:
    y, count = re + 1j * im, len(re)
    block = count // RADIX
    for stage in range(STAGES):
        new, inner = np.empty_like(y), RADIX ** (STAGES - stage - 1)
        for outer in prange(RADIX**stage):
            for m in range(inner):
                for q in range(RADIX):
                    total = 0j
                    for r in range(RADIX):
                        turn = -2 * math.pi * r * (q / RADIX + outer / RADIX ** (stage + 1))
                        total += complex(math.cos(turn), math.sin(turn)) * y[(outer * RADIX + r) * inner + m]
                    new[q * block + outer * inner + m] = total
        y = new
    return y.real.copy(), y.imag.copy()


LENET = ((16, 28, 28, 1), (5, 5, 1, 6), (6,), (5, 5, 6, 16), (16,), (256, 120), (120,), (120, 10), (10,))
KERNELS = (
    (ludcmp, system, numpy_ludcmp, loops_ludcmp),
    (arc_distance, arrays(*[(200_000,)] * 4), numpy_arc_distance, loops_arc_distance),
    (lenet, single(*LENET), numpy_lenet, loops_lenet),
    (nussinov, strand, numpy_nussinov, loops_nussinov),
    (scattering_self_energies, atoms, numpy_scattering, loops_scattering),
    (channel_flow, arrays(*[(80, 120)] * 3), numpy_channel_flow, loops_channel_flow),
    (crc16, message, numpy_crc16, loops_crc16),
    (stockham_fft, arrays(*[(RADIX**STAGES,)] * 2), numpy_stockham, loops_stockham),
)
CASES = (
    *(
        contractions.case(name, subscripts, sizes, dtype, "unseen-contractions")
        for name, subscripts, sizes in TABLE
        for dtype in ("f32", "f64")
    ),
    *(case(kernel[0].name, *kernel, group="unseen-npbench") for kernel in KERNELS),
)
