"""Capacities are where bandwidths of working sets step, whatever sizes the system reports."""

from __future__ import annotations

import math
import random

import pytest

from tdsl.machine.capacities import level_figures, rounded
from tdsl.machine.model import MemoryLevel

KIB, MIB = 1 << 10, 1 << 20
L1, L2 = MemoryLevel("L1", 32 * KIB), MemoryLevel("L2", MIB)
ZEN = (L1, L2, MemoryLevel("L3", 32 * MIB, shared_by=2))
SPR = (MemoryLevel("L1", 48 * KIB), MemoryLevel("L2", 2 * MIB), MemoryLevel("L3", 480 * MIB, shared_by=2))


def curve(*levels, noise=0.0):
    """The bandwidth of working sets up to 1 GiB: pairs of a level's bytes for a thread, and its bandwidth."""
    generator = random.Random(0)
    sizes = [int(8 * KIB * math.sqrt(2) ** n) // KIB * KIB for n in range(34)]
    speeds = [next(speed for most, speed in levels if size <= most) for size in sizes]
    factors = [1 - noise * generator.random() for _ in sizes]
    return [(n, speed * f) for n, speed, f in zip(sizes, speeds, factors, strict=True)]


def near(size: int | None, expected: int) -> bool:
    """True if a size is at most half an octave from the one that is expected."""
    return size is not None and abs(math.log2(size / expected)) <= 0.51


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
def test_every_step_is_the_end_of_a_cache(noise):
    speeds = ((32 * KIB, 240e9), (MIB, 120e9), (16 * MIB, 60e9), (math.inf, 20e9))
    figures = level_figures(curve(*speeds, noise=noise), ZEN, 2)
    assert [rounded(x.bandwidth) for x in figures] == pytest.approx([240e9, 120e9, 60e9, 20e9], rel=0.25)
    assert near(figures[0].effective, 32 * KIB)
    assert near(figures[1].effective, MIB)
    assert near(figures[2].effective, 32 * MIB)  # 16 MiB for each of two threads
    assert figures[3].effective is None


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_large_reported_cache_without_a_step_has_no_size_and_the_speed_of_memory(noise):
    speeds = ((48 * KIB, 300e9), (2 * MIB, 130e9), (math.inf, 31e9))
    figures = level_figures(curve(*speeds, noise=noise), SPR, 2)
    assert near(figures[1].effective, 2 * MIB)
    assert figures[2].effective is None
    assert figures[2].bandwidth == figures[3].bandwidth


def test_a_large_reported_cache_has_the_size_of_its_step():
    speeds = ((48 * KIB, 300e9), (2 * MIB, 130e9), (20 * MIB, 60e9), (math.inf, 31e9))
    figures = level_figures(curve(*speeds), SPR, 2)
    assert near(figures[2].effective, 40 * MIB)


def test_an_end_far_from_what_is_reported_is_noise():
    speeds = ((128 * KIB, 300e9), (12 * MIB, 130e9), (math.inf, 31e9))
    figures = level_figures(curve(*speeds), (L1, L2), 1)
    assert [x.effective for x in figures] == [None, None, None]


def test_slow_runs_of_small_working_sets_are_no_steps():
    speeds = ((32 * KIB, 240e9), (MIB, 120e9), (16 * MIB, 60e9), (math.inf, 20e9))
    points = [(n, speed / (3 if at in (1, 7, 8, 16) else 1)) for at, (n, speed) in enumerate(curve(*speeds))]
    assert level_figures(points, ZEN, 2) == level_figures(curve(*speeds), ZEN, 2)


def test_a_constant_bandwidth_shows_no_cache():
    assert {x.effective for x in level_figures(curve((math.inf, 1e10), noise=0.1), ZEN, 1)} == {None}


def test_figures_have_a_grid():
    assert len({rounded(1e9 * 1.01**n) for n in range(70)}) == 9
    assert rounded(rounded(3.3e-7)) == rounded(3.3e-7)
