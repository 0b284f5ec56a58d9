"""A 3x3 convolution with bias and relu, channels last."""

import halide as hl

from benchmarks.case import Arrays
from benchmarks.halide.pipeline import Program, fix_shape, funcs, lanes, variables

PIXELS, VECTORS, UNROLL = 5, 4, 4  # the register tile, and how far its reduction is unrolled


def build(arrays: Arrays, by_hand: bool) -> Program:
    image, weights, _ = arrays
    batch, height, width, channels = image.shape
    c, x, y, n, block, inner, group, pixel = variables("c x y n block inner group pixel")
    source = hl.ImageParam(hl.Float(32), 4, "source")
    kernel = hl.ImageParam(hl.Float(32), 4, "kernel")
    bias = hl.ImageParam(hl.Float(32), 1, "bias")
    r = hl.RDom([(0, channels), (0, 3), (0, 3)], "r")
    acc, out = funcs("acc out")
    acc[c, x, y, n] = bias[c]
    acc[c, x, y, n] += kernel[c, r.y, r.z, r.x] * source[r.x, x + r.y, y + r.z, n]
    out[c, x, y, n] = hl.max(hl.f32(0), acc[c, x, y, n])

    def schedule() -> None:
        v = lanes()
        out.compute_root().split(c, block, inner, v * VECTORS).split(x, group, pixel, PIXELS)
        out.reorder(inner, pixel, group, y, n, block).vectorize(inner, v).unroll(inner)
        out.unroll(pixel).parallel(y).parallel(n).parallel(block)
        acc.compute_at(out, group).vectorize(c, v).unroll(c).unroll(x).unroll(y)
        acc.update(0).reorder(c, x, y, r.x, r.y, r.z, n).vectorize(c, v).unroll(c)
        acc.update(0).unroll(x).unroll(y).unroll(r.x, UNROLL)
        for parameter, array in zip((source, kernel, bias), arrays, strict=True):
            fix_shape(parameter, array.shape)

    shape = (batch, height - 2, width - 2, weights.shape[3])
    return Program([source, kernel, bias], out, shape, schedule)
