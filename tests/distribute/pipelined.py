"""Programs whose layers are stages on ranks of their own, computed by micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tdsl as td

b, i, j = td.vars("b i j")


def chain(ranks: int, steps: int, chunks: int = 1, order: Any = None, *, windows: bool = True) -> td.Schedule:
    """A pipeline whose stages take one operation for each of ten elements, forward and backward.

    Rank r has the stages r, r + ranks, ...; stage k keeps its results `h{k}` for the backward part, `d{k}`.
    """
    count = ranks * chunks
    x, dy = td.Tensor("x", (steps, 10), td.f64), td.Tensor("dy", (steps, 10), td.f64)
    h, d = ([td.Func(f"{name}{k}") for k in range(count)] for name in "hd")
    for k in range(count):
        h[k][b, i] = (h[k - 1] if k else x)[b, i] * 2
    for k in reversed(range(count)):
        d[k][b, i] = (d[k + 1] if k + 1 < count else dy)[b, i] * h[k][b, i]
    grid, s = td.Grid(stage=ranks), td.Schedule(d[0])
    s.place(x, "bi -> 0", grid).place(dy, f"bi -> {ranks - 1}", grid)
    loops = []
    for k, f, source in (
        *((k, h[k], h[k - 1] if k else None) for k in range(count)),
        *((k, d[k], d[k + 1] if k + 1 < count else None) for k in reversed(range(count))),
    ):
        s.place(f, f"bi -> {k % ranks}", grid)[f].distribute(k % ranks, grid)
        loops.append(s[f].divide(b, steps)[0])
        if source is not None:
            s[f].communicate(source, at=loops[-1], since=source if windows else None)
    return s.interleave(loops, order=order)


def training(stages: int, batch: int, width: int) -> tuple[td.Func, ...]:
    """A perceptron's outputs, after the gradients of the weights of its layers.

    Stage n receives its inputs, `a{n}`, computes `h{n}`, later the gradients `d{n}` of its inputs and `g{n}`
    of its weights.
    """
    x, dy = td.Tensor("x", (batch, width), td.i64), td.Tensor("dy", (batch, width), td.i64)
    weights = [td.Tensor(f"w{n}", (width, width), td.i64) for n in range(stages)]
    a, h, d, g = ([td.Func(f"{name}{n}") for n in range(stages)] for name in "ahdg")
    for n in range(stages):
        before = h[n - 1] if n else x
        a[n][b, i] = td.maximum(before[b, i], 0)
        h[n][b, j] = td.sum(a[n][b, i] * weights[n][i, j], axis=i)
    for n in reversed(range(stages)):
        after = d[n + 1] if n + 1 < stages else dy
        g[n][i, j] = td.sum(a[n][b, i] * after[b, j], axis=b)
        if n:
            d[n][b, i] = td.sum(td.where(a[n][b, i] > 0, after[b, j] * weights[n][i, j], 0), axis=j)
    return (*g, h[-1])


def on_stages(funcs: Sequence[td.Func], stages: int) -> td.Schedule:
    """The schedule with each stage on a rank of its own."""
    grid, s = td.Grid(stage=stages), td.Schedule(*funcs)
    s.place("x", "bi -> 0", grid).place("dy", f"bi -> {stages - 1}", grid)
    for n in range(stages):
        s.place(f"w{n}", f"ij -> {n}", grid)
    for f in s.program.funcs:
        n = int(f.name[1:])
        s.place(f.name, f"ij -> {n}", grid)[f.name].distribute(n, grid)
    return s


def steps_of(s: td.Schedule, stages: int, count: int, *, windows: bool = False) -> list[Any]:
    """Divide the batch of each stage into steps, which it communicates; returns their loops.

    These are the loops of the forward stages, then of the backward stages, which begin with the last stage.
    """
    forward: list[Any] = []
    backward: list[Any] = []
    for n in range(stages):
        for loops, names in ((forward, f"a{n} h{n}"), (backward, f"d{n} g{n}" if n else "g0")):
            loops.append([])
            for name in names.split():
                step, _ = s[name].divide(b, count)
                if name[0] == "g":
                    s[name].reorder(step, i, j)
                read = [f"h{n - 1}"] * (name[0] == "a" and n > 0)
                read += [f"d{n + 1}"] * (name[0] in "dg" and n + 1 < stages)
                for source in read:
                    s[name].communicate(source, at=step, since=source if windows else None)
                loops[-1].append(step)
    return forward + backward[::-1]


def arrays(stages: int, batch: int, width: int) -> list[Any]:
    """Inputs of small integers."""
    rng = np.random.default_rng(0)
    shapes = [(batch, width)] * 2 + [(width, width)] * stages
    return [rng.integers(-2, 3, shape) for shape in shapes]


def gradients(inputs: Sequence[Any], stages: int) -> list[Any]:
    """What `training` computes, by NumPy."""
    x, dy, *weights = inputs
    a, h = [], x
    for w in weights:
        a.append(np.maximum(h, 0))
        h = a[-1] @ w
    grads = []
    for n in reversed(range(stages)):
        grads.append(a[n].T @ dy)
        dy = (dy @ weights[n].T) * (a[n] > 0)
    return [*reversed(grads), h]
