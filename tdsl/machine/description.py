"""The file that describes this machine, which `tdsl machine measure` writes and schedules profit from.

It is `machine.json` in the user's folder for settings, or the file that TDSL_MACHINE names;
TDSL_MACHINE=builtin is for none. `description_json.py` has its format.
"""

from __future__ import annotations

import functools
import os

from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.machine.description_json import Description, from_text, to_text
from tdsl.machine.model import Machine

BUILT_IN = "builtin"


def setting() -> str:
    """The value of TDSL_MACHINE; "" if it is not set."""
    return os.environ.get("TDSL_MACHINE", "")


def path() -> str:
    """The file that describes this machine, whether it is there or not; empty for TDSL_MACHINE=builtin."""
    named = setting()
    if named:
        return "" if named == BUILT_IN else os.path.expanduser(named)
    import platformdirs

    return os.path.join(platformdirs.user_config_dir("tdsl", appauthor=False), "machine.json")


def read() -> Description | None:
    """The description of `path()`; None where there is none, unless TDSL_MACHINE says that there is.

    Raises TargetError for a file that is none of these, and for one that TDSL_MACHINE names in vain.
    """
    file = path()
    try:
        status = os.stat(file)
    except OSError as error:
        if setting() in ("", BUILT_IN):
            return None
        raise _file_error(f"{file}, which TDSL_MACHINE names, cannot be read: {error.strerror}") from None
    return _read(file, status.st_mtime_ns, status.st_size)


def read_gpu() -> Machine | None:
    """The GPU that the file named by TDSL_GPU describes; None if TDSL_GPU is not set or empty.

    TargetError for a file that cannot be read, or that describes no GPU.
    """
    file = os.path.expanduser(os.environ.get("TDSL_GPU", ""))
    if not file:
        return None
    try:
        status = os.stat(file)
        machine = _read(file, status.st_mtime_ns, status.st_size).machine
    except (OSError, TargetError) as error:
        reason = (
            error.message if isinstance(error, TargetError) else f"{file} cannot be read: {error.strerror}"
        )
        raise _gpu_error(reason) from None
    if machine.gpu is None:
        raise _gpu_error(f"{file} describes no GPU: there is no gpu")
    return machine


def _gpu_error(message: str) -> TargetError:
    return TargetError(
        f"TDSL_GPU: {message}",
        loc=here(),
        label="this call",
        hint=f"begin with a copy of a file of {os.path.join(os.path.dirname(__file__), 'described')}",
    )


def write(file: str, description: Description) -> None:
    """Write a description, with its folder; readers see all of it or what was there before.

    TargetError if it would be refused when it is read.
    """
    content = to_text(description)
    try:
        from_text(content)
    except ValueError as error:
        raise TargetError(
            f"what was measured is not plausible: {error}",
            loc=here(),
            label="this call",
            hint="measure again while the machine has no other work",
        ) from None
    os.makedirs(os.path.dirname(os.path.abspath(file)), exist_ok=True)
    part = f"{file}.{os.getpid()}"
    with open(part, "w", encoding="utf-8") as text:
        text.write(content)
    os.replace(part, file)


@functools.lru_cache(4)
def _read(file: str, _time: int, _size: int) -> Description:
    try:
        with open(file, encoding="utf-8") as text:
            return from_text(text.read())
    except (OSError, ValueError) as error:
        raise _file_error(f"{file} does not describe a machine: {error}") from None


def _file_error(message: str) -> TargetError:
    return TargetError(
        message,
        loc=here(),
        label="this call",
        hint="write it anew by `tdsl machine measure`, or set TDSL_MACHINE=builtin to do without",
    )
