"""Products of matrices of many shapes, by the default schedule, against BLAS."""

import numpy as np

import tdsl as td
from benchmarks import jax_peers, torch_peers
from benchmarks.case import Array, Arrays, Call, Case, Prepare, kernel, within

SIDES = (256, 512, 1000, 1024, 2048, 4096)
SKINNY = (
    (8, 4096, 4096),
    (4096, 16, 4096),
    (4096, 4096, 16),
    (64, 4096, 1024),
    (4096, 64, 1024),
    (128, 128, 8192),
)  # rows, columns, terms
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


def case(
    name: str, dtype: td.DType, m: int, n: int, k: int, turned: str = "nn", group: str = ""
) -> Case:
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


CASES = (
    *(case(f"sgemm-{n}", td.f32, n, n, n, group="sgemm") for n in SIDES),
    *(case(f"dgemm-{n}", td.f64, n, n, n, group="dgemm") for n in SIDES),
    *(case(f"sgemm-{m}x{n}x{k}", td.f32, m, n, k, group="skinny") for m, n, k in SKINNY),
    *(case(f"sgemm-1000-{turned}", td.f32, 1000, 1000, 1000, turned) for turned in TURNED),
)
