"""Stable identifiers of errors: `TD0042` for all messages that are written from one template.

`error_ids.json` has the templates of all messages, with `{}` for what varies. An identifier is never used
again: the entry of a message that is no longer raised stays, as retired.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources

HOLE = "{}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message that tdsl raises: its identifier, the code of its class, and its template.

    `program` is a program that raises it, if there is one, and `shown` the text of the error.
    """

    id: str
    code: str
    template: str
    program: str = ""
    shown: str = ""
    retired: bool = False


@functools.cache
def messages() -> tuple[Message, ...]:
    """All messages, in order of their identifiers."""
    text = resources.files("tdsl").joinpath("error_ids.json").read_text("utf-8")
    return tuple(Message(**entry) for entry in json.loads(text))


def id_of(code: str, message: str) -> str:
    """The identifier of a message of the class with this code; empty if no template fits.

    The template that has the most of the message in its own words is the one.

    >>> id_of("definition", "func 'g' has no definition") == id_of("definition", "func 'h' has no definition")
    True
    """
    fitting = [m for m in messages() if m.code == code and not m.retired and _fits(m.template, message)]
    best = max(fitting, key=lambda m: len(m.template.replace(HOLE, "")), default=None)
    return "" if best is None else best.id


def find(words: str) -> list[Message]:
    """The message with an identifier, or those that have all of these words, or that a whole message fits.

    >>> [m.id for m in find("TD0001")], [m.code for m in find("Stage has no attribute 'x'")]
    (['TD0001'], ['attribute'])
    """
    exact = [m for m in messages() if m.id == words.strip().upper()]
    if exact:
        return exact
    whole = {id_of(code, words) for code in {m.code for m in messages()}} - {""}
    fitting = [m for m in messages() if m.id in whole and len(m.template.replace(HOLE, "")) > len(words) / 3]
    parts = words.lower().split()
    return fitting or [m for m in messages() if parts and all(p in m.template.lower() for p in parts)]


def _fits(template: str, message: str) -> bool:
    """True if the message is the template with some text in each hole."""
    first, *rest = template.split(HOLE)
    if not rest:
        return message == template
    *middle, last = rest
    end = len(message) - len(last)
    if not message.startswith(first) or not message.endswith(last):
        return False
    start = len(first)
    for piece in middle:
        at = message.find(piece, start, end)
        if at < 0:
            return False
        start = at + len(piece)
    return start <= end
