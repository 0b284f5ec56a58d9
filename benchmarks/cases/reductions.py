"""Reductions of several kinds, a histogram and a prefix sum, by the default schedule."""

import math
from typing import Any

import numpy as np

import tdsl as td
from benchmarks import jax_peers, numba_peers, torch_peers
from benchmarks.case import Array, Arrays, Case, function, kernel, within
from benchmarks.numba_peers import prange

POINTS, CENTRES, DIMENSIONS = 100_000, 64, 32
VALUES = 1 << 24
BLOCK = 4096
ROWS, COLUMNS = 4096, 1024


@td.op
def nearest(points: td.f32["P", "D"], centres: td.f32["Q", "D"]):
    """The assignment step of k-means: which centre is nearest to each point."""
    p, q, d = td.vars("p q d")
    distance, best = td.Func("distance"), td.Func("best")
    distance[p, q] = td.sum((points[p, d] - centres[q, d]) ** 2, axis=d)
    best[p] = td.argmin(distance[p, q], axis=q)
    return best


@td.op
def histogram(values: td.u8["N"]):
    """How often each byte occurs."""
    n, v = td.vars("n v")
    counts = td.Func("counts", shape=256)
    counts[v] = td.cast(0, td.i32)
    counts[values[n]] += 1
    return counts


@td.op
def prefix_sum(values: td.f32["N"]):
    """The sums of the first values, the first two, and so on, one after the other."""
    n = td.vars("n")
    r = td.range("r", 1, values.shape[0])
    sums = td.Func("sums")
    sums[n] = values[n]
    sums[r] += sums[r - 1]
    return sums


@td.op
def prefix_sum_blocks(values: td.f32["N"]):
    """The same in blocks, each from the sum of those before, as rows of the result."""
    b, t = td.vars("b t")
    blocks = values.shape[0] // BLOCK
    k, last = td.range("k", 0, BLOCK), td.range("last", 1, blocks)
    total, start = td.Func("total", shape=blocks), td.Func("start", shape=blocks)
    total[b] = td.sum(values[b * BLOCK + k], axis=k)
    start[b] = td.where(b == 0, 0, total[td.maximum(b - 1, 0)])
    start[last] += start[last - 1]
    local, sums = td.Func("local"), td.Func("sums", shape=(blocks, BLOCK))
    r = td.range("r", 1, BLOCK)
    local[b, t] = values[b * BLOCK + t]
    local[b, r] += local[b, r - 1]
    sums[b, t] = local[b, t] + start[b]
    return sums


@td.op
def norm_backward(
    dy: td.f32["R", "C"], x: td.f32["R", "C"], mean: td.f32["R"], scale: td.f32["R"], gain: td.f32["C"]
):  # fmt: skip
    """The gradients of a layer norm by its input, gain and shift; `scale` is 1 over the deviation."""
    i, j = td.vars("i j")
    n = td.cast(x.shape[1], td.f32)
    unit, dnorm = (x[i, j] - mean[i]) * scale[i], dy[i, j] * gain[j]
    first, second = td.Func("first"), td.Func("second")
    dx, dgain, dshift = td.Func("dx"), td.Func("dgain"), td.Func("dshift")
    first[i] = td.sum(dnorm, axis=j) / n
    second[i] = td.sum(dnorm * unit, axis=j) / n
    dx[i, j] = (dnorm - first[i] - unit * second[i]) * scale[i]
    dgain[j] = td.sum(dy[i, j] * unit, axis=i)
    dshift[j] = td.sum(dy[i, j], axis=i)
    return dx, dgain, dshift


def expected_nearest(points: Array, centres: Array) -> Array:
    """By NumPy, through the product of the matrices."""
    cross = points @ centres.T
    return np.asarray(((centres**2).sum(1) - 2 * cross).argmin(1))


def expected_norm_backward(dy: Array, x: Array, mean: Array, scale: Array, gain: Array) -> tuple[Array, ...]:
    """By NumPy."""
    unit, dnorm = (x - mean[:, None]) * scale[:, None], dy * gain
    first, second = dnorm.mean(1, keepdims=True), (dnorm * unit).mean(1, keepdims=True)
    dx = (dnorm - first - unit * second) * scale[:, None]
    return dx, (dy * unit).sum(0), dy.sum(0)


