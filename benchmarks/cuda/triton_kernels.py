"""Kernels in Triton, which has to be installed."""

import triton
import triton.language as tl


@triton.jit
def row(x_, gain_, y_, columns, eps, NORM: tl.constexpr, BLOCK: tl.constexpr):
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


@triton.jit
def product(
    a_, b_, c_, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
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
        a = tl.load(a_ + i[:, None] * k + at[None, :], mask=(i[:, None] < m) & (at[None, :] < k), other=0.0)
        b = tl.load(b_ + at[:, None] * n + j[None, :], mask=(at[:, None] < k) & (j[None, :] < n), other=0.0)
        total = tl.dot(a, b, total)
    c = total.to(c_.dtype.element_ty)
    tl.store(c_ + i[:, None] * n + j[None, :], c, mask=(i[:, None] < m) & (j[None, :] < n))
