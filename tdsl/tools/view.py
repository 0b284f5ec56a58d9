"""The command `tdsl view`: pages of the schedules and operators that a program defines."""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path

from tdsl.core.source import here
from tdsl.errors import TdslError, TypeMismatch
from tdsl.op import Operator
from tdsl.viewer.panes import error_contents
from tdsl.viewer.schedule import Schedule
from tdsl.viewer.view import View


def views(file: str, sizes: Mapping[str, int], target: str | None) -> Iterator[tuple[str, View]]:
    """The pages of the schedules and operators at module level of a program, with their names.

    Each is for those of `sizes` that it leaves open; operators have default schedules on `target`. The
    program is not run as `__main__`; if it ends in an error of tdsl, a page shows that after the text.
    TypeMismatch if there is no such file, or if it defines neither schedules nor operators.
    """
    path = Path(file)
    if not path.is_file():
        raise TypeMismatch(
            f"there is no program {file}", loc=here(), label="this view",
            hint=f"paths are relative to {Path.cwd()}",
        )  # fmt: skip
    try:
        values = runpy.run_path(file, run_name="<tdsl view>")
    except TdslError as error:
        yield path.stem, View(error_contents(path.name, path.read_text(encoding="utf-8"), error))
        return
    shown = False
    for name, value in values.items():
        match value:
            case Schedule():
                schedule = value
            case Operator():
                schedule = value.schedule(target=target)
            case _:
                continue
        shown = True
        open_sizes = {
            n: x for n, x in sizes.items() if n in schedule.program.sizes and n not in schedule.sizes
        }
        yield name, schedule.view(**open_sizes)
    if not shown:
        raise TypeMismatch(
            f"{file} defines neither schedules nor operators", loc=here(), label="this view",
            hint="s = td.Schedule(f), or a function under @td.op, at module level",
        )  # fmt: skip
