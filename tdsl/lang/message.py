"""The text of checks and prints: each `{}` stands for a value, values without one follow the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def message_parts(text: str, count: int) -> tuple[str, ...]:
    """The texts before, between and after `count` values.

    >>> message_parts("row {}: {} is too large", 2)
    ('row ', ': ', ' is too large')
    >>> message_parts("total", 1)
    ('total ', '')
    """
    parts = text.split("{}")
    while len(parts) > count + 1:  # braces without a value are text
        last = parts.pop()
        parts[-1] += "{}" + last
    while len(parts) <= count:
        parts[-1] += " " if parts[-1] and not parts[-1].endswith(" ") else ""
        parts.append("")
    return tuple(parts)


def message_text(text: str, values: Sequence[Any]) -> str:
    """The message with values in it; floats have up to 8 digits.

    >>> message_text("row {}: {}", (3, 0.1))
    'row 3: 0.1'
    """
    shown = [f"{v:.8g}" if isinstance(v, float) else str(v) for v in values]
    parts = message_parts(text, len(shown))
    return "".join(p + v for p, v in zip(parts, [*shown, ""], strict=True))
