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
    rf"rank \d waited 5 s for rank"
)
SAYS = {
    "raise": rf"RuntimeError: on purpose\nrank VICTIM, {STEP}: ",
    "stall": WAITED,
    "last": r"rank VICTIM did not come to the end of a call within 5 s: .* steps? \d+",
    "away": r"rank \d waited 5 s for rank VICTIM to call this program",
    "exit": rf"SystemExit in rank VICTIM, {STEP}: ",
    "kill": rf"rank VICTIM ended in {STEP}: ",
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
AFTER = [("cannon", "last", 3, 100), ("summa", "last", 0, 100), ("summa", "away", 2, 0)]
CASES = AT_STEPS + BEFORE + AFTER
ALWAYS = [AT_STEPS[n] for n in (1, 13, 22, 34)] + [BEFORE[1], BEFORE[7]] + AFTER[:1]


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
    done = ranks(
        4, str(PROGRAM), *map(str, case), seconds=DEADLINE, limit=120, launched=kind == "kill"
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "not stopped" not in said
    assert re.search(SAYS[kind].replace("VICTIM", str(victim)), said), said
    assert time.monotonic() - start < 120
