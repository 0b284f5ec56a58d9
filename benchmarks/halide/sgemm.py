"""A product of two row-major matrices."""

import halide as hl

from benchmarks.case import Arrays
from benchmarks.halide.pipeline import Program, fix_shape, funcs, lanes, variables

ROWS, VECTORS, BLOCK, UNROLL = 8, 3, 64, 4  # register tile; rows of a task; unrolling of k


def build(arrays: Arrays, by_hand: bool) -> Program:
    (m, depth), (_, n) = (a.shape for a in arrays)
    x, y = variables("x y")
    a = hl.ImageParam(hl.Float(32), 2, "a")
    b = hl.ImageParam(hl.Float(32), 2, "b")
    k = hl.RDom([(0, depth)], "k")
    prod, out, packed = funcs("prod out packed")
    if not by_hand:
        prod[x, y] = hl.f32(0)
        prod[x, y] += b[x, k.x] * a[k.x, y]
        out[x, y] = prod[x, y]
        return Program([a, b], out, (m, n), lambda: None)

    v = lanes()
    panel = v * VECTORS
    j, kk, p, xo, xi, yo, yi, yt = variables("j kk p xo xi yo yi yt")
    inside = hl.BoundaryConditions.constant_exterior(b, hl.f32(0), [(0, n), (0, depth)])
    packed[j, kk, p] = inside[p * panel + j, kk]
    prod[j, p, y] = hl.f32(0)
    prod[j, p, y] += packed[j, k.x, p] * a[k.x, y]
    out[x, y] = prod[x % panel, x // panel, y]

    def schedule() -> None:
        guard = hl.TailStrategy.GuardWithIf
        out.compute_root().bound(x, 0, n).bound(y, 0, m).split(x, xo, xi, panel, guard)
        out.split(y, yo, yi, BLOCK).split(yi, yt, yi, ROWS).reorder(xi, yi, yt, xo, yo)
        out.vectorize(xi, v).unroll(xi).unroll(yi).parallel(yo)
        prod.compute_at(out, yt).bound_extent(j, panel).vectorize(j, v).unroll(j).unroll(y)
        prod.update(0).reorder(j, y, k.x, p).vectorize(j, v).unroll(j).unroll(y)
        prod.update(0).unroll(k.x, UNROLL)
        packed.compute_root().bound_extent(j, panel).vectorize(j, v).unroll(j).parallel(p)
        fix_shape(a, (m, depth))
        fix_shape(b, (depth, n))

    return Program([a, b], out, (m, n), schedule)
