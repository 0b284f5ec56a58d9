"""Chains of convolutions, of image restoration, mobile networks and networks for pictures."""

from functools import partial
from math import prod
from typing import Any

from benchmarks.chains.chain import Chain

SIDE = 256


def norm_conv_gate(ops: Any, x: Any, gain: Any, shift: Any, w: Any, filters: Any) -> Any:
    return ops.gate(ops.depthwise(ops.conv(ops.layer_norm2d(x, gain, shift), w), filters))


def norm_gate_residual(ops: Any, x: Any, gain: Any, shift: Any, w: Any, u: Any, gamma: Any) -> Any:
    h = ops.gate(ops.conv(ops.layer_norm2d(x, gain, shift), w))
    return ops.scale_channels(ops.conv(h, u), gamma) + x


def conv_depthwise(ops: Any, x: Any, w: Any, filters: Any) -> Any:
    return ops.depthwise(ops.conv(x, w), filters)


def conv_shuffle(ops: Any, x: Any, w: Any) -> Any:
    return ops.pixel_shuffle(ops.conv(x, w), 4)


def gated_forward(ops: Any, x: Any, w: Any, filters: Any, u: Any) -> Any:
    return ops.conv(ops.gelu_gate(ops.depthwise(ops.conv(x, w), filters)), u)


def inverted_residual(ops: Any, x: Any, w: Any, filters: Any, u: Any) -> Any:
    h = ops.relu6(ops.depthwise(ops.relu6(ops.conv(x, w)), filters))
    return ops.conv(h, u) + x


def conv_relu_conv(ops: Any, x: Any, w: Any, u: Any, step: int) -> Any:
    return ops.conv(ops.relu(ops.conv(x, w, step)), u)


def depthwise_conv(ops: Any, x: Any, filters: Any, w: Any, step: int) -> Any:
    return ops.conv(ops.depthwise(x, filters, step), w)


def adds_concat_pool(ops: Any, *arrays: Any) -> Any:
    *pairs, one, other = arrays
    sums = [a + b for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    return ops.max_pool(ops.concat(sums), 2, 2) + one + other


def _picture(n: int, c: int) -> tuple[int, ...]:
    return (n, c, SIDE, SIDE)


def _conv_relu_conv(c: int, h: int, w: int, k1: int, k2: int, step: int) -> Chain:
    pixels = ((h - 1) // step + 1) * ((w - 1) // step + 1)
    return Chain(
        f"chain-23-{c}x{h}-{k1}", f"3x3 of {c} x {h} x {w} to {k1} by {step}, relu, 1x1 to {k2}",
        partial(conv_relu_conv, step=step), ((1, c, h, w), (k1, c, 3, 3), (k2, k1, 1, 1)), 9 * c + k1,
        2.0 * pixels * k1 * (9 * c + k2),
    )  # fmt: skip


def _depthwise_conv(c: int, h: int, w: int, k: int, step: int) -> Chain:
    pixels = ((h - 1) // step + 1) * ((w - 1) // step + 1)
    return Chain(
        f"chain-25-{c}x{h}", f"3x3 by channel of {c} x {h} x {w} by {step}, 1x1 to {k}",
        partial(depthwise_conv, step=step), ((1, c, h, w), (c, 3, 3), (k, c, 1, 1)), 9 + c,
        2.0 * pixels * c * (9 + k),
    )  # fmt: skip


def _point(out: int, inner: int) -> tuple[int, ...]:
    return (out, inner, 1, 1)


def _flops(pixels: int, *taps: int) -> float:
    return 2.0 * pixels * sum(taps)


AREA = SIDE * SIDE
ADDED, JOINED, POOLED = (1, 16, 64, 64), 9, (1, 144, 32, 32)

CHAINS = (
    Chain(
        "chain-3", "norm of channels, 1x1 16 to 32, 3x3 by channel, gate: 4 x 256 x 256", norm_conv_gate,
        (_picture(4, 16), (16,), (16,), _point(32, 16), (32, 3, 3)), 64,
        _flops(4 * AREA, 16 * 32, 9 * 32),
    ),
    Chain(
        "chain-5", "norm of channels, 1x1 16 to 32, gate, 1x1, scale, residual: 4 x 256 x 256",
        norm_gate_residual,
        (_picture(4, 16), (16,), (16,), _point(32, 16), _point(16, 16), (16,)), 64,
        _flops(4 * AREA, 16 * 32, 16 * 16),
    ),
    Chain(
        "chain-7-blue", "1x1 12 to 64, 3x3 by channel: 256 x 256", conv_depthwise,
        (_picture(1, 12), _point(64, 12), (64, 3, 3)), 32, _flops(AREA, 12 * 64, 9 * 64),
    ),
    Chain(
        "chain-7-shuffle", "3x3 64 to 48, pixels of groups of 16 channels: 256 x 256", conv_shuffle,
        (_picture(1, 64), (48, 64, 3, 3)), 9 * 64, _flops(AREA, 9 * 64 * 48),
    ),
    Chain(
        "chain-8", "1x1 48 to 144, 3x3 by channel: 256 x 256", conv_depthwise,
        (_picture(1, 48), _point(144, 48), (144, 3, 3)), 64, _flops(AREA, 48 * 144, 9 * 144),
    ),
    Chain(
        "chain-10", "1x1 48 to 256, 3x3 by channel, gelu gate, 1x1 to 48: 256 x 256", gated_forward,
        (_picture(1, 48), _point(256, 48), (256, 3, 3), _point(48, 128)), 256,
        _flops(AREA, 48 * 256, 9 * 256, 128 * 48),
    ),
    Chain(
        "chain-12", "1x1 24 to 144, relu6, 3x3 by channel, relu6, 1x1 to 24, residual: 8 x 56 x 56",
        inverted_residual,
        ((8, 24, 56, 56), _point(144, 24), (144, 3, 3), _point(24, 144)), 256,
        _flops(8 * 56 * 56, 24 * 144, 9 * 144, 24 * 144),
    ),
    *(
        _conv_relu_conv(*shape)
        for shape in (
            (64, 112, 112, 192, 128, 2),
            (32, 147, 147, 64, 80, 2),
            (64, 56, 56, 128, 64, 1),
            (128, 28, 28, 256, 128, 1),
            (16, 227, 227, 64, 16, 4),
        )
    ),
    *(
        _depthwise_conv(*shape)
        for shape in (
            (32, 112, 112, 64, 1),
            (32, 56, 56, 64, 1),
            (64, 112, 112, 64, 1),
            (16, 224, 224, 32, 2),
        )
    ),
    Chain(
        "chain-41", "9 sums side by side as channels, pooled by 2 x 2, two sums", adds_concat_pool,
        (ADDED,) * (2 * JOINED) + (POOLED,) * 2, 8, float(3 * prod(POOLED)),
    ),
)  # fmt: skip
