"""`tdsl view` writes a page for each schedule and operator of a program."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tdsl.errors import TypeMismatch
from tdsl.tools.cli import app
from tdsl.tools.view import views

PROGRAM = """
import tdsl as td

@td.op
def double(x: td.f32["N"]):
    i, y = td.vars("i"), td.Func("y")
    y[i] = x[i] * 2
    return y

s = double.schedule(N=100)
"""


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["view", *words])
    return result.exit_code, result.output


def test_schedules_and_operators_have_pages(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    code, output = run(str(program), "N=64", "-o", str(tmp_path))
    assert code == 0
    assert "double (N=64) for cpu" in output
    assert "double (N=100) for cpu" in output
    assert {p.name for p in tmp_path.glob("*.html")} == {"double.html", "s.html"}


def test_an_error_is_on_the_page_and_in_the_exit_code(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + "\ntd.compile(3)\n")
    code, _ = run(str(program), "-o", str(tmp_path))
    assert code == 1
    assert "int cannot be compiled" in (tmp_path / "program.html").read_text()


@pytest.mark.parametrize(
    "text, message", [(None, "there is no program"), ("x = 1", "neither schedules nor operators")]
)
def test_programs_without_anything_to_show_are_errors(tmp_path: Path, text: str | None, message: str) -> None:
    program = tmp_path / "program.py"
    if text is not None:
        program.write_text(text)
    with pytest.raises(TypeMismatch, match=message):
        list(views(str(program), {}, None))
