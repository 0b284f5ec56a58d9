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

Figures that were not measured are null, empty, or for a level left out. A "comment" is for people. The fields
and the values that are sane are in `description_fields.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

from tdsl.core.node import frozen
from tdsl.machine import description_fields as tables
from tdsl.machine.description_fields import NEVER, SCHEMA, Field, read_object, shown
from tdsl.machine.gpu import Multiprocessor
from tdsl.machine.model import Machine, MemoryLevel, Rate

RISE = 10  # a level farther away with more than so many times the bandwidth is refused as a mistake
BEYOND = 4  # so many times the bytes of a level can not stay in it
ARCH = re.compile(r"sm_\d+a?")
FIGURES = ("gathers", "page", "first_touch", "hidden")  # numbers, or null


@frozen
class Description:
    """A machine with the name of its processor, and when it was measured (ISO 8601)."""

    machine: Machine
    cpu: str
    date: str = ""


def to_text(description: Description) -> str:
    """The description as JSON; `from_text` gives it back.

    >>> about = Description(Machine(vector_bytes=32, rates=(Rate("vector", "f32", 1e11),)), "haswell")
    >>> from_text(to_text(about)) == about
    True
    """
    machine = description.machine
    data: dict[str, Any] = {"schema": SCHEMA, "cpu": description.cpu, "date": description.date}
    for name in ("vector_bytes", "registers", "threads"):
        data[name] = getattr(machine, name)
    data["features"] = " ".join(sorted(machine.features))
    if machine.gpu is not None:
        data["gpu"] = {f.name: getattr(machine.gpu, f.name) for f in fields(machine.gpu)}
    data["levels"] = [_plain(x, tables.LEVEL) for x in (*machine.levels, *machine.links)]
    data["rates"] = [_plain(x, tables.RATE) for x in machine.rates]
    for name in ("launch", "barrier", *FIGURES):
        data[name] = getattr(machine, name)
    data["non_temporal_from"] = NEVER if machine.non_temporal_from == math.inf else machine.non_temporal_from
    lines = [f" {json.dumps(name)}: {_value_text(name, value)}" for name, value in data.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _plain(x: MemoryLevel | Rate, table: Mapping[str, Field]) -> dict[str, Any]:
    """The fields of a level or a rate, without those that were not measured."""
    values = {f.name: getattr(x, f.name) for f in fields(x)}
    return {n: v for n, v in values.items() if (n in table and table[n].required) or v not in (None, ())}


def _value_text(name: str, value: Any) -> str:
    """A value on a line, a list of objects with each on a line of its own."""
    if name not in ("levels", "rates"):
        return json.dumps(value)
    return "[" + ",".join(f"\n  {json.dumps(part)}" for part in value) + "\n ]"


def from_text(text: str) -> Description:
    """The description in JSON; ValueError names the field that is missing or absurd, and what is sane."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("its objects are nested too deeply") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise ValueError('there is no "schema"')
    if data["schema"] != SCHEMA:
        raise ValueError(
            f"its schema is {shown(data['schema'])}, this version reads {SCHEMA}: write it anew by "
            "`tdsl machine measure`"
        )
    whole = read_object(data, tables.MACHINE, "")
    machine = _machine(whole)
    for check in CHECKS:
        check(machine)
    return Description(machine, whole["cpu"], whole["date"])


def _machine(whole: dict[str, Any]) -> Machine:
    all_levels = [_level(x, _place("levels", n, x, "name")) for n, x in enumerate(whole["levels"])]
    rates = [_rate(x, _place("rates", n, x, "unit", "dtype")) for n, x in enumerate(whole["rates"])]
    named = ("vector_bytes", "threads", "registers", "launch", "barrier", *FIGURES)
    least, gpu = whole["non_temporal_from"], whole["gpu"]
    return Machine(
        **{name: whole[name] for name in named},
        features=frozenset(whole["features"].split()),
        levels=tuple(level for level in all_levels if level.latency is None),
        links=tuple(level for level in all_levels if level.latency is not None),
        rates=tuple(rates),
        non_temporal_from=math.inf if least == NEVER else least,
        gpu=None if gpu is None else _gpu(gpu),
    )


def _gpu(values: object) -> Multiprocessor:
    gpu = Multiprocessor(**read_object(values, tables.GPU, "gpu"))
    if not ARCH.fullmatch(gpu.arch):
        raise ValueError(f"gpu.arch is {shown(gpu.arch)}, not sm_ and a compute capability, as in sm_90a")
    return gpu


def _place(key: str, number: int, values: object, *names: str) -> str:
    """The place of an object in a list: by its names, as in "levels.L2", or by its number from 0."""
    parts = [values.get(name) for name in names] if isinstance(values, dict) else []
    named = [part for part in parts if isinstance(part, str) and part]
    return ".".join([key, *named]) if named else f"{key}[{number}]"


def _level(values: object, place: str) -> MemoryLevel:
    table = tables.LEVEL
    if isinstance(values, dict):
        is_cache = values.get("managed") is False
        table = tables.LINK if "latency" in values else tables.CACHE if is_cache else tables.LEVEL
    level = MemoryLevel(**read_object(values, table, place))
    for _, kept in level.effective:
        if level.bytes is None or kept > BEYOND * level.bytes:
            size = "no bytes" if level.bytes is None else f"{level.bytes} bytes"
            raise ValueError(f"{place}.effective has {kept} bytes, more than {BEYOND} times its {size}")
    return level


def _rate(values: object, place: str) -> Rate:
    return Rate(**read_object(values, tables.RATE, place))


def _check_distinct(machine: Machine) -> None:
    """Refuse two levels of a name, and two rates of a unit for a type."""
    places = [f"levels.{x.name}" for x in (*machine.levels, *machine.links)]
    places += [f"rates.{x.unit}.{x.dtype}" for x in machine.rates]
    for n, place in enumerate(places):
        if place in places[:n]:
            raise ValueError(f"{place} is there twice")


def _check_sizes(machine: Machine) -> None:
    """Refuse levels without a cache or memory, and those whose sizes do not rise from the first cache on."""
    levels = machine.levels
    first = next((n for n, x in enumerate(levels) if not x.managed), None)
    if first is None:
        raise ValueError("levels has no cache, a level that is not managed")
    if not levels[-1].managed:
        raise ValueError(f"levels has no memory: the last level, {levels[-1].name}, is a cache")
    for inner in levels[:-1]:
        if inner.bytes is None:
            raise ValueError(f"levels.{inner.name}.bytes is null, which only the last level can be")
    for inner, outer in pairwise(levels[first:]):
        if outer.bytes is not None and outer.bytes <= (inner.bytes or 0):
            raise ValueError(
                f"levels.{outer.name}.bytes is {outer.bytes}, not more than the {inner.bytes} "
                f"of {inner.name} before it: levels go from the nearest to the farthest"
            )


def _check_bandwidths(machine: Machine) -> None:
    """Refuse a level with far more bandwidth than the level before."""
    for inner, outer in pairwise(x for x in machine.levels if x.bandwidth):
        for threads, speed in outer.bandwidth:
            of_inner = inner.bytes_per_second(threads) or 0.0
            if speed > RISE * of_inner:
                raise ValueError(
                    f"levels.{outer.name}.bandwidth is {speed:g} for {threads} threads, "
                    f"more than {RISE} times that of {inner.name}, {of_inner:g}"
                )


CHECKS = (_check_distinct, _check_sizes, _check_bandwidths)  # of facts that belong together
