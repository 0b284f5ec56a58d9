"""Which collectives are seen in programs, and that their results and bytes are those of messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.steps import Reduce, reduction_elements
from tdsl.distribute.check import check
from tdsl.distribute.plan import Plan
from tests.distribute.matmuls import cube, flat
from tests.distribute.test_results import histogram
from tests.distribute.test_simulate import simulate_as_planned

i, j, k = td.vars("i j k")


def kinds(plan: Plan, rank: int = 0) -> Counter[str]:
    """How often a rank takes part in which collective; "" are messages."""
    return Counter(s.collective for s in plan.rank(rank).steps if hasattr(s, "collective"))


def test_panels_are_broadcast_and_rotated_tiles_shifted() -> None:
    grid = td.Grid(x=3, y=3)
    summa, cannon = (td.compile(flat(grid, turn, M=9, N=9, K=9)).plan() for turn in ("", "ij"))
    assert kinds(summa) == {"broadcast": 6}  # one of A and one of B in each of three steps
    assert set(kinds(cannon)) == {""}
    pumma = td.compile(flat(grid, "i", M=9, N=9, K=9)).plan()
    assert kinds(pumma) == {"broadcast": 3, "": 2}  # of A; tiles of B roll


def test_plans_list_tensors_by_kind_of_communication() -> None:
    grid = td.Grid(x=3, y=3)
    said = {}
    for turn in ("", "i", "ij"):
        text = str(td.compile(flat(grid, turn, M=9, N=9, K=9)).plan())
        said[turn] = text.splitlines()[1]
    assert said == {
        "": "moved by broadcast of A, B",
        "i": "moved by broadcast of A; shift of B",
        "ij": "moved by shift of A, B",
    }


def test_whole_rows_are_gathered() -> None:
    s = flat(td.Grid(x=4, y=1), "", M=8, N=6, K=12)
    assert kinds(td.compile(s).plan()) == {"broadcast": 4}  # the panel of B of each step
    a, f, grid = td.Tensor("a", (12,), td.i64), td.Func("f"), td.Grid(x=4)
    f[i] = td.sum(a[k] * i, axis=k)
    s = td.Schedule(f.with_shape(8)).place("a", "r -> r", grid).place("f", "r -> r", grid)
    s[f].distribute(i, grid)
    assert kinds(td.compile(s).plan()) == {"all-gather": 1}
    x = np.arange(12)
    np.testing.assert_array_equal(simulate_as_planned(s, x), x.sum() * np.arange(8))


@pytest.mark.parametrize(
    "place, kind",
    [("r -> r", "reduce-scatter"), ("r -> *", "all-reduce"), ("r -> 2", "reduce")],
)
def test_partial_results_are_reduced_to_their_owners(place: str, kind: str) -> None:
    plan = td.compile(histogram(place)).plan()
    assert kinds(plan) == ({kind: 1})


def test_an_all_reduce_moves_less_than_messages() -> None:
    """To and from each rank, 100 elements less those that it adds up: 75 twice, where messages are 300."""
    s = cube(td.Grid(x=1, y=1, z=4), M=10, N=10, K=40)
    (step,) = [s for s in td.compile(s).plan().rank(1).steps if hasattr(s, "parts")]
    assert reduction_elements(step, 1) == (0 + 100, 0)
    b = td.Tensor("b", (16, 100), td.f32)
    f, grid = td.Func("f"), td.Grid(x=4)
    f[i] = td.sum(b[k, i], axis=k)
    s = td.Schedule(f).place("b", "rc -> r", grid).place("f", "r -> *", grid)
    s[f].distribute(k, grid)
    assert td.compile(s).plan().received == (4 * 150,) * 4


def test_a_change_of_layout_is_all_to_all(rng: np.random.Generator) -> None:
    a, f, grid = td.Tensor("a", (8, 12), td.i64), td.Func("f"), td.Grid(x=4)
    f[i, j] = a[i, j] + 1
    x = rng.integers(-9, 9, (8, 12))
    for loop in (i, j):  # columns are fetched, or rows sent off
        s = td.Schedule(f).place("a", "rc -> r", grid).place("f", "rc -> c", grid)
        s[f].distribute(loop, grid)
        assert kinds(td.compile(s).plan()) == {"all-to-all": 1}
        np.testing.assert_array_equal(simulate_as_planned(s, x), x + 1)


def test_partial_results_are_reduced_where_they_are_read(rng: np.random.Generator) -> None:
    """As they would be where they are computed: no rank has a buffer for the part of each other rank."""
    x, grid = rng.integers(-9, 9, (12, 9, 8)), td.Grid(d=2, t=4)
    a, k = td.Tensor("a", (12, 9, 8), td.i64), td.vars("k")
    for placed, loops, kind, received in (
        ("ij -> i j", (i, j), "reduce-scatter", 432),
        ("ij -> i *", (i, "*"), "all-reduce", 656),
        ("ij -> i 1", (i, 1), "reduce", 1296),
        ("ij -> j *", (j, "*"), "", 1680),  # of other groups, too
    ):
        g, f = td.Func("g"), td.Func("f")
        g[i, j] = td.sum(a[i, j, k], axis=k)
        f[i, j] = 3 * g[i, j]
        s = td.Schedule(f).place(a, "ijk -> i k", grid).place(f, placed, grid)
        s.place(g, "ij -> i partial(sum)", grid)[g].distribute((i, k), grid)
        s[f].distribute(loops, grid)
        plan = td.compile(s, target="python").plan()
        assert kinds(plan, 1) == {kind: 1}
        assert plan.received[1] == received
        np.testing.assert_array_equal(simulate_as_planned(s, x), 3 * x.sum(2))


def test_results_of_sums_that_ranks_do_not_share_are_exchanged_as_others(rng: np.random.Generator) -> None:
    """Tokens go to the ranks of their experts, and copies of a sum to all: nothing is added up on the way."""
    g, e, t = td.vars("g e t")
    d, x, f, grid = (
        td.Tensor("d", (8, 5, 4), td.i64),
        td.Tensor("x", (8, 5), td.i64),
        td.Func("f"),
        td.Grid(x=4),
    )
    f[e, g] = td.sum(d[g, t, e] * x[g, t], axis=t)
    a, b = rng.integers(-9, 9, (8, 5, 4)), rng.integers(-9, 9, (8, 5))
    for placed, kind in (("eg -> e", "all-to-all"), ("eg -> *", "all-gather")):
        s = td.Schedule(f).place("d", "gte -> g", grid).place("x", "gt -> g", grid).place("f", placed, grid)
        s[f].distribute(g, grid)
        assert kinds(td.compile(s).plan()) == {kind: 1}
        np.testing.assert_array_equal(simulate_as_planned(s, a, b), np.einsum("gte,gt->eg", a, b))
    empty = td.Tensor("empty", (8, 0), td.i64)
    f = td.Func("f")
    f[g] = td.sum(empty[g, t], axis=t)  # no iteration writes the 0
    s = td.Schedule(f).place("empty", "gt -> g", grid).place("f", "g -> *", grid)
    s[f].distribute(g, grid)
    np.testing.assert_array_equal(simulate_as_planned(s, np.zeros((8, 0), np.int64)), np.zeros(8))


def test_copies_of_a_result_are_gathered(rng: np.random.Generator) -> None:
    a, f, grid = td.Tensor("a", (10,), td.i64), td.Func("f"), td.Grid(x=4)
    f[i] = a[i] * 3
    s = td.Schedule(f).place("a", "r -> r", grid).place("f", "r -> *", grid)
    s[f].distribute(i, grid)
    assert kinds(td.compile(s).plan()) == {"all-gather": 1}
    x = rng.integers(-9, 9, 10)
    np.testing.assert_array_equal(simulate_as_planned(s, x), x * 3)


def floats(*, deterministic: bool) -> td.Schedule:
    """A sum over four ranks whose bits depend on its order."""
    a, f, grid = td.Tensor("a", (40,), td.f32), td.Func("f"), td.Grid(x=4)
    f[()] = td.sum(a[k], axis=k)
    s = td.Schedule(f).place("a", "r -> r", grid).place("f", "-> *", grid)
    (ranks,) = s[f].distribute(k, grid)
    s[f].communicate(f, at=ranks, deterministic=deterministic)
    return s


def test_deterministic_reductions_combine_in_rank_order(rng: np.random.Generator) -> None:
    assert kinds(td.compile(floats(deterministic=False)).plan()) == {"all-reduce": 1}
    s = floats(deterministic=True)
    assert kinds(td.compile(s).plan()) == {"": 1}
    assert "deterministic=True" in str(s)
    a = rng.random(40).astype(np.float32) * 1e3
    expected = np.float32(0)
    for part in np.split(a, 4):
        expected = expected + np.float32(td.compile(_sum())(part))
    assert simulate_as_planned(s, a) == expected


def _sum() -> td.Func:
    a, f = td.Tensor("a", (10,), td.f32), td.Func("f")
    f[()] = td.sum(a[k], axis=k)
    return f


@pytest.mark.parametrize("combined", [td.max, td.argmax])
def test_combines_without_an_mpi_operator_use_messages(combined: Any) -> None:
    """MPI says nothing of the maximum of NaN, and knows no pairs of a value and a 64 bit index."""
    a, f, grid = td.Tensor("a", (6, 40), td.f64), td.Func("f"), td.Grid(x=4)
    f[i] = combined(a[i, k], axis=k)
    s = td.Schedule(f).place("a", "rc -> c", grid).place("f", "r -> r", grid)
    reduced = s.program.funcs[0].name
    if reduced != "f":
        s.place(reduced, "r -> r", grid)["f"].distribute(i, grid)
    s[reduced].distribute(k, grid)
    assert set(kinds(td.compile(s).plan())) == {""}
    x = np.random.default_rng(0).random((6, 40))
    x[2, 33] = np.nan
    x[4, 3:30:7] = np.nan
    expected = x.max(axis=1) if combined is td.max else x.argmax(axis=1)
    np.testing.assert_array_equal(simulate_as_planned(s, x), expected)


@pytest.mark.parametrize("shape", [(7, 5, 9), (2, 9, 3), (9, 1, 2), (3, 0, 4), (1, 1, 1)])
@pytest.mark.parametrize("grid", [{"x": 3, "y": 4}, {"x": 5, "y": 1}, {"x": 1, "y": 3}])
def test_uneven_blocks(shape: tuple[int, int, int], grid: dict[str, int]) -> None:
    m, n, p = shape
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, s).astype(float) for s in ((m, p), (p, n)))
    for turn in ("", "i", "ij"):
        s = flat(td.Grid(**grid), turn)
        np.testing.assert_array_equal(simulate_as_planned(s, a, b), a @ b)
        check(td.compile(s).plan(M=m, N=n, K=p))


@pytest.mark.parametrize("home", ["-> 0 0", "-> 1 2"])
def test_hierarchical_reductions(home: str, rng: np.random.Generator) -> None:
    """First inside of a node of three ranks, then over two nodes: the root gets three parts, not five."""
    a, f, machine = td.Tensor("a", (60,), td.i64), td.Func("f"), [td.Grid(node=2), td.Grid(x=3)]
    f[()] = td.sum(a[k], axis=k)
    s = td.Schedule(f).place("a", "r -> r r", machine).place("f", home, machine)
    outer, _ = s[f].split(k, nparts=2)
    inner = s[f].loops[1]
    s[f].distribute((outer, inner), machine)
    x = rng.integers(-9, 9, 60)
    assert simulate_as_planned(s, x) == x.sum()
    plan = td.compile(s).plan()
    check(plan)
    assert sum(kinds(plan, r)["reduce"] for r in range(6)) == 6 + 2
    assert sorted(plan.received) == [0, 0, 0, 0, 2 * 8, 3 * 8]
    assert [int(plan.formula(r)) for r in range(6)] == list(plan.received)


@pytest.mark.parametrize("size", [24, 7, 1])
@pytest.mark.parametrize(
    "home, kinds_",
    [
        ("r -> * *", {"reduce-scatter": 1, "all-reduce": 1, "all-gather": 1}),
        ("r -> r r", {"reduce-scatter": 2}),
        ("r -> r' r", {"reduce-scatter": 2}),
        ("r -> * r", None),
    ],
)
def test_hierarchical_all_reduce(
    home: str, kinds_: dict[str, int] | None, size: int, rng: np.random.Generator
) -> None:
    """Over nodes goes what is left when each node of four ranks has added up its own."""
    a, f, machine = (
        td.Tensor("a", (24, size), td.i64),
        td.Func("f"),
        [td.Grid(node=3), td.Grid(x=4)],
    )
    f[i] = td.sum(a[k, i], axis=k)
    s = td.Schedule(f).place("a", "rc -> r r", machine).place("f", home, machine)
    outer, _ = s[f].split(k, nparts=3)
    s[f].distribute((outer, s[f].loops[2]), machine)
    x = rng.integers(-9, 9, (24, size))
    np.testing.assert_array_equal(simulate_as_planned(s, x), x.sum(0))
    plan = td.compile(s).plan()
    check(plan)
    with pytest.raises(td.TypeMismatch, match="level by level to several ranks"):
        plan.formula()
    if size == 24 and kinds_ is not None:
        assert kinds(plan) == kinds_
        across = 0
        for rank in plan:
            for step in rank.steps:
                if isinstance(step, Reduce) and {r // 4 for r in step.ranks} == {0, 1, 2}:
                    across += reduction_elements(step, rank.rank)[1]
        assert across == (4 * 24 if home == "r -> * *" else 2 * 24)  # a fourth of what would go there flat


def test_idle_ranks_join_an_all_reduce(rng: np.random.Generator) -> None:
    """Nine terms in blocks of three are those of three ranks of four."""
    a, f, grid = td.Tensor("a", (9, 5), td.i64), td.Func("f"), td.Grid(x=4)
    f[i] = td.sum(a[k, i], axis=k)
    s = td.Schedule(f).place("a", "rc -> r", grid).place("f", "r -> *", grid)
    s[f].distribute(k, grid)
    plan = td.compile(s).plan()
    assert [kinds(plan, rank) for rank in range(4)] == [{"all-reduce": 1}] * 4
    assert plan.total_received == 8 * 2 * 3 * 5  # of messages three times 5 to three ranks each, and one
    x = rng.integers(-9, 9, (9, 5))
    np.testing.assert_array_equal(simulate_as_planned(s, x), x.sum(0))
    check(plan)
