"""Harris's corner response of a planar colour picture, three pixels in from its edge."""

import numpy as np

import tdsl as td
from benchmarks.case import Array, Case, function, kernel, within
from benchmarks.halide import pipeline as halide

HEIGHT, WIDTH = 2560, 1536


def program() -> dict[str, td.Func]:
    y, x = td.vars("y x")
    image = td.Tensor("image", (3, HEIGHT, WIDTH), td.f32)
    gray, dx, dy, out = td.Func("gray"), td.Func("dx"), td.Func("dy"), td.Func("out")
    xx, yy, xy = td.Func("xx"), td.Func("yy"), td.Func("xy")
    gray[y, x] = 0.299 * image[0, y, x] + 0.587 * image[1, y, x] + 0.114 * image[2, y, x]
    dx[y, x] = (2 / 12) * (gray[y + 1, x + 2] - gray[y + 1, x]) + (1 / 12) * (
        gray[y, x + 2] - gray[y, x] + gray[y + 2, x + 2] - gray[y + 2, x]
    )
    dy[y, x] = (2 / 12) * (gray[y + 2, x + 1] - gray[y, x + 1]) + (1 / 12) * (
        gray[y + 2, x] - gray[y, x] + gray[y + 2, x + 2] - gray[y, x + 2]
    )

    def window(a: td.Func, b: td.Func):
        near = [(i, j) for i in range(3) for j in range(3)]
        total = a[y, x] * b[y, x]
        for i, j in near[1:]:
            total = total + a[y + i, x + j] * b[y + i, x + j]
        return total

    xx[y, x], yy[y, x], xy[y, x] = window(dx, dx), window(dy, dy), window(dx, dy)
    trace = xx[y + 1, x + 1] + yy[y + 1, x + 1]
    determinant = xx[y + 1, x + 1] * yy[y + 1, x + 1] - xy[y + 1, x + 1] * xy[y + 1, x + 1]
    out[y, x] = determinant - 0.04 * trace * trace
    # One pixel more than the windows need stays free at the far edges too.
    out = out.with_shape(HEIGHT - 6, WIDTH - 6)
    return {"gray": gray, "dx": dx, "dy": dy, "xx": xx, "yy": yy, "xy": xy, "out": out}


def default():
    return td.compile(program()["out"])


def hand():
    """Grey and both gradients slide through rings of lines, four lines at a time.

    The windows of two lines have most of their loads and products in common.
    """
    f = program()
    s = td.Schedule(f["out"])
    out = s[f["out"]]
    strip, lines = out.split("y", 64)
    four, lines = out.split(lines, 4)
    two, line = out.split(lines, 2)
    out.reorder(strip, four, two, "x", line)
    out.parallel(strip)
    out.unroll(line)
    out.vectorize("x", 16)
    for name in ("gray", "dx", "dy"):
        s[f[name]].store_at(out, strip)
        s[f[name]].compute_at(out, four)
        s[f[name]].vectorize("x", 16)
    for name in ("xx", "yy", "xy"):
        s[f[name]].inline()
    return td.compile(s)


def expected(image: Array) -> Array:
    real = image.dtype.type
    gray = real(0.299) * image[0] + real(0.587) * image[1] + real(0.114) * image[2]

    def at(dy: int, dx: int) -> Array:
        return gray[1 + dy : gray.shape[0] - 1 + dy, 1 + dx : gray.shape[1] - 1 + dx]

    def window(a: Array) -> Array:
        height, width = a.shape[0] - 2, a.shape[1] - 2
        return sum(a[i : i + height, j : j + width] for i in range(3) for j in range(3))

    dx = real(2 / 12) * (at(0, 1) - at(0, -1))
    dx += real(1 / 12) * (at(-1, 1) - at(-1, -1) + at(1, 1) - at(1, -1))
    dy = real(2 / 12) * (at(1, 0) - at(-1, 0))
    dy += real(1 / 12) * (at(1, -1) - at(-1, -1) + at(1, 1) - at(-1, 1))
    xx, yy, xy = window(dx * dx), window(dy * dy), window(dx * dy)
    return (xx * yy - xy * xy - real(0.04) * (xx + yy) ** 2)[1:-1, 1:-1]


CASE = Case(
    name="harris",
    title=f"Harris corners, 3 x {HEIGHT} x {WIDTH}",
    inputs=lambda: (np.random.default_rng(2).random((3, HEIGHT, WIDTH), dtype=np.float32),),
    is_right=within(64 * np.finfo(np.float32).eps, expected),
    peers={
        "tdsl": kernel(default),
        "tdsl-hand": kernel(hand),
        "numpy": function(expected),
        **halide.peers("harris"),
    },
    bytes=4 * (3 * HEIGHT * WIDTH + (HEIGHT - 6) * (WIDTH - 6)),
    group="pipelines",
)