def numba_nearest(points: Array, centres: Array) -> Array:
    """Distances of a point to each centre, dimension by dimension over centres side by side."""
    count, dimensions = points.shape
    centre_count = centres.shape[0]
    transposed = centres.T.copy()
    out = np.empty(count, np.int64)
    for p in prange(count):
        distance = np.zeros(centre_count, np.float32)
        for d in range(dimensions):
            x = points[p, d]
            for q in range(centre_count):
                t = x - transposed[d, q]
                distance[q] += t * t
        best = 0
        for q in range(1, centre_count):
            if distance[q] < distance[best]:
                best = q
        out[p] = best
    return out


def numba_histogram(values: Array) -> Array:
    """Counts of each thread's part in four tables, so that equal neighbours do not wait."""
    parts = 8
    size = values.size // parts // 4 * 4
    counts = np.zeros((parts, 4, 256), np.int32)
    for part in prange(parts):
        tables = counts[part]
        for n in range(part * size, (part + 1) * size, 4):
            tables[0, values[n]] += 1
            tables[1, values[n + 1]] += 1
            tables[2, values[n + 2]] += 1
            tables[3, values[n + 3]] += 1
    for n in range(parts * size, values.size):
        counts[0, 0, values[n]] += 1
    return counts.sum(0).sum(0).astype(np.int32)


def numba_prefix_sum(values: Array) -> Array:
    """Sums of blocks, then each block from the sum of those before."""
    parts = 16
    size = (values.size + parts - 1) // parts
    totals = np.zeros(parts + 1, np.float32)
    for part in prange(parts):
        total = np.float32(0)
        for n in range(part * size, min((part + 1) * size, values.size)):
            total += values[n]
        totals[part + 1] = total
    for part in range(parts):
        totals[part + 1] += totals[part]
    out = np.empty_like(values)
    for part in prange(parts):
        total = totals[part]
        for n in range(part * size, min((part + 1) * size, values.size)):
            total += values[n]
            out[n] = total
    return out


def numba_norm_backward(
    dy: Array, x: Array, mean: Array, scale: Array, gain: Array
) -> tuple[Array, Array, Array]:
    """Blocks of rows, each with its own sums over rows."""
    rows, columns = x.shape
    parts = 16
    size = (rows + parts - 1) // parts
    dx = np.empty_like(x)
    gains, shifts = np.zeros((parts, columns), np.float32), np.zeros((parts, columns), np.float32)
    for part in prange(parts):
        for i in range(part * size, min((part + 1) * size, rows)):
            first, second = np.float32(0), np.float32(0)
            for j in range(columns):
                unit, dnorm = (x[i, j] - mean[i]) * scale[i], dy[i, j] * gain[j]
                first += dnorm
                second += dnorm * unit
            first /= np.float32(columns)
            second /= np.float32(columns)
            for j in range(columns):
                unit = (x[i, j] - mean[i]) * scale[i]
                dx[i, j] = (dy[i, j] * gain[j] - first - unit * second) * scale[i]
                gains[part, j] += dy[i, j] * unit
                shifts[part, j] += dy[i, j]
    return dx, gains.sum(0), shifts.sum(0)


def torch_norm_backward(torch: Any, dy: Any, x: Any, mean: Any, scale: Any, gain: Any) -> tuple[Any, ...]:
    """PyTorch's own kernel, which its backward pass calls."""
    stats = mean[:, None], scale[:, None]
    output_mask = [True, True, True]
    return tuple(
        torch.ops.aten.native_layer_norm_backward(
            dy, x, x.shape[1:], *stats, gain, torch.zeros_like(gain), output_mask
        )
    )


def jax_norm_backward(jax: Any, dy: Any, x: Any, mean: Any, scale: Any, gain: Any) -> tuple[Any, ...]:
    """As it is written in JAX."""
    unit, dnorm = (x - mean[:, None]) * scale[:, None], dy * gain
    first, second = dnorm.mean(1, keepdims=True), (dnorm * unit).mean(1, keepdims=True)
    dx = (dnorm - first - unit * second) * scale[:, None]
    return dx, (dy * unit).sum(0), dy.sum(0)


def scipy_nearest(points: Array, centres: Array) -> Array:
    """SciPy's vector quantization."""
    from scipy.cluster.vq import vq

    return np.asarray(vq(points, centres, check_finite=False)[0])


def random_points() -> Arrays:
    """Points around nowhere in particular, and centres."""
    rng = np.random.default_rng(3)
    shapes = (POINTS, DIMENSIONS), (CENTRES, DIMENSIONS)
    return tuple(rng.standard_normal(s, dtype=np.float32) for s in shapes)


def random_bytes() -> Arrays:
    """Bytes of which the small ones are more frequent, as in a dark photograph."""
    rng = np.random.default_rng(4)
    return (np.minimum(rng.exponential(40, VALUES), 255).astype(np.uint8),)


