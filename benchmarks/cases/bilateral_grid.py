"""The bilateral grid: splat values and weights, blur in three directions, slice between cells."""

import numpy as np

import tdsl as td
from benchmarks.case import Array, Arrays, Case, kernel, searched, within
from benchmarks.halide import pipeline as halide

HEIGHT, WIDTH = 2560, 1536
CELL, LEVELS = 8, 10  # pixels of a cell each way; levels of brightness
WEIGHTS = (1, 4, 6, 4, 1)


def program(height: int = HEIGHT, width: int = WIDTH) -> dict[str, td.Func]:
    c, z, y, x = td.vars("c z y x")
    image = td.Tensor("image", (height, width), td.f32)
    edge = td.pad(image, mode="edge")
    i, j = td.range("i", 0, CELL), td.range("j", 0, CELL)
    grid, deep, across, down = (td.Func(name) for name in ("grid", "deep", "across", "down"))
    row, cut, out = (td.Func(name) for name in ("row", "cut", "out"))

    value = td.clip(edge[y * CELL + i - CELL // 2, x * CELL + j - CELL // 2], 0, 1)
    level = td.cast(value * LEVELS + 0.5, td.i32)
    grid[c, z, y, x] = td.cast(0, td.f32)
    grid[c, td.clip(level, 0, LEVELS), y, x] += td.where(c == 0, value, 1)

    def five(at):
        return at(-2) + at(-1) * 4 + at(0) * 6 + at(1) * 4 + at(2)

    deep[c, z, y, x] = five(lambda k: grid[c, z + k, y, x])
    across[c, z, y, x] = five(lambda k: deep[c, z, y, x + k])
    down[c, z, y, x] = five(lambda k: across[c, z, y + k, x])

    def mix(a, b, t):
        return a + (b - a) * t

    height = td.clip(image[y, x], 0, 1) * LEVELS
    z0 = td.clip(td.cast(height, td.i32), 0, LEVELS)
    part_y, part_x = (td.cast(v % CELL, td.f32) / CELL for v in (y, x))
    part_z = height - td.cast(z0, td.f32)
    # Lines of the grid are mixed once for a line of the picture; a pixel then mixes in x and z.
    row[c, z, y, x] = mix(down[c, z, y // CELL, x], down[c, z, y // CELL + 1, x], part_y)
    x0 = x // CELL
    cut[c, y, x] = mix(
        mix(row[c, z0, y, x0], row[c, z0, y, x0 + 1], part_x),
        mix(row[c, z0 + 1, y, x0], row[c, z0 + 1, y, x0 + 1], part_x),
        part_z,
    )
    out[y, x] = cut[0, y, x] / cut[1, y, x]
    return {
        "grid": grid, "deep": deep, "across": across, "down": down, "row": row, "cut": cut, "out": out,
    }  # fmt: skip


def default():
    return td.compile(program()["out"])


def hand(height: int = HEIGHT, width: int = WIDTH):
    """The grid, deep and across line by line in parallel; then strips of one cell's height.

    Levels are next to each other in memory: those of a cell fit a vector, so that a pixel's are looked up
    in registers.
    """
    f = program(height, width)
    s = td.Schedule(f["out"])
    grid, deep, across, down, row, out = (
        s[f[name]] for name in ("grid", "deep", "across", "down", "row", "out")
    )
    for stage in (grid, deep, across, down, row):
        stage.reorder("y", "c", "x", "z")
        stage.reorder_storage("c", "y", "x", "z")
        stage.vectorize("z", 16)
    across.compute_root()
    across.parallel("y")
    deep.compute_at(across, "y")
    grid.compute_at(across, "y")
    splat = grid.update(0)
    splat.reorder("y", "x", "i", "j", "c")
    splat.unroll("c")
    strip, line = out.split("y", CELL)
    out.parallel(strip)
    out.vectorize("x", 16)
    down.compute_at(out, strip)
    row.compute_at(out, line)
    s[f["cut"]].inline()
    return td.compile(s)


def expected(image: Array) -> Array:
    grid = _splat(image).astype(np.float64)
    for axis in (1, 3, 2):
        n = grid.shape[axis]
        grid = sum(w * np.take(grid, np.arange(i, n - 4 + i), axis) for i, w in enumerate(WEIGHTS))
    y, x = np.mgrid[0 : image.shape[0], 0 : image.shape[1]]
    height = image * np.float32(LEVELS)
    z = height.astype(np.int32)
    part = (height - z).astype(np.float64)

    def mix(a: Array, b: Array, t: Array) -> Array:
        return a + (b - a) * t

    def plane(c: int, k: int) -> Array:
        def at(dy: int, dx: int) -> Array:
            return grid[c, z + k, y // CELL + dy, x // CELL + dx]

        across = (x % CELL) / CELL
        return mix(mix(at(0, 0), at(0, 1), across), mix(at(1, 0), at(1, 1), across), (y % CELL) / CELL)

    value, weight = (mix(plane(c, 0), plane(c, 1), part) for c in (0, 1))
    return value / weight


def _splat(image: Array) -> Array:
    """Sums and counts of the pixels of each cell and level, two cells and levels around the picture."""
    height, width = image.shape
    gy, gx = np.arange(-2, (height - 1) // CELL + 4), np.arange(-2, (width - 1) // CELL + 4)
    grid = np.zeros((2, LEVELS + 6, len(gy), len(gx)))
    row, column = np.meshgrid(np.arange(len(gy)), np.arange(len(gx)), indexing="ij")
    for i in range(CELL):
        ys = np.clip(gy * CELL + i - CELL // 2, 0, height - 1)
        for j in range(CELL):
            xs = np.clip(gx * CELL + j - CELL // 2, 0, width - 1)
            value = image[np.ix_(ys, xs)]
            level = (value * np.float32(LEVELS) + np.float32(0.5)).astype(np.int32) + 2
            np.add.at(grid[0], (level, row, column), value)
            np.add.at(grid[1], (level, row, column), 1)
    return grid


def inputs() -> Arrays:
    """A picture of 256 grey levels: none lies on the border between two levels of the grid."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    noise = 0.05 * np.random.default_rng(3).standard_normal((HEIGHT, WIDTH))
    light = 0.5 + 0.35 * np.sin(x / 37) * np.cos(y / 53) + noise
    return ((np.clip(light, 0, 1) * 255).astype(np.uint8) / np.float32(255),)


CASE = Case(
    name="bilateral_grid",
    title=f"bilateral grid, {HEIGHT} x {WIDTH}",
    inputs=inputs,
    is_right=within(1e3 * np.finfo(np.float32).eps, expected, widen=False),
    peers={
        "tdsl": kernel(default),
        "tdsl-hand": kernel(hand),
        "tdsl-search": searched(default),
        **halide.peers("bilateral_grid"),
    },
    bytes=2 * 4 * HEIGHT * WIDTH,
    group="pipelines",
)
