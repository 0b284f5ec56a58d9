"""Two convolutions in a row, channels first and channels last, against PyTorch (oneDNN)."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks import torch_peers
from benchmarks.case import Array, Arrays, Call, Case, Converted, Prepare, kernel, within

BLOCK = {"N": 1, "C": 64, "H": 56, "W": 56, "F": 64, "G": 256}
SEPARABLE = {"N": 1, "C": 128, "H": 56, "W": 56, "G": 128}


@td.op
def block_first(x: td.f32["N", "C", "H", "W"], w: td.f32["F", "C", 3, 3], v: td.f32["G", "F"]):
    """A 3x3 convolution, relu, and a 1x1 convolution of images that are stored channel by channel."""
    n, c, f, g, r, s, i, j = td.vars("n c f g r s i j")
    padded = td.pad(x)
    conv, out = td.Func("conv"), td.Func("out")
    conv[n, f, i, j] = td.sum(padded[n, c, i + r - 1, j + s - 1] * w[f, c, r, s], axis=(c, r, s))
    out[n, g, i, j] = td.sum(td.maximum(conv[n, f, i, j], 0) * v[g, f], axis=f)
    return out.with_shape("N", "G", "H", "W")


@td.op
def block_last(x: td.f32["N", "H", "W", "C"], w: td.f32[3, 3, "C", "F"], v: td.f32["F", "G"]):
    """The same of images that are stored pixel by pixel."""
    n, c, f, g, r, s, i, j = td.vars("n c f g r s i j")
    padded = td.pad(x)
    conv, out = td.Func("conv"), td.Func("out")
    conv[n, i, j, f] = td.sum(padded[n, i + r - 1, j + s - 1, c] * w[r, s, c, f], axis=(r, s, c))
    out[n, i, j, g] = td.sum(td.maximum(conv[n, i, j, f], 0) * v[f, g], axis=f)
    return out.with_shape("N", "H", "W", "G")


@td.op
def separable_first(x: td.f32["N", "C", "H", "W"], w: td.f32["C", 3, 3], v: td.f32["G", "C"]):
    """A 3x3 convolution of each channel, relu, and a 1x1 convolution."""
    n, c, g, r, s, i, j = td.vars("n c g r s i j")
    padded = td.pad(x)
    deep, out = td.Func("deep"), td.Func("out")
    deep[n, c, i, j] = td.sum(padded[n, c, i + r - 1, j + s - 1] * w[c, r, s], axis=(r, s))
    out[n, g, i, j] = td.sum(td.maximum(deep[n, c, i, j], 0) * v[g, c], axis=c)
    return out.with_shape("N", "G", "H", "W")


@td.op
def separable_last(x: td.f32["N", "H", "W", "C"], w: td.f32[3, 3, "C"], v: td.f32["C", "G"]):
    """The same of images that are stored pixel by pixel."""
    n, c, g, r, s, i, j = td.vars("n c g r s i j")
    padded = td.pad(x)
    deep, out = td.Func("deep"), td.Func("out")
    deep[n, i, j, c] = td.sum(padded[n, i + r - 1, j + s - 1, c] * w[r, s, c], axis=(r, s))
    out[n, i, j, g] = td.sum(td.maximum(deep[n, i, j, c], 0) * v[c, g], axis=c)
    return out.with_shape("N", "H", "W", "G")


def expected(x: Array, w: Array, v: Array, first: bool) -> Array:
    """The result by NumPy; a window of three dimensions has weights for each channel alone."""
    if first:
        back = (2, 3, 1, 0) if w.ndim == 4 else (1, 2, 0)
        return expected(x.transpose(0, 2, 3, 1), w.transpose(back), v.T, False).transpose(0, 3, 1, 2)
    height, width = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total: Any = 0
    for r in range(3):
        for s in range(3):
            part = padded[:, r : r + height, s : s + width]
            total = total + (part @ w[r, s] if w.ndim == 4 else part * w[r, s])
    out: Array = np.maximum(total, 0) @ v
    return out


def program(torch: Any, x: Any, w: Any, v: Any) -> Any:
    """The same by PyTorch, which wants channels first."""
    w = w if w.ndim == 4 else w[:, None]
    groups = x.shape[1] // w.shape[1]
    conv = torch.nn.functional.conv2d
    return conv(torch.relu(conv(x, w, padding=1, groups=groups)), v[:, :, None, None])


def channels_last(peer: Prepare) -> Prepare:
    """A peer that is given images stored pixel by pixel as the layout "channels last" of PyTorch."""

    def prepare(arrays: Arrays) -> Call:
        x, w, *rest = arrays
        order = (3, 2, 0, 1) if w.ndim == 4 else (2, 0, 1)
        transposed = np.ascontiguousarray(w.transpose(order))
        call = peer((x.transpose(0, 3, 1, 2), transposed, *(v.T for v in rest)))
        assert isinstance(call, Converted)
        return Converted(call.call, lambda result: call.convert(result).transpose(0, 2, 3, 1))

    return prepare


def torch(first: bool) -> dict[str, Prepare]:
    """PyTorch in both layouts; in that of the input where this is channels last."""
    peers = torch_peers.peers(program, channels_last=True)
    if first:
        return peers
    return {name: channels_last(peer) for name, peer in peers.items() if "last" in name}


def case(name: str, what: str, op: td.Operator, sizes: dict[str, int], first: bool) -> Case:
    """A program in one layout, channels `first` or last."""
    n, c, h, w, g = (sizes[s] for s in "NCHWG")
    inner = sizes.get("F", c)
    shape = (n, c, h, w) if first else (n, h, w, c)
    channels = (inner, c) if "F" in sizes else (inner,)
    window = (*channels, 3, 3) if first else (3, 3, *reversed(channels))
    pointwise = (g, inner) if first else (inner, g)

    def inputs() -> Arrays:
        rng = np.random.default_rng(6)
        return tuple(rng.standard_normal(s, dtype=np.float32) for s in (shape, window, pointwise))

    terms = 9 * (c if "F" in sizes else 1)
    return Case(
        name=name,
        title=f"{what}: {h} x {w} x {c} to {g}, channels {'first' if first else 'last'}",
        inputs=inputs,
        is_right=within(
            (terms + inner) * float(np.finfo(np.float32).eps),
            lambda x, w, v: expected(x, w, v, first),
        ),
        peers={
            "tdsl": kernel(lambda: op.compile(**sizes)),
            **torch(first),
        },
        flops=2.0 * n * h * w * inner * (terms + g),
        group="conv",
    )


BLOCK_TITLE, SEPARABLE_TITLE = "3x3 convolution, relu, 1x1", "3x3 by channel, relu, 1x1"
CASES = (
    case("conv-block-nhwc", BLOCK_TITLE, block_last, BLOCK, first=False),
    case("conv-block-nchw", BLOCK_TITLE, block_first, BLOCK, first=True),
    case("conv-separable-nhwc", SEPARABLE_TITLE, separable_last, SEPARABLE, first=False),
    case("conv-separable-nchw", SEPARABLE_TITLE, separable_first, SEPARABLE, first=True),
)
