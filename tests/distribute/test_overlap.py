"""Communication with overlap: points that read local elements are computed while the others' reads travel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.steps import Finish, Run, Start
from tdsl.distribute.buffer_contents import PlanFault
from tdsl.distribute.check import check
from tests.distribute.matmuls import matmul
from tests.distribute.test_check import changed

i, j = td.vars("i j")


def stencil(shape: tuple[int, int], grid: td.Grid, overlap: bool, mode: str = "edge") -> td.Schedule:
    """Two steps of a stencil with a halo of two rows and a column, each of which exchanges halos."""
    source: Any = td.Tensor("u", shape, td.f64)
    funcs = []
    for n in range(2):
        f, p = td.Func(f"f{n}"), td.pad(source, mode=mode, shape=shape)
        f[i, j] = p[i, j] / 3 + p[i - 2, j] * 0.7 - p[i + 1, j] / 7 + p[i, j - 1]
        funcs.append((f, source))
        source = f
    s = td.Schedule(source).place("u", "rc -> r c", grid)
    for f, read in funcs:
        loops = s.place(f, "rc -> r c", grid)[f].distribute((i, j), grid)
        s[f].communicate(read, at=loops[-1], overlap=overlap)
    return s


def kinds(plan: Any, rank: int) -> str:
    """The starts, finishes and runs of a rank."""
    letters = {Start: "s", Finish: "f", Run: "r"}
    return "".join(letters[type(x)] for x in plan.rank(rank).steps if isinstance(x, Start | Finish | Run))


@pytest.mark.in_part(9)
@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect"])
@pytest.mark.parametrize("shape", [(24, 18), (13, 7), (5, 3)])
@pytest.mark.parametrize("grid", [(4, 1), (2, 2), (7, 1)])
def test_results_bytes_and_memory_are_those_without_overlap(
    grid: tuple[int, int], shape: tuple[int, int], mode: str, rng: np.random.Generator
) -> None:
    u, results, plans = rng.standard_normal(shape), [], []
    for overlap in (False, True):
        s = stencil(shape, td.Grid(x=grid[0], y=grid[1]), overlap, mode)
        p = td.compile(s, target="python")
        out, counted = p.simulate(u, count=True)
        assert counted.received == p.plan().received
        check(p.plan())
        results.append(out)
        plans.append(p.plan())
    np.testing.assert_array_equal(*results)
    blocking, overlapped = plans
    assert (blocking.received, blocking.messages) == (overlapped.received, overlapped.messages)
    assert blocking.peak_memory == overlapped.peak_memory


def test_the_interior_is_computed_before_the_halo_is_received() -> None:
    """Of an inner rank 6 rows of 9 need no halo, and all columns; of the first one 8."""
    plan = td.compile(stencil((36, 8), td.Grid(x=4, y=1), True)).plan()
    assert kinds(plan, 1) == "srfrr" * 2
    assert kinds(plan, 0) == "srfr" * 2
    first, *rim = [x.box for x in plan.rank(1).steps if isinstance(x, Run) and x.func == "f0"]
    assert first == ((11, 17), (0, 8))
    assert rim == [((9, 11), (0, 8)), ((17, 18), (0, 8))]


def test_without_local_points_the_task_follows_the_messages(rng: np.random.Generator) -> None:
    """Blocks of one row with a halo of two have no interior; a reversed tensor has none, either."""
    plan = td.compile(stencil((4, 8), td.Grid(x=4, y=1), True)).plan()
    assert kinds(plan, 1) == "ssffr" * 2  # rows above and below are fetched separately
    a, f, grid = td.Tensor("a", (12,), td.i64), td.Func("f"), td.Grid(x=2)
    f[i] = a[11 - i]
    s = td.Schedule(f).place(a, "r -> r", grid).place(f, "r -> r", grid)
    s[f].communicate(a, at=s[f].distribute(i, grid)[0], overlap=True)
    assert kinds(td.compile(s).plan(), 0) == "sfr"
    np.testing.assert_array_equal(td.compile(s, target="python").simulate(np.arange(12)), np.arange(12)[::-1])


def test_distant_reads_of_one_tensor_are_overlapped_together() -> None:
    """Each part of the tensor that is fetched has a buffer and messages of its own."""
    a, f, grid = td.Tensor("a", (24,), td.i64), td.Func("f", shape=(24,)), td.Grid(x=4)
    f[i] = a[i] * 2 + a[(i + 1) % 24] + a[(i + 11) % 24]
    s = td.Schedule(f).place(a, "r -> r", grid).place(f, "r -> r", grid)
    s[f].communicate(a, at=s[f].distribute(i, grid)[0], overlap=True)
    x, p = np.arange(24) ** 2, td.compile(s, target="python")
    np.testing.assert_array_equal(p.simulate(x), x * 2 + np.roll(x, -1) + np.roll(x, -11))
    check(p.plan())
    assert "s" in kinds(p.plan(), 0)


@pytest.mark.parametrize("steps", [1, 3])
def test_columns_of_a_product_are_computed_while_others_travel(steps: int, rng: np.random.Generator) -> None:
    """Not for stencils only: each rank has some columns of B, computes these of C, and receives the others.

    In steps along k its terms are added in the same way, from a result of each step.
    """
    grid = td.Grid(x=3)
    s = matmul.schedule(M=11, N=7, K=13)
    s.place("A", "mk -> m", grid).place("B", "kn -> n", grid).place("C", "mn -> m", grid)
    (rows,) = s["C"].distribute(("i",), grid)
    at: Any = rows
    if steps > 1:
        at, inside = s["C"].split("k", nparts=steps)
        s["C"].reorder(at, "i", "j", inside)
    s["C"].communicate("B", at=at, overlap=True).communicate("A", at=at)
    a, b = rng.integers(-9, 9, (11, 13)).astype(float), rng.integers(-9, 9, (13, 7)).astype(float)
    p = td.compile(s, target="python")
    np.testing.assert_array_equal(p.simulate(a, b), a @ b)
    check(p.plan())
    assert "srf" in kinds(p.plan(), 1)


def test_the_time_model_hides_messages_behind_the_interior(tmp_path: Path) -> None:
    """Computing takes longer than the messages: only the rim and the copies remain after them."""
    blocking, overlapped = (
        td.compile(stencil((64, 64), td.Grid(x=4, y=1), overlap)).trace(
            tmp_path / "t.json", latency=1e-5, bandwidth=1e9, operations=1e8
        )
        for overlap in (False, True)
    )
    assert 2e-5 < blocking - overlapped < 3e-5  # two exchanges with a latency, and their bytes


def test_a_rim_that_is_computed_too_early_is_rejected() -> None:
    plan = td.compile(stencil((36, 8), td.Grid(x=4, y=1), True)).plan()
    steps: list[Any] = list(plan.rank(1).steps)
    at = next(n for n, x in enumerate(steps) if isinstance(x, Finish))
    steps[at], steps[at + 1] = steps[at + 1], steps[at]
    with pytest.raises(PlanFault, match="on its way"):
        check(changed(plan, 1, steps))


def test_the_directive_prints_and_replays() -> None:
    s = matmul.schedule(M=4, N=4, K=4)
    (rows,) = s["C"].distribute(("i",), td.Grid(x=2))
    s["C"].communicate("B", at=rows, overlap=True)
    assert 'communicate(("B",), at="i_o", overlap=True)' in str(s)
    assert str(matmul.schedule(M=4, N=4, K=4).replay(s.to_json())) == str(s)
