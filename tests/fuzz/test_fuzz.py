"""A bounded part of the fuzzer: the same programs and schedules in every run.

`python -m tests.fuzz` goes on from here.
"""

import pytest

from tests.fuzz.campaign import Report, run_program
from tests.fuzz.cases import Meaning
from tests.fuzz.gpu import outcome_of

SEED = 20_000
PER_TEST = 8


@pytest.mark.in_part(4)
@pytest.mark.parametrize("first", range(0, 12 * PER_TEST, PER_TEST))
def test_scheduled_programs_give_what_they_mean(first, monkeypatch):
    monkeypatch.setenv("TDSL_DEBUG", "verify")
    report = Report()
    for program in range(first, first + PER_TEST):
        run_program(SEED, program, 3, report)
    shown = [
        f"python -m tests.fuzz --seed {SEED} --only {f.program}:{f.schedule}   # {f.outcome.kind}"
        for f in report.faults
    ]
    assert not shown, "\n".join(shown)
    # Programs that are wrong on purpose are refused by the interpreter; of the others two thirds run.
    outcomes = report.outcomes.items()
    right = sum(n for kind, n in outcomes if not kind.startswith("refused: oracle"))
    assert 3 * report.outcomes["same"] > 2 * right, dict(outcomes)
    assert right >= 2 * PER_TEST, dict(outcomes)


@pytest.mark.in_part(2)
@pytest.mark.parametrize("first", range(0, 24, 6))
def test_kernels_of_a_gpu_give_what_programs_mean(first, monkeypatch):
    monkeypatch.setenv("TDSL_DEBUG", "verify")
    same = 0
    for program in range(first, first + 6):
        meaning = Meaning()
        for schedule in range(3):
            outcome = outcome_of(SEED, program, schedule, meaning)
            assert not outcome.fault, f"python -m tests.fuzz.gpu --seed {SEED} --only {program}:{schedule}"
            same += outcome.kind == "same"
    assert same > 6
