"""Programs of the suite `links` are right on ranks of one process, and the suite says why it cannot run."""

import sys

import numpy as np
import pytest
from rich.console import Console

import tdsl as td
from benchmarks.mpi import linked, links


@pytest.mark.parametrize("name", linked.CASES)
def test_a_program_of_nodes_is_right(name, monkeypatch):
    monkeypatch.setattr(linked, "ROWS", 64)
    case = linked.CASES[name]
    p = td.compile(case.build())
    rng = np.random.default_rng(0)
    shapes = {n: (64, *shape[1:]) if n == "a" else shape for n, shape in case.inputs.items()}
    arrays = {n: rng.integers(0, 9, shape).astype(float) for n, shape in shapes.items()}
    np.testing.assert_array_equal(p.simulate(**arrays), case.expected(arrays))


def test_ranks_that_share_a_link_take_as_long_as_their_bytes():
    slow, fast = (1e-5, 1e7), (1e-6, 1e9)
    two, four = (
        links.predicted_seconds(linked.CASES[name], [slow, fast], 1e10)
        for name in ("exchange-2", "exchange-4")
    )
    crossing = linked.SIDE**2 * 8 / 4 / 1e7  # a quarter of the matrix in each direction, whatever the ranks
    assert two == pytest.approx(crossing, rel=0.05)
    assert four == pytest.approx(crossing, rel=0.05)


def test_a_system_without_network_namespaces_is_skipped_with_the_reason(monkeypatch, capsys):
    monkeypatch.setattr(links.shutil, "which", lambda tool: None)
    record = links.run(Console(file=sys.stdout, width=200), ["exchange-2"], 1)
    assert record[0]["peers"]["tdsl"]["note"] == "skipped: no 'ip' (of iproute2)"
    assert "skipped: no 'ip'" in capsys.readouterr().out


def test_an_unknown_case_is_named():
    with pytest.raises(KeyError, match="no case 'x'; there are exchange-2"):
        links.run(Console(), ["x"], 1)
