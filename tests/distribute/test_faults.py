"""A rank that fails, at any step, ends the run of all, in time, and it is said where."""

from __future__ import annotations

import re

import pytest

import tdsl as td
from tdsl.distribute import mpi
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


def test_there_are_at_least_forty_cases() -> None:
    assert len(set(CASES)) >= 40
    assert set(ALWAYS) <= set(CASES)


@needs_mpi
@pytest.mark.parametrize("case", CASES if LONG else ALWAYS, ids=lambda case: "-".join(map(str, case)))
def test_a_failing_rank_ends_the_run(case: tuple[str, str, int, int]) -> None:
    _, kind, victim, _ = case
    done = ranks(4, str(PROGRAM), *map(str, case), seconds=DEADLINE, limit=120, launched=kind == "kill")
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "not stopped" not in said
    assert re.search(SAYS[kind].replace("VICTIM", str(victim)), said), said


CAUGHT = """
import numpy as np, tdsl as td
from tdsl.distribute.engine import Worker
from tests.distribute.matmuls import flat
p = td.compile(flat(td.Grid(x=2, y=1), "", M=4, N=4, K=4), target="python")
given = p.block("A", np.ones((4, 4))), p.block("B", np.ones((4, 4)))
run = Worker._run_task
def stop(worker, step):
    raise RuntimeError("on purpose")
if td.mpi.rank():
    Worker._run_task = stop
for _ in range(2):
    try:
        p(*given)
    except Exception as error:
        print(str(error).splitlines()[0], flush=True)
    Worker._run_task = run
"""


@needs_mpi
def test_calls_after_an_interrupted_call_are_refused() -> None:
    """It would take the messages that are left of it for its own."""
    done = ranks(2, "-c", CAUGHT, seconds=1)
    assert "on purpose" in done.stdout
    assert re.search("an earlier call ended half way on this rank: rank 1, step", done.stdout)


def test_a_deadline_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDSL_MPI_DEADLINE", "5 min")
    with pytest.raises(td.TargetError, match="is a number of seconds, not '5 min'"):
        mpi.deadline()
