"""Updates and reductions: scatters, running sums, few results of many terms, the largest elements."""

import itertools
from typing import Any

import numpy as np

import tdsl as td
from benchmarks.cuda.unknown.program import program

i, j, k = td.vars("i j k")


@program(
    "histogram", sizes={"n": 100_000_000}, small={"n": 3000}, below={"x": 256},
    expected=lambda x: np.bincount(x, minlength=256),
)  # fmt: skip
def histogram(n: int) -> td.Func:
    """Counts of 256 values."""
    x, out, r = td.Tensor("x", (n,), td.u8), td.Func("out", shape=256), td.range("r", 0, n)
    out[i] = td.cast(0, td.i32)
    out[x[r]] += 1
    return out


@program(
    "scatter-add", sizes={"n": 20_000_000}, small={"n": 3000}, below={"at": 1 << 20},
    expected=lambda at, v: np.bincount(at, v, 1 << 20),
)  # fmt: skip
def scatter(n: int) -> td.Func:
    """Values are added at places that are data."""
    at, v, r = td.Tensor("at", (n,), td.i32), td.Tensor("v", (n,), td.f32), td.range("r", 0, n)
    out = td.Func("out", shape=1 << 20)
    out[i] = td.cast(0, td.f32)
    out[td.clip(at[r], 0, (1 << 20) - 1)] += v[r]
    return out


@program(
    "segment sums", sizes={"s": 1 << 20, "n": 1 << 25}, small={"s": 50, "n": 1600}, below={"start": 33},
    expected=lambda start, v: np.asarray([
        v[32 * n + a : 32 * n + 32 + b].sum() for n, (a, b) in enumerate(itertools.pairwise(start))
    ]),
)  # fmt: skip
def segments(s: int, n: int) -> td.Func:
    """Sums of parts of different lengths."""
    start, v, out = (
        td.Tensor("start", (s + 1,), td.i32),
        td.Tensor("v", (n,), td.f32),
        td.Func("out", shape=s),
    )
    r = td.range("r", td.clip(32 * i + start[i], 0, n), td.clip(32 * i + 32 + start[i + 1], 0, n))
    out[i] = td.sum(v[r], axis=r)
    return out


def running(axis: int) -> Any:
    """Running sums of a matrix."""

    def write(m: int, n: int) -> td.Func:
        x, out = td.Tensor("x", (m, n), td.f32), td.Func("out", shape=(m, n))
        r = td.range("r", 1, (m, n)[axis])
        out[i, j] = x[i, j]
        if axis:
            out[i, r] += out[i, r - 1]
        else:
            out[r, j] += out[r - 1, j]
        return out

    return write


MATRIX = {"m": 4096, "n": 16384}
FEW = {"m": 30, "n": 70}
program("cumsum along", sizes=MATRIX, small=FEW, expected=lambda x: x.cumsum(1))(running(1))
program("cumsum across", sizes=MATRIX, small=FEW, expected=lambda x: x.cumsum(0))(running(0))


@program("cumsum alone", sizes={"n": 100_000_000}, small={"n": 3000}, expected=np.cumsum)
def running_alone(n: int) -> td.Func:
    """The running sums of one long array."""
    x, out, r = td.Tensor("x", (n,), td.f32), td.Func("out", shape=n), td.range("r", 1, n)
    out[i] = x[i]
    out[r] += out[r - 1]
    return out


@program("argmax", sizes={"n": 100_000_000}, small={"n": 3000}, expected=np.argmax)
def largest(n: int) -> td.Func:
    """Where the largest of many values is."""
    x, out = td.Tensor("x", (n,), td.f32), td.Func("out")
    out[()] = td.argmax(x[k], axis=k)
    return out


@program(
    "sums of 8 rows", sizes={"m": 8, "n": 1 << 24}, small={"m": 8, "n": 3000}, expected=lambda x: x.sum(1)
)
def few_rows(m: int, n: int) -> td.Func:
    """Few results of many terms."""
    x, out = td.Tensor("x", (m, n), td.f32), td.Func("out")
    out[i] = td.sum(x[i, k], axis=k)
    return out


@program("max and sum of all", sizes={"n": 1 << 26}, small={"n": 3000}, expected=lambda x: (x.max(), x.sum()))
def two_of_all(n: int) -> td.Func:
    """Two results of many terms."""
    x, top, total, out = td.Tensor("x", (n,), td.f32), *map(td.Func, ("top", "total", "out"))
    top[()] = td.max(x[k], axis=k)
    total[()] = td.sum(x[k], axis=k)
    out[()] = (top[()], total[()])
    return out


@program("variance of all", sizes={"n": 1 << 26}, small={"n": 3000}, expected=np.var)
def variance(n: int) -> td.Func:
    """The mean of squares of differences from the mean."""
    x, mean, out = td.Tensor("x", (n,), td.f32), td.Func("mean"), td.Func("out")
    mean[()] = td.mean(x[k], axis=k)
    out[()] = td.mean((x[k] - mean[()]) ** 2, axis=k)
    return out


def exchanged(p: Any, q: Any) -> list[tuple[Any, Any]]:
    """The better and the worse of two values with their places."""
    first = (p[0] > q[0]) | ((p[0] == q[0]) & (p[1] < q[1]))
    return [(td.where(first, u, v), td.where(first, v, u)) for u, v in zip(p, q, strict=True)]


@program(
    "top 8", sizes={"m": 4096, "n": 16384}, small={"m": 5, "n": 300},
    expected=lambda x: tuple(-np.sort(-x, 1)[:, :8].T) + tuple(np.argsort(-x, 1, kind="stable")[:, :8].T),
)  # fmt: skip
def top(m: int, n: int) -> td.Func:
    """The best of each row and their places, sorted: a bitonic merge of lists, as in docs/reductions.md."""
    count = 8

    def merge(a: Any, b: Any) -> Any:
        left, right = (
            zip(a[:count], a[count:], strict=True),
            zip(b[:count][::-1], b[count:][::-1], strict=True),
        )
        kept = [tuple(better for better, _ in exchanged(p, q)) for p, q in zip(left, right, strict=True)]
        step = count // 2
        while step:
            for p in (p for p in range(count) if not p & step):
                (v, w), (at, other) = exchanged(kept[p], kept[p + step])
                kept[p], kept[p + step] = (v, at), (w, other)
            step //= 2
        return [v for v, _ in kept] + [at for _, at in kept]

    x, out = td.Tensor("x", (m, n), td.f32), td.Func("out")
    none, nowhere = [-np.inf] * count, [2**62] * count
    one = [x[i, k], *(td.cast(v, td.f32) for v in none[1:]), td.cast(k, td.i64), *nowhere[1:]]
    out[i] = td.reduce(merge, (*none, *nowhere), one, axis=k)
    return out
