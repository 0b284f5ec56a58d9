"""The bilateral grid: splat values and weights, blur in three directions, slice between cells."""

import halide as hl

from benchmarks.case import Arrays
from benchmarks.cases.bilateral_grid import CELL, LEVELS
from benchmarks.halide.pipeline import Program, funcs, lanes, variables


def build(arrays: Arrays, by_hand: bool) -> Program:
    x, y, z, c, strip, line = variables("x y z c strip line")
    image = hl.ImageParam(hl.Float(32), 2, "image")
    edge = hl.BoundaryConditions.repeat_edge(image)
    r = hl.RDom([(0, CELL), (0, CELL)], "r")
    grid, deep, across, down, row, cut, out = funcs("grid deep across down row cut out")

    value = edge[x * CELL + r.x - CELL // 2, y * CELL + r.y - CELL // 2]
    value = hl.clamp(value, hl.f32(0), hl.f32(1))
    level = hl.i32(value * hl.f32(LEVELS) + hl.f32(0.5))
    grid[x, y, z, c] = hl.f32(0)
    grid[x, y, level, c] += hl.mux(c, [value, hl.f32(1)])

    def five(f: hl.Func, axis: int) -> hl.Expr:
        def at(offset: int) -> hl.Expr:
            index = [x, y, z, c]
            index[axis] = index[axis] + offset
            return f[tuple(index)]

        return at(-2) + at(-1) * hl.f32(4) + at(0) * hl.f32(6) + at(1) * hl.f32(4) + at(2)

    deep[x, y, z, c] = five(grid, 2)
    across[x, y, z, c] = five(deep, 0)
    down[x, y, z, c] = five(across, 1)

    def mix(a: hl.Expr, b: hl.Expr, t: hl.Expr) -> hl.Expr:
        return a + (b - a) * t

    height = hl.clamp(image[x, y], hl.f32(0), hl.f32(1)) * hl.f32(LEVELS)
    z0 = hl.i32(height)
    part_x, part_y = (hl.f32(i % CELL) / hl.f32(CELL) for i in (x, y))
    part_z = height - hl.f32(z0)
    # Lines of the grid are mixed once for a line of the picture; a pixel then mixes in x and z.
    row[x, y, z, c] = mix(down[x, y // CELL, z, c], down[x, y // CELL + 1, z, c], part_y)
    x0 = x // CELL
    cut[x, y, c] = mix(
        mix(row[x0, y, z0, c], row[x0 + 1, y, z0, c], part_x),
        mix(row[x0, y, z0 + 1, c], row[x0 + 1, y, z0 + 1, c], part_x),
        part_z,
    )
    out[x, y] = cut[x, y, 0] / cut[x, y, 1]

    def schedule() -> None:
        v = lanes()
        across.compute_root().reorder(x, z, c, y).parallel(y).vectorize(x, v)
        deep.compute_at(across, y).vectorize(x, v)
        grid.compute_at(across, y).vectorize(x, v)
        grid.update(0).reorder(c, r.x, r.y, x, y).unroll(c)
        out.compute_root().split(y, strip, line, CELL).parallel(strip).vectorize(x, v)
        down.compute_at(out, strip).vectorize(x, v)
        row.compute_at(out, line).reorder(x, z, c, y).vectorize(x, v)

    return Program([image], out, arrays[0].shape, schedule)
