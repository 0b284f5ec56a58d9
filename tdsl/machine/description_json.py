"""A machine description as JSON, schema 2, and what is refused in one.

    {"schema": 2, "cpu": "znver4", "date": ..., "vector_bytes": 64, "registers": 32, "threads": 2,
     "features": "aes avx avx2 ...",
     "levels": [{"name": "L1", "bytes": 32768, "line": 64, "shared_by": 1, "managed": false,
                 "bandwidth": [[1, 2.4e11], [2, 4.8e11]], "effective": [[1, 32768], [2, 32768]]}, ...,
                {"name": "memory", ..., "write_bandwidth": ..., "non_temporal_bandwidth": ...},
                {"name": "network", ..., "latency": 5e-07}],
     "rates": [{"unit": "vector", "dtype": "f32", "per_second": 1.1e11, "latency": 1.1e-09}, ...],
     "launch": [[2, 2.1e-06]], "barrier": [[2, 1.1e-06]], "gathers": 9e8,
     "page": 1e-08, "first_touch": 2.5e-07, "hidden": 0.7, "non_temporal_from": 16777216}

Figures that were not measured are null, empty, or for a level left out. A "comment" is for people. Schema 1,
which had fewer figures and one "launch", is read as well.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields
from itertools import pairwise
from typing import Any

from tdsl.core.node import frozen
from tdsl.machine.model import ByThreads, Machine, MemoryLevel, Rate

SCHEMA = 2
RISE = 10  # a level farther away with more than so many times the bandwidth is refused as a mistake
BEYOND = 4  # so many times the bytes of a level can not stay in it
NEVER = "never"  # "non_temporal_from" if ordinary stores are as fast for results of any size
LEVEL = ("name", "bytes", "line", "shared_by", "managed", "bandwidth")  # what every level has
FIGURES = ("gathers", "page", "first_touch", "hidden")  # numbers, or null


@frozen
class Description:
    """A machine with the name of its processor, and when it was measured (ISO 8601)."""

    machine: Machine
    cpu: str
    date: str = ""


def to_text(description: Description) -> str:
    """The description as JSON; `from_text` gives it back.

    >>> about = Description(Machine(vector_bytes=32, launch=((1, 2e-6),)), "haswell")
    >>> from_text(to_text(about)) == about
    True
    """
    machine = description.machine
    data: dict[str, Any] = {"schema": SCHEMA, "cpu": description.cpu, "date": description.date}
    for name in ("vector_bytes", "registers", "threads"):
        data[name] = getattr(machine, name)
    data["features"] = " ".join(sorted(machine.features))
    data["levels"] = [_plain(x, LEVEL) for x in (*machine.levels, *machine.links)]
    data["rates"] = [_plain(x, ("unit", "dtype", "per_second")) for x in machine.rates]
    for name in ("launch", "barrier", *FIGURES):
        data[name] = getattr(machine, name)
    data["non_temporal_from"] = NEVER if machine.non_temporal_from == math.inf else machine.non_temporal_from
    lines = [f" {json.dumps(name)}: {_value_text(name, value)}" for name, value in data.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _plain(x: MemoryLevel | Rate, required: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a level or a rate, without those that were not measured."""
    values = {f.name: getattr(x, f.name) for f in fields(x)}
    return {n: v for n, v in values.items() if n in required or v not in (None, ())}


def _value_text(name: str, value: Any) -> str:
    """A value on a line, a list of objects with each on a line of its own."""
    if name not in ("levels", "rates"):
        return json.dumps(value)
    return "[" + ",".join(f"\n  {json.dumps(part)}" for part in value) + "\n ]"


def from_text(text: str) -> Description:
    """The description in JSON; ValueError names the field that is missing or absurd."""
    data = json.loads(text)
    if not isinstance(data, dict) or "schema" not in data:
        raise ValueError('there is no "schema"')
    if data["schema"] == 1:
        data = _from_schema_1(data)
    if data["schema"] != SCHEMA:
        raise ValueError(f"its schema is {data['schema']!r}, not {SCHEMA}")
    whole = _Fields(data, "")
    return Description(_machine(whole), whole.text("cpu"), whole.text("date"))


