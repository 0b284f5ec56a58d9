"""Plans of a product receive no more than the best of the hand-written algorithms."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tests.planner.test_published import product

VOLUME = {"latency": 0.0, "operations": 1e24, "memory_bandwidth": 1e24}  # only bytes cost
RECIPES = (td.recipes.cosma, td.recipes.carma, td.recipes.johnson, td.recipes.summa, td.recipes.cannon)


def best_recipe(m: int, n: int, k: int, ranks: int) -> int | None:
    """The fewest bytes of an algorithm that uses all ranks: those of the busiest rank for each tensor."""
    best = None
    for recipe in RECIPES:
        s = product(m, n, k)
        try:
            grid = recipe(s["C"], ranks)
        except td.TdslError:
            continue  # not for this number of ranks
        if grid.size == ranks:
            moved = td.compile(s).plan().volume.moved
            received = sum(int(np.sum(levels, axis=0).max()) for levels in moved.values())
            best = received if best is None else min(best, received)
    return best


def random_product(seed: int) -> tuple[int, int, int, int]:
    """Extents of a product, and a number of ranks."""
    rng = np.random.default_rng(seed)
    m, n, k = (int(x) for x in 2 ** rng.uniform(4, 9, 3))
    return m, n, k, int(rng.integers(1, 65))


def check_product(seed: int) -> None:
    m, n, k, ranks = random_product(seed)
    best = best_recipe(m, n, k, ranks)
    s = product(m, n, k)
    planned = s.plan(td.Cluster(ranks=ranks, **VOLUME), forbid="copies")
    assert max(td.compile(s).plan().received) <= planned.bytes
    assert best is None or planned.bytes <= best, (m, n, k, ranks, str(s))


@pytest.mark.parametrize("seed", range(6))
def test_no_algorithm_receives_less(seed):
    check_product(seed)


@pytest.mark.parametrize("ranks, shape", [(8, (2, 2, 2)), (64, (4, 4, 4))])
def test_cubes_move_the_volume_of_cosma(ranks, shape):
    n, edge = 64, shape[0]
    s = product(n, n, n)
    planned = s.plan(td.Cluster(ranks=ranks, **VOLUME), forbid="copies")
    assert planned.grid.shape == shape
    block = (n // edge) ** 2
    assert sum(td.compile(s).plan().received) == 4 * 3 * (edge - 1) * n * n
    assert planned.bytes == 4 * 3 * (block - block // edge)


def test_products_without_elements_or_terms_are_planned():
    for m, n, k in ((0, 3, 2), (3, 0, 2), (3, 3, 0), (1, 1, 1)):
        s = product(m, n, k)
        s.plan(td.Cluster(ranks=3))
        a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        np.testing.assert_array_equal(td.compile(s, target="python").simulate(a, b), a @ b)


def test_groups_of_unequal_sizes_are_refused_with_what_would_do():
    with pytest.raises(td.ShapeError, match=r"(?s)unequal sizes.*smallest group"):
        td.Cluster(td.Level("node", 2), td.Level("rank", [4, 2]))
