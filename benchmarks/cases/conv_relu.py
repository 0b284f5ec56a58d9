"""A 3x3 convolution with bias and relu, channels last: bound by arithmetic."""

import numpy as np

import tdsl as td
from benchmarks.case import Array, Arrays, Case, function, kernel, searched, vectors, within
from benchmarks.halide import pipeline as halide

BATCH, HEIGHT, WIDTH, IN, OUT = 5, 80, 100, 128, 128


@td.op
def conv_relu(source: td.f32["N", "H", "W", "C"], kernel: td.f32["C", 3, 3, "F"], bias: td.f32["F"]):
    n, y, x, f, c, r, s = td.vars("n y x f c r s")
    acc, out = td.Func("acc"), td.Func("out")
    acc[n, y, x, f] = td.sum(source[n, y + r, x + s, c] * kernel[c, r, s, f], axis=(r, s, c))
    out[n, y, x, f] = td.maximum(acc[n, y, x, f] + bias[f], 0)
    return out


SIZES = {"N": BATCH, "H": HEIGHT + 2, "W": WIDTH + 2, "C": IN, "F": OUT}


def default():
    return conv_relu.compile(**SIZES)


def hand(**sizes: int):
    """A register tile of 5 pixels by 64 channels holds its sums over the whole window.

    The weights of 64 channels are side by side in the order of the sums.
    """
    s = conv_relu.schedule(**SIZES | sizes)
    out, acc = s["out"], s["acc"]
    block, inner = out.split("f", 64)
    group, pixel = out.split("x", 5)
    out.reorder(block, "n", "y", group, pixel, inner)
    task = out.fuse(block, "n")
    out.parallel(out.fuse(task, "y"))
    vectors(out, inner)
    out.unroll(pixel)
    acc.compute_at(out, group)
    acc.reorder("r", "s", "c", "n", "y", "x", "f")
    vectors(acc, "f")
    acc.unroll("x")
    panels = s.cache_read("kernel", acc, pack={3: 64}, name="panels")
    panels.reorder_storage(3, 1, 2, 0, 4)
    panels.reorder("d3", "d1", "d2", "d0", "d4")
    panels.vectorize("d4", 16)
    return td.compile(s)


def expected(source: Array, weights: Array, bias: Array) -> Array:
    batch, height, width, channels = source.shape
    out = np.zeros((batch, height - 2, width - 2, weights.shape[3]), source.dtype) + bias
    for r in range(3):
        for s in range(3):
            pixels = source[:, r : r + height - 2, s : s + width - 2].reshape(-1, channels)
            out += (pixels @ weights[:, r, s]).reshape(out.shape)
    return np.maximum(out, 0)


def inputs() -> Arrays:
    rng = np.random.default_rng(4)
    shapes = ((BATCH, HEIGHT + 2, WIDTH + 2, IN), (IN, 3, 3, OUT), (OUT,))
    source, weights, bias = (rng.standard_normal(s, dtype=np.float32) for s in shapes)
    return source, weights * np.float32(0.05), bias


CASE = Case(
    name="conv_relu",
    title=f"3x3 convolution, bias, relu: {BATCH} x {HEIGHT} x {WIDTH} x {IN} to {OUT}",
    inputs=inputs,
    is_right=within(9 * IN * np.finfo(np.float32).eps, expected),
    peers={
        "tdsl": kernel(default),
        "tdsl-hand": kernel(hand),
        "tdsl-search": searched(default),
        "numpy": function(expected),
        **halide.peers("conv_relu"),
    },
    flops=2 * BATCH * HEIGHT * WIDTH * OUT * IN * 9,
    group="pipelines",
)
