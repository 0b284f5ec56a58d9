"""Ranks that verify their own steps with their partners find what the verification of all plans finds."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.steps import Route
from tdsl.distribute.buffer_contents import PlanFault
from tdsl.distribute.check import PartnerFault, check, check_with_partners
from tdsl.distribute.check_messages import Post
from tdsl.distribute.plan import Plan
from tests.distribute.matmuls import cube, flat
from tests.distribute.random_programs import schedule
from tests.distribute.test_check import PLANS, changed, faults
from tests.distribute.test_mpi import needs_mpi, ranks
from tests.distribute.test_routed import tokens


class Rounds:
    """Ranks as threads that swap posts, as under MPI."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)
        self.posts: list[Any] = [None] * count

    def swap(self, rank: int, posts: Mapping[int, Sequence[Post]] | None) -> tuple[list[Post], bool]:
        self.posts[rank] = None if posts is None else {r: pickle.dumps(p) for r, p in posts.items()}
        self.barrier.wait(60)
        every = list(self.posts)
        self.barrier.wait(60)
        if None in every and posts is not None:
            raise PartnerFault(f"the plan of rank {every.index(None)} is incorrect")
        received = [pickle.loads(sent[rank]) for sent in every if sent and rank in sent]
        return [post for part in received for post in part], any(every)


def outcomes(plan: Plan) -> list[str]:
    """What each rank says of its plan: "" if it is verified, else the fault."""
    count = plan.grid.size + plan.idle
    said, rounds = [""] * count, Rounds(count)
    for rank in range(count):
        plan.rank(rank)

    def verify(rank: int) -> None:
        try:
            check_with_partners(plan, rank, lambda posts: rounds.swap(rank, posts))
        except PlanFault as fault:
            said[rank] = str(fault)

    threads = [threading.Thread(target=verify, args=(rank,)) for rank in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return said


@pytest.mark.in_part(8)
@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS.keys())
def test_all_ranks_refuse_what_is_changed_in_one(make: Any, rng: np.random.Generator) -> None:
    plan = make()
    assert not any(outcomes(plan))
    for _, (what, wrong) in zip(range(40), faults(plan, rng), strict=False):
        assert all(outcomes(wrong)), what


def test_idle_ranks_take_part() -> None:
    plan = td.compile(flat(td.Grid(x=1, y=3), "", M=5, N=6, K=4).ranks(5), target="python").plan()
    assert outcomes(plan) == [""] * 5


@pytest.mark.parametrize(
    "change",
    [
        lambda x: replace(x, target=None),
        lambda x: replace(x, index="?"),
        lambda x: replace(x, tag=x.tag + 1000),
        lambda x: replace(x, blocks=(x.blocks[0], None, *x.blocks[2:])),
        lambda x: replace(x, spans=x.spans[1:]),
    ],
    ids=["no target", "another index", "another tag", "a block fewer", "a span fewer"],
)
def test_changed_routes_are_refused(change: Callable[[Route], Route]) -> None:
    plan = tokens(10, 9, 3).plan()
    assert not any(outcomes(plan))
    steps = list(plan.rank(1).steps)
    (at,) = (n for n, step in enumerate(steps) if isinstance(step, Route))
    route = steps[at]
    assert isinstance(route, Route)
    steps[at] = change(route)
    wrong = changed(plan, 1, steps)
    with pytest.raises(PlanFault):
        check(wrong)
    assert all(outcomes(wrong))


@pytest.mark.parametrize("seed", range(6))
def test_random_plans_are_verified(seed: int) -> None:
    for distribution in range(4):
        assert not any(outcomes(td.compile(schedule(seed, distribution), target="python").plan()))


MANY = {
    "cannon on 100": lambda: flat(td.Grid(x=10, y=10), "ij", M=20, N=20, K=20),
    "summa on 144": lambda: flat(td.Grid(x=12, y=12), "", M=12, N=24, K=12),
    "sums on 100": lambda: cube(td.Grid(x=5, y=5, z=4), M=10, N=10, K=8),
}


@pytest.mark.parametrize("make", MANY.values(), ids=MANY.keys())
def test_changed_plans_of_more_than_64_ranks_are_refused(make: Any, rng: np.random.Generator) -> None:
    plan = td.compile(make(), target="python").plan()
    check(plan)
    for n, (what, wrong) in zip(range(3), faults(plan, rng), strict=False):
        with pytest.raises(PlanFault):
            check(wrong)
        if n == 0 and plan.grid.size == 100:
            assert all(outcomes(wrong)), what


PROGRAM = """
import sys
from dataclasses import replace
import numpy as np, tdsl as td
from tdsl.distribute import program
from tests.distribute.matmuls import flat
program.MAX_VERIFIED_RANKS = 1
a, b = np.ones((40, 50)), np.ones((50, 60))
p = td.compile(flat(td.Grid(x=2, y=2), "ij", M=40, N=60, K=50))
if sys.argv[1] == "wrong" and td.mpi.rank() == 2:
    plan = p.plan()
    mine = plan.rank(2)
    n, x = next((n, s) for n, s in enumerate(mine.steps) if getattr(s, "sends", ()))
    other = replace(x, sends=tuple(replace(m, tag=m.tag + 100) for m in x.sends))
    plan._ranks[2] = replace(mine, steps=(*mine.steps[:n], other, *mine.steps[n + 1 :]))
block = p(p.block("A", a), p.block("B", b))
assert (block == 50).all()
"""


@needs_mpi
def test_ranks_compare_their_messages_before_a_run() -> None:
    done = ranks(4, "-c", PROGRAM, "right")
    assert done.returncode == 0, done.stderr
    done = ranks(4, "-c", PROGRAM, "wrong", limit=60)
    assert done.returncode != 0
    assert "PlanFault" in done.stderr and "is never" in done.stderr
