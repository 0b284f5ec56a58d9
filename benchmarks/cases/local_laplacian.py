"""A local Laplacian filter: details of a picture amplified level by level, edges kept.

For each of some brightnesses the picture is remapped around it and made a pyramid; each pixel of each
level of the result is taken from the pyramids of the two brightnesses next to its own.
"""

from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array, Arrays, Case, function, kernel, within

HEIGHT, WIDTH = 2560, 1536
TONES, LEVELS = 8, 6  # brightnesses; levels of a pyramid
ALPHA, BETA, WIDE = 0.5, 0.8, 0.25  # gain of details and of edges; where details end


def program(height: int = HEIGHT, width: int = WIDTH) -> td.Func:
    c, k, y, x = td.vars("c k y x")
    image = td.Tensor("image", (3, height, width), td.f32)
    shapes = [(height, width)]
    for _ in range(LEVELS - 1):
        shapes.append(tuple(-(-n // 2) for n in shapes[-1]))

    def down(name: str, f: td.Func, shape: tuple[int, ...], *leading: Any) -> td.Func:
        """Half as many points each way, each a mean of 4 x 4, at the edges of a picture of a shape."""
        shape_padded = (*(TONES for _ in leading), *shape)
        padded = td.pad(f, mode="edge", shape=shape_padded)
        lines, halved = td.Func(f"{name}_lines"), td.Func(name)

        def mean(at):
            return (at(-1) + 3 * (at(0) + at(1)) + at(2)) * 0.125

        lines[(*leading, y, x)] = mean(lambda n: padded[(*leading, 2 * y + n, x)])
        halved[(*leading, y, x)] = mean(lambda n: lines[(*leading, y, 2 * x + n)])
        return halved

    def up(f: td.Func, shape: tuple[int, ...], *leading: Any):
        """Twice as many points each way, between those of a level of a shape."""
        shape_padded = (*(TONES for _ in leading), *shape)
        padded = td.pad(f, mode="edge", shape=shape_padded)

        def mix(at, v):
            return 0.75 * at(v // 2) + 0.25 * at(v // 2 - 1 + 2 * (v % 2))

        return mix(lambda row: mix(lambda col: padded[(*leading, row, col)], x), y)

    gray, remapped = td.Func("gray0"), td.Func("tones0")
    gray[y, x] = 0.299 * image[0, y, x] + 0.587 * image[1, y, x] + 0.114 * image[2, y, x]
    away = gray[y, x] - td.cast(k, td.f32) / (TONES - 1)
    detail = ALPHA * away * td.exp(-away * away / (2 * WIDE * WIDE))
    remapped[k, y, x] = gray[y, x] - (1 - BETA) * away + detail
    grays, tones = [gray], [remapped]
    for n in range(1, LEVELS):
        grays.append(down(f"gray{n}", grays[-1], shapes[n - 1]))
        tones.append(down(f"tones{n}", tones[-1], shapes[n - 1], k))

    result = None
    for n in reversed(range(LEVELS)):
        place = td.clip(grays[n][y, x], 0, 1) * (TONES - 1)
        tone = td.clip(td.cast(place, td.i32), 0, TONES - 2)
        part = place - td.cast(tone, td.f32)
        band = td.Func(f"band{n}")
        coarser = up(tones[n + 1], shapes[n + 1], k) if n + 1 < LEVELS else None
        band[k, y, x] = tones[n][k, y, x] - (0 if coarser is None else coarser)
        mixed = band[tone, y, x] * (1 - part) + band[tone + 1, y, x] * part
        level = td.Func(f"out{n}")
        level[y, x] = mixed if result is None else mixed + up(result, shapes[n + 1])
        result = level
    out = td.Func("out")
    out[c, y, x] = image[c, y, x] * result[y, x] / (gray[y, x] + 0.01)
    return out.with_shape(3, height, width)


def expected(image: Array) -> Array:
    real = image.dtype.type
    gray = real(0.299) * image[0] + real(0.587) * image[1] + real(0.114) * image[2]
    away = gray - np.arange(TONES, dtype=image.dtype)[:, None, None] / real(TONES - 1)
    detail = real(ALPHA) * away * np.exp(-away * away / real(2 * WIDE * WIDE))
    grays, tones = [gray], [gray - real(1 - BETA) * away + detail]
    for _ in range(1, LEVELS):
        grays.append(_down(grays[-1]))
        tones.append(_down(tones[-1]))
    result = None
    for g, t, coarse in zip(grays[::-1], tones[::-1], [None, *tones[:0:-1]], strict=True):
        place = np.clip(g, 0, 1) * real(TONES - 1)
        tone = np.clip(place.astype(np.int32), 0, TONES - 2)
        part = place - tone
        band = t if coarse is None else t - _up(coarse, g.shape)
        below, above = (np.take_along_axis(band, tone[None] + n, 0)[0] for n in (0, 1))
        mixed = below * (1 - part) + above * part
        result = mixed if result is None else mixed + _up(result, g.shape)
    return image * (result / (gray + real(0.01)))


def _down(a: Array) -> Array:
    for axis in (-2, -1):
        n = a.shape[axis]
        half = 2 * np.arange(-(-n // 2))
        p, q, r, s = (np.take(a, np.clip(half + i, 0, n - 1), axis) for i in (-1, 0, 1, 2))
        a = (p + 3 * (q + r) + s) * a.dtype.type(0.125)
    return a


def _up(a: Array, shape: tuple[int, ...]) -> Array:
    for axis in (-2, -1):
        n = np.arange(shape[axis])
        far = np.clip(n // 2 - 1 + 2 * (n % 2), 0, a.shape[axis] - 1)
        a = a.dtype.type(0.75) * np.take(a, n // 2, axis) + a.dtype.type(0.25) * np.take(a, far, axis)
    return a


def inputs() -> Arrays:
    return (np.random.default_rng(11).random((3, HEIGHT, WIDTH), dtype=np.float32),)


CASE = Case(
    name="local_laplacian",
    title=f"local Laplacian filter, 3 x {HEIGHT} x {WIDTH}, {TONES} tones, {LEVELS} levels",
    inputs=inputs,
    is_right=within(1e4 * float(np.finfo(np.float32).eps), expected, widen=False),
    peers={"tdsl": kernel(lambda: td.compile(program())), "numpy": function(expected)},
    bytes=2 * 4 * 3 * HEIGHT * WIDTH,
)
