"""Every wrong program of the catalogues is told what is wrong, at its own line, and leaves no trace."""

import importlib
import traceback
from pathlib import Path

import numpy as np
import pytest

import tdsl as td
from tests.errors.case import Case

FILES = sorted(path.stem for path in Path(__file__).parent.glob("catalogue_*.py"))
CASES = [
    pytest.param(case, id=f"{file.removeprefix('catalogue_')}-{case.name}")
    for file in FILES
    for case in importlib.import_module(f"tests.errors.{file}").CASES
]


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_program_raises_its_error(case: Case) -> None:
    with pytest.raises(td.TdslError) as caught:
        case.program()
    error = caught.value
    assert type(error) is case.kind
    assert error.code == case.kind.code
    assert error.loc is not None
    assert (error.loc.file, error.loc.line) == case.place
    for words in case.says:
        assert words in error.message
    assert error.hint
    assert case.hint in error.hint
    if case.caret:
        line = error.loc.text().encode()
        assert line[error.loc.column : error.loc.end_column].decode() == case.caret
    _assert_drawn(error)
    _assert_nothing_else_is_shown(error)
    assert is_correct_program_right()


def _assert_drawn(error: td.TdslError) -> None:
    """The text has the message, the line of the program under a caret, and the hint."""
    lines = str(error).split("\n")
    assert lines[0] == f"{error.message} [{error.code} {error.id}]"
    assert lines[1] == f"  at {Path(error.loc.file).name}:{error.loc.line}"
    assert lines[2].endswith(error.loc.text().strip())
    assert "^" in lines[3]
    assert lines[-1] == f"  hint: {error.hint}"


def _assert_nothing_else_is_shown(error: td.TdslError) -> None:
    shown = "".join(traceback.format_exception(error))
    assert "The above exception" not in shown
    assert "During handling" not in shown


def is_correct_program_right() -> bool:
    """A correct program, written and compiled now, gives what NumPy gives."""
    i, k = td.vars("i k")
    x, total = td.Tensor("x", (3, 4), td.i64), td.Func("total")
    total[i] = td.sum(x[i, k], axis=k)
    array = np.arange(12).reshape(3, 4)
    return np.array_equal(td.compile(total)(array), array.sum(axis=1))


def test_names_of_programs_are_unique() -> None:
    names = [case.values[0].name for case in CASES]
    assert len(set(names)) == len(names)
