"""Each bug of `mutants.py` changes a line that the compiler still has."""

import pytest

from tests.fuzz.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("title, file, old, new", MUTANTS, ids=[m[0] for m in MUTANTS])
def test_what_a_bug_changes_is_there(title, file, old, new):
    text = (ROOT / "tdsl" / file).read_text()
    assert old in text, f"{title}: {file} has changed"
    compile(text.replace(old, new), file, "exec")
