"""Products of matrices on grids of ranks that are given: the algorithms of the literature.

    cannon, summa, pumma      tiles of all three on a grid of two axes, in steps of k
    johnson                   a cube: each matrix on one of its sides
    solomonik_2_5d            layers of square grids, which share k

Each takes the stage of C[i, j] = sum(A[i, k] * B[k, j]), places the matrices and distributes its loops.
With `prefetch`, the first three fetch so many steps ahead. They go through k in `panels`, by default the
fewest of which each is in one tile of both factors: the least common multiple of the sides of the grid.
"""

from __future__ import annotations

import math

from tdsl.autoschedule.recipes.choices import recipe
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import ScheduleError
from tdsl.lang.expr import Const, Expr, Var
from tdsl.lang.program import bind_expr
from tdsl.lang.regions import reads_in
from tdsl.placement.grid import Grid
from tdsl.schedule.fluent import Stage
from tdsl.schedule.naming import check_grid

MAX_STEPS = 4  # panels for each row or column of the grid, of which there are more


@frozen
class Product:
    """The loops of a product, and its tensors with the letters of their dimensions: m, n and k."""

    i: str
    j: str
    k: str
    tensors: tuple[tuple[str, str], ...]

    @property
    def factors(self) -> tuple[str, str]:
        """The two matrices that are multiplied: that of i and k, then that of k and j."""
        return self.tensors[0][0], self.tensors[1][0]

    def place(self, stage: Stage, grid: Grid, *entries: str) -> None:
        """Place both factors and the result."""
        for (name, dims), entry in zip(self.tensors, entries, strict=True):
            stage.schedule.place(name, f"{dims} -> {entry}", grid)


def product_of(stage: Stage) -> Product:
    """How a stage is a product of two matrices; ScheduleError where it is none."""
    program = stage.schedule.state.program
    d = program.func(stage.func).definitions[stage.definition]
    if len(d.free) == 2 and len(d.ranges) == 1 and d.combine is not None:
        i, j, k = *d.free, d.ranges[0][0]
        letters: dict[Expr, str] = {Var(i): "m", Var(j): "n", Var(k): "k"}
        dims_of: dict[str, set[str]] = {}
        for r in reads_in(d.values):
            dims_of.setdefault(r.name, set()).add("".join(letters.get(e, "?") for e in r.index))
        of = {"".join(sorted(dims)): name for name, (dims, *_) in dims_of.items()}
        dims = {name: next(iter(texts)) for name, texts in dims_of.items()}
        if set(of) == {"km", "kn"} and all(len(texts) == 1 for texts in dims_of.values()):
            a, b = of["km"], of["kn"]
            result = "".join(letters[e] for e in d.index if isinstance(e, Var))
            return Product(i, j, k, ((a, dims[a]), (b, dims[b]), (stage.func, result)))
    raise ScheduleError(
        f"{stage.func!r} is no product of two matrices",
        loc=here(),
        label="this recipe",
        hint="it takes C[i, j] = td.sum(A[i, k] * B[k, j], axis=k), of two tensors or funcs",
    )


@recipe
def summa(stage: Stage, grid: Grid, prefetch: int = 0, panels: int | None = None) -> Stage:
    """Tiles on a grid of two axes; whole rows and columns fetch panels of k (van de Geijn, Watts)."""
    return _tiles(stage, grid, (), prefetch, panels)


@recipe
def pumma(stage: Stage, grid: Grid, prefetch: int = 0, panels: int | None = None) -> Stage:
    """As SUMMA, each row of the grid beginning at its own panel (Fox; Choi, Dongarra, Walker)."""
    return _tiles(stage, grid, (0,), prefetch, panels)


@recipe
def cannon(stage: Stage, grid: Grid, prefetch: int = 0, panels: int | None = None) -> Stage:
    """As SUMMA, each rank beginning at its own panel: every tile is read by one rank at a time (Cannon)."""
    return _tiles(stage, grid, (0, 1), prefetch, panels)


def _tiles(
    stage: Stage, grid: Grid, turned: tuple[int, ...], prefetch: int, panels: int | None
) -> Stage:  # fmt: skip
    p = product_of(stage)
    _check_axes(grid, 2)
    p.place(stage, grid, "m k", "k n", "m n")
    outer = stage.distribute((p.i, p.j), grid)
    panel, inside = stage.divide(p.k, _panels(grid) if panels is None else panels)
    stage.reorder(panel, p.i, p.j, inside)
    if turned:
        panel = stage.rotate(panel, by=tuple(outer[n] for n in turned))
    stage.communicate(stage.func, at=outer[-1])
    return stage.communicate(p.factors, at=panel, prefetch=prefetch)


def _panels(grid: Grid) -> int:
    """The panels of k: each is in one tile of both factors, or of one where that needs too many steps."""
    least, most = math.lcm(*grid.shape), max(grid.shape)
    return least if least <= MAX_STEPS * most else most


@recipe
def johnson(stage: Stage, grid: Grid) -> Stage:
    """All three loops on a grid of three axes, each matrix on one of its sides (Johnson; Agarwal et al.)."""
    p = product_of(stage)
    _check_axes(grid, 3)
    p.place(stage, grid, "m 0 k", "0 n k", "m n 0")
    outer = stage.distribute((p.i, p.j, p.k), grid)
    return stage.communicate((*p.factors, stage.func), at=outer[-1])


@recipe
def solomonik_2_5d(stage: Stage, grid: Grid) -> Stage:
    """Layers of a square grid, the third axis, share k; in each tiles are turned as in Cannon's algorithm."""
    p = product_of(stage)
    _check_axes(grid, 3)
    rows, _, layers = grid.shape
    p.place(stage, grid, "m k 0", "k n 0", "m n 0")
    outer = stage.distribute((p.i, p.j, p.k), grid)
    panel, inside = stage.divide(stage.local(p.k), max(rows // layers, 1))
    stage.reorder(panel, p.i, p.j, inside)
    stage.communicate(stage.func, at=outer[-1])
    return stage.communicate(p.factors, at=stage.rotate(panel, by=outer[:2]))


def _check_axes(grid: Grid, count: int) -> None:
    if len(check_grid(grid).axes) != count:
        raise ScheduleError(
            f"this algorithm needs a grid of {count} axes, not {grid}",
            loc=here(),
            label="this recipe",
            hint=f"td.Grid({', '.join(f'{x}=2' for x in 'xyz'[:count])})",
        )


def extents_of(stage: Stage, p: Product) -> tuple[int, int, int]:
    """m, n and k as numbers."""
    schedule = stage.schedule
    program = schedule.state.program
    f = program.func(stage.func)
    extents = dict(zip(f.variables, (e for _, e in f.output_box(here())), strict=True))
    _, lo, hi = f.definitions[stage.definition].ranges[0]
    assert lo is not None and hi is not None
    exprs = (extents[p.i], extents[p.j], hi)
    values = [bind_expr(e, schedule.sizes) for e in exprs]
    numbers = [int(v.value) for v in values if isinstance(v, Const)]
    if len(numbers) < 3:
        raise ScheduleError(
            "the grid depends on sizes that are not known",
            loc=here(),
            label="this recipe",
            hint="give them to the schedule: op.schedule(M=100, ...), or sizes={...}",
        )
    return numbers[0], numbers[1], numbers[2]
