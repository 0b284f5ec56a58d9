"""Products on grids of ranks: what the recipes give, and which grids `cosma` chooses."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tdsl as td
from tdsl.schedule.recipes.products import Strategy, strategy
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


@pytest.mark.parametrize(
    "ranks, memory", [(1, None), (4, None), (7, None), (12, None), (8, 500), (8, 330)]
)
def test_cosma_multiplies_within_its_memory(
    ranks: int, memory: int | None, rng: np.random.Generator
) -> None:
    s = matmul.schedule(M=21, N=17, K=30)
    grid = td.recipes.cosma(s["C"], ranks, memory)
    assert grid.size <= ranks
    check(s, rng)
    if memory is not None:
        td.compile(s).plan(memory=8 * memory)


def test_cosma_moves_what_its_strategy_says() -> None:
    s = matmul.schedule(M=64, N=64, K=128)
    td.recipes.cosma(s["C"], 16)
    words = strategy(64, 64, 128, 16).received(64, 64, 128)
    assert set(td.compile(s).plan().received) == {8 * words}


def test_a_product_of_transposed_tensors(rng: np.random.Generator) -> None:
    i, j, k = td.vars("i j k")
    x, y, out = td.Tensor("x", (9, 8), td.i64), td.Tensor("y", (7, 9), td.i64), td.Func("out")
    out[i, j] = td.sum(y[j, k] * x[k, i], axis=k)
    s = td.Schedule(out)
    td.recipes.cannon(s["out"], td.Grid(x=2, y=2))
    a, b = rng.integers(0, 9, (9, 8)), rng.integers(0, 9, (7, 9))
    np.testing.assert_array_equal(td.compile(s).simulate(x=a, y=b), (b @ a).T)


def bound(m: int, n: int, k: int, ranks: int) -> float:
    """What the busiest rank must receive at least, if data are shared out evenly."""
    a, b, c = sorted((m, n, k), reverse=True)
    if ranks <= a / b:
        return (1 - 1 / ranks) * b * c
    if ranks <= a * b / c**2:
        return 2 * math.sqrt(a * b * c * c / ranks) - (a * c + b * c) / ranks
    return 3 * (a * b * c / ranks) ** (2 / 3) - (a * b + a * c + b * c) / ranks


@pytest.mark.parametrize(
    "m, n, k, ranks, words",
    [
        (1024, 1024, 1024, 4, 524_288),
        (1024, 1024, 1024, 8, 393_216),
        (1024, 1024, 1024, 16, 327_680),
        (1024, 1024, 16384, 4, 786_432),
        (2048, 512, 256, 4, 98_304),
        (1000, 700, 300, 4, 127_500),
        (1000, 1000, 1000, 65, 140_625),
    ],
)
def test_what_a_rank_receives(m: int, n: int, k: int, ranks: int, words: int) -> None:
    assert strategy(m, n, k, ranks).received(m, n, k) == words


@pytest.mark.parametrize(
    "m, n, k, grid",
    [
        (4096, 4096, 4096, (8, 8, 8)),
        (4096, 4096, 4096, (16, 16, 16)),
        (65536, 1024, 1024, (64, 1, 1)),
        (8192, 8192, 512, (16, 16, 1)),
        (1024, 1024, 65536, (2, 2, 128)),
        (2048, 4096, 8192, (4, 8, 16)),
    ],
)
def test_tight_grids_are_found(m: int, n: int, k: int, grid: tuple[int, int, int]) -> None:
    ranks = math.prod(grid)
    least = bound(m, n, k, ranks)
    assert Strategy(grid, (1, 1, 1)).received(m, n, k) <= 1.0001 * least
    assert strategy(m, n, k, ranks).received(m, n, k) <= 1.05 * least


@pytest.mark.parametrize(
    "m, n, k, ranks, grid",
    [
        (16384, 16384, 16384, 4, (1, 2, 2)),
        (36044, 36044, 36044, 144, (4, 6, 6)),
        (8192, 8192, 8192, 40, (2, 4, 5)),
        (11584, 11584, 11584, 80, (4, 4, 5)),
        (16384, 16384, 16384, 160, (4, 5, 8)),
        (23170, 23170, 23170, 320, (5, 8, 8)),
        (32768, 32768, 32768, 640, (8, 8, 10)),
        (46340, 46340, 46340, 1280, (8, 10, 16)),
        (65536, 65536, 65536, 2560, (10, 16, 16)),
        (92680, 92680, 92680, 5120, (16, 16, 20)),
        (131072, 131072, 131072, 10240, (16, 20, 32)),
        (1024, 1024, 1024, 12, (2, 2, 3)),
        (512, 512, 8192, 8, (1, 1, 8)),
        (8192, 512, 512, 8, (8, 1, 1)),
        (512, 8192, 512, 8, (1, 8, 1)),
        (4096, 4096, 256, 4, (2, 2, 1)),
    ],
)
def test_no_more_moves_than_with_the_grid_of_the_library_cosma(
    m: int, n: int, k: int, ranks: int, grid: tuple[int, int, int]
) -> None:
    own, theirs = strategy(m, n, k, ranks), Strategy(grid, (1, 1, 1))
    assert own.received(m, n, k) <= theirs.received(m, n, k) * (1 + 1e-12)


@pytest.mark.parametrize(
    "memory, words", [(12_000_000, 5_242_880), (6_000_000, 10_485_760), (5_000_000, 12_582_912)]
)
def test_little_memory_costs_no_more_than_in_the_library_cosma(memory: int, words: int) -> None:
    own = strategy(4096, 4096, 4096, 16, memory)
    assert own.memory(4096, 4096, 4096) <= memory
    assert own.received(4096, 4096, 4096) <= words


def test_memory_that_no_grid_has_is_said() -> None:
    with pytest.raises(td.ScheduleError, match="100 elements are too few for 8 ranks: 376"):
        strategy(32, 32, 31, 8, 100)


def test_what_is_no_product_is_refused() -> None:
    i, k = td.vars("i k")
    a, f = td.Tensor("a", (5, 5), td.f32), td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    with pytest.raises(td.ScheduleError, match="'f' is no product of two matrices"):
        td.recipes.cannon(td.Schedule(f)["f"], td.Grid(x=2, y=2))
    with pytest.raises(td.ScheduleError, match="needs a grid of 3 axes"):
        td.recipes.johnson(matmul.schedule()["C"], td.Grid(x=2, y=2))
