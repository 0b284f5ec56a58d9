"""Chains of row operations, on arrays in and beyond the caches, by the default schedule."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tdsl as td
from benchmarks import jax_peers, numba_peers, torch_peers
from benchmarks.case import Array, Arrays, Case, kernel, within
from benchmarks.numba_peers import prange

COLUMNS = 1024
ROWS = {"16MB": 4096, "128MB": 32768}
EPS = 1e-5


@td.op
def softmax(x: td.f32["R", "C"]):
    """e^x of each row, divided by its sum."""
    i, j = td.vars("i j")
    top, e, total, y = td.Func("top"), td.Func("e"), td.Func("total"), td.Func("y")
    top[i] = td.max(x[i, j], axis=j)
    e[i, j] = td.exp(x[i, j] - top[i])
    total[i] = td.sum(e[i, j], axis=j)
    y[i, j] = e[i, j] / total[i]
    return y


@td.op
def gelu_norm(
    x: td.f32["R", "C"], bias: td.f32["C"], residual: td.f32["R", "C"], gain: td.f32["C"],
    shift: td.f32["C"],
):  # fmt: skip
    """Layer norm of gelu(x + bias) + residual."""
    i, j = td.vars("i j")
    n = td.cast(x.shape[1], td.f32)
    z, mean, var, y = td.Func("z"), td.Func("mean"), td.Func("var"), td.Func("y")
    t = x[i, j] + bias[j]
    z[i, j] = 0.5 * t * (1 + td.erf(t * math.sqrt(0.5))) + residual[i, j]
    mean[i] = td.sum(z[i, j], axis=j) / n
    var[i] = td.sum((z[i, j] - mean[i]) ** 2, axis=j) / n
    y[i, j] = (z[i, j] - mean[i]) * td.rsqrt(var[i] + EPS) * gain[j] + shift[j]
    return y


@td.op
def rms_norm(x: td.f32["R", "C"], gain: td.f32["C"]):
    """Each row divided by the root of its mean square."""
    i, j = td.vars("i j")
    square, y = td.Func("square"), td.Func("y")
    square[i] = td.sum(x[i, j] * x[i, j], axis=j) / td.cast(x.shape[1], td.f32)
    y[i, j] = x[i, j] * td.rsqrt(square[i] + EPS) * gain[j]
    return y


def gelu(t: Array) -> Array:
    """By NumPy, with the error function by SciPy."""
    from scipy.special import erf

    return np.asarray(0.5 * t * (1 + erf(t * math.sqrt(0.5))))


def expected_softmax(x: Array) -> Array:
    """By NumPy."""
    e = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def expected_gelu_norm(x: Array, bias: Array, residual: Array, gain: Array, shift: Array) -> Array:
    """By NumPy."""
    z = gelu(x + bias) + residual
    centred = z - z.mean(1, keepdims=True)
    scale = np.sqrt((centred**2).mean(1, keepdims=True) + EPS)
    return np.asarray(centred / scale * gain + shift)


def expected_rms_norm(x: Array, gain: Array) -> Array:
    """By NumPy."""
    return np.asarray(x / np.sqrt((x * x).mean(1, keepdims=True) + EPS) * gain)


def torch_gelu_norm(torch: Any, x: Any, bias: Any, residual: Any, gain: Any, shift: Any) -> Any:
    """With PyTorch's own layer norm and gelu."""
    f = torch.nn.functional
    return f.layer_norm(f.gelu(x + bias) + residual, x.shape[1:], gain, shift, EPS)


def jax_gelu_norm(jax: Any, x: Any, bias: Any, residual: Any, gain: Any, shift: Any) -> Any:
    """With JAX's own gelu."""
    z = jax.nn.gelu(x + bias, approximate=False) + residual
    centred = z - z.mean(1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(1, keepdims=True) + EPS)
    return centred * scale * gain + shift


def jax_rms_norm(jax: Any, x: Any, gain: Any) -> Any:
    """As it is written in JAX."""
    return x * jax.lax.rsqrt((x * x).mean(1, keepdims=True) + EPS) * gain


