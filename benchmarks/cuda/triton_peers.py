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
    """The kernels, created on first use."""
    try:
        import triton

        from benchmarks.cuda import triton_kernels
    except ImportError:
        raise PeerMissing("pip install triton") from None
    configs = [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_stages=stages, num_warps=warps)
        for bm, bn, bk, stages, warps in (
            (128, 256, 64, 3, 8), (128, 128, 64, 4, 8), (128, 128, 32, 4, 4), (64, 128, 64, 4, 4),
        )
    ]  # fmt: skip
    tuned = triton.autotune(configs, key=["m", "n", "k"])
    return {"rows": triton_kernels.row, "matmul": tuned(triton_kernels.product)}


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
        kernel[(count,)](x, gain if norm else x, y, columns, EPS, NORM=norm, BLOCK=block, num_warps=warps)
        return y

    return {"triton": run}


def _matmul(torch: Any, a: Any, b: Any) -> Any:
    kernel = kernels()["matmul"]
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    kernel[lambda meta: (-(-m // meta["BM"]) * -(-n // meta["BN"]),)](a, b, c, m, n, k)
    return c


matmul = {"triton": _matmul}
