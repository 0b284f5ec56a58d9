"""Programs under mpiexec, right ones and such in which a rank fails; skipped where there is no MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tdsl as td
from tdsl.distribute import mpi
from tests.distribute.matmuls import flat, matmul

grid_of_six = td.Grid(x=2, y=3)
ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(__file__).parent / "under_mpi.py"
PARTS = [
    "products", "collectives", "collectives of 40", "collectives of 150", "modules", "pipelines",
]  # fmt: skip


def mpiexec() -> str | None:
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        return None
    sibling = Path(sys.executable).parent / "mpiexec"
    return str(sibling) if sibling.exists() else shutil.which("mpiexec")


needs_mpi = pytest.mark.skipif(mpiexec() is None, reason="no mpi4py or mpiexec")


def ranks(
    n: int, *arguments: str, seconds: int = 300, limit: int = 300, launched: bool = False
) -> subprocess.CompletedProcess[str]:
    """A program under mpiexec, or `launched` by the command run."""
    by = [str(mpiexec()), "-n", str(n), sys.executable]
    if launched:
        by = [sys.executable, "-m", "tdsl", "run", "-n", str(n)]
    command = [*by, *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT), "TDSL_MPI_DEADLINE": str(seconds)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit)


@needs_mpi
def test_products_and_collectives_on_four_ranks_are_right() -> None:
    """Collectives also in messages of at most 40 or 150 bytes, too few on some ranks only; and as modules."""
    done = ranks(4, str(PROGRAM))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"right: {what}" for what in PARTS]


@needs_mpi
def test_the_command_run_ends_all_ranks_when_one_raises(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, tdsl as td\n"
        "if td.mpi.rank() == 1 and sys.argv[1] == '--fail': raise ValueError('no')\n"
        "print('rank', td.mpi.rank(), 'of', td.mpi.size())\n"
    )
    for option, code in (("--fine", 0), ("--fail", 1)):
        done = ranks(2, str(program), option, launched=True, limit=120)
        assert done.returncode == code, done.stderr
    assert "ValueError: no" in done.stderr


@pytest.mark.in_part(1)
@needs_mpi
@pytest.mark.parametrize("example", ["08_cannon.py", "09_tensors.py", "10_heat.py"])
def test_examples_run_on_four_ranks(example: str) -> None:
    done = ranks(4, str(ROOT / "examples" / example))
    assert done.returncode == 0, done.stderr


@needs_mpi
def test_a_launcher_of_another_mpi_is_an_error() -> None:
    """As it would be under srun without a plugin for this MPI: four processes, each alone."""
    for variable in ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        env = os.environ | {"PYTHONPATH": str(ROOT), variable: "4"}
        command = [sys.executable, "-c", "import tdsl as td; td.mpi.size()"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "mpi4py, of another MPI, sees one" in done.stderr


def test_large_messages_are_split() -> None:
    """More bytes than a count of MPI has; nothing of the memory is touched."""
    calls: list[tuple[int, int, int]] = []
    array = np.empty((3, mpi.LARGEST // 16 + 1), np.float64)
    requests = mpi.start(lambda part, tag, dest: calls.append((part.nbytes, tag, dest)), array, 7, dest=1)
    assert len(requests) == 2
    assert sum(size for size, _, _ in calls) == array.nbytes > mpi.LARGEST
    assert {call[1:] for call in calls} == {(7, 1)}
    assert max(size for size, _, _ in calls) <= mpi.LARGEST


def test_ranks_behind_those_of_the_grid_are_idle() -> None:
    s = matmul.schedule(M=96, N=96, K=96)
    grid = td.recipes.cosma(s["C"], 7)
    assert (grid.size, s.state.ranks) == (6, 7)
    assert "\ns.ranks(7)\n" in str(s)
    assert matmul.schedule(M=96, N=96, K=96).replay(s.to_json()).state == s.state
    p = td.compile(s)
    assert p.plan().idle == 1
    assert "idle, because the grid has 6 ranks only: 6" in str(p.plan())
    assert p.block("A", np.ones((96, 96)), 6) is None
    with pytest.raises(td.TargetError, match="has 7 ranks, of which 1 are idle, this run has 1"):
        p(None, None)
    with pytest.raises(td.ScheduleError, match="a run of 5 ranks cannot have Grid"):
        flat(grid_of_six, "", M=4, N=4, K=4).ranks(5)
    with pytest.raises(td.ScheduleError, match="nothing is placed"):
        matmul.schedule().ranks(5)


def test_a_grid_of_another_size_than_the_run_is_refused() -> None:
    p = td.compile(flat(td.Grid(x=2, y=2), "ij", M=4, N=4, K=4))
    with pytest.raises(td.TargetError, match="the grid has 4 ranks, this run has 1"):
        p(None, None)


def test_gather_checks_blocks() -> None:
    """In a run of one rank, whose block is the whole."""
    p = td.compile(flat(td.Grid(x=1, y=1), "", M=4, N=5, K=6))
    with pytest.raises(td.ShapeError, match=r"C has shape \(1, 5\), expected \(4, 5\)"):
        p.gather("C", np.ones((1, 5)))
    with pytest.raises(td.TypeMismatch, match="C has dtype float32, expected float64"):
        p.gather("C", np.ones((4, 5), np.float32))
    with pytest.raises(td.TypeMismatch, match="C is of type NoneType, not an array"):
        p.gather("C", None)
    with pytest.raises(td.ShapeError, match="there is no rank 1 of 1 rank"):
        p.gather("C", np.ones((4, 5)), root=1)
    with pytest.raises(td.ShapeError, match="there is no rank -1 of 1 rank"):
        p.block("A", np.ones((4, 6)), -1)