def random_values() -> Arrays:
    """Values around 0, so that the sums stay small."""
    return (np.random.default_rng(5).standard_normal(VALUES, dtype=np.float32),)


def gradients() -> Arrays:
    """The gradient of the result, the input, and what the forward pass kept."""
    rng = np.random.default_rng(6)
    dy, x = (rng.standard_normal((ROWS, COLUMNS), dtype=np.float32) for _ in range(2))
    scale = 1 / np.sqrt(x.var(1) + 1e-5)
    return (
        dy,
        x,
        x.mean(1),
        scale.astype(np.float32),
        rng.standard_normal(COLUMNS, dtype=np.float32),
    )


def is_right_gradients(result: tuple[Array, ...], arrays: Arrays) -> bool:
    """Judge the three gradients."""
    right = expected_norm_backward(*(a.astype(np.float64) for a in arrays))
    return len(result) == len(right) and all(
        bool(np.abs(a - b).max() <= 1e-5 * math.sqrt(ROWS) * np.abs(b).max())
        for a, b in zip(result, right, strict=True)
    )


def is_right_nearest(result: Array, arrays: Arrays) -> bool:
    """Judge by distances: two centres may be equally near but for rounding."""
    points, centres = (a.astype(np.float64) for a in arrays)
    least = ((points - centres[expected_nearest(points, centres)]) ** 2).sum(1)
    distances = ((points - centres[result]) ** 2).sum(1)
    return result.shape == least.shape and bool((distances - least).max() <= 1e-4)


def is_right_sums(result: Array, arrays: Arrays) -> bool:
    """Judge sums one after the other or by blocks; in order, errors add up more."""
    return within(1e-3, np.cumsum)(result.reshape(-1), arrays)


CASES = (
    Case(
        name="kmeans-assign",
        title=f"the nearest of {CENTRES} centres for {POINTS} points of {DIMENSIONS} dimensions",
        inputs=random_points,
        is_right=is_right_nearest,
        peers={
            "tdsl": kernel(lambda: nearest.compile(P=POINTS, Q=CENTRES, D=DIMENSIONS)),
            **torch_peers.peers(lambda torch, p, c: torch.cdist(p, c).argmin(1)),
            "jax": jax_peers.peer(lambda jax, p, c: ((c * c).sum(1) - 2 * (p @ c.T)).argmin(1)),
            "numba": numba_peers.fast(numba_nearest),
            "scipy": function(scipy_nearest),
        },
        flops=3.0 * POINTS * CENTRES * DIMENSIONS,
        group="mixed",
    ),
    Case(
        name="histogram",
        title=f"histogram of {VALUES} bytes",
        inputs=random_bytes,
        is_right=within(0, lambda v: np.bincount(v, minlength=256), widen=False),
        peers={
            "tdsl": kernel(lambda: histogram.compile(N=VALUES)),
            "torch": torch_peers.peer(lambda torch, v: torch.bincount(v, minlength=256)),
            "jax": jax_peers.peer(lambda jax, v: jax.numpy.bincount(v, length=256)),
            "numba": numba_peers.fast(numba_histogram),
            "numpy": function(lambda v: np.bincount(v, minlength=256)),
        },
        bytes=VALUES,
        group="mixed",
    ),
    Case(
        name="prefix-sum",
        title=f"prefix sums of {VALUES} numbers, f32",
        inputs=random_values,
        is_right=is_right_sums,
        peers={
            "tdsl": kernel(lambda: prefix_sum_blocks.compile(N=VALUES)),
            "tdsl-in-order": kernel(lambda: prefix_sum.compile(N=VALUES)),
            **torch_peers.peers(lambda torch, v: torch.cumsum(v, 0)),
            "jax": jax_peers.peer(lambda jax, v: jax.numpy.cumsum(v)),
            "numba": numba_peers.fast(numba_prefix_sum),
            "numpy": function(np.cumsum),
        },
        bytes=8.0 * VALUES,
        group="mixed",
    ),
    Case(
        name="norm-backward",
        title=f"gradients of a layer norm of {ROWS} rows of {COLUMNS}",
        inputs=gradients,
        is_right=is_right_gradients,  # type: ignore[arg-type]  # of several results
        peers={
            "tdsl": kernel(lambda: norm_backward.compile(R=ROWS, C=COLUMNS)),
            **torch_peers.peers(torch_norm_backward),
            "jax": jax_peers.peer(jax_norm_backward),
            "numba": numba_peers.fast(numba_norm_backward),
        },
        bytes=12.0 * ROWS * COLUMNS,
        group="mixed",
    ),
)
