"""A machine as a file: JSON that `tdsl machine measure` writes and recipes profit from.

    {"schema": 1, "cpu": "znver4", "date": ..., "vector_bytes": 64, "registers": 32, "threads": 2,
     "features": "aes avx avx2 ...", "launch": 2.1e-06,
     "levels": [{"name": "L1", "bytes": 32768, "line": 64, "shared_by": 1, "managed": false,
                 "bandwidth": [[1, 2.4e11], [2, 4.8e11]]}, ...,
                {"name": "network", ..., "latency": 5e-07}],
     "rates": [{"unit": "vector", "dtype": "f32", "per_second": 1.1e11}, ...]}

It is `machine.json` in the user's folder for settings, or the file that TDSL_MACHINE names;
TDSL_MACHINE=builtin is for none.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import asdict
from typing import Any

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.machine.model import Machine, MemoryLevel, Rate

SCHEMA = 1
BUILT_IN = "builtin"


@frozen
class Description:
    """A machine with the name of its processor, and when it was measured (ISO 8601)."""

    machine: Machine
    cpu: str
    date: str = ""


def path() -> str:
    """The file that describes this machine, whether it is there or not; empty for TDSL_MACHINE=builtin."""
    named = os.environ.get("TDSL_MACHINE", "")
    if named:
        return "" if named == BUILT_IN else named
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
        if os.environ.get("TDSL_MACHINE", BUILT_IN) == BUILT_IN:
            return None
        raise _file_error(file, str(error)) from None
    return _read(file, status.st_mtime_ns, status.st_size)


def write(file: str, description: Description) -> None:
    """Write a description, with its folder; readers see all of it or what was there before."""
    os.makedirs(os.path.dirname(os.path.abspath(file)), exist_ok=True)
    part = f"{file}.{os.getpid()}"
    with open(part, "w", encoding="utf-8") as text:
        text.write(to_text(description))
    os.replace(part, file)


@functools.lru_cache(4)
def _read(file: str, _time: int, _size: int) -> Description:
    try:
        with open(file, encoding="utf-8") as text:
            return from_text(text.read())
    except (OSError, ValueError) as error:
        raise _file_error(file, str(error)) from None


def _file_error(file: str, reason: str) -> TargetError:
    return TargetError(
        f"{file} does not describe a machine: {reason}",
        loc=here(),
        label="this call",
        hint="write it anew by `tdsl machine measure`, or set TDSL_MACHINE=builtin to do without",
    )


def to_text(description: Description) -> str:
    """The description as JSON; `from_text` gives it back.

    >>> about = Description(Machine(vector_bytes=32, launch=2e-6), "haswell")
    >>> from_text(to_text(about)) == about
    True
    """
    fields = {"schema": SCHEMA, "cpu": description.cpu, "date": description.date}
    fields |= asdict(description.machine)
    all_levels = (*description.machine.levels, *description.machine.links)
    fields["levels"] = [_without_unset_latency(asdict(level)) for level in all_levels]
    del fields["links"]
    fields["features"] = " ".join(sorted(description.machine.features))
    lines = [f" {json.dumps(name)}: {_value_text(value)}" for name, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _without_unset_latency(level: dict[str, Any]) -> dict[str, Any]:
    """A level as it is written: only links have a latency."""
    return {n: v for n, v in level.items() if (n, v) != ("latency", None)}


def _value_text(value: Any) -> str:
    """A value on a line, a list of objects with each on a line of its own."""
    if not isinstance(value, list | tuple):
        return json.dumps(value)
    return "[" + ",".join(f"\n  {json.dumps(part)}" for part in value) + "\n ]"


def from_text(text: str) -> Description:
    """The description in JSON; ValueError says what is wrong with it."""
    data = json.loads(text)
    if not isinstance(data, dict) or "schema" not in data:
        raise ValueError('there is no "schema"')
    if data["schema"] != SCHEMA:
        raise ValueError(f"its schema is {data['schema']!r}, not {SCHEMA}")
    try:
        return Description(_machine(data), str(data["cpu"]), str(data["date"]))
    except KeyError as error:
        raise ValueError(f"there is no {error}") from None
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def _machine(data: dict[str, Any]) -> Machine:
    all_levels = tuple(_level(level) for level in data["levels"])
    levels = tuple(level for level in all_levels if level.latency is None)
    if not any(level.bytes is not None and not level.managed for level in levels):
        raise ValueError("it has no cache")
    rates = tuple(Rate(str(r["unit"]), str(r["dtype"]), _positive(r, "per_second")) for r in data["rates"])
    return Machine(
        _positive_int(data, "vector_bytes"),
        _positive_int(data, "threads"),
        frozenset(str(data["features"]).split()),
        _positive_int(data, "registers"),
        levels,
        rates,
        None if data["launch"] is None else _positive(data, "launch"),
        links=tuple(level for level in all_levels if level.latency is not None),
    )


def _level(data: dict[str, Any]) -> MemoryLevel:
    return MemoryLevel(
        str(data["name"]),
        None if data["bytes"] is None else _positive_int(data, "bytes"),
        _positive_int(data, "line"),
        _positive_int(data, "shared_by"),
        bool(data["managed"]),
        tuple((int(n), float(rate)) for n, rate in data["bandwidth"]),
        None if "latency" not in data else _not_negative(data, "latency"),
    )


def _positive_int(data: dict[str, Any], key: str) -> int:
    value = data[key]
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{key} is {value!r}, not a whole number above 0")
    return value


def _positive(data: dict[str, Any], key: str) -> float:
    value = _not_negative(data, key)
    if not value:
        raise ValueError(f"{key} is 0, which it cannot be")
    return value


def _not_negative(data: dict[str, Any], key: str) -> float:
    value = data[key]
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{key} is {value!r}, not a positive number")
    return float(value)
