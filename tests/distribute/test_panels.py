"""SUMMA, PUMMA and Cannon on any grid and for any panels: results, and bytes of the closed form."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tests.distribute.matmuls import matmul

GRIDS = [(3, 2), (5, 1), (1, 7), (2, 2), (4, 3), (1, 1), (2, 5), (3, 3)]


def size_of_block(extent: int, parts: int, n: int) -> int:
    each = -(-extent // parts)
    return max(min(extent - n * each, each), 0)


@pytest.mark.in_part(12)
@pytest.mark.parametrize("seed", range(50))
def test_products_of_panels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = GRIDS[seed % len(GRIDS)]
    m, n, k = (int(x) for x in rng.integers(1, 12, 3))
    panels = None if rng.integers(2) else int(rng.integers(1, k + 3))
    grid, s = td.Grid(x=rows, y=columns), matmul.schedule(M=m, N=n, K=k)
    recipe = (td.recipes.summa, td.recipes.pumma, td.recipes.cannon)[int(rng.integers(3))]
    recipe(s["C"], grid, panels=panels, prefetch=int(rng.integers(3)))
    p = td.compile(s, target="python")
    a, b = rng.integers(-9, 9, (m, k)).astype(float), rng.integers(-9, 9, (k, n)).astype(float)
    out, traffic = p.simulate(a, b, count=True)
    np.testing.assert_array_equal(out, a @ b)
    closed = []
    for x, y in map(grid.coordinates, range(grid.size)):
        mine, others = size_of_block(m, rows, x), size_of_block(n, columns, y)
        of_a, of_b = k - size_of_block(k, columns, y), k - size_of_block(k, rows, x)
        closed.append(8 * (mine * of_a + others * of_b) if mine and others else 0)
    assert p.plan().received == traffic.received == tuple(closed)
