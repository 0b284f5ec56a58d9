"""Chains of dense layers, and single operators that nothing should slow down."""

from functools import partial
from math import prod
from typing import Any

from benchmarks.chains.chain import Chain


def forward(ops: Any, x: Any, w: Any, b: Any, u: Any, d: Any, gain: Any, shift: Any) -> Any:
    h = ops.gelu(_product(ops, x, w) + b)
    return ops.layer_norm(_product(ops, h, u) + d + x, gain, shift)


def norm_product(ops: Any, x: Any, w: Any) -> Any:
    return _product(ops, ops.rms_norm(x), w)


def gated(ops: Any, x: Any, w: Any, u: Any) -> Any:
    return ops.silu(_product(ops, x, w)) * _product(ops, x, u)


def gated_forward(ops: Any, x: Any, w: Any, u: Any, v: Any) -> Any:
    return _product(ops, gated(ops, x, w, u), v)


def two_products(ops: Any, a: Any, b: Any, d: Any) -> Any:
    return _product(ops, _product(ops, a, b), d)


def _product(ops: Any, a: Any, b: Any) -> Any:
    return ops.einsum("ik,kj->ij", a, b)


def conv(ops: Any, x: Any, w: Any, step: int = 1) -> Any:
    return ops.conv(x, w, step)


def depthwise(ops: Any, x: Any, w: Any) -> Any:
    return ops.depthwise(x, w, 2)


def rows(ops: Any, x: Any) -> Any:
    return ops.row_sum(x)


def pool(ops: Any, x: Any) -> Any:
    return ops.max_pool(x, 3, 2)


def _dense(name: str, m: int, k: int, n: int) -> Chain:
    return Chain(name, f"product, {m} x {k} x {n}", _product, ((m, k), (k, n)), k, 2.0 * m * k * n)


ROWS, WIDTH, INNER = 1024, 768, 3072
TOKENS, NARROW, WIDE = 512, 1280, 3456

CHAINS = (
    Chain(
        "chain-14", f"dense {ROWS} x {WIDTH} x {INNER}, gelu, dense, residual, layer norm", forward,
        ((ROWS, WIDTH), (WIDTH, INNER), (INNER,), (INNER, WIDTH), (WIDTH,), (WIDTH,), (WIDTH,)),
        WIDTH + INNER, 4.0 * ROWS * WIDTH * INNER,
    ),
    *(
        Chain(
            f"chain-30-{b}", f"rms norm, product: {2 * b} x 4096 x 6144", norm_product,
            ((2 * b, 4096), (4096, 6144)), 2 * 4096, 2.0 * 2 * b * 4096 * 6144,
        )
        for b in (1, 8)
    ),
    Chain(
        "chain-31", "silu(x w) * (x u): 8 x 4096 x 4096", gated, ((8, 4096), (4096, 4096), (4096, 4096)),
        2 * 4096, 4.0 * 8 * 4096 * 4096,
    ),
    Chain(
        "chain-40", "two products, 1024 x 512 x 1024 x 512", two_products,
        ((1024, 512), (512, 1024), (1024, 512)), 512 + 1024, 4.0 * 1024 * 512 * 1024,
    ),
    Chain(
        "chain-42", f"silu(x w) * (x u), product: {TOKENS} x {NARROW} x {WIDE}", gated_forward,
        ((TOKENS, NARROW), (NARROW, WIDE), (NARROW, WIDE), (WIDE, NARROW)), NARROW + WIDE,
        6.0 * TOKENS * NARROW * WIDE,
    ),
    Chain(
        "chain-43-C0", "3x3 of 4 x 128 x 28 x 28 to 128", conv, ((4, 128, 28, 28), (128, 128, 3, 3)),
        9 * 128, 2.0 * 4 * 28 * 28 * 128 * 128 * 9,
    ),
    Chain(
        "chain-43-C35", "7x7 of 4 x 3 x 224 x 224 to 64 by 2", partial(conv, step=2),
        ((4, 3, 224, 224), (64, 3, 7, 7)), 49 * 3, 2.0 * 4 * 112 * 112 * 64 * 3 * 49,
    ),
    _dense("chain-43-M0", 16384, 2, 1024),
    _dense("chain-43-M4", 1024, 1024, 1024),
    _dense("chain-43-M6", 128, 30522, 1024),
    Chain("chain-43-R2", "sums of 65536 rows of 121", rows, ((65536, 121),), 121, float(prod((65536, 121)))),
    Chain(
        "chain-43-D0", "5x5 by channel of 16 x 84 x 42 x 42 by 2", depthwise,
        ((16, 84, 42, 42), (84, 5, 5)), 25, 2.0 * 16 * 84 * 21 * 21 * 25,
    ),
    Chain(
        "chain-43-P", "3x3 maxima of 8 x 168 x 83 x 83 by 2", pool, ((8, 168, 83, 83),), 9,
        9.0 * 8 * 168 * 41 * 41,
    ),
)  # fmt: skip
