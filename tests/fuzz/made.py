"""A program of the fuzzer as handles and as text, and its arguments from a seed."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import tdsl as td
from tdsl.lang.build_program import build_program
from tdsl.lang.program import Program
from tdsl.lang.types import DType


def array(seed: int, shape: tuple[int, ...], dtype: str, even: bool = True) -> np.ndarray:
    """Small numbers; `even` floats are sums of few powers of two, integers are extreme sometimes."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    t = td.lang.types.as_dtype(getattr(ml_dtypes, dtype, dtype))
    if t.is_float and not even:
        return rng.standard_normal(shape).astype(t.numpy)
    if t.is_float:
        few = {8: 1, 16: 4}.get(t.bits, 8)
        return (rng.integers(-8 * few, 8 * few + 1, shape) / few).astype(t.numpy)
    ends = np.iinfo(dtype)
    small = rng.integers(max(ends.min, -9), 10, shape).astype(dtype)
    wide = rng.integers(ends.min, ends.max, shape, dtype=dtype, endpoint=True)
    return np.where(rng.random(shape) < 0.6, small, wide)


@dataclass(slots=True)
class Made:
    """A program as handles and as text; sums of its inputs are exact where these are `even`."""

    lines: list[str]
    names: dict[str, Any]
    output_names: list[str]
    sizes: dict[str, int]
    inputs: dict[str, tuple[tuple[int, ...], DType]]
    scalars: dict[str, DType]
    even: bool = True
    kind: str = "random"
    _program: Program | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The funcs that the program computes."""
        return tuple(self.names[name] for name in self.output_names)

    def program(self) -> Program:
        """The canonical program, built once."""
        if self._program is None:
            self._program = build_program(self.outputs)
        return self._program

    def arguments(self, seed: int, resized: tuple[str, int, int] | None = None) -> dict[str, Any]:
        """Arrays and numbers for the inputs that the program reads.

        `resized` is an input, one of its axes, and another extent for it.
        """
        used = self.program().parameters
        made: dict[str, Any] = {
            name: array(seed + at, _resized(name, shape, resized), t.numpy.name, self.even)
            for at, (name, (shape, t)) in enumerate(self.inputs.items())
            if name in used
        }
        for at, (name, t) in enumerate(self.scalars.items()):
            if name in used:
                made[name] = array(seed + 100 + at, (), t.numpy.name)[()]
        return made

    def source(self, seed: int) -> str:
        """Python that makes the program and its arguments."""
        data = [
            f'    "{n}": array({seed + at}, {shape}, "{t.numpy.name}", {self.even}),'
            for at, (n, (shape, t)) in enumerate(self.inputs.items())
        ]
        data += [
            f'    "{n}": array({seed + 100 + at}, (), "{t.numpy.name}")[()],'
            for at, (n, t) in enumerate(self.scalars.items())
        ]
        head = ["import ml_dtypes", "import numpy as np", "import tdsl as td", ""]
        tail = [f"outputs = ({', '.join(self.output_names)},)", "data = {", *data, "}"]
        tail += [
            "used = td.Schedule(*outputs).program.parameters",
            "arguments = {n: x for n, x in data.items() if n in used}",
        ]
        return "\n".join([*head, *self.lines, "", inspect.getsource(array), "", *tail])


def _resized(name: str, shape: tuple[int, ...], resized: tuple[str, int, int] | None) -> tuple[int, ...]:
    if resized is None or resized[0] != name:
        return shape
    return tuple(resized[2] if axis == resized[1] else e for axis, e in enumerate(shape))
