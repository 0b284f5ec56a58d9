"""Products of matrices of many shapes, by the default schedule, against BLAS."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks import jax_peers, torch_peers
from benchmarks.case import Array, Arrays, Call, Case, Prepare, kernel, within

SIDES = (256, 512, 1000, 1024, 2048, 4096)
# Rows, columns, terms.
SKINNY = (
    (8, 4096, 4096),
    (4096, 16, 4096),
    (4096, 4096, 16),
    (64, 4096, 1024),
    (4096, 64, 1024),
    (128, 128, 8192),
)
TURNED = ("nt", "tn", "tt")


def product(dtype: td.DType, turned: str = "nn") -> td.Func:
    """The product of a and b, of which those marked "t" are given transposed."""
    i, j, k = td.vars("i j k")
    a = td.Tensor("a", ("M", "K") if turned[0] == "n" else ("K", "M"), dtype)
    b = td.Tensor("b", ("K", "N") if turned[1] == "n" else ("N", "K"), dtype)
    c = td.Func("c")
    left = a[i, k] if turned[0] == "n" else a[k, i]
    right = b[k, j] if turned[1] == "n" else b[j, k]
    c[i, j] = td.sum(left * right, axis=k)
    return c


def blas(turned: str) -> Prepare:
    """NumPy's product, which writes into an array of its own, as tdsl does."""

    def prepare(arrays: Arrays) -> Call:
        a, b = _upright(turned, *arrays)
        out = np.matmul(a, b)
        return lambda: np.matmul(a, b, out=out)

    return prepare


def _upright(turned: str, a: Array, b: Array) -> Arrays:
    return (a if turned[0] == "n" else a.T, b if turned[1] == "n" else b.T)


def case(name: str, dtype: td.DType, m: int, n: int, k: int, turned: str = "nn", group: str = "") -> Case:
    """A product of m x k by k x n."""

    def inputs() -> Arrays:
        rng = np.random.default_rng(5)
        a, b = (rng.standard_normal(s).astype(dtype.numpy) for s in ((m, k), (k, n)))
        return (
            a if turned[0] == "n" else np.ascontiguousarray(a.T),
            b if turned[1] == "n" else np.ascontiguousarray(b.T),
        )

    return Case(
        name=name,
        title=f"matrix product, {m} x {n} x {k}, {dtype}, {turned}",
        inputs=inputs,
        is_right=within(
            k * float(np.finfo(dtype.numpy).eps),
            lambda a, b: np.matmul(*_upright(turned, a, b)),
        ),
        peers={
            "tdsl": kernel(lambda: td.compile(product(dtype, turned), M=m, N=n, K=k)),
            "numpy": blas(turned),
            "torch": torch_peers.peer(lambda torch, a, b: torch.matmul(*_upright(turned, a, b))),
            "jax": jax_peers.peer(lambda jax, a, b: jax.numpy.matmul(*_upright(turned, a, b))),
        },
        flops=2 * m * n * k,
        group=group,
    )


def small_product(dtype: td.DType, total: td.DType, out: td.DType) -> td.Func:
    """The product of a and b of a small type, summed in a larger one."""
    i, j, k = td.vars("i j k")
    a, b = td.Tensor("a", ("M", "K"), dtype), td.Tensor("b", ("K", "N"), dtype)
    sums, c = td.Func("sums"), td.Func("c")
    terms = td.cast(a[i, k], total) * td.cast(b[k, j], total)
    sums[i, j] = td.sum(terms, axis=k, dtype=total)
    c[i, j] = td.cast(sums[i, j], out)
    return c


def small_case(name: str, dtype: td.DType, n: int, group: str) -> Case:
    """A square product of bf16 to bf16, or of i8 to i32."""
    whole = dtype == td.i8
    total, out = (td.i32, td.i32) if whole else (td.f32, td.bf16)

    def inputs() -> Arrays:
        rng = np.random.default_rng(6)
        if whole:
            return tuple(rng.integers(-128, 128, (n, n), dtype=np.int8) for _ in range(2))
        return tuple(rng.standard_normal((n, n)).astype(dtype.numpy) for _ in range(2))

    def torch_product(torch: Any, a: Any, b: Any) -> Any:
        return torch._int_mm(a, b) if whole else torch.matmul(a, b)

    def jax_product(jax: Any, a: Any, b: Any) -> Any:
        kind = jax.numpy.int32 if whole else jax.numpy.bfloat16
        return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=kind)

    return Case(
        name=name,
        title=f"matrix product, {n} x {n} x {n}, {dtype} to {out}",
        inputs=inputs,
        is_right=within(0.0 if whole else 2.0**-8, np.matmul),
        peers={
            "tdsl": kernel(lambda: td.compile(small_product(dtype, total, out), M=n, N=n, K=n)),
            "torch": torch_peers.peer(torch_product),
            "jax": jax_peers.peer(jax_product),
        },
        flops=2 * n**3,
        group=group,
    )


CASES = (
    *(small_case(f"bf16-gemm-{n}", td.bf16, n, "narrow") for n in (1024, 2048)),
    small_case("int8-gemm-1024", td.i8, 1024, "narrow"),
    *(case(f"sgemm-{n}", td.f32, n, n, n, group="sgemm") for n in SIDES),
    *(case(f"dgemm-{n}", td.f64, n, n, n, group="dgemm") for n in SIDES),
    *(case(f"sgemm-{m}x{n}x{k}", td.f32, m, n, k, group="skinny") for m, n, k in SKINNY),
    *(case(f"sgemm-1000-{turned}", td.f32, 1000, 1000, 1000, turned) for turned in TURNED),
)
