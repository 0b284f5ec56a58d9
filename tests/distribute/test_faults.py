"""A rank that fails, at any step, ends the run of all, in time, and it is said where."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tdsl as td
from tdsl.distribute import mpi
from tdsl.distribute.progress import FOLDER, Progress, rank_positions
from tests.distribute.matmuls import flat
from tests.distribute.test_mpi import ROOT, needs_mpi, ranks

PROGRAM = ROOT / "tests" / "distribute" / "faults.py"
DEADLINE = 5  # seconds that a rank waits for another
STEP = r"\(?step \d+"
WAITED = (
    rf"rank \d could not .* (from|to) rank \d within 5 s \({STEP}|"
    rf"rank \d could not [a-z-]+ \w+\[.*\] among ranks .* within 5 s \({STEP}|"
    rf"rank \d waited 5 s for rank"
)
LATE = r"rank VICTIM did not come to the end of a call within 5 s: .* steps? \d+"
SAYS = {
    "raise": rf"RuntimeError: on purpose\nrank VICTIM, {STEP}: ",
    "stall": rf"{WAITED}|{LATE}",  # late where it stalls behind its last message
    "last": LATE,
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


def test_there_are_at_least_forty_cases() -> None:
    assert len(set(CASES)) >= 40


@needs_mpi
@pytest.mark.in_part(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
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


EARLY = """
import os, sys
import tdsl as td
if os.environ["PMI_RANK"] == "1":
    FAIL
td.mpi.size()
"""


@needs_mpi
@pytest.mark.parametrize(
    "fail, launched",
    [("raise ValueError('early')", False), ("raise ValueError('early')", True), ("sys.exit('early')", True)],
)
def test_a_rank_that_fails_before_its_first_message_ends_the_run(
    tmp_path: Path, fail: str, launched: bool
) -> None:
    """While the other one waits in the initialisation of MPI."""
    program = tmp_path / "early.py"
    program.write_text(EARLY.replace("FAIL", fail))
    done = ranks(2, str(program), launched=launched, limit=60)
    assert done.returncode == 1, done.stderr
    assert "early" in done.stderr


WAITING = """
import os, sys, time
from pathlib import Path
import tdsl as td
if sys.argv[2] == "mpi":
    td.mpi.size()
Path(sys.argv[1], f"{os.environ['PMI_RANK']}.new").write_text(str(os.getpid()))
Path(sys.argv[1], f"{os.environ['PMI_RANK']}.new").rename(Path(sys.argv[1], os.environ["PMI_RANK"]))
time.sleep(600)
"""


@needs_mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["mpi", "before"])
def test_a_signal_to_the_command_run_ends_all_ranks(tmp_path: Path, number: int, where: str) -> None:
    program = tmp_path / "waiting.py"
    program.write_text(WAITING)
    command = [sys.executable, "-m", "tdsl", "run", "-n", "4", str(program), str(tmp_path), where]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        files = [tmp_path / str(rank) for rank in range(4)]
        until = time.monotonic() + 60
        while not all(file.exists() for file in files):
            assert time.monotonic() < until and process.poll() is None
            select.select([], [], [], 0.05)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


MISSING = """
import numpy as np, tdsl as td
from tests.distribute.matmuls import flat
p = td.compile(flat(td.Grid(x=4, y=1), "", M=4, N=4, K=4), target="python")
given = p.block("A", np.ones((4, 4))), p.block("B", np.ones((4, 4)))
block = p(*given)
if td.mpi.rank() in (0, 2):
    for call in (lambda: p.gather("C", block), lambda: p(*given)):
        try:
            call()
        except td.TargetError as error:
            print(error.message, flush=True)
"""


@needs_mpi
def test_a_rank_that_is_missing_in_gather_is_named() -> None:
    done = ranks(4, "-c", MISSING, seconds=1)
    assert "rank 0 waited 1 s for ranks 1, 3 to gather 'C'" in done.stdout, done.stdout + done.stderr
    assert "an earlier call ended half way on this rank: rank 0 waited" in done.stdout, done.stdout


def test_why_mpi4py_cannot_be_imported_is_said(tmp_path: Path) -> None:
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text("")
    program = "import tdsl as td; td.mpi.size()"
    for text in ("import no_such_library", "raise RuntimeError('cannot load no_such_library')"):
        (package / "MPI.py").write_text(text)
        env = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PMI_SIZE": "2"}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
        assert done.returncode == 1
        assert re.search(r"mpi4py is installed, but cannot be imported: .*no_such_library", done.stderr)


def test_ranks_are_aborted_after_their_output_is_read() -> None:
    """MPICH's launcher ends the run without what is left in the pipes."""
    program = "import sys, tdsl.distribute.abort as a; sys.stderr.write('why'); a.abort_ranks(1); print(1)"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        assert select.select([process.stderr], [], [], 60)[0]
        assert not select.select([process.stdout], [], [], 0.3)[0]
        assert process.stderr.read(3) == b"why"
        assert process.stdout.read() == b"1\n"


def test_only_ranks_in_a_call_have_a_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    plan = td.compile(flat(td.Grid(x=2, y=1), "", M=4, N=4, K=4), target="python").plan()
    for rank in range(2):
        progress = Progress.create(plan.rank(rank))
        progress.reach(rank)
        if rank:
            progress.leave()
    assert rank_positions(str(tmp_path)) == {0: "a call, before its first step"}


def test_a_deadline_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDSL_MPI_DEADLINE", "5 min")
    with pytest.raises(td.TargetError, match="is a number of seconds, not '5 min'"):
        mpi.deadline()
