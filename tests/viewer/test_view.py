"""A page is one file: data that a script shows, without the network."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tdsl as td
from tdsl.viewer.contents import Contents, Line, Pane
from tdsl.viewer.page import html
from tdsl.viewer.panes import error_contents
from tdsl.viewer.view import View


def data(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json".*?>(.*?)</script>', text)[1])


def test_text_cannot_end_the_script() -> None:
    text = html(Contents("</title><script>", (Pane("loops", (Line("</script><b>", ("f",)),)),)))
    assert data(text)["panes"][0]["lines"] == [["</script><b>", 0]]
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in text


def test_names_are_stored_once() -> None:
    lines = tuple(Line(str(n), ("a_long_name", f"loop_{n % 2}")) for n in range(1000))
    assert len(data(html(Contents("f", (Pane("loops", lines),))))["names"]) == 2


def test_a_page_refers_to_no_other_file() -> None:
    text = html(Contents("f", ()))
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_views_are_saved_and_displayed(tmp_path: Path) -> None:
    i, a, f = td.vars("i"), td.Tensor("a", (4,), td.f32), td.Func("f")
    f[i] = a[i] + 1
    view = td.Schedule(f).view()
    assert view.save(tmp_path / "f.html").read_text(encoding="utf-8") == view.html
    assert "srcdoc=" in view._repr_html_()
    with pytest.raises(td.TypeMismatch, match="3 is no path"):
        view.save(3)


def test_the_error_of_a_program_stands_after_its_text() -> None:
    view = View(error_contents("p.py", "x = 1\ny = 2", td.ShapeError("sizes differ", hint="give N")))
    program, error = view.contents.panes
    assert [x.text for x in program.lines] == ["x = 1", "y = 2"]
    assert error.is_error
    assert "sizes differ" in error.lines[0].text


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js, which checks it, is not here")
def test_the_script_is_correct_javascript(tmp_path: Path) -> None:
    script = re.search(r"<script>(.*?)</script>", html(Contents("f", ())), re.S)[1]
    (tmp_path / "page.js").write_text(script)
    subprocess.run(["node", "--check", tmp_path / "page.js"], check=True, capture_output=True)
