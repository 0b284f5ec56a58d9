"""TDSL_DEBUG and TDSL_DUMP are read when they are needed, and passes narrate themselves."""

import functools
import re

import pytest

from tdsl.core import debug
from tdsl.errors import TdslError


def add_one(n):
    return n + 1


def keep(n):
    return n


def explode(n):
    return -1


def not_negative(n):
    assert n >= 0, f"{n} is negative"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.delenv("TDSL_DEBUG", raising=False)
    monkeypatch.delenv("TDSL_DUMP", raising=False)


def test_no_output_without_TDSL_DEBUG(capsys):
    assert debug.run_passes(1, (add_one, keep)) == 2
    debug.log("llvm", "text")
    with debug.timed("lowering"):
        pass
    assert capsys.readouterr().err == ""


def test_a_topic_is_read_at_each_use(monkeypatch, capsys):
    monkeypatch.setenv("TDSL_DEBUG", "llvm time")
    debug.log("llvm", lambda: "define")
    debug.log("asm", "ret")
    monkeypatch.setenv("TDSL_DEBUG", "asm")
    debug.log("llvm", "define")
    assert capsys.readouterr().err == "define\n"


def test_an_unknown_topic_names_the_known_ones(monkeypatch):
    monkeypatch.setenv("TDSL_DEBUG", "pases")
    with pytest.raises(TdslError, match="did you mean 'passes'"):
        debug.topics()


def test_passes_show_what_they_changed(monkeypatch, capsys):
    monkeypatch.setenv("TDSL_DEBUG", "passes")
    steps = (add_one, keep, functools.partial(add_one))
    assert debug.run_passes(1, steps, show=lambda n: f"n = {n}") == 3
    text = re.sub(r"\d+\.\d ms", "T ms", capsys.readouterr().err)
    assert text == "--- add_one T ms\nn = 2\n--- keep T ms\n(unchanged)\n--- add_one T ms\nn = 3\n"


def test_times_alone_are_one_line_a_stage(monkeypatch, capsys):
    monkeypatch.setenv("TDSL_DEBUG", "time")
    debug.run_passes(1, (add_one,))
    with debug.timed("lowering"):
        pass
    text = re.sub(r"\d+\.\d ms", "T ms", capsys.readouterr().err)
    assert text == "add_one: T ms\nlowering: T ms\n"


def test_the_pass_that_breaks_something_is_named(monkeypatch):
    monkeypatch.setattr(debug, "always_verify", False)
    steps = (add_one, explode, keep)
    assert debug.run_passes(1, steps, verify=not_negative) == -1
    monkeypatch.setenv("TDSL_DEBUG", "verify")
    with pytest.raises(AssertionError, match="-1 is negative") as caught:
        debug.run_passes(1, steps, verify=not_negative)
    assert caught.value.__notes__ == ["after the pass explode:\n-1"]


def test_texts_are_kept_in_a_folder(monkeypatch, tmp_path):
    folder = tmp_path / "new"
    monkeypatch.setenv("TDSL_DUMP", str(folder))
    debug.run_passes(1, (add_one, keep), name="mat/mul")
    debug.dump("mat/mul.ll", "define")
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert texts == {
        "mat_mul.00.add_one.txt": "2\n", "mat_mul.01.keep.txt": "2\n", "mat_mul.ll": "define\n"
    }  # fmt: skip


def test_a_folder_that_cannot_be_written_is_an_error_with_a_hint(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TDSL_DUMP", str(tmp_path / "file"))
    with pytest.raises(TdslError, match="TDSL_DUMP"):
        debug.dump("a.ll", "define")
