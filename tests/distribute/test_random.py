"""Random programs shared out at random give what one rank gives, and carry what was planned."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.distribute.check import check
from tdsl.lang.interp import interpret
from tests.distribute import test_mpi
from tests.distribute.random_programs import arrays, schedule
from tests.distribute.test_mpi import ROOT, needs_mpi
from tests.distribute.volumes import assert_volume_is_of_plan
from tests.nightly import NIGHTLY

PROGRAM = ROOT / "tests" / "distribute" / "random_ranks.py"
SEEDS = 300 if NIGHTLY else 10
DISTRIBUTIONS = 4  # to share out each program


@pytest.mark.parametrize("part", range(10))
def test_random_programs_match_the_interpreter_and_their_plans(part: int) -> None:
    for seed in range(part, SEEDS, 10):
        for distribution in range(DISTRIBUTIONS + 1):
            s = (
                schedule(seed, distribution)
                if distribution < DISTRIBUTIONS
                else schedule(seed, distribution, (5, 7))
            )
            given = arrays(s, seed)
            p = td.compile(s, target="python")
            (expected,) = interpret(s.program, given)
            got, counted = p.simulate(**given, count=True)
            plan = p.plan()
            what = f"schedule({seed}, {distribution})\n{s.program}\n{s}"
            np.testing.assert_array_equal(got, expected, err_msg=what)
            assert (counted.received, counted.sent) == (plan.received, plan.sent), what
            assert counted.messages == plan.messages, what
            assert_volume_is_of_plan(p._specialise({}), what)
            check(plan)


@needs_mpi
@pytest.mark.in_part(1)
@pytest.mark.parametrize("ranks", [3, 1, 2, 4, 6, 8])
def test_the_same_under_mpi(ranks: int) -> None:
    """All programs of a number of ranks in one run."""
    done = test_mpi.ranks(ranks, str(PROGRAM), str(SEEDS), str(DISTRIBUTIONS), seconds=120, limit=3600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith("right: ")
