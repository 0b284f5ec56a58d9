"""Planning one rank asks for few boxes, however many ranks there are."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import pytest

import tdsl as td
from tdsl.communication import stages
from tdsl.communication.steps import RankPlan
from tdsl.lang import access_boxes
from tests.distribute.matmuls import flat

SIDE = 256
i, j = td.vars("i j")


@pytest.fixture
def region_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often the region function is asked."""
    count = [0]
    for module, name in ((stages, "interval_where"), (access_boxes, "boxes_of")):
        original = getattr(module, name)

        def counted(*args: Any, original: Any = original) -> Any:
            count[0] += 1
            return original(*args)

        monkeypatch.setattr(module, name, counted)
    return count


def planned(s: Any, rank: int) -> RankPlan:
    return td.compile(s).plan().rank(rank)


@pytest.mark.parametrize("turn, most", [("", 4_000), ("i", 8_000), ("ij", 16_000)])
def test_products_on_65536_ranks(turn: str, most: int, region_calls: list[int]) -> None:
    """In 256 steps each, from a grid on which all pairs are four thousand million."""
    n = 64 * SIDE
    plan = planned(flat(td.Grid(x=SIDE, y=SIDE), turn, M=n, N=n, K=n), 12345)
    assert len(plan.steps) > 8 * SIDE
    assert region_calls[0] < most


def test_a_plan_of_one_of_65536_ranks_is_small() -> None:
    n = 64 * SIDE
    tracemalloc.start()
    plan = planned(flat(td.Grid(x=SIDE, y=SIDE), "", M=n, N=n, K=n), 12345)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.rank == 12345
    assert peak < 50e6


def halo(side: int) -> td.Schedule:
    a, f = td.Tensor("a", (8 * side, 8 * side), td.f32), td.Func("f")
    p = td.pad(a, mode="edge")
    f[i, j] = p[i - 1, j] + p[i + 1, j] + p[i, j - 1] + p[i, j + 1]
    grid = td.Grid(x=side, y=side)
    s = td.Schedule(f.with_shape(*a.shape)).place("a", "rc -> r c", grid)
    s.place("f", "rc -> r c", grid)[f].distribute((i, j), grid)
    return s


def test_planning_a_halo_is_logarithmic_in_ranks(region_calls: list[int]) -> None:
    counts = []
    for side in (16, 64, 256):
        region_calls[0] = 0
        planned(halo(side), side * side // 2 + side // 2)
        counts.append(region_calls[0])
    assert counts[2] - counts[1] <= counts[1] - counts[0] + 4
    assert counts[2] < 400


@pytest.mark.parametrize("n, warned", [(50_000, False), (50_001, True)])
def test_a_loop_of_too_many_messages_is_named_before_it_is_planned(n: int, warned: bool) -> None:
    k = td.vars("k")
    a, b, f = td.Tensor("a", (4, n), td.f32), td.Tensor("b", (n, 4), td.f32), td.Func("f")
    f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    grid = td.Grid(x=2, y=2)
    s = td.Schedule(f).place(a, "ik -> i k", grid).place(b, "kj -> k j", grid).place(f, "ij -> i j", grid)
    s[f].distribute((i, j), grid)
    s[f].reorder(k, i, j)
    s[f].communicate(a, at=k)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        td.compile(s, target="python").plan()
    texts = [str(w.message) for w in caught if issubclass(w.category, td.PlanningWarning)]
    assert len(texts) == warned
    assert all("'f' communicates 'a' in 50001 iterations of 'k', each" in text for text in texts)
    assert all(w.filename == __file__ for w in caught if w.category is td.PlanningWarning)
