"""`cosma` and `carma`: products on any number of ranks, within their memory, moving what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.recipes.strategies import best_strategy, published_strategy
from tests.distribute.matmuls import LEAST_RECEIVED, matmul


def multiplies(s: Any, rng: np.random.Generator, m: int = 21, n: int = 17, k: int = 30) -> Any:
    """The plan of a schedule that gives the product, and moves what it says."""
    a, b = rng.integers(-9, 9, (m, k)).astype(float), rng.integers(-9, 9, (k, n)).astype(float)
    p = td.compile(s, target="cpu" if m * n * k > 1_000_000 else "python")
    out, counted = p.simulate(a, b, count=True)
    np.testing.assert_array_equal(out, a @ b)
    assert counted.received == p.plan().received
    return p


@pytest.mark.parametrize("ranks, memory", [(1, None), (4, None), (7, None), (12, None), (8, 500), (8, 330)])
def test_cosma_multiplies_within_its_memory(ranks: int, memory: int | None, rng: np.random.Generator) -> None:
    s = matmul.schedule(M=21, N=17, K=30)
    grid = td.recipes.cosma(s["C"], ranks, memory)
    assert ranks < 2 * grid.size <= 2 * ranks
    p = multiplies(s, rng)
    if memory is not None:
        p.plan(memory=8 * memory)


@pytest.mark.parametrize("ranks, memory", [(1, None), (4, None), (12, None), (8, 400)])
def test_carma_multiplies_within_its_memory(ranks: int, memory: int | None, rng: np.random.Generator) -> None:
    s = matmul.schedule(M=21, N=17, K=30)
    assert td.recipes.carma(s["C"], ranks, memory).size == 2 ** (ranks.bit_length() - 1)
    p = multiplies(s, rng)
    if memory is not None:
        p.plan(memory=8 * memory)


@pytest.mark.parametrize("shape, ranks", [((31, 32, 33), 3), ((20, 20, 80), 4), ((16, 9, 2), 16)])
def test_the_library_rule_multiplies(
    shape: tuple[int, int, int], ranks: int, rng: np.random.Generator
) -> None:
    m, n, k = shape
    s = matmul.schedule(M=m, N=n, K=k)
    td.recipes.cosma(s["C"], ranks, rule="library")
    multiplies(s, rng, m, n, k)


@pytest.mark.parametrize(
    "shape, ranks",
    [
        ((31, 32, 33), 7), ((512, 32, 736), 3), ((2, 3, 4), 16), ((43, 2, 1), 5), ((1, 1, 1), 4),
        ((0, 5, 6), 4), ((5, 0, 6), 4), ((5, 6, 0), 4), ((20, 20, 80), 13),
    ],
)  # fmt: skip
def test_shapes_that_are_uneven_small_or_empty(
    shape: tuple[int, int, int], ranks: int, rng: np.random.Generator
) -> None:
    m, n, k = shape
    for recipe in (td.recipes.cosma, td.recipes.carma):
        s = matmul.schedule(M=m, N=n, K=k)
        recipe(s["C"], ranks)
        multiplies(s, rng, m, n, k)


def test_what_moves_is_what_the_strategy_says() -> None:
    """Published strategies and own ones, with and without steps."""
    m, n, k = 1024, 1024, 1024
    for ranks, memory, rule in (
        (16, None, "volume"), (16, None, "library"), (16, 400_000, "volume"), (16, 400_000, "library"),
    ):  # fmt: skip
        s = matmul.schedule(M=m, N=n, K=k)
        td.recipes.cosma(s["C"], ranks, memory, rule=rule)
        if rule == "library":
            published = published_strategy(m, n, k, ranks, memory)
            chosen = None if published is None else published.strategy
        else:
            chosen = best_strategy(m, n, k, ranks, memory)
        assert chosen is not None
        assert set(td.compile(s).plan().received) == {8 * chosen.received(m, n, k)}


@pytest.mark.parametrize("m, n, k, ranks, words", LEAST_RECEIVED)
def test_plans_receive_these_words(m: int, n: int, k: int, ranks: int, words: int) -> None:
    s = matmul.schedule(M=m, N=n, K=k)
    grid = td.recipes.cosma(s["C"], ranks)
    plan = td.compile(s).plan()
    assert plan.total_received == 8 * words * grid.size
    assert max(plan.received) <= 8 * words * (1.01 if m % ranks else 1)


def test_bad_requests_are_refused() -> None:
    stage = matmul.schedule(M=32, N=32, K=31)["C"]
    with pytest.raises(td.ScheduleError, match="100 elements are too few for 8 ranks: 376"):
        td.recipes.cosma(stage, 8, 100)
    with pytest.raises(td.ScheduleError, match="100 elements are too few for 8 ranks: 376"):
        td.recipes.carma(stage, 8, 100)
    with pytest.raises(td.ScheduleError, match="there is no rule 'librari'"):
        td.recipes.cosma(stage, 8, rule="librari")
    with pytest.raises(td.ScheduleError, match="'pm2 pn2' is no split"):
        td.recipes.cosma(stage, 8, splits="pm2 pn2")
    with pytest.raises(td.ScheduleError, match="'pm3,pn3' takes 9 ranks, there are 8"):
        td.recipes.cosma(stage, 8, splits="pm3,pn3")
    with pytest.raises(td.ScheduleError, match="ranks cannot be 0"):
        td.recipes.cosma(stage, 0)
    with pytest.raises(td.ScheduleError, match="depends on sizes that are not known"):
        td.recipes.carma(matmul.schedule()["C"], 4)


def test_loops_inside_of_a_rank_are_left_to_the_default_schedule() -> None:
    """Without steps there is nothing but the loops that ranks share out: each computes a plain product."""
    s = matmul.schedule(M=64, N=64, K=64)
    td.recipes.cosma(s["C"], 4)
    assert len(s["C"].loops) == 6
    p = td.compile(s)
    text = str(p.source("mpi"))
    assert text.count("def compute_") == 1
