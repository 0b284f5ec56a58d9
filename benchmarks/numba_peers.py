"""The programs of `tdsl demo` as loops for numba, parallel where a numba user would write prange."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.case import Array, PeerMissing, Prepare, function

try:
    import numba
    from numba import prange
except ImportError:
    numba, prange = None, range


def peer(name: str) -> Prepare:
    """The function called `name` below, compiled by numba."""

    def prepare(arrays: tuple[Array, ...]) -> Callable[[], Array]:
        if numba is None:
            raise PeerMissing("pip install numba")
        return function(numba.njit(parallel=True)(globals()[name]))(arrays)

    return prepare


def fast(f: Callable[..., Any]) -> Prepare:
    """A function compiled by numba for threads, with float sums in any order (fastmath)."""
    return _compiled(f, parallel=True)


def serial(f: Callable[..., Any]) -> Prepare:
    """A function compiled by numba for one thread, with float sums in any order (fastmath)."""
    return _compiled(f, parallel=False)


def _compiled(f: Callable[..., Any], *, parallel: bool) -> Prepare:
    def prepare(arrays: tuple[Array, ...]) -> Callable[[], Array]:
        if numba is None:
            raise PeerMissing("pip install numba")
        warnings.simplefilter("ignore", numba.NumbaPerformanceWarning)  # of code without parallel loops
        return function(numba.njit(parallel=parallel, fastmath=True)(f))(arrays)

    return prepare


def blur(image: Array) -> Array:
    height, width = image.shape
    out = np.empty_like(image)
    for y in prange(height):
        rows = np.empty((3, width), np.float32)
        for i in range(3):
            line = min(max(y + i - 1, 0), height - 1)
            for x in range(width):
                left, right = max(x - 1, 0), min(x + 1, width - 1)
                total = image[line, left] + image[line, x] + image[line, right]
                rows[i, x] = total / np.float32(3)
        for x in range(width):
            out[y, x] = (rows[0, x] + rows[1, x] + rows[2, x]) / np.float32(3)
    return out


def equalize(image: Array) -> Array:
    height, width = image.shape
    counts = np.zeros(256, np.int32)
    for y in range(height):
        for x in range(width):
            counts[image[y, x]] += 1
    for v in range(1, 256):
        counts[v] += counts[v - 1]
    out = np.empty_like(image)
    for y in prange(height):
        for x in range(width):
            out[y, x] = counts[image[y, x]] * 255 // counts[255]
    return out


def dense(x: Array, w: Array, bias: Array) -> Array:
    rows, depth = x.shape
    columns = w.shape[1]
    out = np.empty((rows, columns), np.float32)
    for i in prange(rows):
        line = bias.copy()
        for k in range(depth):
            for j in range(columns):
                line[j] += x[i, k] * w[k, j]
        out[i] = np.maximum(line, np.float32(0))
    return out


def softmax(x: Array) -> Array:
    rows, columns = x.shape
    out = np.empty_like(x)
    for i in prange(rows):
        top = x[i].max()
        total = np.float32(0)
        for j in range(columns):
            out[i, j] = np.exp(x[i, j] - top)
            total += out[i, j]
        for j in range(columns):
            out[i, j] /= total
    return out


def conv(x: Array, w: Array, v: Array) -> Array:
    batch, channels, height, width = x.shape
    inner, outer = w.shape[0], v.shape[0]
    lines, columns = height // 2, width // 2
    out = np.zeros((batch, outer, lines, columns), np.float32)
    for line in prange(batch * lines):
        n, h = line // lines, line % lines
        stage = np.zeros((inner, columns), np.float32)
        for f in range(inner):
            for c in range(channels):
                for r in range(3):
                    y = 2 * h + r - 1
                    if 0 <= y < height:
                        for s in range(3):
                            for q in range(columns):
                                i = 2 * q + s - 1
                                if 0 <= i < width:
                                    stage[f, q] += x[n, c, y, i] * w[f, c, r, s]
        for g in range(outer):
            for f in range(inner):
                for q in range(columns):
                    out[n, g, h, q] += max(stage[f, q], np.float32(0)) * v[g, f]
    return out
