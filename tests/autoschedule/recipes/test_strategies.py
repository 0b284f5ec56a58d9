"""Strategies of products: published ones, lower bounds, and what is chosen for any number of ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.recipes.strategies import (
    Strategy,
    best_strategy,
    halved_strategy,
    product_bound,
    published_strategy,
)
from tests.distribute.matmuls import LEAST_RECEIVED

# extents, ranks, memory; splits and memory that the library COSMA prints
PRINTED = [
    (17408, 17408, 3473408, 4608, 52428800, "sk16,pk16,pm2,pn2,pk2,pm3,pn2,pk3,pn2", 44101691),
    (16384, 16384, 16384, 4, None, "pn2,pk2", 469762048),
    (36044, 36044, 36044, 144, None, "pm2,pn2,pk6,pm2,pn3", 171415254),
    (8192, 8192, 8192, 40, None, "pm2,pn2,pk5,pn2", 23488105),
    (11584, 11584, 11584, 80, None, "pm2,pn2,pk5,pm2,pn2", 26837814),
    (16384, 16384, 16384, 160, None, "pm2,pn5,pk4,pm2,pk2", 33551157),
    (23170, 23170, 23170, 320, None, "pm5,pn2,pk4,pn4,pk2", 40262511),
    (32768, 32768, 32768, 640, None, "pm2,pn2,pk10,pm2,pn4,pm2", 48653928),
    (46340, 46340, 46340, 1280, None, "pm2,pn2,pk4,pm2,pn5,pm2,pk4", 62069390),
    (65536, 65536, 65536, 2560, None, "pm2,pn2,pk4,pm5,pn4,pk4,pn2", 75492558),
    (92680, 92680, 92680, 5120, None, "pm2,pn2,pk4,pm2,pn4,pm2,pk5,pm2,pn2", 92262796),
    (131072, 131072, 131072, 10240, None, "pm2,pn2,pk4,pm2,pn10,pm2,pk4,pm2,pk2", 119113320),
]


@pytest.mark.parametrize("m, n, k, ranks, memory, splits, elements", PRINTED)
def test_what_the_library_cosma_prints(
    m: int, n: int, k: int, ranks: int, memory: int | None, splits: str, elements: int
) -> None:
    published = published_strategy(m, n, k, ranks, memory)
    assert published is not None
    assert (published.splits, published.memory) == (splits, elements)


# extents, least of a rank, ranks, memory; splits, memory, what a rank receives
SMALL = [
    (1024, 1024, 1024, 200, 4, None, "pn2,pk2", 1835008, 524288),
    (1024, 1024, 1024, 200, 8, None, "pm2,pn2,pk2", 1179648, 393216),
    (1024, 1024, 1024, 200, 12, None, "pm2,pn2,pk3", 873816, 349525),
    (1024, 1024, 1024, 200, 16, None, "pm2,pn2,pk4", 720896, 327680),
    (512, 512, 8192, 200, 8, None, "pk8", 1343488, 229376),
    (8192, 512, 512, 200, 8, None, "pm8", 1343488, 229376),
    (512, 8192, 512, 200, 8, None, "pn8", 1343488, 229376),
    (4096, 4096, 256, 200, 4, None, "pm2,pn2", 5767168, 524288),
    (4096, 4096, 4096, 200, 16, 12000000, "pm2,pn2,pk4", 11534336, 5242880),
    (4096, 4096, 4096, 200, 16, 6000000, "sm2,sn2,sk2,pm2,pn2,pk4", 5242880, 10485760),
    (4096, 4096, 4096, 200, 16, 5000000, "sm4,sn2,sk2,pn2,pk4,pn2", 4194304, 12582912),
    (100, 100, 100, 200, 8, None, "", 3750, 0),
    (64, 64, 64, 1, 8, None, "pm2,pn2,pk2", 4608, 1536),
    (100, 100, 100, 1, 12, None, "pm2,pn2,pk3", 8336, 3333),
    (30, 35, 40, 1, 4, None, "pk2,pn2", 2038, 562),
]


@pytest.mark.parametrize("m, n, k, least, ranks, memory, splits, elements, received", SMALL)
def test_small_products_in_the_library_cosma(
    m: int, n: int, k: int, least: int, ranks: int, memory: int | None, splits: str, elements: int,
    received: int,
) -> None:  # fmt: skip
    published = published_strategy(m, n, k, ranks, memory, least)
    assert published is not None
    assert (published.splits, published.memory) == (splits, elements)
    assert int(published.received(m, n, k)) == received


def test_memory_that_no_steps_fit_is_no_strategy() -> None:
    assert published_strategy(4096, 4096, 4096, 16, 3_000_000) is None
    assert best_strategy(4096, 4096, 4096, 16, 3_000_000) is None
    assert halved_strategy(4096, 4096, 4096, 16, 3_000_000) is None


@pytest.mark.parametrize("m, n, k, ranks, words", LEAST_RECEIVED)
def test_what_a_rank_receives(m: int, n: int, k: int, ranks: int, words: int) -> None:
    chosen = best_strategy(m, n, k, ranks)
    assert chosen is not None
    assert chosen.received(m, n, k) == words


@pytest.mark.parametrize(
    "splits",
    ["", "pm2", "pn2,pk2", "pm2,pn2,pk2", "sm2,pn2,pk2", "sm2,sn4,pm2,pk2", "sk4,pm2,pn4", "sn2,sk2,pk4"],
)
def test_a_strategy_receives_the_volume_of_its_schedule(splits: str) -> None:
    """On average over the ranks, where everything divides evenly: the search asks for thousands of grids."""
    m, n, k = 32, 64, 16
    i, j, x = td.vars("i j x")
    a, b, c = td.Tensor("a", (m, k), td.f64), td.Tensor("b", (k, n), td.f64), td.Func("c")
    c[i, j] = td.sum(a[i, x] * b[x, j], axis=x)
    s = td.Schedule(c)
    ranks = math.prod(int(split[2:]) for split in splits.split(",") if split.startswith("p"))
    grid = td.recipes.cosma(s[c], ranks, splits=splits)
    steps = {d: math.prod(int(x[2:]) for x in splits.split(",") if x.startswith(f"s{d}")) for d in "mnk"}
    strategy = Strategy(grid.shape, tuple(steps.values()))
    assert strategy.received(m, n, k) * 8 == np.mean(td.compile(s).plan().received)


def test_one_rank_fewer_may_move_far_less() -> None:
    """65 ranks have the grids of 5 x 13 only; 64 of them have a cube."""
    cube = best_strategy(1000, 1000, 1000, 65)
    assert cube is not None
    assert cube.ranks == (4, 4, 4)
    assert round(Strategy((1, 5, 13)).received(1000, 1000, 1000), 1) == 246_153.8


@pytest.mark.parametrize(
    "m, n, k, ranks, words",
    [
        (1024, 1024, 1024, 4, 461_951),
        (1024, 1024, 1024, 9, 377_517),
        (1024, 1024, 1024, 16, 298_813),
        (1024, 1024, 1024, 27, 233_017),
        (1024, 1024, 1024, 32, 213_792),
        (1024, 1024, 1024, 64, 147_456),
        (1000, 700, 300, 4, 123_498),
        (1000, 1000, 1000, 65, 139_418),
    ],
)
def test_lower_bounds(m: int, n: int, k: int, ranks: int, words: int) -> None:
    assert round(product_bound(m, n, k, ranks)) == words


def test_little_memory_has_another_bound() -> None:
    """It is above the other one where there is hardly more memory than for the shares; nothing goes below."""
    above = 0
    for ranks in (64, 512, 4096):
        for share in (1.05, 1.5, 3, 10):
            memory = round(share * 3 * 4096**2 / ranks)
            chosen = best_strategy(4096, 4096, 4096, ranks, memory)
            least = product_bound(4096, 4096, 4096, ranks, memory)
            above += least > product_bound(4096, 4096, 4096, ranks)
            assert chosen is None or chosen.received(4096, 4096, 4096) >= least
    assert above


SHAPES = [(4096, 4096, 4096), (65536, 4096, 1024), (1024, 1024, 65536), (8192, 8192, 512)]


def tight_grids(m: int, n: int, k: int) -> dict[int, tuple[int, int, int]]:
    """Numbers of ranks with a grid whose blocks meet the bound: by how many halves of an extent."""
    grids = {}
    halves = [2**e for e in range(13)]
    for grid in ((a, b, c) for a in halves for b in halves for c in halves):
        ranks = math.prod(grid)
        if 4 <= ranks <= 4096 and Strategy(grid).received(m, n, k) <= 1.0001 * product_bound(m, n, k, ranks):
            grids[ranks] = grid
    return grids


@pytest.mark.parametrize("shape", SHAPES)
def test_tight_grids_are_met_within_5_percent(shape: tuple[int, int, int]) -> None:
    tight = tight_grids(*shape)
    assert len(tight) >= 3
    for ranks in tight:
        chosen = best_strategy(*shape, ranks)
        assert chosen is not None
        assert chosen.received(*shape) <= 1.05 * product_bound(*shape, ranks)


@pytest.mark.parametrize("shape", [*SHAPES, (1000, 1000, 1000)])
@pytest.mark.parametrize("least", [1, 200])
def test_no_more_moves_than_in_the_library_cosma(shape: tuple[int, int, int], least: int) -> None:
    for ranks in (*range(4, 260), *range(260, 4097, 97), 4096):
        chosen, theirs = (
            best_strategy(*shape, ranks),
            published_strategy(*shape, ranks, None, least),
        )
        assert chosen is not None
        assert theirs is not None
        assert ranks < 2 * math.prod(chosen.ranks) <= 2 * ranks
        if 2 * math.prod(theirs.strategy.ranks) > ranks:
            assert chosen.received(*shape) <= theirs.strategy.received(*shape) * (1 + 1e-9)


@pytest.mark.parametrize("memory", [12_000_000, 6_000_000, 5_000_000, 52_428_800])
def test_little_memory_costs_no_more_than_in_the_library_cosma(memory: int) -> None:
    case = (17408, 17408, 3473408, 4608) if memory > 50_000_000 else (4096, 4096, 4096, 16)
    chosen, theirs = best_strategy(*case, memory), published_strategy(*case, memory)
    assert chosen is not None
    assert theirs is not None
    assert chosen.memory(*case[:3]) <= memory
    assert chosen.received(*case[:3]) <= theirs.strategy.received(*case[:3])


def test_steps_move_as_little_as_any_that_fit() -> None:
    """Against all steps of all grids."""
    m, n, k, ranks = 12, 10, 8, 6
    shares = (m * n + n * k + m * k) // ranks
    for memory in range(shares, 4 * shares, 7):
        chosen = best_strategy(m, n, k, ranks, memory)
        grids = ((a, b, c) for a in range(1, 7) for b in range(1, 7) for c in range(1, 7))
        options = [
            s.received(m, n, k)
            for grid in grids
            if 3 < math.prod(grid) <= ranks and grid == (chosen.ranks if chosen else grid)
            for sm in range(1, m + 1)
            for sn in range(1, n + 1)
            if (s := Strategy(grid, (sm, sn, -(-k // grid[2])))).memory(m, n, k) <= memory
        ]
        assert (chosen is None) == (not options)
        if chosen is not None:
            assert chosen.memory(m, n, k) <= memory
            assert chosen.received(m, n, k) == min(options)


def test_carma_halves_the_largest_extent() -> None:
    assert halved_strategy(64, 4096, 64, 16) == Strategy((1, 16, 1))
    assert halved_strategy(4096, 4096, 64, 16) == Strategy((4, 4, 1))
    assert halved_strategy(100, 100, 100, 65) == Strategy((4, 4, 4))
    little = halved_strategy(4096, 4096, 4096, 16, 6_000_000)
    assert little is not None
    assert little.memory(4096, 4096, 4096) <= 6_000_000
    assert math.prod(little.steps) > 1
