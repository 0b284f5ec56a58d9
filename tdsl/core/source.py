"""Where in the user's program something was written: a file, a line and columns, with no parsing."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from dataclasses import dataclass
from types import CodeType, FrameType

import numpy as np

# the package, what starts it by `python -m`, the text of a graph's plan, and NumPy, which calls the package
_OWN = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, "<frozen ", "<steps of ",
    os.path.dirname(np.__file__) + os.sep,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loc:
    """A span of source text; lines count from 1, columns from 0; `column` is None when unknown."""

    file: str
    line: int
    column: int | None = None
    end_column: int | None = None

    def text(self) -> str:
        """The source line, or an empty string where the file cannot be read."""
        return linecache.getline(self.file, self.line).rstrip("\n")


def here() -> Loc | None:
    """The innermost call site outside this package and NumPy, with the columns of the running expression.

    The columns come from PEP 657 position tables, so an operator of an expression gets its own caret.
    None when every frame belongs to the package.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_own(frame):
        frame = frame.f_back
    if frame is None:
        return None
    return _at(frame.f_code, frame.f_lasti // 2, frame.f_lineno)


def _is_own(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith(_OWN) or file == contextlib.__file__:
        return True  # also what leaves contexts of the package
    # what dataclasses generate has no file, but the globals of its module
    return file == "<string>" and frame.f_globals.get("__name__", "").startswith("tdsl.")


_POSITIONS: dict[CodeType, list[tuple[int | None, int | None, int | None, int | None]]] = {}


def _at(code: CodeType, instruction: int, line: int) -> Loc:
    positions = _POSITIONS.get(code)
    if positions is None:
        positions = _POSITIONS[code] = list(code.co_positions())
    start, end, column, end_column = positions[instruction]
    if start is None:
        return Loc(code.co_filename, line)
    return Loc(code.co_filename, start, column, end_column if end == start else None)
