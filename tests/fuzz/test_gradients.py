"""Random programs whose gradients agree with a tape and with central differences.

`python -m tests.fuzz.gradients` goes on from here.
"""

import pytest

from tests.fuzz.choices import Seeded
from tests.fuzz.gradients import Builder, check

PER_TEST = 10


@pytest.mark.in_part(4)
@pytest.mark.parametrize("digits", [False, True])
@pytest.mark.parametrize("first", range(0, 50, PER_TEST))
def test_gradients_agree_with_a_tape(first, digits):
    for seed in range(first, first + PER_TEST):
        g = Builder(Seeded(seed), digits).build()
        problem = check(g, seed, compiled=seed == first) if g.output else ""
        assert not problem, "\n".join((f"seed {seed}", *g.lines, problem))


@pytest.mark.parametrize("seed", [84, 87, 100, 173, 255, 329, 1021, 210714])
def test_gradients_that_were_wrong(seed):
    g = Builder(Seeded(seed)).build()
    problem = check(g, seed)
    assert not problem, problem
