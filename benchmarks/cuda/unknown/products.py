"""Products: few rows, many terms, odd sizes, operands that are computed, batches, small sides."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks.cuda.unknown.program import einsum, program

i, j, k = td.vars("i j k")


def operands(m: int, n: int, k: int, dtype: td.DType = td.f16) -> tuple[td.Tensor, td.Tensor]:
    """The matrices of a product."""
    return td.Tensor("x", (m, k), dtype), td.Tensor("w", (k, n), dtype)


def product(x: Any, w: Any, dtype: td.DType = td.f16) -> td.Func:
    """The product of elements x[i, k] and w[k, j], summed in f32."""
    out = td.Func("out")
    out[i, j] = td.cast(td.sum(td.cast(x, td.f32) * td.cast(w, td.f32), axis=k), dtype)
    return out


for name, full, small in (
    ("f16 1x8192x8192", (1, 8192, 8192), (1, 96, 64)),
    ("f16 17x4096x4096", (17, 4096, 4096), (17, 136, 64)),
    ("f16 63x4096x4096", (63, 4096, 4096), (63, 72, 64)),
    ("f16 256x256x65536", (256, 256, 65536), (64, 64, 1024)),
    ("f16 4095x4095x4095", (4095, 4095, 4095), (77, 65, 63)),
):

    @program(
        name, expected=np.matmul, sizes=dict(zip("mnk", full, strict=True)),
        small=dict(zip("mnk", small, strict=True)), tensor="f16" if full[0] > 1 else "",
    )  # fmt: skip
    def halves(m: int, n: int, k: int) -> td.Func:
        x, w = operands(m, n, k)
        return product(x[i, td.vars("k")], w[td.vars("k"), j])


for name, full, small in (
    ("f32 4095x4095x4095", (4095, 4095, 4095), (77, 65, 63)),
    ("f32 4100x4100x4100", (4100, 4100, 4100), (76, 68, 64)),
    ("f32 4095x1000x77", (4095, 1000, 77), (79, 50, 77)),
):

    @program(
        name, expected=np.matmul, sizes=dict(zip("mnk", full, strict=True)),
        small=dict(zip("mnk", small, strict=True)),
    )  # fmt: skip
    def singles(m: int, n: int, k: int) -> td.Func:
        return td.einsum("ik,kj->ij", *operands(m, n, k, td.f32), name="out")


CUBE = {"m": 4096, "n": 4096, "k": 4096}
SMALL = {"m": 96, "n": 72, "k": 80}


@program("relu(x) @ w", tensor="f16", sizes=CUBE, small=SMALL, expected=lambda x, w: np.maximum(x, 0) @ w)
def of_relu(m: int, n: int, k: int) -> td.Func:
    """An operand that is computed element by element."""
    x, w = operands(m, n, k)
    k = td.vars("k")
    return product(td.maximum(x[i, k], 0), w[k, j])


@program("(x * g) @ w", tensor="f16", sizes=CUBE, small=SMALL, expected=lambda x, w, g: (x * g) @ w)
def of_scaled(m: int, n: int, k: int) -> td.Func:
    """An operand whose columns are scaled."""
    x, w = operands(m, n, k)
    g, k = td.Tensor("g", (k,), td.f16), td.vars("k")
    return product(x[i, k] * g[k], w[k, j])


@program(
    "x @ f16(w i8)", tensor="f16", sizes={"m": 512, "n": 4096, "k": 4096}, small=SMALL,
    expected=lambda x, w, s: x @ (w * s),
)  # fmt: skip
def dequantised(m: int, n: int, k: int) -> td.Func:
    """Weights of bytes, with a scale for each column."""
    x, w, s = td.Tensor("x", (m, k), td.f16), td.Tensor("w", (k, n), td.i8), td.Tensor("s", (n,), td.f16)
    k = td.vars("k")
    return product(x[i, k], td.cast(w[k, j], td.f16) * s[j])


@program(
    "rms norm @ w",
    tensor="f16",
    sizes=CUBE,
    small=SMALL,
    expected=lambda x, w: x / np.sqrt((x * x).mean(1, keepdims=True)) @ w,
)
def of_norm(m: int, n: int, k: int) -> td.Func:
    """Rows are divided by their root mean square first."""
    x, w = operands(m, n, k)
    k, scale = td.vars("k"), td.Func("scale")
    scale[i] = td.rsqrt(td.mean(td.cast(x[i, k], td.f32) ** 2, axis=k))
    return product(td.cast(x[i, k], td.f32) * scale[i], w[k, j])


@program("f16 without casts", tensor="f16", sizes=CUBE, small=SMALL, expected=np.matmul)
def plain_halves(m: int, n: int, k: int) -> td.Func:
    """A sum of products of f16."""
    return td.einsum("ik,kj->ij", *operands(m, n, k), name="out")


@program("f8 4096", tensor="f8e4m3", sizes=CUBE, small=SMALL, expected=np.matmul)
def bytes_(m: int, n: int, k: int) -> td.Func:
    """8-bit floats, rounded to bf16."""
    x, w = operands(m, n, k, td.f8e4m3)
    return product(x[i, td.vars("k")], w[td.vars("k"), j], td.bf16)


einsum("f64 2048", "ik,kj->ij", "i2048 j2048 k2048", "i50 j70 k36", dtype=td.f64)
einsum("mttkrp", "ijk,jr,kr->ir", "i512 j256 k256 r32", "i20 j12 k9 r16")
einsum("ijk,kjl->ijl", "ijk,kjl->ijl", "i512 j64 k256 l256", "i20 j6 k18 l33")
einsum("middle batch", "ibk,kbj->bij", "i512 b32 k512 j512", "i20 b3 k18 j33")
einsum("sides of 32", "bij,bjk->bik", "b16384 i32 j32 k32", "b5 i32 j32 k32")
einsum("sides of 20", "bij,bjk->bik", "b16384 i20 j20 k20", "b5 i20 j20 k20")
einsum("batched matvec", "bij,bj->bi", "b256 i1024 j1024", "b3 i50 j130")
einsum("outer product", "i,j->ij", "i16384 j16384", "i70 j90")
einsum("x'x", "ki,kj->ij", "k65536 i256 j256", "k300 i40 j40")


@program(
    "triangular product",
    sizes={"n": 4096},
    small={"n": 70},
    expected=lambda a, b: np.tril(a) @ b,
)
def triangular(n: int) -> td.Func:
    """The lower triangle of a matrix times another."""
    a, b, out = td.Tensor("a", (n, n), td.f32), td.Tensor("b", (n, n), td.f32), td.Func("out")
    out[i, j] = td.sum(td.where(k <= i, a[i, k], 0) * b[k, j], axis=k)
    return out


@program(
    "pairwise distance and min", sizes={"m": 16384, "n": 16384, "d": 64}, small={"m": 70, "n": 90, "d": 16},
    expected=lambda x, y: ((x[:, None] - y[None]) ** 2).sum(2).min(1),
)  # fmt: skip
def nearest(m: int, n: int, d: int) -> td.Func:
    """The distance to the nearest of many points."""
    x, y, out = td.Tensor("x", (m, d), td.f32), td.Tensor("y", (n, d), td.f32), td.Func("out")
    distance = td.Func("distance")
    distance[i, j] = td.sum((x[i, k] - y[j, k]) ** 2, axis=k)
    out[i] = td.min(distance[i, j], axis=j)
    return out
