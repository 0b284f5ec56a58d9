"""The fields of a machine description: for each object in the file, their types and the values that are sane.

`read_object` checks an object against such a table. A field that needs a check of its own needs a new kind of
`Field`, so that documentation and messages say the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tdsl.core.node import frozen
from tdsl.errors import did_you_mean
from tdsl.lang.operations import DIVISIONS, FUNCTIONS
from tdsl.lang.types import ALL
from tdsl.machine.instructions.dots import DOTS
from tdsl.machine.threads import MOST_THREADS

SCHEMA = 2
NEVER = "never"  # "non_temporal_from" if ordinary stores are as fast for results of any size
LONGEST = 60  # characters of a value that a message repeats
UNITS = (
    "scalar", "vector", "tensor", "add", *sorted(DIVISIONS), *FUNCTIONS, "random", *(d.name for d in DOTS),
)  # fmt: skip
DTYPES = tuple(t.name for t in ALL)


@frozen
class Field:
    """The values that a field may have: of type `kind`, and numbers from `least` to `most`.

    `names` are the only strings if there are any; of a number they are possible values beside it. A
    `by_threads` field is a list of pairs [threads, number], threads rising. One that is not `required` may be
    left out, and `null` says that a figure was not measured, or that there is no limit.
    """

    kind: type
    least: float = -math.inf
    most: float = math.inf
    power_of_two: bool = False
    by_threads: bool = False
    null: bool = False
    required: bool = True
    names: tuple[str, ...] = ()

    @property
    def values(self) -> str:
        """The possible values in words.

        >>> print(Field(int, 16, 1024, power_of_two=True).values)
        a power of two from 16 to 1024
        >>> print(Field(float, 1e6, 1e16, by_threads=True).values)
        a list of pairs [threads, number from 1e+06 to 1e+16], threads rising
        """
        if self.least == self.most:
            return str(self.least)
        limits = f"from {_short(self.least)} to {_short(self.most)}"
        texts = {
            bool: "true or false",
            str: "a known name" if self.names else "a string",
            list: "a list of objects that is not empty",
            dict: "an object",
            int: f"{'a power of two' if self.power_of_two else 'a whole number'} {limits}",
            float: f"a number {limits}",
        }
        text = texts[self.kind]
        if self.by_threads:
            text = f"a list of pairs [threads, {text.removeprefix('a ')}], threads rising"
        names = () if self.kind is str else self.names
        return ", or ".join([text, *(f'"{x}"' for x in names), *["null"] * self.null])

    def problem(self, value: Any) -> str:
        """What is wrong with a value, in words that follow the name of the field; "" if nothing is.

        >>> Field(float, 0, 1).problem(2)
        'is 2, not a number from 0 to 1'
        """
        if value is None and self.null:
            return ""
        if self.by_threads:
            return self._problem_of_pairs(value)
        if self.names and isinstance(value, str):
            unknown = f"is {shown(value)}, which is not known: {did_you_mean(value, self.names)}"
            return "" if value in self.names else unknown
        return "" if self._is_value(value) else f"is {shown(value)}, not {self.values}"

    def _is_value(self, value: Any) -> bool:
        kinds = (int, float) if self.kind is float else (self.kind,)
        if type(value) not in kinds or (self.kind is list and not value):
            return False
        if self.kind not in (int, float):
            return True
        return self.least <= value <= self.most and not (self.power_of_two and value & (value - 1))

    def _problem_of_pairs(self, value: Any) -> str:
        if type(value) is not list or any(type(p) is not list or len(p) != 2 for p in value):
            return f"is {shown(value)}, not {self.values}"
        one = replace(self, by_threads=False)
        for count, figure in value:
            for field, part, of in ((THREADS, count, "the threads of a pair"), (one, figure, "a figure")):
                if field.problem(part):
                    return f"has {of} that {field.problem(part)}"
        if any(a[0] >= b[0] for a, b in pairwise(value)):
            return f"is {shown(value)}, whose numbers of threads do not rise"
        return ""


def _short(x: float) -> str:
    return str(x) if abs(x) < 1e6 and x == int(x) else f"{x:g}"


def shown(value: Any) -> str:
    """A value as in the file, shortened."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


