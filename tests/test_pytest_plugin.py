"""`pytest --tdsl-check` fails on calls of compiled programs that do not compute their definitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tdsl as td
from tdsl.testing.checked_calls import checked_calls

i = td.vars("i")


def _compiled() -> td.Compiled:
    x, y = td.Tensor("x", ("N",), td.i32), td.Func("y")
    y[i] = x[i] + 1
    return td.compile(y)


def test_calls_that_overwrite_their_input_are_compared_with_its_old_values() -> None:
    f, x = _compiled(), np.arange(5, dtype=np.int32)
    with checked_calls(100) as skipped:
        assert f(x, out=x).tolist() == [1, 2, 3, 4, 5]
    assert skipped == []


def test_wrong_results_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    f = _compiled()
    monkeypatch.setattr(f, "_bind_and_call", lambda args, kwargs, out: args[0] + 2)
    with checked_calls(100), pytest.raises(AssertionError, match=r"y\[0\] is 2, its definition gives 1"):
        f(np.zeros(3, np.int32))


def test_large_programs_are_not_compared_and_that_is_said() -> None:
    f = _compiled()
    with checked_calls(100) as skipped:
        f(np.zeros(101, np.int32))
    assert skipped == ["they evaluate too many points"]
    f(np.zeros(3, np.int32))
    assert len(skipped) == 1


def test_errors_of_calls_are_the_usual_ones() -> None:
    with checked_calls(100), pytest.raises(td.TypeMismatch, match="x has dtype float64"):
        _compiled()(np.zeros(3))


def test_the_option_compares_calls_of_a_test(tmp_path: Path) -> None:
    test = tmp_path / "test_program.py"
    test.write_text(
        "import numpy as np, tdsl as td\n"
        "def test_program():\n"
        "    i, y = td.vars('i'), td.Func('y')\n"
        "    y[i] = td.Tensor('x', ('N',), td.i32)[i] + 1\n"
        "    f = td.compile(y)\n"
        "    f._bind_and_call = lambda args, kwargs, out: args[0]\n"
        "    f(np.zeros(3, np.int32)), f(np.zeros(SIZE, np.int32))\n".replace("SIZE", "30_000")
    )
    command = _command()
    plain = subprocess.run([*command, str(test)], capture_output=True, text=True, check=False)
    assert plain.returncode == 0, plain.stdout
    checked = subprocess.run(
        [*command, "--tdsl-check", str(test)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 1
    assert "y[0] is 0, its definition gives 1" in checked.stdout


def test_each_call_that_is_not_compared_is_counted_once(tmp_path: Path) -> None:
    test = tmp_path / "test_program.py"
    test.write_text(
        "import numpy as np, tdsl as td\n"
        "def test_program():\n"
        "    i, y = td.vars('i'), td.Func('y')\n"
        "    y[i] = td.Tensor('x', ('N',), td.i32)[i] + 1\n"
        "    td.compile(y)(np.zeros(30_000, np.int32))\n"
    )
    run = subprocess.run(
        [*_command(), "--tdsl-check", str(test)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout
    assert "tdsl: 1 of the calls not compared: they evaluate too many points" in run.stdout


def _command() -> list[str]:
    """The command that runs pytest with the plugin, installed or not."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider"]
    if "tdsl.pytest_plugin" not in {e.value for e in _plugins()}:
        command += ["-p", "tdsl.pytest_plugin"]
    return command


def _plugins() -> list:
    from importlib.metadata import entry_points

    return [*entry_points(group="pytest11")]
