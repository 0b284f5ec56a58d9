"""A product of two row-major matrices, against BLAS too."""

import numpy as np

import tdsl as td
from benchmarks.case import Arrays, Case, function, kernel, searched, vectors, within
from benchmarks.halide import pipeline as halide

M, N, K = 1024, 1024, 1024


@td.op
def sgemm(a: td.f32["M", "K"], b: td.f32["K", "N"]):
    i, j, k = td.vars("i j k")
    acc, out = td.Func("acc"), td.Func("out")
    acc[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    out[i, j] = acc[i, j]
    return out


SIZES = {"M": M, "N": N, "K": K}


def default():
    return sgemm.compile(**SIZES)


def hand(**sizes: int):
    """Columns of b by 64, copied for all rows of a; tiles of 6 x 64 sums over the whole of k."""
    s = sgemm.schedule(**SIZES | sizes)
    out, acc = s["out"], s["acc"]
    rows, i = out.split("i", 6, tail="peel")
    columns, j = out.split("j", 64)
    out.reorder(columns, rows, i, j)
    out.parallel(columns)
    vectors(out, j)
    out.unroll(i)
    acc.compute_at(out, rows)
    acc.reorder("k", "i", "j")
    vectors(acc, "j")
    acc.unroll("i")
    panel = s.cache_read("b", acc)
    panel.compute_at(out, columns)
    panel.vectorize("d1", 16)
    panel.prefetch("b", "d0", 8)
    return td.compile(s)


def inputs() -> Arrays:
    rng = np.random.default_rng(5)
    return (
        rng.standard_normal((M, K), dtype=np.float32),
        rng.standard_normal((K, N), dtype=np.float32),
    )


CASE = Case(
    name="sgemm",
    title=f"matrix product, {M} x {N} x {K}",
    inputs=inputs,
    is_right=within(K * np.finfo(np.float32).eps, np.matmul),
    peers={
        "tdsl": kernel(default),
        "tdsl-hand": kernel(hand),
        "tdsl-search": searched(default),
        "numpy": function(np.matmul),
        **halide.peers("sgemm"),
    },
    flops=2 * M * N * K,
    group="pipelines",
)
