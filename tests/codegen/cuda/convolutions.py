"""Convolutions for tensor cores, for the tests beside this file and those of the recipe."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import tdsl as td

n, y, x, o, c, p, q = td.vars("n y x o c p q")


@dataclass(frozen=True)
class Conv:
    """One convolution: letters of `filters` and `points` are dimensions of the arrays, slowest first."""

    batch: int = 2
    size: tuple[int, int] = (9, 10)
    channels: int = 32
    filter_count: int = 64
    window: tuple[int, int] = (3, 3)
    stride: int = 1
    dilation: int = 1
    pad: int = 1
    points: str = "nyxc"
    filters: str = "pqco"
    dtype: Any = td.f16
    biased: bool = True

    @property
    def total(self):
        return td.f32 if self.dtype.is_float else td.i32

    def shape(self):
        """Lines and points of a line of the result."""
        return tuple(
            (e + 2 * self.pad - self.dilation * (w - 1) - 1) // self.stride + 1
            for e, w in zip(self.size, self.window, strict=True)
        )

    def funcs(self):
        """(the result, the sums)."""
        extents = {"n": self.batch, "c": self.channels, "o": self.filter_count}
        extents |= dict(zip("yxpq", (*self.size, *self.window), strict=True))
        image = td.Tensor("image", tuple(extents[v] for v in self.points), self.dtype)
        weights = td.Tensor("weights", tuple(extents[v] for v in self.filters), self.dtype)
        place = {"n": n, "c": c}
        place["y"] = y * self.stride + p * self.dilation - self.pad
        place["x"] = x * self.stride + q * self.dilation - self.pad
        at = {"p": p, "q": q, "c": c, "o": o}
        here = tuple({"n": n, "y": y, "x": x, "c": o}[v] for v in self.points)
        read = (td.pad(image) if self.pad else image)[tuple(place[v] for v in self.points)]
        weight, sums = weights[tuple(at[v] for v in self.filters)], td.Func("sums")
        terms = td.cast(read, self.total) * td.cast(weight, self.total)
        sums[here] = td.sum(terms, axis=(p, q, c), dtype=self.total)
        shape = dict(zip("nyxc", (self.batch, *self.shape(), self.filter_count), strict=True))
        if not self.biased:
            return sums.with_shape(*(shape[v] for v in self.points)), sums
        result, bias = td.Func("result"), td.Tensor("bias", (self.filter_count,), self.total)
        result[here] = td.maximum(sums[here] + bias[o], 0)
        return result.with_shape(*(shape[v] for v in self.points)), sums

    def arrays(self, rng):
        """Small whole numbers, whose sums are exact, and the result by NumPy."""
        shapes = {"n": self.batch, "c": self.channels, "o": self.filter_count}
        shapes |= dict(zip("yxpq", (*self.size, *self.window), strict=True))
        image, weights, bias = (
            rng.integers(-3, 4, tuple(shapes[v] for v in letters)).astype(t.numpy)
            for letters, t in (
                (self.points, self.dtype),
                (self.filters, self.dtype),
                ("o", self.total),
            )
        )
        plain = np.einsum(f"{self.points}->nyxc", image).astype(self.total.numpy)
        by_place = np.einsum(f"{self.filters}->pqco", weights).astype(self.total.numpy)
        margin = (self.pad, self.pad)
        plain = np.pad(plain, ((0, 0), margin, margin, (0, 0)))
        want = np.zeros((self.batch, *self.shape(), self.filter_count), self.total.numpy)
        for u in range(self.window[0]):
            for v in range(self.window[1]):
                rows, columns = (
                    slice(
                        t * self.dilation,
                        t * self.dilation + self.stride * (e - 1) + 1,
                        self.stride,
                    )
                    for t, e in zip((u, v), self.shape(), strict=True)
                )
                want += plain[:, rows, columns] @ by_place[u, v]
        if self.biased:
            want = np.maximum(want + bias, 0)
        letters = self.points
        given = (image, weights, bias) if self.biased else (image, weights)
        return given, np.einsum(f"nyxc->{letters}", want)
