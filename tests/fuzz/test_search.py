"""A bounded part of `python -m tests.fuzz.search`: the same programs in every run."""

import pytest

from tests.fuzz.search import outcomes_of

SEED = 30_000


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_schedules_that_a_search_finds_give_what_programs_mean(first: int) -> None:
    same = 0
    for number in range(first, first + 8):
        for candidate, outcome in outcomes_of(SEED, number):
            assert not outcome.fault, (
                f"python -m tests.fuzz.search --seed {SEED} --first {number} --programs 1: "
                f"{candidate.label}\n{outcome.text}"
            )
            same += outcome.kind == "same"
    assert same > 8
