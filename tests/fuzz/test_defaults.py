"""Default schedules of random programs give what these mean, and replay.

`python -m tests.fuzz.defaults` goes on from here.
"""

import pytest

from tests.fuzz.defaults import outcome_of

SEED, PER_TEST = 30_000, 6
FAILED = [  # seed, number, target
    (101, 417, "cpu"),  # a func that is inlined, but not where an update is folded, had a tree
    (202, 169, "cpu"),
    (5, 18, "cuda"),  # copies of whole rows were printed with too many arguments
]


@pytest.mark.in_part(2)
@pytest.mark.parametrize("first", range(0, 4 * PER_TEST, PER_TEST))
def test_default_schedules_give_what_programs_mean(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDSL_DEBUG", "verify")
    for number in range(first, first + PER_TEST):
        outcome = outcome_of(SEED, number)
        assert not outcome.fault, f"python -m tests.fuzz.defaults --seed {SEED} --only {number}"


@pytest.mark.parametrize("seed, number, target", FAILED)
def test_default_schedules_that_failed(seed: int, number: int, target: str) -> None:
    assert not outcome_of(seed, number, target).fault


@pytest.mark.in_part(2)
@pytest.mark.parametrize("first", range(0, 4 * PER_TEST, PER_TEST))
def test_default_kernels_give_what_programs_mean(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDSL_DEBUG", "verify")
    for number in range(first, first + PER_TEST):
        outcome = outcome_of(SEED, number, "cuda")
        assert not outcome.fault, f"python -m tests.fuzz.defaults --seed {SEED} --only {number} --target cuda"
