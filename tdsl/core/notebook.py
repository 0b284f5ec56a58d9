"""Display of objects in a terminal and in a notebook: text listings and HTML."""

from __future__ import annotations

from collections.abc import Iterable


class Listing(str):
    """A string whose repr is its text, line by line.

    >>> Listing("for i in range(0, 4):")
    for i in range(0, 4):
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _pre(self)


def page(title: str, texts: Iterable[tuple[str, str]]) -> str:
    """HTML of a title and texts under headings: the first is open, the others are collapsed.

    A text that is an SVG picture is shown as such.

    >>> page("f", [("program", "a < b")])
    '<div><b>f</b><details open><summary>program</summary><pre>a &lt; b</pre></details></div>'
    """
    from html import escape  # imported lazily: only HTML output needs it

    shown = [(heading, text if text.startswith("<svg ") else _pre(text)) for heading, text in texts]
    parts = [
        f"<details{' open' * (position == 0)}><summary>{escape(heading)}</summary>{html}</details>"
        for position, (heading, html) in enumerate(shown)
    ]
    return f"<div><b>{escape(title)}</b>{''.join(parts)}</div>"


def _pre(text: str) -> str:
    from html import escape

    return f"<pre>{escape(text)}</pre>"
