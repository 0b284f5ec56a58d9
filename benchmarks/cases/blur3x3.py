"""A 3x3 box blur of the inside of a picture: two stages, bound by memory."""

import numpy as np

import tdsl as td
from benchmarks.case import Array, Case, function, kernel, searched, vectors, within
from benchmarks.halide import pipeline as halide

HEIGHT, WIDTH = 2048, 2048


def program(height: int = HEIGHT, width: int = WIDTH) -> tuple[td.Func, td.Func]:
    y, x = td.vars("y x")
    image = td.Tensor("image", (height + 2, width + 2), td.f32)
    rows, blur = td.Func("rows"), td.Func("blur")
    rows[y, x] = image[y, x] + image[y, x + 1] + image[y, x + 2]
    blur[y, x] = (rows[y, x] + rows[y + 1, x] + rows[y + 2, x]) * (1 / 9)
    return rows, blur


def default():
    return td.compile(program()[1])


def hand(height: int = HEIGHT, width: int = WIDTH):
    """Strips of lines in parallel; four lines at a time, with the sums of six rows in registers."""
    rows, blur = program(height, width)
    s = td.Schedule(blur)
    strip, lines = s[blur].split("y", 64)
    four, line = s[blur].split(lines, 4)
    two, inner = s[blur].split("x", 32)
    s[blur].reorder(strip, four, two, line, inner)
    s[blur].parallel(strip)
    s[blur].unroll(line)
    vectors(s[blur], inner)
    s[blur].stream_stores()
    s[rows].compute_at(s[blur], two)
    s[rows].unroll("y")
    vectors(s[rows], "x")
    return td.compile(s)


def expected(image: Array) -> Array:
    rows = image[:, :-2] + image[:, 1:-1] + image[:, 2:]
    return (rows[:-2] + rows[1:-1] + rows[2:]) * image.dtype.type(1 / 9)


CASE = Case(
    name="blur3x3",
    title=f"3x3 box blur, {HEIGHT} x {WIDTH}",
    inputs=lambda: (np.random.default_rng(0).random((HEIGHT + 2, WIDTH + 2), dtype=np.float32),),
    is_right=within(8 * np.finfo(np.float32).eps, expected),
    peers={
        "tdsl": kernel(default),
        "tdsl-hand": kernel(hand),
        "tdsl-search": searched(default),
        "numpy": function(expected),
        **halide.peers("blur3x3"),
    },
    bytes=4 * (HEIGHT * WIDTH + (HEIGHT + 2) * (WIDTH + 2)),
    group="pipelines",
)
