"""Unsharp masking of a planar colour picture: grey, Gaussian of 7 taps each way, ratio, scale."""

import math

import numpy as np

import tdsl as td
from benchmarks.case import Array, Arrays, Case, function, kernel, searched, within
from benchmarks.halide import pipeline as halide

HEIGHT, WIDTH = 2560, 1536
SIGMA = 1.5
TAPS = tuple(math.exp(-k * k / (2 * SIGMA**2)) / (math.sqrt(2 * math.pi) * SIGMA) for k in range(4))


def program(height: int = HEIGHT, width: int = WIDTH) -> dict[str, td.Func]:
    c, y, x = td.vars("c y x")
    image = td.Tensor("image", (3, height, width), td.f32)
    edge = td.pad(image, mode="edge")
    gray, down, across = td.Func("gray"), td.Func("down"), td.Func("across")
    ratio, out = td.Func("ratio"), td.Func("out")
    gray[y, x] = 0.299 * edge[0, y, x] + 0.587 * edge[1, y, x] + 0.114 * edge[2, y, x]
    down[y, x] = TAPS[0] * gray[y, x] + (
        TAPS[1] * (gray[y - 1, x] + gray[y + 1, x])
        + TAPS[2] * (gray[y - 2, x] + gray[y + 2, x])
        + TAPS[3] * (gray[y - 3, x] + gray[y + 3, x])
    )
    across[y, x] = TAPS[0] * down[y, x] + (
        TAPS[1] * (down[y, x - 1] + down[y, x + 1])
        + TAPS[2] * (down[y, x - 2] + down[y, x + 2])
        + TAPS[3] * (down[y, x - 3] + down[y, x + 3])
    )
    ratio[y, x] = (2 * gray[y, x] - across[y, x]) / gray[y, x]
    out[c, y, x] = ratio[y, x] * image[c, y, x]
    return {"gray": gray, "down": down, "across": across, "ratio": ratio, "out": out}


def default():
    return td.compile(program()["out"])


def hand(height: int = HEIGHT, width: int = WIDTH):
    """Grey slides through a ring of lines; the other stages live for one line of three planes."""
    f = program(height, width)
    s = td.Schedule(f["out"])
    out = s[f["out"]]
    strip, line = out.split("y", 32)
    out.reorder(strip, line, "c", "x")
    out.parallel(strip)
    out.vectorize("x", 16)
    out.stream_stores()
    s[f["gray"]].store_at(out, strip)
    for name in ("gray", "down", "ratio"):
        s[f[name]].compute_at(out, line)
        s[f[name]].vectorize("x", 16)
    s[f["across"]].inline()
    return td.compile(s)


def expected(image: Array) -> Array:
    real = image.dtype.type
    gray = real(0.299) * image[0] + real(0.587) * image[1] + real(0.114) * image[2]
    height, width = gray.shape
    blurred = np.pad(gray, 3, mode="edge")
    taps = [real(TAPS[abs(k)]) for k in range(-3, 4)]
    blurred = sum(t * blurred[i : i + height] for i, t in enumerate(taps))
    blurred = sum(t * blurred[:, i : i + width] for i, t in enumerate(taps))
    return image * ((real(2) * gray - blurred) / gray)


def inputs() -> Arrays:
    rng = np.random.default_rng(1)
    return (rng.random((3, HEIGHT, WIDTH), dtype=np.float32) * np.float32(0.9) + np.float32(0.1),)


CASE = Case(
    name="unsharp",
    title=f"unsharp mask, 3 x {HEIGHT} x {WIDTH}",
    inputs=inputs,
    is_right=within(64 * np.finfo(np.float32).eps, expected),
    peers={
        "tdsl": kernel(default),
        "tdsl-hand": kernel(hand),
        "tdsl-search": searched(default),
        "numpy": function(expected),
        **halide.peers("unsharp"),
    },
    bytes=2 * 4 * 3 * HEIGHT * WIDTH,
    group="pipelines",
)
