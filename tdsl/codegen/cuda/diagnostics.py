"""Errors for CUDA source that a compiler rejects: its first messages and an excerpt of the source."""

from __future__ import annotations

import re

from tdsl.core.source import here
from tdsl.errors import TargetError

_ERROR_LINE = re.compile(r"kernels\.cu\((\d+)\)")
_CONTEXT_LINES = 2  # lines shown before and after the line of the error
_MAX_ERRORS = 5  # errors listed in the note


def rejection_error(compiler: str, log: str, arch: str, text: str) -> TargetError:
    """The error for CUDA source that `compiler` rejects, with a note: its first messages, a source excerpt.

    >>> text = "int f() {\\n  return x;\\n}"
    >>> error = rejection_error("NVRTC", "kernels.cu(2): error: no such name", "sm_80", text)
    >>> print(error.__notes__[0])
    kernels.cu(2): error: no such name
        1 | int f() {
    >   2 |   return x;
        3 | }
    """
    errors = [line for line in log.splitlines() if "error" in line] or [log.strip()[:200]]
    hint = (
        "a kernel may use too much of the GPU: less shared memory, or fewer threads or registers for each"
        if "ptxas" in errors[0]
        else "where it is in an instruction of your own, look at its td.instruction(..., cuda=...); "
        "else it is a bug of tdsl"
    )
    error = TargetError(
        f"{compiler} rejects the kernels for {arch}: {errors[0]}",
        loc=here(),
        label="this call",
        hint=hint,
    )
    error.add_note("\n".join([*errors[:_MAX_ERRORS], *_excerpt(errors[0], text)]))
    return error


def _excerpt(error: str, text: str) -> list[str]:
    """The source line that an error message names, and the lines around it."""
    at = _ERROR_LINE.search(error)
    if at is None:
        return []
    wrong, lines = int(at[1]), text.splitlines()
    first, last = max(wrong - _CONTEXT_LINES, 1), min(wrong + _CONTEXT_LINES, len(lines))
    return [f"{'>' if n == wrong else ' '} {n:>3} | {lines[n - 1]}" for n in range(first, last + 1)]
