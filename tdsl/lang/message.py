"""Splits the format string of a run-time message at its `{}` placeholders."""

from __future__ import annotations


def message_parts(text: str, count: int) -> tuple[str, ...]:
    """The pieces of a text around its first `count` placeholders `{}`.

    >>> message_parts("a[{}] is {}", 2)
    ('a[', '] is ', '')
    """
    return tuple(text.split("{}", count)) if count else (text,)
