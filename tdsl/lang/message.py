"""The text of a run-time message: parts with the shown values between them."""

from __future__ import annotations


def message_parts(text: str, count: int) -> tuple[str, ...]:
    """The pieces of a text around its first `count` places `{}`.

    >>> message_parts("a[{}] is {}", 2)
    ('a[', '] is ', '')
    """
    return tuple(text.split("{}", count)) if count else (text,)
