"""A 3x3 box blur of the inside of a picture."""

import halide as hl

from benchmarks.case import Arrays
from benchmarks.halide.pipeline import Program, funcs, lanes, variables

STRIP = 64


def build(arrays: Arrays, by_hand: bool) -> Program:
    (source,) = arrays
    x, y, strip, line = variables("x y strip line")
    image = hl.ImageParam(hl.Float(32), 2, "image")
    rows, blur = funcs("rows blur")
    rows[x, y] = image[x, y] + image[x + 1, y] + image[x + 2, y]
    blur[x, y] = (rows[x, y] + rows[x, y + 1] + rows[x, y + 2]) * hl.f32(1 / 9)

    def schedule() -> None:
        # Strips of lines in parallel; inside one, sums of rows slide through a folded buffer.
        blur.compute_root().split(y, strip, line, STRIP).parallel(strip).vectorize(x, lanes())
        rows.store_at(blur, strip).compute_at(blur, line).vectorize(x, lanes())

    height, width = source.shape
    return Program([image], blur, (height - 2, width - 2), schedule)
