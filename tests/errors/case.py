"""A wrong program and what its author must be told.

A catalogue is a file of such programs: functions marked by `wrong`, each with a comment `# here` at the end
of the line that the error has to point to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import tdsl as td

MARK = "# here"


@dataclass(frozen=True, slots=True)
class Case:
    """`says` are words of the message, `hint` of the way out; `caret` is the code that is underlined."""

    program: Callable[[], object]
    kind: type[td.TdslError]
    says: tuple[str, ...]
    hint: str
    caret: str

    @property
    def name(self) -> str:
        return self.program.__name__

    @property
    def place(self) -> tuple[str, int]:
        """The file, and the line that is marked."""
        lines, first = inspect.getsourcelines(self.program)
        marked = [first + n for n, line in enumerate(lines) if line.rstrip().endswith(MARK)]
        assert len(marked) == 1, f"{self.name} has {len(marked)} marked lines"
        return str(inspect.getsourcefile(self.program)), marked[0]


class Catalogue(list[Case]):
    """The wrong programs of a file, in the order in which they stand there."""

    def wrong(
        self, kind: type[td.TdslError], *says: str, hint: str, caret: str = ""
    ) -> Callable[[Callable[[], object]], Callable[[], object]]:
        """Enter a program with the error that it must raise."""

        def enter(program: Callable[[], object]) -> Callable[[], object]:
            self.append(Case(program, kind, says, hint, caret))
            return program

        return enter
