"""A bounded part of the fuzzing: the same programs and schedules every time.

The whole of it is `python -m tests.fuzz`; a fault there is printed as a small program.
"""

import pytest

from tests.fuzz.campaign import Report, run_program

PROGRAMS = 48
SCHEDULES = 3
BATCH = 4


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_schedules_keep_the_meaning(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDSL_DEBUG", "verify")
    report = Report()
    for program in range(first, first + BATCH):
        run_program(0, program, SCHEDULES, report)
    faults = [
        f"python -m tests.fuzz --seed 0 --only {f.program}:{f.schedule}   {f.outcome.kind}\n"
        f"{f.outcome.text[-800:]}"
        for f in report.faults
    ]
    assert not faults, "\n\n".join(faults)
    assert sum(report.outcomes.values()) >= BATCH * SCHEDULES
