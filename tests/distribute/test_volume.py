"""The volume of communication on arrays over ranks: that of plans, predictions, and of thousands of ranks.

Random programs are compared in `test_random.py`, for each rank and communication.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.step_costs import cost
from tests.distribute.matmuls import cube, flat, two_and_a_half
from tests.distribute.volumes import assert_volume_is_of_plan

i, j, k = td.vars("i j k")
SIZES = {"M": 11, "N": 7, "K": 13}
THREE = [td.Grid(pod=2), td.Grid(node=2), td.Grid(x=3)]
NODES = [td.Grid(node=2), td.Grid(x=3)]


def halo(side: int) -> td.Schedule:
    a, f = td.Tensor("a", (8 * side, 8 * side), td.f32), td.Func("f")
    p = td.pad(a, mode="wrap")
    f[i, j] = p[i - 1, j] + p[i + 1, j] + p[i, j - 1] + p[i, j + 1]
    grid = td.Grid(x=side, y=side)
    s = td.Schedule(f.with_shape(*a.shape)).place("a", "rc -> r c", grid)
    s.place("f", "rc -> r c", grid)[f].distribute((i, j), grid)
    return s


def sums(*placements: str, levels: Any = NODES) -> td.Schedule:
    """A sum that ranks share, placed in one way after the other."""
    x = td.Tensor("x", (12, 18), td.f32)
    s_of, source = td.Func("f0"), x
    s_of[i] = td.sum(source[i, k], axis=k)
    funcs = [s_of]
    for n in range(1, len(placements)):
        f = td.Func(f"f{n}")
        f[i] = funcs[-1][i] + 1
        funcs.append(f)
    s = td.Schedule(funcs[-1]).place(x, "ik -> " + "k " * len(levels), levels)
    for f, placement in zip(funcs, placements, strict=True):
        s.place(f, placement, levels)
        s[f].distribute((k if f is funcs[0] else i,) * len(levels), levels)
    return s


PROGRAMS = {
    "cannon": lambda: flat(td.Grid(x=3, y=3), "ij", **SIZES),
    "pumma": lambda: flat(td.Grid(x=2, y=5), "i", **SIZES),
    "summa": lambda: flat(td.Grid(x=3, y=4), "", **SIZES),
    "johnson": lambda: cube(td.Grid(x=2, y=3, z=3), **SIZES),
    "2.5d": lambda: two_and_a_half(td.Grid(x=4, y=4, z=2), **SIZES),
    "halo around the ends": lambda: halo(4),
    "all-reduce by levels": lambda: sums("i -> * *"),
    "reduce by levels": lambda: sums("i -> 1 2"),
    "reduce-scatter by levels": lambda: sums("i -> i i"),
    "all-reduce by three levels": lambda: sums("i -> * * *", levels=THREE),
    "reduce by three levels": lambda: sums("i -> 1 0 2", levels=THREE),
    "reduce-scatter by three levels": lambda: sums("i -> i i i", levels=THREE),
    "gathers": lambda: sums("i -> i i", "i -> * *", "i -> * i"),
    "parts": lambda: sums("i -> partial(sum) i", "i -> i *"),
    "more than 64 ranks": lambda: sums("i -> * *", levels=[td.Grid(node=8), td.Grid(x=9)]),
    "results of 72 ranks": lambda: sums("i -> * i", "i -> i *", levels=[td.Grid(node=8), td.Grid(x=9)]),
}  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_volume_is_that_of_the_plan_of_each_rank(make: Any) -> None:
    assert_volume_is_of_plan(td.compile(make())._specialise({}))


@pytest.mark.parametrize(
    "make, most, messages",
    [
        (lambda: cube(td.Grid(x=2, y=2, z=2), M=64, N=64, K=64), 24_576, 3),
        (lambda: cube(td.Grid(x=4, y=4, z=4), M=256, N=256, K=256), 163_840, 3),
        (lambda: two_and_a_half(td.Grid(x=4, y=4, z=4), M=64, N=64, K=64), 10_240, 3),
        (lambda: flat(td.Grid(x=4, y=4), "ij", M=64, N=64, K=64), 12_288, 6),
    ],
    ids=["johnson 2", "johnson 4", "2.5d", "cannon"],
)
def test_predictions_state_bytes_and_messages_of_the_plan(make: Any, most: int, messages: int) -> None:
    s = make()
    plan, received = td.compile(s).plan(), s.prediction().received
    assert (received.bytes, received.messages) == (max(plan.received), plan.messages[received.rank])
    assert (received.bytes, received.messages) == (most, messages)
    assert s.traffic("network") == most


@pytest.mark.parametrize("turn", ["", "ij"], ids=["summa", "cannon"])
def test_products_on_4096_ranks(turn: str) -> None:
    """63 tiles of A and of B to each rank, without a plan of any rank."""
    n = 16 * 64
    plan = td.compile(flat(td.Grid(x=64, y=64), turn, M=n, N=n, K=n)).plan()
    received, messages, peak = plan.received, plan.messages, plan.peak_memory
    assert set(received) == set(plan.sent) == {2 * 63 * 16 * 16 * 8}
    assert set(messages) == {2 * 63}
    assert not plan._ranks
    one = cost(plan.rank(2345), plan.sizes)
    assert (one.received, one.messages, one.peak_memory) == (received[2345], messages[2345], peak[2345])


def test_the_volume_of_1024_ranks_takes_few_megabytes() -> None:
    tracemalloc.start()
    assert td.compile(flat(td.Grid(x=32, y=32), "ij", M=128, N=128, K=128)).plan().total_received
    _, memory = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory < 20e6


def test_halos_and_reductions_on_16384_ranks() -> None:
    """A tile of 8 x 8 needs a line on each side, and corners; an all-reduce moves 2 (p - 1) / p."""
    plan = td.compile(halo(128)).plan()
    assert set(plan.received) == {4 * (4 * 8 + 4)}
    ranks = 1 << 14
    x, f, grid = td.Tensor("x", (ranks, ranks), td.f32), td.Func("f"), td.Grid(x=ranks)
    f[i] = td.sum(x[k, i], axis=k)
    s = td.Schedule(f).place(x, "ki -> k", grid).place(f, "i -> *", grid)
    s[f].distribute(k, grid)
    assert set(td.compile(s).plan().received) == {2 * 4 * (ranks - 1)}


def test_a_reduce_scatter_over_4096_ranks_of_64_nodes_crosses_nodes_with_a_64th() -> None:
    """Gradients of ZeRO: 63 / 64 of all within nodes, then as much of a 64th across nodes."""
    ranks, levels = 1 << 12, [td.Grid(node=64), td.Grid(gpu=64)]
    x, f = td.Tensor("x", (ranks, ranks), td.f32), td.Func("f")
    f[i] = td.sum(x[k, i], axis=k)
    s = td.Schedule(f).place(x, "ki -> k k", levels).place(f, "i -> i i", levels)
    s[f].distribute((k, k), levels)
    plan = td.compile(s).plan()
    assert [set(level.tolist()) for level in plan.volume.crossing] == [{4 * 63}, {4 * 63 * 64}]


def test_links_are_shared_by_as_many_ranks_as_they_say() -> None:
    """One network interface for the three ranks of a node takes three times as long as one for each."""
    from dataclasses import replace

    from tdsl.cost.network import seconds_of
    from tdsl.machine.model import Machine, MemoryLevel

    a, f = td.Tensor("a", (24,), td.f64), td.Func("f")
    f[i] = a[23 - i]
    s = td.Schedule(f).place(a, "i -> i i", NODES).place(f, "i -> i i", NODES)
    s[f].distribute((i, i), NODES)
    volume, grid = td.compile(s).plan().volume, s.state.grid
    near = MemoryLevel("bus", None, 1, bandwidth=((1, 1e12),), latency=0.0)
    far = MemoryLevel("network", None, 1, bandwidth=((1, 1e3),), latency=0.0)
    alone, shared = (
        seconds_of(volume, grid, Machine(links=(near, replace(far, shared_by=n)))) for n in (1, 3)
    )
    np.testing.assert_allclose(alone, 4 * 8 / 1e3)
    np.testing.assert_allclose(shared, 3 * alone)
