"""Predicted bytes beside counted ones: the command of the benchmarks, on a few of its schedules."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.predicted.command import summary
from benchmarks.predicted.figures import MACHINES, Figure, figures, use_machine
from benchmarks.predicted.schedules import SCHEDULES
from tdsl.schedule.legality import check_all
from tdsl.target import Target
from tdsl.tilegraph.predict import predict

QUICK = ("unsharp mask, by hand", "blur, by hand", "jacobi, default", "softmax, default")


def test_predicted_bytes_are_close_to_counted_bytes() -> None:
    all_figures = [f for c in SCHEDULES if c.name in QUICK for m in MACHINES for f in figures(c, m)]
    assert len(all_figures) == 4 * len(QUICK)
    assert all(f.counted > 0 for f in all_figures)
    assert all(abs(f.error) <= 0.1 for f in all_figures), all_figures
    assert summary(all_figures)["mean error"] <= 0.03


def test_the_page_has_the_figures_of_the_record() -> None:
    root = Path(__file__).parent.parent
    known = json.loads((root / "benchmarks/results/predicted.json").read_text())["summary"]
    page = " ".join((root / "docs/fusion.md").read_text().split())
    assert f"Of the {known['figures']} figures" in page
    assert f"{known['within 10 %']} are within 10 % of what is counted" in page
    assert f"and {known['within a quarter']} within a quarter" in page
    assert f"the mean error is {known['mean error']:.1%}".replace("%", " %") in page


def test_an_error_is_relative_to_the_counted_bytes() -> None:
    above, below = Figure("a", 4096, 110.0, 100), Figure("b", 4096, 30.0, 60)
    assert (above.error, below.error) == (pytest.approx(0.1), pytest.approx(-0.5))
    assert summary([above, below]) == {
        "figures": 2, "within 10 %": 0, "within a quarter": 1, "mean error": pytest.approx(0.3),
    }  # fmt: skip
    assert Figure("none", 4096, 0.0, 0).error == 0


def test_another_machine_is_described_only_in_the_context() -> None:
    target = Target("cpu")
    before = target.machine()
    with use_machine(MACHINES[0]):
        assert target.machine() == MACHINES[0]
    assert target.machine() == before


def test_the_command_prints_a_table_and_writes_a_record(tmp_path) -> None:
    path = tmp_path / "record.json"
    done = CliRunner().invoke(app, ["predicted", "--group", "blur", "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert "blur, by hand" in done.output
    assert "mean error" in done.output
    record = json.loads(path.read_text())
    assert record["suite"] == "predicted"
    assert record["summary"]["figures"] == len(record["results"])
    unknown = CliRunner().invoke(app, ["predicted", "--group", "nothing"])
    assert unknown.exit_code != 0
    assert "unsharp mask" in unknown.output


def test_tiles_of_the_default_schedule_are_legal() -> None:
    """A norm at the root had its means in the tiles of what comes after it."""
    (chain,) = (c for c in SCHEDULES if c.name == "chain 3, default")
    with use_machine(MACHINES[1]):
        program = chain.build()
        assert program is not None
        check_all(predict(program.state, program.sizes, MACHINES[1])[0].state)
