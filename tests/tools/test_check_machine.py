"""Reference kernels are predicted and measured; how well the two agree is not asserted."""

from __future__ import annotations

import json
import math

from typer.testing import CliRunner

from tdsl.tools import check_machine
from tdsl.tools.check_machine import KERNELS, Outcome, check, spread
from tdsl.tools.cli import app


def test_every_kernel_is_predicted_and_measured():
    names = []
    outcomes = list(check(seconds=0.0, size=256, tell=names.append))
    assert [x.name for x in outcomes] == names == list(KERNELS)
    assert len(names) == 12
    for x in outcomes:
        assert 0 < x.predicted < math.inf
        assert 0 < x.measured < math.inf


def test_the_spread_is_that_of_ratios():
    assert spread([Outcome("a", 2.0, 1.0), Outcome("b", 2.0, 1.0)]) == (2.0, 1.0)


def test_the_command_prints_a_row_for_each_kernel_and_the_spread(monkeypatch):
    outcomes = [Outcome("copy", 1e-3, 2e-3), Outcome("triad", 2e-3, 1e-3)]
    monkeypatch.setattr(check_machine, "check", lambda tell: iter(outcomes))
    done = CliRunner().invoke(app, ["machine", "check"])
    assert done.exit_code == 0
    for text in ("copy", "1.000", "2.000", "0.50", "triad", "geometric mean of the ratios 1.00, spread 2.00"):
        assert text in done.stdout
    data = json.loads(CliRunner().invoke(app, ["machine", "check", "--json"]).stdout)
    assert [x["ratio"] for x in data["kernels"]] == [0.5, 2.0]