def numba_softmax(x: Array) -> Array:
    """A row at a time."""
    rows, columns = x.shape
    out = np.empty_like(x)
    for i in prange(rows):
        top = x[i, 0]
        for j in range(columns):
            top = max(top, x[i, j])
        total = np.float32(0)
        for j in range(columns):
            e = np.exp(x[i, j] - top)
            out[i, j] = e
            total += e
        scale = np.float32(1) / total
        for j in range(columns):
            out[i, j] *= scale
    return out


def numba_gelu_norm(x: Array, bias: Array, residual: Array, gain: Array, shift: Array) -> Array:
    """A row at a time."""
    rows, columns = x.shape
    out = np.empty_like(x)
    n = np.float32(columns)
    for i in prange(rows):
        total = np.float32(0)
        for j in range(columns):
            t = x[i, j] + bias[j]
            half = np.float32(0.5) * t
            z = half * (np.float32(1) + math.erf(t * np.float32(0.70710678))) + residual[i, j]
            out[i, j] = z
            total += z
        mean = total / n
        square = np.float32(0)
        for j in range(columns):
            d = out[i, j] - mean
            square += d * d
        scale = np.float32(1) / np.sqrt(square / n + np.float32(EPS))
        for j in range(columns):
            out[i, j] = (out[i, j] - mean) * scale * gain[j] + shift[j]
    return out


def numba_rms_norm(x: Array, gain: Array) -> Array:
    """A row at a time."""
    rows, columns = x.shape
    out = np.empty_like(x)
    for i in prange(rows):
        square = np.float32(0)
        for j in range(columns):
            square += x[i, j] * x[i, j]
        scale = np.float32(1) / np.sqrt(square / np.float32(columns) + np.float32(EPS))
        for j in range(columns):
            out[i, j] = x[i, j] * scale * gain[j]
    return out


def inputs(rows: int, wide: int, long: int) -> Callable[[], Arrays]:
    """`wide` arrays of rows, and `long` arrays as long as a row, in turn."""

    def make() -> Arrays:
        rng = np.random.default_rng(11)
        shapes = [(rows, COLUMNS), (COLUMNS,), (rows, COLUMNS), (COLUMNS,), (COLUMNS,)]
        keep = shapes[:2] if wide == 1 else shapes
        return tuple(rng.standard_normal(s, dtype=np.float32) for s in keep[: wide + long])

    return make


def case(name: str, size: str) -> Case:
    """A chain at a size."""
    rows = ROWS[size]
    program, expected, wide, long, torch, jax, numba = PROGRAMS[name]
    return Case(
        name=f"{name}-{size}",
        title=f"{name.replace('_', ' ')} of {rows} rows of {COLUMNS}",
        inputs=inputs(rows, wide, long),
        is_right=within(1e-5, expected),
        peers={
            "tdsl": kernel(lambda: program.compile(R=rows, C=COLUMNS)),
            **torch_peers.peers(torch),
            "jax": jax_peers.peer(jax),
            "numba": numba_peers.fast(numba),
        },
        bytes=4.0 * rows * COLUMNS * (wide + 1),
        group="rows",
    )


PROGRAMS: dict[str, Any] = {
    "softmax": (
        softmax, expected_softmax, 1, 0,
        lambda torch, x: torch.softmax(x, -1),
        lambda jax, x: jax.nn.softmax(x, -1),
        numba_softmax,
    ),
    "gelu_norm": (
        gelu_norm, expected_gelu_norm, 2, 3, torch_gelu_norm, jax_gelu_norm, numba_gelu_norm,
    ),
    "rms_norm": (
        rms_norm, expected_rms_norm, 1, 1,
        lambda torch, x, gain: torch.nn.functional.rms_norm(x, x.shape[1:], gain, EPS),
        jax_rms_norm, numba_rms_norm,
    ),
}  # fmt: skip

CASES = tuple(case(name, size) for name in PROGRAMS for size in ROWS)
