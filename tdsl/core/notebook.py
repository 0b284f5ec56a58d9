"""How things show themselves where someone looks at them: in a terminal, and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable


class Listing(str):
    """Text that is shown as it is, line by line.

    >>> Listing("for i in range(0, 4):")
    for i in range(0, 4):
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _pre(self)


def page(title: str, texts: Iterable[tuple[str, str]]) -> str:
    """HTML of a title and texts under headings: the first is open, the others open at a click.

    >>> page("f", [("program", "a < b")])
    '<div><b>f</b><details open><summary>program</summary><pre>a &lt; b</pre></details></div>'
    """
    from html import escape  # its table of characters is not needed to import tdsl

    parts = [
        f"<details{' open' * (position == 0)}><summary>{escape(heading)}</summary>{_pre(text)}</details>"
        for position, (heading, text) in enumerate(texts)
    ]
    return f"<div><b>{escape(title)}</b>{''.join(parts)}</div>"


def _pre(text: str) -> str:
    from html import escape

    return f"<pre>{escape(text)}</pre>"
