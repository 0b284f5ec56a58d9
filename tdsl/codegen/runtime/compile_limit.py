"""The time limit on compilers: LLVM and NVRTC can take minutes for a kernel, and cannot be interrupted.

They run in a child process, which is killed at the limit; simpler code may then be compiled instead.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

from tdsl.codegen.runtime.child_process import ChildFailure, run_in_child
from tdsl.core.source import here
from tdsl.errors import CompileWarning, TargetError

_LIMIT = 30.0  # seconds


class CompileLimit(TargetError):
    """A compiler exceeded the time limit for a kernel."""


def compile_limit() -> float:
    """The processor time in seconds that a compiler may take for a kernel; 0 for no limit.

    TargetError if TDSL_COMPILE_LIMIT is not a number of seconds.
    """
    setting = os.environ.get("TDSL_COMPILE_LIMIT", "")
    try:
        seconds = float(setting or _LIMIT)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise TargetError(
            f"TDSL_COMPILE_LIMIT is {setting!r}, which is no number of seconds",
            loc=here(),
            label="this call",
            hint="TDSL_COMPILE_LIMIT=60, or 0 for no limit",
        )
    return seconds


def has_limit() -> bool:
    """True if there is a limit, and this system has processes that can be forked."""
    return bool(compile_limit()) and hasattr(os, "fork")


def within_limit(compute: Callable[[], bytes], compiler: str, kernel: str) -> bytes:
    """The bytes that `compute` returns, in a child process if there is a limit; exceptions are its own.

    CompileLimit if it takes longer; the error names the compiler and the kernel.

    >>> within_limit(lambda: b"code", "LLVM", "f_kernel")
    b'code'
    """
    if not has_limit():
        return compute()
    try:
        result = run_in_child(compute, compile_limit())
    except ChildFailure as reason:
        raise limit_error(compiler, str(reason), kernel) from None
    return compute() if result is None else result  # raises the child's exception in this process


def limit_error(compiler: str, reason: str, kernel: str) -> CompileLimit:
    """The error that a compiler exceeded the limit, as `reason` says, for a kernel."""
    return CompileLimit(
        f"{compiler} {reason} for kernel {kernel!r}",
        loc=here(),
        label="this call",
        hint="vectorize or unroll less, or let it take longer: TDSL_COMPILE_LIMIT=SECONDS, 0 for no limit",
    )


def warn_of_simpler_code(reason: str, description: str) -> None:
    """Warn at the user's line that simpler code is compiled, and why."""
    text, loc = f"{reason}: it is compiled {description} (TDSL_COMPILE_LIMIT)", here()
    if loc is None:
        warnings.warn(text, CompileWarning, stacklevel=4)
    else:
        warnings.warn_explicit(text, CompileWarning, loc.file, loc.line)
