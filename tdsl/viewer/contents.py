"""What a page shows: panes of lines. A line belongs to funcs and loops, by which panes are linked."""

from __future__ import annotations

from tdsl.core.node import frozen


@frozen
class Line:
    """A line of text, the names that it belongs to, outermost first, and figures before it.

    The last name is what the line itself is: a loop, or the func that it defines, schedules or stores.
    """

    text: str
    names: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


@frozen
class Pane:
    """Lines under a heading, or an SVG picture, in a column of the page, `at` from the left.

    `columns` are the headings of figures, which a `note` explains.
    """

    heading: str
    lines: tuple[Line, ...] = ()
    columns: tuple[str, ...] = ()
    note: str = ""
    picture: str = ""
    is_error: bool = False
    at: int = 0


@frozen
class Contents:
    """A title, and panes in their order on the page."""

    title: str
    panes: tuple[Pane, ...]
