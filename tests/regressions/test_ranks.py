"""Programs on ranks that once went wrong."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.steps import Exchange, Message, Reduce
from tdsl.distribute.engine import Event, Reduction, StartTransfer, Transfer
from tdsl.distribute.simulate import simulate
from tdsl.lang.interp import interpret
from tdsl.lang.reduction import builtin_combiner
from tdsl.lang.types import i64

i, j, k = td.vars("i j k")


def test_what_known_sizes_leave_unread_may_be_communicated() -> None:
    a, f, grid = td.Tensor("a", (4,), td.i64), td.Func("f"), td.Grid(x=2)
    f[i] = a[i] - a[i] + i
    s = td.Schedule(f).place("a", "r -> r", grid).place("f", "r -> r", grid)
    s[f].communicate("a", at=s[f].distribute(i, grid)[0])
    np.testing.assert_array_equal(td.compile(s).simulate(np.ones(4, np.int64)), np.arange(4))


def test_a_scalar_result_is_written_where_it_lives() -> None:
    a, f, grid = td.Tensor("a", (5,), td.i64), td.Func("f"), td.Grid(x=2)
    f[()] = td.sum(a[i], axis=i)
    s = td.Schedule(f).place("a", "r -> *", grid).place("f", "-> 1", grid)
    s[f].distribute(i, grid)
    assert td.compile(s).simulate(np.arange(5)) == 10


def test_an_empty_result_has_its_shape() -> None:
    a, f, grid = td.Tensor("a", ("N",), td.i64), td.Func("f"), td.Grid(x=2)
    f[i] = a[i] * 2
    s = td.Schedule(f).place("a", "r -> r", grid).place("f", "r -> r", grid)
    s[f].distribute(i, grid)
    assert td.compile(s).simulate(np.zeros(0, np.int64)).shape == (0,)


def test_phases_of_a_reduction_are_not_mixed_up() -> None:
    """Rank 2 is in the second phase, over nodes, while rank 0 still waits for rank 1 in the first."""
    combine = builtin_combiner("sum", (i64,))
    total = [np.array([10**rank]) for rank in range(4)]

    def reduce(rank: int, ranks: tuple[int, ...]) -> Reduction:
        parts = tuple(((0, 1),) if r == ranks[0] else None for r in ranks)
        step = Reduce(ranks, 5, "f", "f" if rank == ranks[0] else None, ((0, 1),), parts)
        result = total[rank] if rank == ranks[0] else None
        return Reduction(step, (total[rank].copy(),), result, combine)

    def late(receives: bool) -> Transfer:
        m = Message(3 if receives else 1, 7, "a", ((0, 1),))
        parcel = ((m, np.zeros(1)),)
        sides = ((), (m,)) if receives else ((m,), ())
        return Transfer(Exchange(*sides), () if receives else parcel, parcel if receives else ())

    def run(rank: int) -> Iterator[Event]:
        if rank == 1:
            yield late(True)
        if rank == 3:
            yield StartTransfer(late(False), 1)
        yield reduce(rank, (0, 1) if rank < 2 else (2, 3))
        if rank in (0, 2):
            yield reduce(rank, (0, 2))

    workers = [SimpleNamespace(run=partial(run, rank), scalars={}) for rank in range(4)]
    for rank, worker in enumerate(workers):
        worker.plan = SimpleNamespace(rank=rank)
    simulate(workers)  # type: ignore[arg-type]
    assert total[0] == 1111


def before(f: td.Func, n: int) -> Any:
    return td.pad(f, mode="wrap", shape=(n, 3))[i - 1, j]


def behind(f: td.Func, n: int) -> Any:
    return f[(i + 1) % n, j]


def every_other(f: td.Func, n: int) -> Any:
    return f[(2 * i) % n, (j + 1) % 3] - f[i, j]


@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("read", [before, behind, every_other])
@pytest.mark.parametrize("n, ranks", [(4, 2), (9, 4)])
def test_parts_are_merged_around_the_ends(n: int, ranks: int, read: Any, op: str) -> None:
    x, f, h = td.Tensor("x", (n, 3, 8), td.i64), td.Func("f"), td.Func("h")
    f[i, j] = getattr(td, op)(x[i, j, k], axis=k)
    h[i, j] = read(f, n)
    grid = td.Grid(x=ranks)
    s = td.Schedule(h.with_shape(n, 3)).place("x", "ijk -> k", grid).place("h", "ij -> i", grid)
    s.place("f", f"ij -> partial({op})", grid)[f].distribute(k, grid)
    s[h].distribute(i, grid)
    given = np.random.default_rng(0).integers(-9, 9, (n, 3, 8))
    got = td.compile(s, target="python").simulate(given)
    np.testing.assert_array_equal(got, *interpret(s.program, {"x": given}))
