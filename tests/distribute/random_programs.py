"""Random programs and random ways to share them out, the same for a seed on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import tdsl as td

RANKS = (1, 2, 3, 4, 6, 8)
i, j, k = td.vars("i j k")
Grids = tuple[int, ...]


class Chooser:
    """Choices from a seed."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def of(self, options: Any) -> Any:
        listed = list(options)
        return listed[int(self.rng.integers(len(listed)))]

    def number(self, lo: int, hi: int) -> int:
        return int(self.rng.integers(lo, hi + 1))

    def yes(self) -> bool:
        return bool(self.rng.integers(2))

    def order(self, options: Any) -> list[Any]:
        listed = list(options)
        return [listed[n] for n in self.rng.permutation(len(listed))]


@dataclass
class RandomProgram:
    """A func, the loops that may be shared out of each distributed func, and whether it must be ordered.

    `linear` has a func that is linear in another one, and that one.
    """

    out: td.Func
    loops: dict[str, tuple[str, ...]]
    update: bool = False  # the loops are those of an update
    linear: tuple[str, str] = ("", "")


def contraction(c: Chooser) -> RandomProgram:
    """A product of two matrices, reduced in some way."""
    m, n, p = (c.number(0, 7) for _ in range(3))
    dtype = c.of([td.i64, td.i32, td.f64])
    a, b, f = td.Tensor("a", (m, p), dtype), td.Tensor("b", (p, n), dtype), td.Func("f")
    f[i, j] = c.of([td.sum, td.max, td.min])(a[i, k] * b[k, j], axis=k)
    return RandomProgram(f, {"f": ("i", "j", "k")})


def stencil(c: Chooser) -> RandomProgram:
    """Neighbours in a padded tensor, read through a func that ranks share or compute each."""
    m, n = c.number(2, 9), c.number(2, 9)
    a, g, f = td.Tensor("a", (m, n), td.i64), td.Func("g"), td.Func("f", shape=(m, n))
    padded = td.pad(a, mode=c.of(["edge", "constant", "reflect", "wrap"]))
    dy, dx = c.number(-2, 2), c.number(-1, 2)
    g[i, j] = padded[i, j] + 2 * padded[i + dy, j]
    f[i, j] = g[i, j] - g[i, j + dx]
    return RandomProgram(f, {"f": ("i", "j")} | ({"g": ("i", "j")} if c.yes() else {}))


