"""Fifty steps of Jacobi's iteration on a square with closed edges: five at a time, which stay near."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tdsl as td
from benchmarks import jax_peers, torch_peers
from benchmarks.case import Array, Arrays, Call, Case, Compiled, PeerMissing, within

try:
    import numba
    from numba import prange
except ImportError:
    numba, prange = None, range

SIDE, STEPS, TOGETHER = 2048, 50, 5


def program(steps: int = TOGETHER, side: int = SIDE) -> td.Func:
    y, x = td.vars("y x")
    u: Any = td.Tensor("u", (side, side), td.f32)
    for n in range(steps):
        padded = td.pad(u, mode="edge", shape=(side, side)) if n else td.pad(u, mode="edge")
        u = td.Func(f"u{n + 1}")
        sides = padded[y - 1, x] + padded[y + 1, x] + padded[y, x - 1] + padded[y, x + 1]
        u[y, x] = (padded[y, x] + sides) * 0.2
    return u.with_shape(side, side)


def tdsl(arrays: Arrays) -> Call:
    """Kernels of some steps, from one array to another and back."""
    (start,) = arrays
    kernel = td.compile(program())
    a, b = np.empty_like(start), np.empty_like(start)
    kernel(start, out=a)
    (specialisation,) = kernel.executables

    def call() -> Array:
        source, target, other = start, a, b
        for _ in range(STEPS // TOGETHER):
            kernel(source, out=target)
            source, target, other = target, other, target
        return source

    return Compiled(call, lambda: td.compile(program()).executable(specialisation))


def in_numba(arrays: Arrays) -> Call:
    if numba is None:
        raise PeerMissing("pip install numba")
    (start,) = arrays
    run: Callable[..., Array] = numba.njit(parallel=True, fastmath=True)(_steps)
    a, b = np.empty_like(start), np.empty_like(start)
    return lambda: run(start, a, b, STEPS)


def _steps(start: Array, a: Array, b: Array, steps: int) -> Array:
    height, width = start.shape
    fifth = np.float32(0.2)
    source, target = start, a
    for n in range(steps):
        for y in prange(height):
            above, here, below = source[max(y - 1, 0)], source[y], source[min(y + 1, height - 1)]
            out = target[y]
            out[0] = (here[0] + above[0] + below[0] + here[0] + here[1]) * fifth
            for x in range(1, width - 1):
                out[x] = (here[x] + above[x] + below[x] + here[x - 1] + here[x + 1]) * fifth
            last = width - 1
            out[last] = (here[last] + above[last] + below[last] + here[last - 1] + here[last]) * fifth
        source, target = target, (a if n % 2 else b)
    return source


def in_jax(jax: Any, start: Any) -> Any:
    def step(_: int, u: Any) -> Any:
        e = jax.numpy.pad(u, 1, mode="edge")
        return (u + e[:-2, 1:-1] + e[2:, 1:-1] + e[1:-1, :-2] + e[1:-1, 2:]) * 0.2

    return jax.lax.fori_loop(0, STEPS, step, start)


def in_torch(torch: Any, start: Any) -> Any:
    u = start
    for _ in range(STEPS):
        e = torch.nn.functional.pad(u[None], (1, 1, 1, 1), mode="replicate")[0]
        u = (u + e[:-2, 1:-1] + e[2:, 1:-1] + e[1:-1, :-2] + e[1:-1, 2:]) * 0.2
    return u


def expected(u: Array) -> Array:
    for _ in range(STEPS):
        e = np.pad(u, 1, mode="edge")
        u = (u + e[:-2, 1:-1] + e[2:, 1:-1] + e[1:-1, :-2] + e[1:-1, 2:]) * u.dtype.type(0.2)
    return u


CASE = Case(
    name="jacobi",
    title=f"{STEPS} steps of Jacobi's iteration, {SIDE} x {SIDE}",
    inputs=lambda: (np.random.default_rng(9).random((SIDE, SIDE), dtype=np.float32),),
    is_right=within(STEPS * float(np.finfo(np.float32).eps), expected),
    peers={
        "tdsl": tdsl,
        "numba": in_numba,
        "jax": jax_peers.peer(in_jax),
        "torch": torch_peers.peer(in_torch),
    },
    flops=5.0 * STEPS * SIDE * SIDE,
    group="mixed",
)
