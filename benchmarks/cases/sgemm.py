"""A product of two row-major matrices, against BLAS too."""

import numpy as np

import tdsl as td
from benchmarks.case import Arrays, Case, function, kernel, vectors, within
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


def hand():
    """Panels of b laid out for a register tile of 8 x 32, which runs over the whole of k."""
    s = sgemm.schedule(**SIZES)
    out, acc = s["out"], s["acc"]
    block_i, _, i, j = out.tile(("i", "j"), (64, 256))
    tile_i, tile_j, i0, j0 = out.tile((i, j), (8, 32))
    out.reorder(tile_j, tile_i)
    out.parallel(block_i)
    vectors(out, j0)
    out.unroll(i0)
    acc.compute_at(out, tile_i)
    acc.reorder("k", "i", "j")
    vectors(acc, "j")
    acc.unroll("i")
    panels = s.cache_read("b", acc, pack={1: 32}, name="panels")
    panels.reorder_storage(1, 0, 2)
    panels.reorder("d1", "d0", "d2")
    panels.parallel("d1")
    panels.vectorize("d2", 16)
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
        "numpy": function(np.matmul),
        **halide.peers("sgemm"),
    },
    flops=2 * M * N * K,
    group="pipelines",
)
