"""What plans move, against figures that were found by enumerating boxes, and against closed forms."""

from __future__ import annotations

import pytest

import tdsl as td
from tdsl.communication.steps import Exchange
from tests.distribute.matmuls import cube, flat, two_and_a_half

WORD = 8
EVEN = {"M": 1024, "N": 1024, "K": 1024}


def words(plan: object, *tensors: str) -> int:
    return sum(plan.moved(t) for t in tensors) // WORD


@pytest.mark.parametrize("turn", ["", "i", "ij"], ids=["summa", "pumma", "cannon"])
@pytest.mark.parametrize("q, total", [(2, 2_097_152), (4, 6_291_456)])
def test_tiles_on_a_square_grid(turn: str, q: int, total: int) -> None:
    plan = td.compile(flat(td.Grid(x=q, y=q), turn, **EVEN)).plan()
    assert plan.total_received == WORD * total
    assert set(plan.received) == {WORD * total // q**2}


def test_tiles_that_are_not_even() -> None:
    plan = td.compile(flat(td.Grid(x=3, y=3), "ij", **EVEN)).plan()
    assert (plan.total_received, max(plan.received)) == (WORD * 4_194_304, WORD * 466_488)


@pytest.mark.parametrize("p, each", [(2, 1_048_576), (3, 2_097_152)])
def test_johnson_moves_each_matrix_as_often(p: int, each: int) -> None:
    plan = td.compile(cube(td.Grid(x=p, y=p, z=p), **EVEN)).plan()
    assert [words(plan, t) for t in "ABC"] == [each] * 3


@pytest.mark.parametrize(
    "s, c, read, reduced",
    [(2, 2, 3_145_728, 1_048_576), (4, 2, 7_340_032, 1_048_576), (4, 4, 7_864_320, 3_145_728)],
)
def test_layers(s: int, c: int, read: int, reduced: int) -> None:
    plan = td.compile(two_and_a_half(td.Grid(x=s, y=s, z=c), **EVEN)).plan()
    assert (words(plan, "A", "B"), words(plan, "C")) == (read, reduced)


def test_the_order_of_k_changes_messages_but_not_volume() -> None:
    """Turned by i and j, a tile is wanted by one rank at a time, else by all of a row or column."""
    plans = [td.compile(flat(td.Grid(x=3, y=3), turn, M=9, N=9, K=9)).plan() for turn in ("", "ij")]
    collectives = []
    for plan in plans:
        first = next(s for s in plan.rank(0).steps if isinstance(s, Exchange))
        collectives.append((first.collective, len(first.sends)))
    assert collectives == [("broadcast", 2), ("", 2)]
    assert plans[0].received == plans[1].received
