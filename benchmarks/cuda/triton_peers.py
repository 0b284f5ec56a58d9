"""Peers in Triton, the language that torch.compile writes: rows in one block, products of matrices in tiles.

A peer gets PyTorch and tensors. PeerMissing where Triton is not installed.
"""

import functools
from collections.abc import Callable
from typing import Any

from benchmarks.case import PeerMissing

EPS = 1e-5


@functools.cache
def kernels() -> dict[str, Any]:
    """The kernels, made when they are asked for first."""
    try:
        import triton
        import triton.language as tl
    except ImportError:
        raise PeerMissing("pip install triton") from None
    globals().update(triton=triton, tl=tl)  # kernels name them
    configs = [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_stages=stages, num_warps=warps)
        for bm, bn, bk, stages, warps in (
            (128, 256, 64, 3, 8), (128, 128, 64, 4, 8), (128, 128, 32, 4, 4), (64, 128, 64, 4, 4),
        )
    ]  # fmt: skip
    tuned = triton.autotune(configs, key=["m", "n", "k"])
    return {"rows": triton.jit(_row), "matmul": tuned(triton.jit(_product))}


def _row(x_, gain_, y_, columns, eps, NORM: "tl.constexpr", BLOCK: "tl.constexpr"):
    """The softmax or the root-mean-square norm of a row for each program."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    if NORM:
        x = tl.load(x_ + row * columns + at, mask=inside, other=0.0)
        gain = tl.load(gain_ + at, mask=inside, other=0.0)
        y = x * tl.rsqrt(tl.sum(x * x, axis=0) / columns + eps) * gain
    else:
        x = tl.load(x_ + row * columns + at, mask=inside, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        y = e / tl.sum(e, axis=0)
    tl.store(y_ + row * columns + at, y, mask=inside)


def _product(
    a_, b_, c_, m, n, k, BM: "tl.constexpr", BN: "tl.constexpr", BK: "tl.constexpr"
):  # fmt: skip
    """A tile of a product of row-major matrices for each program; eight rows of tiles are near in time."""
    program, rows, columns = tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN)
    group = program // (8 * columns)
    first = group * 8
    height = min(rows - first, 8)
    i = (first + program % (8 * columns) % height) * BM + tl.arange(0, BM)
    j = (program % (8 * columns) // height) * BN + tl.arange(0, BN)
    p = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(k, BK)):
        at = step * BK + p
        a = tl.load(
            a_ + i[:, None] * k + at[None, :], mask=(i[:, None] < m) & (at[None, :] < k), other=0.0
        )
        b = tl.load(
            b_ + at[:, None] * n + j[None, :], mask=(at[:, None] < k) & (j[None, :] < n), other=0.0
        )
        total = tl.dot(a, b, total)
    c = total.to(c_.dtype.element_ty)
    tl.store(c_ + i[:, None] * n + j[None, :], c, mask=(i[:, None] < m) & (j[None, :] < n))


def rows(name: str) -> dict[str, Callable[..., Any]]:
    """The peer of a chain of row operations, where there is one."""
    if name not in ("softmax", "rms_norm"):
        return {}

    def run(torch: Any, x: Any, gain: Any = None) -> Any:
        kernel, y = kernels()["rows"], torch.empty_like(x)
        count, columns = x.shape
        block = 1 << (columns - 1).bit_length()
        norm = name == "rms_norm"
        warps = 8 if block < 8192 else 16
        kernel[(count,)](
            x, gain if norm else x, y, columns, EPS, NORM=norm, BLOCK=block, num_warps=warps
        )
        return y

    return {"triton": run}


def _matmul(torch: Any, a: Any, b: Any) -> Any:
    kernel = kernels()["matmul"]
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    kernel[lambda meta: (-(-m // meta["BM"]) * -(-n // meta["BN"]),)](a, b, c, m, n, k)
    return c


matmul = {"triton": _matmul}
