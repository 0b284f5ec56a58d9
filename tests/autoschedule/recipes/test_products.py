"""Products on grids of ranks that are given: each recipe multiplies."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.steps import Exchange
from tests.distribute.matmuls import matmul

RECIPES = {
    "summa": (td.recipes.summa, td.Grid(x=2, y=3)),
    "pumma": (td.recipes.pumma, td.Grid(x=3, y=3)),
    "cannon": (td.recipes.cannon, td.Grid(x=2, y=2)),
    "johnson": (td.recipes.johnson, td.Grid(x=2, y=3, z=2)),
    "2.5d": (td.recipes.solomonik_2_5d, td.Grid(x=4, y=4, z=2)),
}


def check(s: td.Schedule, rng: np.random.Generator) -> None:
    a, b = rng.integers(-9, 9, (21, 30)).astype(float), rng.integers(-9, 9, (30, 17)).astype(float)
    p = td.compile(s, target="python")
    out, counted = p.simulate(a, b, count=True)
    np.testing.assert_array_equal(out, a @ b)
    assert counted.received == p.plan().received


@pytest.mark.parametrize("recipe, grid", RECIPES.values(), ids=RECIPES.keys())
def test_recipes_multiply(recipe: object, grid: td.Grid, rng: np.random.Generator) -> None:
    s = matmul.schedule(M=21, N=17, K=30)
    recipe(s["C"], grid)
    check(s, rng)


def test_a_product_of_transposed_tensors(rng: np.random.Generator) -> None:
    i, j, k = td.vars("i j k")
    x, y, out = td.Tensor("x", (9, 8), td.i64), td.Tensor("y", (7, 9), td.i64), td.Func("out")
    out[i, j] = td.sum(y[j, k] * x[k, i], axis=k)
    s = td.Schedule(out)
    td.recipes.cannon(s["out"], td.Grid(x=2, y=2))
    a, b = rng.integers(0, 9, (9, 8)), rng.integers(0, 9, (7, 9))
    np.testing.assert_array_equal(td.compile(s).simulate(x=a, y=b), (b @ a).T)


def test_what_is_no_product_is_refused() -> None:
    i, k = td.vars("i k")
    a, f = td.Tensor("a", (5, 5), td.f32), td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    with pytest.raises(td.ScheduleError, match="'f' is no product of two matrices"):
        td.recipes.cannon(td.Schedule(f)["f"], td.Grid(x=2, y=2))
    with pytest.raises(td.ScheduleError, match="needs a grid of 3 axes"):
        td.recipes.johnson(matmul.schedule()["C"], td.Grid(x=2, y=2))


@pytest.mark.parametrize("name", ["summa", "pumma", "cannon"])
@pytest.mark.parametrize("sides", [(2, 3), (3, 2), (3, 4), (1, 4), (5, 1)])
def test_panels_of_any_grid_are_in_one_tile(name: str, sides: tuple[int, int]) -> None:
    """Each is received from one owner: of tiles that divide evenly a rank gets its row and column once."""
    x, y = sides
    grid = td.Grid(x=x, y=y)
    s = matmul.schedule(M=60, N=60, K=60)
    getattr(td.recipes, name)(s["C"], grid)
    plan = td.compile(s, target="python").plan()
    assert set(plan.received) == {8 * 60 * 60 * ((y - 1) + (x - 1)) // (x * y)}
    for rank in plan:
        for step in (step for step in rank.steps if isinstance(step, Exchange)):
            assert len({m.buffer for m in step.receives}) == len(step.receives)
    a, b = np.random.default_rng(0).integers(-9, 9, (2, 13, 13)).astype(float)
    s = matmul.schedule(M=13, N=13, K=13)
    getattr(td.recipes, name)(s["C"], grid, panels=5)
    np.testing.assert_array_equal(td.compile(s, target="python").simulate(a, b), a @ b)
