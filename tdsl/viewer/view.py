"""`View`: a page of a program that can be saved, opened in a browser and displayed by a notebook."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from html import escape
from pathlib import Path

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.viewer.contents import Contents
from tdsl.viewer.page import html

_HEIGHT = 640  # pixels of the page in a notebook


class View:
    """A page of a program: one HTML file, which needs no other file and no network.

    >>> import tdsl as td
    >>> i, a, f = td.vars("i"), td.Tensor("a", (64,), td.f32), td.Func("f")
    >>> f[i] = a[i] + 1
    >>> td.Schedule(f).view()
    <view of f for cpu: definition, directives, loops, assembly, price, tile tree, bytes, tile graph>
    """

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.html = html(contents)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file; returns its path."""
        if not isinstance(path, str | os.PathLike):
            raise TypeMismatch(
                f"{path!r} is no path", loc=here(), label="this call", hint='view.save("view.html")'
            )
        file = Path(path)
        file.write_text(self.html, encoding="utf-8")
        return file

    def open(self) -> Path:
        """Write the page to a temporary file and open it in a browser; returns its path."""
        number, path = tempfile.mkstemp(prefix="tdsl-", suffix=".html")
        os.close(number)
        file = self.save(path)
        webbrowser.open(file.as_uri())
        return file

    def __repr__(self) -> str:
        return f"<view of {self.contents.title}: {', '.join(p.heading for p in self.contents.panes)}>"

    def _repr_html_(self) -> str:
        style = "width:100%;border:0"
        return f'<iframe srcdoc="{escape(self.html)}" height="{_HEIGHT}" style="{style}"></iframe>'
