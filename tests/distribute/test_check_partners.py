"""Plans of one rank match those of its partners; a change of a message is seen by one of the two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.distribute.check_partners import check_hashes, message_hashes
from tdsl.distribute.plan import Plan
from tests.distribute.random_programs import schedule
from tests.distribute.test_check import PLANS, faults
from tests.distribute.test_mpi import needs_mpi, ranks


def sums_of(plan: Plan) -> np.ndarray:
    return np.array([message_hashes(p, plan.grid.size) for p in plan])


def check_all(plan: Plan) -> None:
    """What ranks do together: each compares its sums of hashes with those of the others for it."""
    sums = sums_of(plan)
    for p in plan:
        check_hashes(p.rank, sums[p.rank], sums[:, p.rank])


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS.keys())
def test_plans_match_and_changed_messages_do_not(make: Any, rng: np.random.Generator) -> None:
    plan = make()
    check_all(plan)
    right, seen = sums_of(plan), 0
    for _, (what, wrong) in zip(range(100), faults(plan, rng), strict=False):
        sums = sums_of(wrong)
        changed = not np.array_equal(sums, right)
        assert changed == (not np.array_equal(sums, sums.T)), what
        seen += changed
    assert seen > 3 or not right.any()


@pytest.mark.parametrize("seed", range(12))
def test_random_plans_match(seed: int) -> None:
    for distribution in range(4):
        check_all(td.compile(schedule(seed, distribution), target="python").plan())


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
    assert "plan different messages between them" in done.stderr
