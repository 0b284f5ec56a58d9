"""From the raw numbers of a sensor to a colour picture: hot pixels, mosaic, colours, tone."""

import numpy as np

import tdsl as td

HEIGHT, WIDTH = 240, 320
MATRIX = np.array([[1.5, -0.25, -0.25], [-0.25, 1.5, -0.25], [-0.125, -0.5, 1.625]], np.float32)
LEVELS = 1024

c, y, x, i = td.vars("c y x i")
raw = td.Tensor("raw", (HEIGHT, WIDTH), td.u16)
matrix = td.Tensor("matrix", (3, 3), td.f32)
near = td.pad(raw, mode="reflect")

# A pixel far from its neighbours of the same colour is broken: it becomes the nearest of them.
calm = td.Func("calm")
sides = [near[y, x - 2], near[y, x + 2], near[y - 2, x], near[y + 2, x]]
least = td.minimum(td.minimum(sides[0], sides[1]), td.minimum(sides[2], sides[3]))
most = td.maximum(td.maximum(sides[0], sides[1]), td.maximum(sides[2], sides[3]))
calm[y, x] = td.cast(td.clip(near[y, x], least, most), td.f32)

# Green and red alternate in even lines, blue and green in odd ones; the others are means of neighbours.
across, down, cross, slant = (td.Func(n) for n in ("across", "down", "cross", "slant"))
across[y, x] = (calm[y, x - 1] + calm[y, x + 1]) / 2
down[y, x] = (calm[y - 1, x] + calm[y + 1, x]) / 2
cross[y, x] = (across[y, x] + down[y, x]) / 2
slant[y, x] = (across[y - 1, x] + across[y + 1, x]) / 2
even, left = y % 2 == 0, x % 2 == 0
red, green, blue = (td.Func(n) for n in ("red", "green", "blue"))
red[y, x] = td.where(
    even, td.where(left, across[y, x], calm[y, x]), td.where(left, slant[y, x], down[y, x])
)
green[y, x] = td.where(even == left, calm[y, x], cross[y, x])
blue[y, x] = td.where(
    even, td.where(left, down[y, x], slant[y, x]), td.where(left, calm[y, x], across[y, x])
)

# Colours of the sensor become those of a screen, and its numbers a curve of eight bits.
curve, out = td.Func("curve"), td.Func("out", shape=(3, HEIGHT, WIDTH))
curve[i] = td.cast(td.clip(255 * (td.cast(i, td.f32) / LEVELS) ** (1 / 2.2) + 0.5, 0, 255), td.u8)
mixed = matrix[c, 0] * red[y, x] + matrix[c, 1] * green[y, x] + matrix[c, 2] * blue[y, x]
out[c, y, x] = curve[td.clip(td.cast(mixed, td.i32), 0, LEVELS - 1)]

develop = td.compile(out)


def expected(raw: np.ndarray) -> np.ndarray:
    """The same with NumPy, on whole pictures."""
    wide = np.pad(raw, 4, mode="reflect")

    def at(a: np.ndarray, dy: int, dx: int, margin: int) -> np.ndarray:
        h, w = a.shape
        return a[margin + dy : h - margin + dy, margin + dx : w - margin + dx]

    sides = np.stack([at(wide, 0, -2, 2), at(wide, 0, 2, 2), at(wide, -2, 0, 2), at(wide, 2, 0, 2)])
    calm = np.clip(at(wide, 0, 0, 2), sides.min(0), sides.max(0)).astype(np.float32)
    across = (at(calm, 0, -1, 1) + at(calm, 0, 1, 1)) / 2
    down = (at(calm, -1, 0, 1) + at(calm, 1, 0, 1)) / 2
    slant = (at(across, -1, 0, 1) + at(across, 1, 0, 1)) / 2
    calm, across, down = at(calm, 0, 0, 2), at(across, 0, 0, 1), at(down, 0, 0, 1)
    cross = (across + down) / 2
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    even, left = y % 2 == 0, x % 2 == 0
    red = np.where(even, np.where(left, across, calm), np.where(left, slant, down))
    green = np.where(even == left, calm, cross)
    blue = np.where(even, np.where(left, down, slant), np.where(left, calm, across))
    mixed = np.einsum("ck,kyx->cyx", MATRIX, np.stack([red, green, blue]))
    curve = np.clip(255 * (np.arange(LEVELS, dtype=np.float32) / LEVELS) ** (1 / 2.2) + 0.5, 0, 255)
    picture: np.ndarray = curve.astype(np.uint8)[np.clip(mixed.astype(np.int32), 0, LEVELS - 1)]
    return picture


picture = np.random.default_rng(0).integers(0, 900, (HEIGHT, WIDTH)).astype(np.uint16)
picture = picture // 4 + 300
picture[77, 99], picture[120, 40] = 65535, 0
difference = np.abs(develop(raw=picture, matrix=MATRIX).astype(int) - expected(picture).astype(int))
assert difference.max() <= 1, difference.max()  # a power may be rounded to the next level
assert (difference > 0).mean() < 1e-3
print("a picture of", develop(raw=picture, matrix=MATRIX).shape)