THREADS = Field(int, 1, MOST_THREADS)
BYTES_PER_SECOND = Field(float, 1e6, 1e16, by_threads=True)
OVERHEAD = Field(float, 1e-9, 0.1, by_threads=True)  # seconds
PER_PAGE = Field(float, 0, 1e-3, null=True)  # seconds

MACHINE: Mapping[str, Field] = {
    "schema": Field(int, SCHEMA, SCHEMA),
    "comment": Field(str, required=False),
    "cpu": Field(str),
    "date": Field(str),
    "vector_bytes": Field(int, 4, 1024, power_of_two=True),
    "registers": Field(int, 1, 1024),
    "threads": THREADS,
    "features": Field(str),
    "gpu": Field(dict, required=False),
    "levels": Field(list),
    "rates": Field(list),
    "launch": OVERHEAD,
    "barrier": OVERHEAD,
    "gathers": Field(float, 1e6, 1e14, null=True),
    "page": PER_PAGE,
    "first_touch": PER_PAGE,
    "hidden": Field(float, 0, 1, null=True),
    "non_temporal_from": Field(float, 1, 1e15, null=True, names=(NEVER,)),
}

LEVEL: Mapping[str, Field] = {  # a managed level: registers, a scratchpad, memory
    "name": Field(str),
    "bytes": Field(int, 16, 10**15, null=True),
    "line": Field(int, 1, 4096, power_of_two=True),
    "shared_by": THREADS,
    "managed": Field(bool),
    "bandwidth": BYTES_PER_SECOND,
    "effective": Field(int, 16, 10**15, by_threads=True, required=False),
    "write_bandwidth": replace(BYTES_PER_SECOND, required=False),
    "non_temporal_bandwidth": replace(BYTES_PER_SECOND, required=False),
}
CACHE = {
    **LEVEL,
    "bytes": Field(int, 1024, 4 * 10**9),
    "line": Field(int, 16, 1024, power_of_two=True),
}
LINK = {**LEVEL, "latency": Field(float, 0, 1)}

COUNT = Field(int, 1, 10**9)
GPU: Mapping[str, Field] = {
    "arch": Field(str),
    "clock": Field(float, 1e8, 1e10),
    "schedulers": COUNT,
    "warps": COUNT,
    "blocks": COUNT,
    "registers": COUNT,
    "register_unit": COUNT,
    "registers_per_thread": COUNT,
    "shared": COUNT,
    "shared_unit": COUNT,
    "shared_reserved": Field(int, 0, 10**9),
    "latency": Field(float, 1e-9, 1e-4),
}

RATE: Mapping[str, Field] = {
    "unit": Field(str, names=UNITS),
    "dtype": Field(str, names=DTYPES),
    "per_second": Field(float, 1e6, 1e17),
    "latency": Field(float, 1e-12, 1e-3, required=False),
}


def read_object(values: object, table: Mapping[str, Field], place: str) -> dict[str, Any]:
    """The fields of an object of a description, checked against a table; null or () for those left out.

    `place` is the object's place in the file, such as "levels.L2"; "" for the whole file. ValueError names
    the field that is missing, unknown or absurd, and the values that it may have.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{place or 'the file'} is {shown(values)}, not an object")
    path = f"{place}." if place else ""
    for name in values:
        if name not in table:
            raise ValueError(f"{path}{name} is not known: {did_you_mean(name, table)}")
    for name, field in table.items():
        if name not in values and field.required:
            raise ValueError(f"there is no {path}{name}, {field.values}")
        problem = field.problem(values[name]) if name in values else ""
        if problem:
            raise ValueError(f"{path}{name} {problem}")
    return {name: _frozen(values.get(name), field) for name, field in table.items()}


def _frozen(value: Any, field: Field) -> Any:
    """A value of a field as it is kept in a machine model: tuples in place of lists of pairs."""
    if field.by_threads:
        return tuple((threads, figure) for threads, figure in value or ())
    return float(value) if field.kind is float and isinstance(value, int) else value