def _from_schema_1(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of schema 2 of a description in schema 1."""
    launch = data.get("launch")
    pairs = [] if launch is None else [[data.get("threads", 1), launch]]
    missing = dict.fromkeys((*FIGURES, "non_temporal_from")) | {"barrier": []}
    return missing | data | {"schema": SCHEMA, "launch": pairs}


def _machine(data: _Fields) -> Machine:
    all_levels = tuple(_level(x) for x in data.parts("levels"))
    levels = tuple(level for level in all_levels if level.latency is None)
    if not any(level.bytes is not None and not level.managed for level in levels):
        raise ValueError("levels has no cache")
    _check_order(levels)
    return Machine(
        data.count("vector_bytes"),
        data.count("threads"),
        frozenset(data.text("features").split()),
        data.count("registers"),
        levels,
        tuple(_rate(x) for x in data.parts("rates")),
        data.by_threads("launch"),
        links=tuple(level for level in all_levels if level.latency is not None),
        barrier=data.by_threads("barrier"),
        non_temporal_from=_non_temporal_from(data),
        gathers=data.number("gathers"),
        page=data.number("page", least=0),
        first_touch=data.number("first_touch", least=0),
        hidden=data.number("hidden", least=0),
    )


def _level(data: _Fields) -> MemoryLevel:
    size = None if data["bytes"] is None else data.count("bytes")
    effective = tuple((n, int(b)) for n, b in data.by_threads("effective", optional=True))
    for _, stays in effective:
        if size is None or stays > BEYOND * size:
            data.refuse("effective", f"{stays}, more than {BEYOND} times its bytes, {size}")
    if not isinstance(data["managed"], bool):
        data.refuse("managed", f"{data['managed']!r}, neither true nor false")
    return MemoryLevel(
        data.text("name"), size, data.count("line"), data.count("shared_by"), data["managed"],
        data.by_threads("bandwidth"),
        data.number("latency", least=0) if "latency" in data.values else None,
        effective,
        data.by_threads("write_bandwidth", optional=True),
        data.by_threads("non_temporal_bandwidth", optional=True),
    )  # fmt: skip


def _rate(data: _Fields) -> Rate:
    latency = data.number("latency") if "latency" in data.values else None
    per_second = data.number("per_second")
    if per_second is None:
        data.refuse("per_second", "null, not a positive number")
    return Rate(data.text("unit"), data.text("dtype"), per_second or 0.0, latency)


def _non_temporal_from(data: _Fields) -> float | None:
    if data["non_temporal_from"] == NEVER:
        return math.inf
    return data.number("non_temporal_from")


def _check_order(levels: tuple[MemoryLevel, ...]) -> None:
    """Refuse a level with far more bandwidth than the level before, and a cache that is smaller."""
    for inner, outer in pairwise(x for x in levels if x.bandwidth):
        for threads, speed in outer.bandwidth:
            of_inner = inner.bytes_per_second(threads) or 0.0
            if speed > RISE * of_inner:
                raise ValueError(
                    f"levels.{outer.name}.bandwidth is {speed:g} for {threads} threads, "
                    f"more than {RISE} times that of {inner.name}, {of_inner:g}"
                )


class _Fields:
    """The fields of an object in JSON; `place` is its place in the file, as in "levels.L2."."""

    def __init__(self, values: object, place: str) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{place}: {values!r} is not an object")
        self.values, self.place = values, place

    def __getitem__(self, key: str) -> Any:
        if key not in self.values:
            raise ValueError(f"there is no {self.place}{key}")
        return self.values[key]

    def refuse(self, key: str, what: str) -> None:
        """ValueError that names a field."""
        raise ValueError(f"{self.place}{key} is {what}")

    def text(self, key: str) -> str:
        """A string."""
        value = self[key]
        if not isinstance(value, str):
            self.refuse(key, f"{value!r}, not a string")
        return str(value)

    def count(self, key: str) -> int:
        """A whole number above 0."""
        value = self[key]
        if type(value) is not int or value < 1:
            self.refuse(key, f"{value!r}, not a whole number above 0")
        return int(value)

    def number(self, key: str, least: float | None = None) -> float | None:
        """A number above 0, or not below `least`; None for null."""
        value = self[key]
        if value is None:
            return None
        self._check(key, value, least)
        return float(value)

    def _check(self, key: str, value: Any, least: float | None = None) -> None:
        if type(value) not in (int, float) or not math.isfinite(value):
            self.refuse(key, f"{value!r}, not a number")
        if value < 0 or (least is None and not value):
            self.refuse(key, f"{value!r}, not a positive number")

    def by_threads(self, key: str, *, optional: bool = False) -> ByThreads:
        """Pairs of a number of threads, rising, and a number above 0."""
        pairs = self.values.get(key, ()) if optional else self[key]
        if not isinstance(pairs, list | tuple) or any(not isinstance(p, list) or len(p) != 2 for p in pairs):
            self.refuse(key, f"{pairs!r}, not a list of pairs [threads, figure]")
        for threads, value in pairs:
            if type(threads) is not int or threads < 1:
                self.refuse(key, f"for {threads!r} threads, not a whole number above 0")
            self._check(key, value)
        if any(a[0] >= b[0] for a, b in pairwise(pairs)):
            self.refuse(key, "not in the order of the numbers of threads")
        return tuple((n, value) for n, value in pairs)

    def parts(self, key: str) -> list[_Fields]:
        """A list of objects."""
        values = self[key]
        if not isinstance(values, list):
            self.refuse(key, f"{values!r}, not a list")
        names = [v.get("name", v.get("unit", n)) if isinstance(v, dict) else n for n, v in enumerate(values)]
        return [_Fields(v, f"{key}.{name}.") for v, name in zip(values, names, strict=True)]
