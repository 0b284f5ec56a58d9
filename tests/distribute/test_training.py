"""Training spread over ranks: bytes planned, counted at MPI calls and of the literature are the same."""

from __future__ import annotations

import pytest

from tests.distribute.test_mpi import ROOT, needs_mpi, ranks


@pytest.mark.in_part(1)
@needs_mpi
@pytest.mark.parametrize("count", [2, 4, 8])
def test_training_moves_what_the_literature_says(count: int) -> None:
    done = ranks(count, str(ROOT / "examples" / "17_training.py"))
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 10
    for line in lines:
        planned, counted, closed = line[-6:-3]
        assert counted == closed
        assert planned == counted or "by indices of data" in " ".join(line)
