"""The contents of a page as one HTML file, which needs no other file and no network."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from tdsl.viewer.contents import Contents, Pane


def html(contents: Contents) -> str:
    """The page as HTML: its data as JSON, shown by a script in it.

    >>> from tdsl.viewer.contents import Line
    >>> text = html(Contents("a < b", (Pane("loops", (Line("for i in range(0, 4):", ("f", "f_i")),)),)))
    >>> "<title>a &lt; b</title>" in text, '["for i in range(0, 4):", 0]' in text
    (True, True)
    """
    chains: dict[tuple[str, ...], int] = {}
    panes = [_pane(p, chains) for p in contents.panes]
    data = json.dumps({"panes": panes, "names": [*chains]}).replace("<", "\\u003c")  # no tag ends the script
    return _template().substitute(title=escape(contents.title), contents=data)


@cache
def _template() -> Template:
    return Template(files("tdsl.viewer").joinpath("page.html").read_text(encoding="utf-8"))


def _pane(p: Pane, chains: dict[tuple[str, ...], int]) -> dict[str, object]:
    """The data of a pane; lines with equal names refer to one list of them."""
    return {
        "heading": p.heading,
        "columns": p.columns,
        "note": p.note,
        "picture": p.picture,
        "error": p.is_error,
        "at": p.at,
        "lines": [(x.text, chains.setdefault(x.names, len(chains)), *x.figures) for x in p.lines],
    }
