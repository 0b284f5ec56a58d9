"""The loops of a kernel as lines that belong to funcs and loops."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from tdsl.viewer.contents import Line

_LOOP = re.compile(r"for (\w+) in range")
_STORED = re.compile(r"(\w+)(?:\[.*?\])? (?:[-+*&|^]?=|@=) ")


def func_of(loop: str, funcs: Collection[str]) -> str:
    """The func that a loop of a kernel is of: its name begins with the longest of these, and `_`.

    >>> func_of("rows_y_o", ("rows", "rows_y", "blur"))
    'rows_y'
    """
    return max((f for f in funcs if loop.startswith(f"{f}_")), key=len, default="")


def loop_names(text: str) -> Iterator[str]:
    """The loops of the text of a kernel, in running order.

    >>> [*loop_names("for f_i in range(0, 4):\\n  for f_j in range(0, 2):")]
    ['f_i', 'f_j']
    """
    return (loop[1] for loop in _LOOP.finditer(text))


def starting_loops(text: str) -> set[str]:
    """The loops of the text of a kernel that store only constants, such as the start of a reduction.

    >>> start = "for f_i in range(0, 4):\\n  f[f_i] = 0\\n"
    >>> starting_loops(start + "for f_i_1 in range(0, 4):\\n  f[f_i_1] = f[f_i_1] + a[f_i_1]")
    {'f_i'}
    """
    open_loops: list[tuple[int, str]] = []
    starting, computing = set[str](), set[str]()
    for line in text.splitlines():
        code = line.lstrip()
        indent = len(line) - len(code)
        while open_loops and open_loops[-1][0] >= indent:
            open_loops.pop()
        if loop := _LOOP.match(code):
            open_loops.append((indent, loop[1]))
        elif stored := _STORED.match(code):
            names = (name for _, name in open_loops)
            (computing if "[" in code[stored.end() :] else starting).update(names)
    return starting - computing


def loop_lines(
    text: str, funcs: Collection[str], figures: Mapping[str, tuple[str, ...]] | None = None
) -> Iterator[Line]:
    """The lines of the text of a kernel; those of loops with their figures.

    >>> text = "for f_i in range(0, 4):\\n  f[f_i] = a[f_i]\\n  for g_j in range(0, 2):\\n    g[g_j] = 0"
    >>> [line.names for line in loop_lines(text, ("f", "g"))]
    [('f', 'f_i'), ('f', 'f_i', 'f'), ('f', 'f_i', 'g', 'g_j'), ('f', 'f_i', 'g', 'g_j', 'g')]
    """
    around: list[tuple[int, tuple[str, ...]]] = []  # the indentation and the names of each open loop
    for line in text.splitlines():
        code = line.lstrip()
        indent = len(line) - len(code)
        while around and around[-1][0] >= indent:
            around.pop()
        names = around[-1][1] if around else ()
        loop, stored = _LOOP.match(code), _STORED.match(code)
        row: tuple[str, ...] = ()
        if loop:
            f = func_of(loop[1], funcs)
            names += (loop[1],) if f in ("", *names) else (f, loop[1])
            around.append((indent, names))
            row = (figures or {}).get(loop[1], ())
        elif stored and stored[1] in funcs:
            names += (stored[1],)
        yield Line(line, names, row)
