"""A bounded part of `python -m tests.fuzz.search`: the same programs in every run."""

import pytest

from tests.fuzz.search import outcomes_of

SEED = 30_000


@pytest.mark.parametrize(
    "target, graphs, programs, least",
    [("cpu", False, 8, 10), ("cpu", True, 1, 3), ("cuda", False, 4, 3), ("cuda", True, 2, 2)],
)
def test_schedules_that_a_search_finds_give_what_programs_mean(target, graphs, programs, least):
    same = 0
    for number in range(programs):
        for label, outcome in outcomes_of(SEED, number, target, graphs=graphs):
            assert not outcome.fault, (
                f"python -m tests.fuzz.search --seed {SEED} --first {number} --programs 1 --target {target}"
                f"{' --graphs' * graphs}: {label}\n{outcome.text}"
            )
            same += outcome.kind == "same"
    assert same >= least
