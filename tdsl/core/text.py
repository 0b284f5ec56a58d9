"""Tools for printers of code: indented lines, fresh names, parentheses only where needed, tables, units.

A printer builds `Piece`s: text of an expression with its precedence in Python's table of operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tdsl.core.node import frozen

# Precedence levels, loosest first, as in Python's table of operators.
TERNARY, OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, SIGN, POWER, ATOM = range(14)

_BINDING = {
    "or": OR, "and": AND,
    "==": COMPARE, "!=": COMPARE, "<": COMPARE, "<=": COMPARE, ">": COMPARE, ">=": COMPARE,
    "|": BIT_OR, "^": BIT_XOR, "&": BIT_AND, "<<": SHIFT, ">>": SHIFT,
    "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "//": PRODUCT, "%": PRODUCT, "**": POWER,
}  # fmt: skip


@frozen
class Piece:
    """Text of an expression and its precedence, `binding`."""

    text: str
    binding: int = ATOM

    def __str__(self) -> str:
        return self.text

    def inside(self, binding: int) -> str:
        """The text, in parentheses when it binds more loosely than `binding`."""
        return self.text if self.binding >= binding else f"({self.text})"


def infix(op: str, left: Piece, right: Piece) -> Piece:
    """left op right.

    >>> a, b, c = map(Piece, "abc")
    >>> print(infix("*", infix("+", a, b), c), infix("-", a, infix("-", b, c)), sep="; ")
    (a + b) * c; a - (b - c)
    """
    binding = _BINDING[op]
    # Operators group from the left, except that `**` groups from the right and comparisons would chain.
    first = binding + 1 if binding in (COMPARE, POWER) else binding
    second = SIGN if binding == POWER else binding + 1
    return Piece(f"{left.inside(first)} {op} {right.inside(second)}", binding)


def prefix(op: str, x: Piece) -> Piece:
    """-x, ~x or `not x`."""
    binding = NOT if op == "not" else SIGN
    return Piece(f"{op} {x.inside(NOT)}" if op == "not" else f"{op}{x.inside(SIGN)}", binding)


def call(function: str, *args: object) -> Piece:
    """function(args...)."""
    return Piece(f"{function}({', '.join(map(str, args))})")


def ternary(cond: Piece, yes: Piece, no: Piece) -> Piece:
    """`yes if cond else no`."""
    return Piece(f"{yes.inside(OR)} if {cond.inside(OR)} else {no.inside(TERNARY)}", TERNARY)


def number(value: float) -> Piece:
    """A literal; a negative one binds like a sign.

    >>> print(infix("**", number(-1), number(2)))
    (-1) ** 2
    """
    text = repr(value)
    return Piece(text, SIGN if text.startswith("-") else ATOM)


@dataclass(slots=True)
class Writer:
    """Collects indented lines of text.

    >>> w = Writer("  ")
    >>> with w.block("for i in range(0, 3):"):
    ...     w.line("a[i] = 0")
    >>> print(w)
    for i in range(0, 3):
      a[i] = 0
    """

    step: str = "  "
    lines: list[str] = field(default_factory=list)
    depth: int = 0
    first: dict[int, int] = field(default_factory=dict)  # the line of each node, by its id, from 1 on

    def begin(self, node: object) -> None:
        """Say that the next line is the first one of a node, unless it has one already."""
        self.first.setdefault(id(node), len(self.lines) + 1)

    def line(self, text: str = "") -> None:
        """Add a line at the present depth."""
        self.lines.append(self.step * self.depth + text if text else "")

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Write `header`; lines written within the context are indented one step more."""
        self.line(header)
        self.depth += 1
        yield
        self.depth -= 1

    def __str__(self) -> str:
        return "\n".join(self.lines)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """A table without rules: the first column left-aligned, the others right-aligned.

    >>> print(columns([("stage", "ms"), ("blur", "0.125")]))
    stage     ms
    blur   0.125
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = (c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))
        lines.append("  ".join((first.ljust(widths[0]), *cells)).rstrip())
    return "\n".join(lines)


def split_placeholders(text: str, count: int) -> tuple[str, ...]:
    """The pieces of a text around its first `count` placeholders `{}`.

    >>> split_placeholders("a[{}] is {}", 2)
    ('a[', '] is ', '')
    """
    return tuple(text.split("{}", count)) if count else (text,)


class Names:
    """Generates fresh identifiers.

    >>> names = Names({"for"})
    >>> names.fresh("x"), names.fresh("x"), names.fresh("a.b"), names.fresh("for")
    ('x', 'x_1', 'a_b', 'for_1')
    """

    def __init__(self, used: Iterable[str] = ()) -> None:
        self.used = set(used)

    def fresh(self, name: str) -> str:
        """An identifier similar to `name` that is not used yet; from then on it is."""
        base = identifier = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
        if base[0].isdigit():
            base = identifier = f"_{base}"
        count = 0
        while identifier in self.used:
            count += 1
            identifier = f"{base}_{count}"
        self.used.add(identifier)
        return identifier


def in_bytes(n: float) -> str:
    """Bytes with three digits.

    >>> in_bytes(512), in_bytes(2097152), in_bytes(5.12e8)
    ('512 B', '2.10 MB', '512 MB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}" if n / size >= 100 else f"{n / size:.2f} {unit}"
    return f"{n:.0f} B"


def in_seconds(s: float) -> str:
    """Seconds with a unit.

    >>> in_seconds(0.00123), in_seconds(4.5e-6)
    ('1.23 ms', '4.50 us')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if s >= size:
            return f"{s / size:.2f} {unit}"
    return f"{s * 1e6:.2f} us"
