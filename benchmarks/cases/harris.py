"""Harris's corner response of a planar colour picture, three pixels in from its edge."""

import numpy as np

import tdsl as td
from benchmarks.case import Array, Case, function, kernel, searched, within
from benchmarks.halide import pipeline as halide

HEIGHT, WIDTH = 2560, 1536


def program(height: int = HEIGHT, width: int = WIDTH) -> dict[str, td.Func]:
    y, x = td.vars("y x")
    image = td.Tensor("image", (3, height, width), td.f32)
    gray, gradient, out = td.Func("gray"), td.Func("gradient"), td.Func("out")
    xx, yy, xy = td.Func("xx"), td.Func("yy"), td.Func("xy")
    gray[y, x] = 0.299 * image[0, y, x] + 0.587 * image[1, y, x] + 0.114 * image[2, y, x]
    dx = (2 / 12) * (gray[y + 1, x + 2] - gray[y + 1, x]) + (1 / 12) * (
        gray[y, x + 2] - gray[y, x] + gray[y + 2, x + 2] - gray[y + 2, x]
    )
    dy = (2 / 12) * (gray[y + 2, x + 1] - gray[y, x + 1]) + (1 / 12) * (
        gray[y + 2, x] - gray[y, x] + gray[y + 2, x + 2] - gray[y, x + 2]
    )
    gradient[y, x] = (dx, dy)

    def window(a: int, b: int):
        gradients = [gradient[y + i, x + j] for i in range(3) for j in range(3)]
        total = gradients[0][a] * gradients[0][b]
        for g in gradients[1:]:
            total = total + g[a] * g[b]
        return total

    xx[y, x], yy[y, x], xy[y, x] = window(0, 0), window(1, 1), window(0, 1)
    trace = xx[y + 1, x + 1] + yy[y + 1, x + 1]
    determinant = xx[y + 1, x + 1] * yy[y + 1, x + 1] - xy[y + 1, x + 1] * xy[y + 1, x + 1]
    out[y, x] = determinant - 0.04 * trace * trace
    # One pixel more than the windows need stays free at the far edges too.
    out = out.with_shape(height - 6, width - 6)
    return {"gray": gray, "gradient": gradient, "xx": xx, "yy": yy, "xy": xy, "out": out}


def default():
    return td.compile(program()["out"])


def hand(height: int = HEIGHT, width: int = WIDTH):
    """Grey and the gradient slide through rings of lines, four lines at a time.

    The windows of four lines have most of their loads in common.
    """
    f = program(height, width)
    s = td.Schedule(f["out"])
    out = s[f["out"]]
    strip, lines = out.split("y", 32)
    four, line = out.split(lines, 4)
    out.reorder(strip, four, "x", line)
    out.parallel(strip)
    out.unroll(line)
    out.vectorize("x", 16)
    for stage in (s[f["gray"]], s[f["gradient"]]):
        stage.store_at(out, strip)
        stage.compute_at(out, four)
        stage.vectorize("x", 16)
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
        "tdsl-search": searched(default),
        "numpy": function(expected),
        **halide.peers("harris"),
    },
    bytes=4 * (3 * HEIGHT * WIDTH + (HEIGHT - 6) * (WIDTH - 6)),
    group="pipelines",
)