def resampled(c: Chooser) -> RandomProgram:
    """Every other row, and columns twice, of a transposed tensor."""
    m, n = c.number(1, 6), c.number(1, 6)
    a, f = td.Tensor("a", (m, 2 * n), td.i64), td.Func("f", shape=(n, 2 * m))
    f[i, j] = a[j // 2, 2 * i] + i * j
    return RandomProgram(f, {"f": ("i", "j")})


def summed_rows(c: Chooser) -> RandomProgram:
    """Updates that follow the first definition: running sums along what is not shared out."""
    m, n = c.number(1, 8), c.number(2, 6)
    a, f, r = td.Tensor("a", (m, n), td.i64), td.Func("f", shape=(m, n)), td.range("r", 1, n)
    f[i, j] = a[i, j] * 3
    f[i, r] = f[i, r - 1] + a[i, r]
    return RandomProgram(f, {"f": ("i",)})


def counted(c: Chooser) -> RandomProgram:
    """A histogram, whose update ranks share out."""
    n, bins = c.number(1, 20), c.number(1, 6)
    a, f, r = td.Tensor("a", (n,), td.i64), td.Func("f", shape=(bins,)), td.range("r", 0, n)
    f[i] = 0
    f[td.clip(a[r], 0, bins - 1)] += r
    return RandomProgram(f, {"f": ("r",)}, update=True)


def best(c: Chooser) -> RandomProgram:
    """The place of the maximum, from pairs that are reduced over ranks."""
    m, n = c.number(1, 6), c.number(1, 9)
    a, f = td.Tensor("a", (m, n), td.f64), td.Func("f")
    f[i] = c.of([td.argmax, td.argmin])(a[i, k], axis=k)
    name = td.Schedule(f).program.funcs[0].name
    return RandomProgram(f, {name: ("i", "k"), "f": ("i",)})


def ring(c: Chooser) -> RandomProgram:
    """Neighbours around the ends of what is reduced, of which ranks may have parts only."""
    n, m, p = c.number(2, 9), c.number(1, 5), c.number(1, 6)
    a, g, f = td.Tensor("a", (n, m, p), td.i64), td.Func("g"), td.Func("f", shape=(n, m))
    op = c.of([td.sum, td.sum, td.max, td.min])
    g[i, j] = op(a[i, j, k], axis=k)
    wrapped = td.pad(g, mode="wrap", shape=(n, m))
    d, e = c.number(-2, 2), c.number(1, 2)
    f[i, j] = c.of([wrapped[i + d, j], g[e * i % n, (j + 1) % m], wrapped[i - 1, j] + g[i, j]])
    linear = ("f", "g") if op is td.sum else ("", "")
    return RandomProgram(f, {"g": ("i", "j", "k"), "f": ("i", "j")}, linear=linear)


def distant(c: Chooser) -> RandomProgram:
    """Reads of one tensor at two places or more: butterflies, reversed pairs, far stencils, pivot rows."""
    n, m, a, f = 8 * c.number(0, 3), c.number(1, 9), td.Tensor, td.Func("f")
    kind = c.number(0, 3)
    x = a("a", (n,), td.i64) if kind < 3 else a("a", (m, m), td.i64)
    if kind == 0:
        f[i] = x[i] + 2 * x[i ^ c.of([1, 2, 4])]
    elif kind == 1:
        f[i] = x[i] - 3 * x[n - 1 - i]
    elif kind == 2:
        d, e, padded = c.number(1, 9), c.number(1, 9), td.pad(x, mode=c.of(["edge", "constant", "wrap"]))
        f = td.Func("f", shape=n)
        f[i] = padded[i - d] + 2 * padded[i + e] - x[i]
    else:
        t, g = c.number(0, m - 1), td.Func("g")
        g[i] = x[c.number(0, m - 1), i] - x[t, t]
        f[i, j] = x[i, j] - x[i, t] * x[t, j] + g[j] * x[t, t]
        return RandomProgram(f, {"f": ("i", "j")} | ({"g": ("i",)} if c.yes() else {}))
    return RandomProgram(f, {"f": ("i",)})


PROGRAMS = (
    contraction,
    contraction,
    stencil,
    resampled,
    summed_rows,
    counted,
    best,
    ring,
    ring,
    distant,
    distant,
)


def _shapes(ranks: int, axes: int) -> list[Grids]:
    """The grids of a number of ranks with at most so many axes."""
    if axes == 1:
        return [(ranks,)]
    shapes = {(n, *rest) for n in range(1, ranks + 1) if ranks % n == 0
             for rest in _shapes(ranks // n, axes - 1)}  # fmt: skip
    return sorted(shapes | {(ranks,)})


def _entries(
    c: Chooser, s: td.Schedule, program: RandomProgram, name: str, loops: list[str], grid: td.Grid
) -> tuple[Any, ...]:
    """What `distribute` takes for each axis: a loop, every coordinate or one, or partial sources."""
    entries: list[Any] = []
    for n, (size, loop) in enumerate(zip(grid.shape, loops, strict=False)):
        options = [loop, loop, loop, "*", c.number(0, size - 1)]
        if program.linear[0] == name and n in dict(s.state.placed)[program.linear[1]].partial:
            options = ["partial", loop]
        entries.append(c.of(options))
    return tuple(entries)


def _placement(
    c: Chooser, ndim: int, grid: td.Grid, op: str | None, loops: tuple[Any, ...] = (), partial: int = 1
) -> str:
    dims = "abc"[:ndim]
    options = [[*dims, *dims, "*", str(n - 1)] for n in grid.shape]
    if op is not None:
        options = [
            o if loop == "*" else [*o, *[f"partial({op})"] * partial]
            for o, loop in zip(options, loops, strict=True)
        ]
    entries = [c.of(o) for o in options]
    for d in dims:  # what is cut along one axis may be dealt out
        if entries.count(d) == 1 and c.yes():
            entries[entries.index(d)] = f"{d}/{c.number(1, 3)}"
    return f"{dims} -> {' '.join(entries)}"


def schedule(seed: int, distribution: int, ranks: tuple[int, ...] = RANKS) -> td.Schedule:
    """One of the programs, shared out in one of many ways over some number of ranks."""
    program = Chooser(seed).of(PROGRAMS)(Chooser(seed, 0))
    c = Chooser(seed, 1, distribution)
    most = min(len(loops) for loops in program.loops.values())
    axes = [td.Grid(**{x: n}) for x, n in zip("xyz", c.of(_shapes(c.of(ranks), most)), strict=False)]
    grid = td.Grid(**{x: n for g in axes for x, n in g.axes})
    if len(axes) > 1 and (seed + distribution) % 3 == 0:
        grid = td.Grid.of(axes)  # each axis is a level
    s = td.Schedule(program.out)
    for t in s.program.inputs:
        s.place(t.name, _placement(c, len(t.shape), grid, None), grid)
    ranks_of: dict[str, Any] = {}
    for name, loops in program.loops.items():
        f = s.program.func(name)
        combine = f.definitions[-1].combine
        partial = combine is not None and len(f.dtypes) == 1 and not combine.scalars()
        op = combine.kind if combine is not None and partial else None
        entries = _entries(c, s, program, name, c.order(loops), grid)
        if op is None and "partial" in entries:
            op = "sum"
        parts = 4 if name in program.linear else 1
        s.place(name, _placement(c, len(f.variables), grid, op, entries, parts), grid)
        stage = s[name].update(0) if program.update else s[name]
        ranks_of[name] = outer = stage.distribute(entries, grid)
        _communicate(c, s, stage, outer, combine is not None)
        if outer:
            _overlap(Chooser(seed, 3, distribution), s, stage, outer)
    _windows(Chooser(seed, 5, distribution), s, ranks_of)
    if Chooser(seed, 4, distribution).yes():
        s.donate(*(t.name for t in s.program.inputs))
    return s


def _overlap(c: Chooser, s: Any, stage: Any, outer: Any) -> None:
    """Compute the interior while some sources are received, where nothing else says how they are."""
    plan, placed = s.state.plan(stage.func), dict(s.state.placed)
    definitions, said = s.program.func(stage.func).definitions, dict(plan.communicated)
    steps = [loop for loop in said.values() if loop != outer[-1].name]  # inside of the loops of ranks
    for name in dict.fromkeys(r.name for r in definitions[0].reads if r.name in placed):
        dealt_out = any(placed[name].cyclic_size(n) for n in range(len(placed[name].dims)))
        if (
            len(definitions) == 1
            and name not in said
            and not placed[name].partial
            and not dealt_out
            and c.yes()
        ):
            stage.communicate(name, at=(steps or [outer[-1]])[0], overlap=True)


def _windows(c: Chooser, s: Any, ranks_of: dict[str, Any]) -> None:
    """Of two distributed funcs, have results of the first and sources of the second in flight."""
    named = [f.name for f in s.program.funcs if ranks_of.get(f.name)]
    if len(named) < 2:
        return
    first, second = named
    plan = s.state.plan(first)
    if first not in dict(plan.communicated) and c.yes():
        s[first].communicate(first, at=ranks_of[first][-1], until=second)
    said = dict(s.state.plan(second).communicated)
    for read in dict.fromkeys(r.name for d in s.program.func(second).definitions for r in d.reads):
        if read in dict(s.state.placed) and read not in (second, *said) and c.yes():
            s[second].communicate(read, at=ranks_of[second][-1], since=first)


def gathered(c: Chooser) -> RandomProgram:
    """Rows and elements at indices of data, also of sums, of another index and of reads by another func."""
    m, n, p = c.number(1, 9), c.number(0, 9), c.number(1, 4)
    x, at, f = td.Tensor("x", (m, p), td.i64), td.Tensor("at", (n, p), c.of([td.i32, td.i64])), td.Func("f")
    limit = c.of([lambda e: td.clip(e, 0, m - 1), lambda e: td.cast(e, td.i64) % m])
    kind = c.number(0, 4)
    if kind == 0:
        f[i, j] = x[limit(at[i, 0]), j] + i
    elif kind == 1:
        f[i, j] = x[limit(at[i, j]), j] - at[i, j]
    elif kind == 2:
        f[i, j] = td.sum(x[limit(at[i, k]), j] * at[i, k], axis=k)
    elif kind == 3:
        g = td.Func("g")
        g[i, j] = x[limit(at[i, 0]), j] * 2
        f[i, j] = g[i, j] + g[i, p - 1 - j]
    else:
        f[i, j] = x[limit(x[limit(at[i, 0]), j]), p - 1 - j]
    return RandomProgram(f, {"f": ("i", "j")})


def routed_schedule(seed: int, ranks: tuple[int, ...] = RANKS) -> td.Schedule:
    """A program that reads at indices of data, with a route for it at some loop."""
    c = Chooser(seed, 3)
    program = gathered(c)
    grid = td.Grid(**dict(zip("xy", c.of(_shapes(c.of(ranks), 2)), strict=False)))
    if len(grid.shape) > 1 and c.yes():
        grid = td.Grid.of([td.Grid(**{x: n}) for x, n in zip("xy", grid.shape, strict=True)])
    s = td.Schedule(program.out)
    for t in s.program.inputs:
        s.place(t.name, _placement(c, len(t.shape), grid, None), grid)
    entries = _entries(c, s, program, "f", c.order("ij"), grid)
    s.place("f", _placement(c, 2, grid, None, entries), grid)
    outer, stage = s["f"].distribute(entries, grid), s["f"]
    loop = outer[-1] if outer else None
    inside = stage.loops[len(outer) :]
    if inside and (loop is None or c.yes()):
        loop, _ = stage.split(c.of(inside), c.number(1, 3))
        stage.reorder(loop, *(x for x in stage.loops[len(outer) :] if x.name != loop.name))
    stage.communicate("x", at=loop, routed=True)
    return s


def _communicate(c: Chooser, s: Any, stage: Any, outer: Any, reduced: bool) -> None:
    """Go through a loop in steps, and fetch or bring something at it; or say how parts are combined."""
    program, func, fixed = s.program, stage.func, len(outer)
    reads = [t.name for t in program.inputs] if len(program.funcs) == 1 else []
    orders = len(program.func(func).definitions) > 1
    if c.yes() or orders or not stage.loops[fixed:]:
        if reduced and outer and c.yes():
            stage.communicate(func, at=outer[-1], deterministic=c.yes())
        return
    steps, _ = stage.split(c.of(stage.loops[fixed:]), c.number(1, 3))
    stage.reorder(steps, *(x for x in stage.loops[fixed:] if x.name != steps.name))
    if c.yes():
        steps = stage.rotate(steps, by=stage.loops[:fixed])
    moved = [n for n in (*reads, func) if c.yes()]
    if func in moved:
        stage.communicate(func, at=steps)
    if set(moved) - {func}:
        stage.communicate([n for n in moved if n != func], at=steps, prefetch=c.number(0, 2))


def arrays(s: td.Schedule, seed: int) -> dict[str, np.ndarray]:
    """Random whole numbers for the inputs."""
    rng = np.random.default_rng((seed, 2))
    return {
        t.name: rng.integers(-9, 9, tuple(int(e.value) for e in t.shape)).astype(t.dtype.numpy)
        for t in s.program.inputs
    }
