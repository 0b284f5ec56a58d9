"""Plans run under MPI: the bytes that are carried are those planned; skipped where there is no MPI."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribute.test_mpi import needs_mpi, ranks

PROGRAM = Path(__file__).parent / "planned_under_mpi.py"


@needs_mpi
@pytest.mark.in_part(1)
@pytest.mark.parametrize("count", [4, 8])
def test_plans_carry_the_bytes_that_were_planned(count: int) -> None:
    done = ranks(count, str(PROGRAM))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 4
