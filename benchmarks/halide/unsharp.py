"""Unsharp masking of a planar colour picture: grey, Gaussian of 7 taps each way, ratio, scale."""

import halide as hl

from benchmarks.case import Arrays
from benchmarks.cases.unsharp import TAPS
from benchmarks.halide.pipeline import Program, funcs, lanes, variables

STRIP = 32


def build(arrays: Arrays, by_hand: bool) -> Program:
    x, y, c, strip, line = variables("x y c strip line")
    image = hl.ImageParam(hl.Float(32), 3, "image")
    edge = hl.BoundaryConditions.repeat_edge(image)
    gray, down, across, ratio, out = funcs("gray down across ratio out")
    weights = [hl.f32(w) for w in (0.299, 0.587, 0.114)]
    gray[x, y] = weights[0] * edge[x, y, 0] + weights[1] * edge[x, y, 1] + weights[2] * edge[x, y, 2]
    taps = [hl.f32(t) for t in TAPS]
    down[x, y] = taps[0] * gray[x, y] + (
        taps[1] * (gray[x, y - 1] + gray[x, y + 1])
        + taps[2] * (gray[x, y - 2] + gray[x, y + 2])
        + taps[3] * (gray[x, y - 3] + gray[x, y + 3])
    )
    across[x, y] = taps[0] * down[x, y] + (
        taps[1] * (down[x - 1, y] + down[x + 1, y])
        + taps[2] * (down[x - 2, y] + down[x + 2, y])
        + taps[3] * (down[x - 3, y] + down[x + 3, y])
    )
    ratio[x, y] = (hl.f32(2) * gray[x, y] - across[x, y]) / gray[x, y]
    out[x, y, c] = ratio[x, y] * image[x, y, c]

    def schedule() -> None:
        # Grey slides through a ring of lines; the other stages live for one line of three planes.
        v = lanes()
        out.compute_root().bound(c, 0, 3).split(y, strip, line, STRIP)
        out.reorder(x, c, line, strip).vectorize(x, v).parallel(strip)
        gray.store_at(out, strip).compute_at(out, line).vectorize(x, v)
        down.compute_at(out, line).vectorize(x, v)
        ratio.compute_at(out, line).vectorize(x, v)

    return Program([image], out, arrays[0].shape, schedule)
