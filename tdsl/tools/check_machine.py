"""Compares predicted with measured times of a dozen reference kernels: `tdsl machine check`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

import tdsl as td
from tdsl.codegen.runtime.signature import dense_specialisation
from tdsl.cost.predict import Prediction
from tdsl.pipeline import completed_state
from tdsl.target import Target

Array = Any  # of NumPy


@dataclass(frozen=True)
class Outcome:
    """The seconds of a kernel: as predicted for the machine description, and of its fastest run."""

    name: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """The predicted time in that which was measured."""
        return self.predicted / self.measured


def spread(outcomes: list[Outcome]) -> tuple[float, float]:
    """The geometric mean of the ratios, and the geometric standard deviation from it.

    >>> mean, deviation = spread([Outcome("a", 1.0, 2.0), Outcome("b", 4.0, 2.0)])
    >>> mean, round(deviation, 6)
    (1.0, 2.0)
    """
    logs = [math.log(x.ratio) for x in outcomes]
    mean = fmean(logs)
    return math.exp(mean), math.exp(math.sqrt(fmean((x - mean) ** 2 for x in logs)))


def check(
    *, seconds: float = 0.5, size: int = 4096, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Outcome]:
    """Each reference kernel in turn, whose name `tell` gets; large arrays have `size` x `size` elements."""
    generator = np.random.default_rng(0)
    machine = Target("cpu").machine()
    for name, describe in KERNELS.items():
        tell(name)
        program, arrays = describe(size)
        values = [_random(generator, *array) for array in arrays]
        kernel = td.compile(program, target="cpu")
        out = kernel(*values)
        specialisation = dense_specialisation(kernel.signature, {}, frozenset())
        predicted = Prediction.of(completed_state(kernel.variant(specialisation)), machine).seconds
        best, end = math.inf, time.perf_counter() + seconds
        while time.perf_counter() < end or best == math.inf:
            start = time.perf_counter()
            kernel(*values, out=out)
            best = min(best, time.perf_counter() - start)
        yield Outcome(name, predicted, best)


Kernel = tuple[td.Func, list[tuple[tuple[int, ...], str, int]]]  # with shape, type and bound of its inputs


def _random(generator: np.random.Generator, shape: tuple[int, ...], dtype: str, bound: int) -> Array:
    """An array of numbers from 0 to below `bound`."""
    if np.dtype(dtype).kind in "iu":
        return generator.integers(0, bound, shape, dtype)
    return (bound * generator.random(shape)).astype(dtype)


def _elements(value: Callable[..., Any], inputs: int) -> Callable[[int], Kernel]:
    """A kernel that computes each element of the result from those of its inputs."""

    def kernel(n: int) -> Kernel:
        i, f = td.vars("i"), td.Func("f")
        tensors = [td.Tensor(name, (n * n,), td.f32) for name in "ab"[:inputs]]
        f[i] = value(*(t[i] for t in tensors))
        return f, [((n * n,), "float32", 1)] * inputs

    return kernel


def _stencil(n: int) -> Kernel:
    (y, x), f = td.vars("y x"), td.Func("f", shape=(n - 2, n - 2))
    a = td.Tensor("a", (n, n), td.f32)
    f[y, x] = (a[y, x + 1] + a[y + 1, x] + a[y + 1, x + 1] + a[y + 1, x + 2] + a[y + 2, x + 1]) * 0.2
    return f, [((n, n), "float32", 1)]


def _product(dtype: td.DType, total: td.DType) -> Callable[[int], Kernel]:
    def kernel(n: int) -> Kernel:
        n //= 4
        (i, j, k), f = td.vars("i j k"), td.Func("f")
        a, b = td.Tensor("a", (n, n), dtype), td.Tensor("b", (n, n), dtype)
        f[i, j] = td.sum(td.cast(a[i, k], total) * td.cast(b[k, j], total), axis=k, dtype=total)
        return f, [((n, n), str(dtype.numpy), 10)] * 2

    return kernel


def _softmax(n: int) -> Kernel:
    (i, j, k), a = td.vars("i j k"), td.Tensor("a", (n, n // 4), td.f32)
    top, total, f = td.Func("top"), td.Func("total"), td.Func("f")
    top[i] = td.max(a[i, k], axis=k)
    total[i] = td.sum(td.exp(a[i, k] - top[i]), axis=k)
    f[i, j] = td.exp(a[i, j] - top[i]) / total[i]
    return f, [((n, n // 4), "float32", 1)]


def _gather(n: int) -> Kernel:
    i, f, entries = td.vars("i"), td.Func("f"), 1 << 16
    table, index = td.Tensor("table", (entries,), td.f32), td.Tensor("index", (n * n,), td.u16)
    f[i] = table[index[i]]
    return f, [((entries,), "float32", 1), ((n * n,), "uint16", entries)]


def _transpose(n: int) -> Kernel:
    (i, j), a, f = td.vars("i j"), td.Tensor("a", (n, n), td.f32), td.Func("f")
    f[i, j] = a[j, i]
    return f, [((n, n), "float32", 1)]


def _reduction(n: int) -> Kernel:
    (i, k), a, f = td.vars("i k"), td.Tensor("a", (1, n * n), td.f32), td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    return f, [((1, n * n), "float32", 1)]


def _histogram(n: int) -> Kernel:
    i, r, f = td.vars("i"), td.range("r", 0, n * n), td.Func("f", shape=(256,))
    a = td.Tensor("a", (n * n,), td.u8)
    f[i] = td.cast(0, td.i32)
    f[a[r]] += 1
    return f, [((n * n,), "uint8", 256)]


KERNELS: dict[str, Callable[[int], Kernel]] = {
    "copy": _elements(lambda a: a, 1),
    "triad": _elements(lambda a, b: a + 3 * b, 2),
    "stencil": _stencil,
    "sgemm": _product(td.f32, td.f32),
    "dgemm": _product(td.f64, td.f64),
    "int8 product": _product(td.i8, td.i32),
    "row softmax": _softmax,
    "exp": _elements(td.exp, 1),
    "gather": _gather,
    "transpose": _transpose,
    "reduction": _reduction,
    "histogram": _histogram,
}
