"""Harris's corner response of a planar colour picture, three pixels in from its edge."""

import halide as hl

from benchmarks.case import Arrays
from benchmarks.halide.pipeline import Program, funcs, lanes, variables

STRIP = 64


def build(arrays: Arrays, by_hand: bool) -> Program:
    x, y, strip, line = variables("x y strip line")
    image = hl.ImageParam(hl.Float(32), 3, "image")
    # The automatic schedule rounds extents up and would read outside of the picture.
    source = image if by_hand else hl.BoundaryConditions.repeat_edge(image)
    gray, dx, dy, xx, yy, xy, corner, out = funcs("gray dx dy xx yy xy corner out")
    weights = [hl.f32(w) for w in (0.299, 0.587, 0.114)]
    gray[x, y] = weights[0] * source[x, y, 0] + weights[1] * source[x, y, 1] + weights[2] * source[x, y, 2]
    one, two = hl.f32(1 / 12), hl.f32(2 / 12)
    dx[x, y] = two * (gray[x + 1, y] - gray[x - 1, y]) + one * (
        gray[x + 1, y - 1] - gray[x - 1, y - 1] + gray[x + 1, y + 1] - gray[x - 1, y + 1]
    )
    dy[x, y] = two * (gray[x, y + 1] - gray[x, y - 1]) + one * (
        gray[x - 1, y + 1] - gray[x - 1, y - 1] + gray[x + 1, y + 1] - gray[x + 1, y - 1]
    )

    def window(a: hl.Func, b: hl.Func) -> hl.Expr:
        offsets = [(i, j) for j in (-1, 0, 1) for i in (-1, 0, 1)]
        total = a[x - 1, y - 1] * b[x - 1, y - 1]
        for i, j in offsets[1:]:
            total = total + a[x + i, y + j] * b[x + i, y + j]
        return total

    xx[x, y], yy[x, y], xy[x, y] = window(dx, dx), window(dy, dy), window(dx, dy)
    trace = xx[x, y] + yy[x, y]
    corner[x, y] = xx[x, y] * yy[x, y] - xy[x, y] * xy[x, y] - hl.f32(0.04) * trace * trace
    out[x, y] = corner[x + 3, y + 3]

    def schedule() -> None:
        # Grey and both gradients slide through rings of three lines, the gradients in one sweep.
        v = lanes()
        out.compute_root().split(y, strip, line, STRIP).parallel(strip).vectorize(x, v)
        for stage in (gray, dx, dy):
            stage.store_at(out, strip).compute_at(out, line).vectorize(x, v)
        dx.compute_with(dy, x)

    _, height, width = arrays[0].shape
    return Program([image], out, (height - 6, width - 6), schedule)
