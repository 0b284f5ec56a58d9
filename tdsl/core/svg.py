"""What pictures as SVG have in common: the element around their lines, and colours of areas."""

from __future__ import annotations

from collections.abc import Iterable

COLOURS = ("#d9ead3", "#cfe2f3", "#fff2cc", "#f4cccc", "#d9d2e9", "#fce5cd")


def svg(width: int, height: int, lines: Iterable[str], *, attributes: str = 'role="img"') -> str:
    """The picture of `width` times `height` pixels with elements, one or several in a line.

    >>> print(svg(8, 4, ['<rect width="8" height="4"/>']))
    <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 4" width="8" height="4" ... role="img">
    <rect width="8" height="4"/>
    </svg>
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="11" {attributes}>'
    )
    return "\n".join([head, *lines, "</svg>"])
