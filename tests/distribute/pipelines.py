"""Random pipelines of stencils, resamplings, transposes and sums, and random ways to share them out."""

from __future__ import annotations

from typing import Any

import numpy as np

import tdsl as td

MODES = ("edge", "constant", "reflect", "symmetric", "wrap")
GRIDS = (
    (1,),
    (2,),
    (3,),
    (4,),
    (5,),
    (6,),
    (7,),
    (8,),
    (1, 2),
    (2, 2),
    (3, 2),
    (2, 3),
    (2, 4),
    (2, 2, 2),
)
i, j = td.vars("i j")


def padded(rng: np.random.Generator, f: Any, shape: tuple[int, int]) -> Any:
    """A tensor or func that can be read anywhere."""
    modes = [m for m in MODES if m != "reflect" or min(shape) > 1]
    return td.pad(f, mode=str(rng.choice(modes)), shape=shape)


def stage(
    rng: np.random.Generator, f: Any, shape: tuple[int, int], name: str
) -> tuple[td.Func, tuple[int, int]]:
    """A func that reads another one in some way, and its shape."""
    rows, columns = shape
    kind = int(rng.integers(6))
    out_shape = (columns, rows) if kind == 1 else shape
    if kind == 2:
        out_shape = (rows // 2 + 1, columns)
    elif kind == 3:
        out_shape = (rows, 2 * columns - 1)
    g, p = td.Func(name, shape=out_shape), padded(rng, f, shape)
    dy, dx = int(rng.integers(-2, 3)), int(rng.integers(-2, 3))
    if kind == 0:
        g[i, j] = p[i, j] + 2 * p[i + dy, j] - p[i, j + dx]
    elif kind == 1:
        g[i, j] = p[j + dy, i] + 3
    elif kind == 2:
        g[i, j] = p[2 * i, j] + p[2 * i + dy, j + dx]
    elif kind == 3:
        g[i, j] = p[i, j // 2] + p[i + dy, (j + 1) // 2]
    elif kind == 4:
        window = td.range("near", 0, int(rng.integers(1, 4)))
        g[i, j] = td.max(p[i, j + window], axis=window)
    else:
        whole = td.Func(name, shape=out_shape)
        whole[i, j] = f[i, j] * (i + 2) - f[rows - 1 - i, j]
        return whole, out_shape
    return g, out_shape


def program(rng: np.random.Generator) -> td.Func:
    """One to four stages; the last may read an earlier one, too."""
    shape = (int(rng.integers(1, 10)), int(rng.integers(1, 10)))
    a = td.Tensor("a", shape, td.i64)
    stages: list[tuple[Any, tuple[int, int]]] = [(a, shape)]
    for n in range(int(rng.integers(1, 5))):
        stages.append(stage(rng, *stages[-1], f"f{n}"))
    if rng.random() < 0.4:
        last, whole = stages[-1]
        early, small = stages[int(rng.integers(len(stages)))]
        f = td.Func("last", shape=whole)
        f[i, j] = last[i, j] + padded(rng, early, small)[i, j]
        return f
    return stages[-1][0]


def placement(rng: np.random.Generator, grid: td.Grid) -> str:
    """Blocks, copies, one coordinate, or blocks that are dealt out."""
    entries = [str(rng.choice(["r", "c", "r", "c", "*", str(n - 1)])) for n in grid.shape]
    for d in "rc":
        if entries.count(d) == 1 and rng.random() < 0.3:
            entries[entries.index(d)] = f"{d}/{rng.integers(1, 4)}"
    return f"rc -> {' '.join(entries)}"


def random_distribution(rng: np.random.Generator, f: td.Func) -> td.Schedule:
    """A schedule that shares the output and some of its producers out over a random grid."""
    shape = GRIDS[int(rng.integers(len(GRIDS)))]
    grid = td.Grid(**dict(zip("xyz", shape, strict=False)))
    s = td.Schedule(f)
    s.place("a", placement(rng, grid), grid)
    for g in s.program.funcs:
        if g.name != f.name and (g.name not in NAMED or rng.random() < 0.5):
            continue
        s.place(g.name, placement(rng, grid), grid)
        loops = [str(rng.choice(g.variables)) for _ in shape]
        s[g.name].distribute(loops, grid)
    return s


NAMED = {f"f{n}" for n in range(4)}
