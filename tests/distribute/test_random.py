"""Random programs on random grids: what is simulated is what one rank gives, and moves what was planned."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import tdsl as td
from tdsl.lang.interp import interpret

GRIDS = st.sampled_from(
    [(1,), (2,), (3,), (4,), (5,), (7,), (8,), (1, 2), (2, 2), (3, 2), (2, 4), (2, 2, 2)]
)
EXTENTS = st.integers(0, 7)
i, j, k = td.vars("i j k")


def placement(draw: st.DrawFn, ndim: int, grid: td.Grid) -> str:
    dims = "abc"[:ndim]
    entries = [draw(st.sampled_from([*dims, *dims, "*", str(n - 1)])) for n in grid.shape]
    for d in dims:  # what is cut along one axis may be dealt out
        if entries.count(d) == 1 and draw(st.booleans()):
            entries[entries.index(d)] = f"{d}/{draw(st.integers(1, 3))}"
    return f"{dims} -> {' '.join(entries)}"


def contraction(draw: st.DrawFn) -> tuple[td.Func, tuple[Any, ...]]:
    """A product of two matrices, reduced in some way."""
    m, n, p = (draw(EXTENTS) for _ in range(3))
    a, b, f = td.Tensor("a", (m, p), td.i64), td.Tensor("b", (p, n), td.i64), td.Func("f")
    reduced = draw(st.sampled_from([td.sum, td.max, td.min]))
    f[i, j] = reduced(a[i, k] * b[k, j], axis=k)
    return f, (i, j, k)


def stencil(draw: st.DrawFn) -> tuple[td.Func, tuple[Any, ...]]:
    """Neighbours in a padded tensor, read through a func that ranks share or compute each."""
    m, n = draw(st.integers(2, 9)), draw(st.integers(2, 9))
    a, g, f = td.Tensor("a", (m, n), td.i64), td.Func("g"), td.Func("f", shape=(m, n))
    padded = td.pad(a, mode=draw(st.sampled_from(["edge", "constant", "reflect", "wrap"])))
    dy, dx = draw(st.integers(-2, 2)), draw(st.integers(-1, 2))
    g[i, j] = padded[i, j] + 2 * padded[i + dy, j]
    f[i, j] = g[i, j] - g[i, j + dx]
    return f, (i, j)


def resampled(draw: st.DrawFn) -> tuple[td.Func, tuple[Any, ...]]:
    """Every other row, and columns twice, of a transposed tensor."""
    m, n = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    a, f = td.Tensor("a", (m, 2 * n), td.i64), td.Func("f", shape=(n, 2 * m))
    f[i, j] = a[j // 2, 2 * i] + i * j
    return f, (i, j)


@st.composite
def schedules(draw: st.DrawFn) -> td.Schedule:
    f, loops = draw(st.sampled_from([contraction, stencil, resampled]))(draw)
    shape = draw(GRIDS)
    if len(shape) > len(loops):
        shape = shape[: len(loops)]
    grid = td.Grid(**dict(zip("xyz", shape, strict=False)))
    s = td.Schedule(f)
    shared = [t.name for t in s.program.inputs] + [f.name]
    if s.program.has_func("g") and draw(st.booleans()):
        shared.append("g")
    chosen = draw(st.permutations(loops))[: len(shape)]
    for name in shared:
        func = s.program.has_func(name)
        ndim = len(s.program.func(name).variables if func else s.program.input(name).shape)
        s.place(name, placement(draw, ndim, grid), grid)
        if func:
            s[name].distribute(draw(st.permutations(chosen)) if name != f.name else chosen, grid)
    stage = s[f]
    if draw(st.booleans()):
        inner = draw(st.sampled_from(stage.loops[len(shape) :]))
        steps, _ = stage.split(inner, draw(st.integers(1, 3)))
        rest = [x for x in stage.loops[len(shape) :] if x.name != steps.name]
        stage.reorder(steps, *rest)
        if draw(st.booleans()):
            steps = stage.rotate(steps, by=stage.loops[: len(shape)])
        known = [n for n in (*shared[:-1], f.name) if n in _reached(s)]
        moved = draw(st.lists(st.sampled_from(known), unique=True, min_size=1))
        stage.communicate(moved, at=steps)
    return s


def _reached(s: td.Schedule) -> set[str]:
    inputs = {"a", "b", "f"}
    return inputs - (
        {"a"} if s.state.program.has_func("g") and s.state.plan("g").distributed else set()
    )


@given(schedules(), st.integers(0, 2**32 - 1))
def test_ranks_give_what_one_rank_gives_and_move_what_was_planned(
    s: td.Schedule, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    p = td.compile(s, target="python")
    shapes = {a.name: tuple(e.value for e in a.shape) for a in p.signature.inputs}
    arrays = {n: rng.integers(-99, 99, shape) for n, shape in shapes.items()}
    (wanted,) = interpret(s.program, arrays)
    got, counted = p.simulate(**arrays, count=True)
    np.testing.assert_array_equal(got, wanted)
    plan = p.plan()
    assert (counted.received, counted.sent) == (plan.received, plan.sent)
