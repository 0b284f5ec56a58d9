"""More random problems and products than the tests check: python -m tests.planner.campaign 1000 200."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.planner.test_products import check_product
from tests.planner.test_solve import check_graph


def run(check: Callable[[int], None], count: int) -> None:
    """Print the seeds of which a check fails, and the number of those checked."""
    failed = []
    for seed in range(count):
        try:
            check(seed)
        except AssertionError as wrong:
            failed.append(seed)
            print(f"{check.__name__}({seed}): {wrong}", flush=True)
    print(f"{check.__name__}: {count} checked, {len(failed)} failed")


if __name__ == "__main__":
    graphs, products = map(int, sys.argv[1:3])
    run(check_graph, graphs)
    run(check_product, products)
