"""A rank that fails, at any step, ends the run of all, in time, and it is said where."""

from __future__ import annotations

import re
import time

import pytest

from tests.distribute.test_mpi import LONG, ROOT, needs_mpi, ranks

PROGRAM = ROOT / "tests" / "distribute" / "faults.py"
DEADLINE = 5  # seconds that a rank waits for another
STEP = r"\(?step \d+"
WAITED = (
    rf"rank \d could not .* (from|to) rank \d within 5 s \({STEP}|"
    rf"rank \d could not [a-z-]+ \w+\[.*\] among ranks .* within 5 s \({STEP}|"
    rf"rank \d waited 5 s for the others"
)
SAYS = {
    "raise": rf"RuntimeError: on purpose\nrank VICTIM, {STEP}: ",
    "stall": WAITED,
    "exit": WAITED,
    "kill": r"RANK VICTIM|KILLED BY SIGNAL|Killed",
    "program": r"runs another program, other sizes or another version",
    "sizes": r"runs another program, other sizes or another version",
    "shape": r"rank VICTIM: A has shape",
    "dtype": r"rank VICTIM: A .*(float32|f32)",
}
AT_STEPS = [
    (what, kind, victim, at)
    for kind in ("raise", "kill", "stall", "exit")
    for what, victim in (("cannon", 2), ("summa", 1), ("histogram", 3))
    for at in (10, 50, 90)
]
BEFORE = [("cannon", kind, v, 0) for kind in ("program", "sizes", "shape", "dtype") for v in (0, 3)]
CASES = AT_STEPS + BEFORE
ALWAYS = [AT_STEPS[n] for n in (1, 13, 22, 34)] + [BEFORE[1], BEFORE[5], BEFORE[7]]


def test_there_are_at_least_forty() -> None:
    assert len(set(CASES)) >= 40
    assert set(ALWAYS) <= set(CASES)


@needs_mpi
@pytest.mark.parametrize(
    "case", CASES if LONG else ALWAYS, ids=lambda case: "-".join(map(str, case))
)
def test_the_run_ends(case: tuple[str, str, int, int]) -> None:
    _, kind, victim, _ = case
    start = time.monotonic()
    done = ranks(4, str(PROGRAM), *map(str, case), seconds=DEADLINE, limit=120)
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "not stopped" not in said
    assert re.search(SAYS[kind].replace("VICTIM", str(victim)), said), said
    assert time.monotonic() - start < 120
