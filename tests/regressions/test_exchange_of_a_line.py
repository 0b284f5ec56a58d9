"""Ranks of a line that all exchange with each other are no collective if one sends to others, too."""

from __future__ import annotations

import numpy as np
import pytest

from tests.distribute.pipelines import program, random_distribution
from tests.distribute.test_stencils import simulate_and_check


@pytest.mark.parametrize("seed", [1001, 1002])
def test_a_rank_of_the_line_sends_to_one_beside_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    f = program(rng)
    s = random_distribution(np.random.default_rng((seed, 1)), f)
    shape = tuple(e.value for e in s.program.inputs[0].shape)
    simulate_and_check(s, a=rng.integers(-99, 99, shape))
