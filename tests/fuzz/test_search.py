"""A bounded part of `python -m tests.fuzz.search`: the same programs in every run."""

import pytest

from tests.fuzz.search import outcomes_of
from tests.nightly import NIGHTLY

SEED = 30_000
PART = 1 if NIGHTLY else 3  # one of so many programs


@pytest.mark.parametrize(
    "target, graphs, programs, least",
    [("cpu", False, 24, 30), ("cpu", True, 3, 8), ("cuda", False, 12, 8), ("cuda", True, 6, 6)],
)
def test_schedules_that_a_search_finds_give_what_programs_mean(target, graphs, programs, least):
    same = 0
    for number in range(programs // PART):
        for label, outcome in outcomes_of(SEED, number, target, graphs=graphs):
            assert not outcome.fault, (
                f"python -m tests.fuzz.search --seed {SEED} --first {number} --programs 1 --target {target}"
                f"{' --graphs' * graphs}: {label}\n{outcome.text}"
            )
            same += outcome.kind == "same"
    assert same >= least / PART
