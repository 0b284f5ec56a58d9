"""Operators and sizes that words of a command line name."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterable

from tdsl.core.source import here
from tdsl.errors import TypeMismatch, did_you_mean
from tdsl.op import Operator


def operator_of(file: str, name: str = "") -> Operator:
    """The operator of a program by its name, or its only operator; TypeMismatch if there is no such one."""
    if not os.path.isfile(file):
        raise TypeMismatch(
            f"there is no program {file}", loc=here(), label="this call",
            hint=f"paths are relative to {os.getcwd()}",
        )  # fmt: skip
    values = runpy.run_path(file, run_name="<tdsl tune>")
    operators = {n: x for n, x in values.items() if isinstance(x, Operator)}
    if name in operators:
        return operators[name]
    if name or len(operators) != 1:
        has = f"the operators {', '.join(operators)}" if operators else "no operator at its top level"
        raise TypeMismatch(
            f"{file} has {has}", loc=here(), label="this call",
            hint=did_you_mean(name, operators) if name and operators else f"name one: {file}:product",
        )  # fmt: skip
    return next(iter(operators.values()))


def sizes_of(words: Iterable[str]) -> dict[str, int]:
    """The sizes in words such as "M=96"; TypeMismatch for other words.

    >>> sizes_of(["M=96", "K=300"])
    {'M': 96, 'K': 300}
    """
    sizes: dict[str, int] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value.isdecimal():
            raise TypeMismatch(f"{word!r} is no size", loc=here(), label="this call", hint="M=96 K=300")
        sizes[name] = int(value)
    return sizes
