"""Convolutions of each channel alone, channels first and channels last, against PyTorch (oneDNN)."""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks import torch_peers
from benchmarks.case import Array, Arrays, Case, Prepare, kernel, within
from benchmarks.cases.conv import channels_last

SIZES = {"N": 1, "C": 64, "H": 112, "W": 112}


def first(step: int) -> td.Operator:
    """Windows of 3 x 3 around every `step`-th pixel of images that are stored channel by channel."""

    @td.op
    def depthwise_first(x: td.f32["N", "C", "H", "W"], w: td.f32["C", 3, 3]):
        n, c, r, s, i, j = td.vars("n c r s i j")
        around, out = td.pad(x), td.Func("out")
        at = (step * i + r - 1, step * j + s - 1)
        out[n, c, i, j] = td.sum(around[n, c, *at] * w[c, r, s], axis=(r, s))
        return out.with_shape("N", "C", *((size - 1) // step + 1 for size in x.shape[2:]))

    return depthwise_first


def last(step: int) -> td.Operator:
    """The same of images that are stored pixel by pixel."""

    @td.op
    def depthwise_last(x: td.f32["N", "H", "W", "C"], w: td.f32[3, 3, "C"]):
        n, c, r, s, i, j = td.vars("n c r s i j")
        around, out = td.pad(x), td.Func("out")
        at = (step * i + r - 1, step * j + s - 1)
        out[n, i, j, c] = td.sum(around[n, *at, c] * w[r, s, c], axis=(r, s))
        return out.with_shape("N", *((size - 1) // step + 1 for size in x.shape[1:3]), "C")

    return depthwise_last


def expected(x: Array, w: Array, step: int, is_first: bool) -> Array:
    """The result by NumPy."""
    if is_first:
        moved = expected(x.transpose(0, 2, 3, 1), w.transpose(1, 2, 0), step, False)
        return moved.transpose(0, 3, 1, 2)
    height, width = x.shape[1:3]
    around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total: Any = 0
    for r in range(3):
        for s in range(3):
            total = total + around[:, r : r + height : step, s : s + width : step] * w[r, s]
    return np.asarray(total)


def torch(step: int, is_first: bool) -> dict[str, Prepare]:
    """PyTorch in both layouts; in that of the input where this is channels last."""

    def program(torch: Any, x: Any, w: Any) -> Any:
        conv = torch.nn.functional.conv2d
        return conv(x, w[:, None], padding=1, stride=step, groups=x.shape[1])

    peers = torch_peers.peers(program, channels_last=True)
    if is_first:
        return peers
    return {name: channels_last(peer) for name, peer in peers.items() if "last" in name}


def case(step: int, is_first: bool) -> Case:
    """A program in one layout, at every `step`-th pixel."""
    n, c, h, w = SIZES.values()
    shapes = ((n, c, h, w), (c, 3, 3)) if is_first else ((n, h, w, c), (3, 3, c))
    pixels = ((h - 1) // step + 1) * ((w - 1) // step + 1)

    def inputs() -> Arrays:
        rng = np.random.default_rng(8)
        return tuple(rng.standard_normal(s, dtype=np.float32) for s in shapes)

    layout = "nchw" if is_first else "nhwc"
    return Case(
        name=f"depthwise-{layout}" + ("" if step == 1 else f"-{step}"),
        title=f"3x3 by channel: {h} x {w} x {c}, channels {'first' if is_first else 'last'}, step {step}",
        inputs=inputs,
        is_right=within(9 * float(np.finfo(np.float32).eps), lambda x, w: expected(x, w, step, is_first)),
        peers={
            "tdsl": kernel(lambda: (first if is_first else last)(step).compile(**SIZES)),
            **torch(step, is_first),
        },
        bytes=4.0 * n * c * (h * w + pixels),
        group="depthwise",
    )


CASES = tuple(case(step, is_first) for step in (1, 2) for is_first in (False, True))
