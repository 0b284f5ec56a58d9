"""Arguments of a call in the middle of larger memory, so that what a call touches beside them shows.

Around the elements, and between those of strided layouts, lies a pattern: a NaN in every float type and a
large number in wide integers, so what is read there shows in the results; and it must still be there, as the
inputs must, when the call is over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.choices import Choices, Seeded

Array = np.ndarray
LAYOUTS = {"dense": 10, "rows": 2, "steps": 1, "backwards": 1, "transposed": 2}
_ZONE = 512  # bytes before and behind


class Placed:
    """Copies of arrays in larger memory, of a layout by name, and what a call did beside its work."""

    def __init__(self, seed: int, layout: str = "dense") -> None:
        self.c, self.layout = Seeded(seed), layout
        self._inputs: list[tuple[str, Array, Array]] = []
        self._outputs: list[tuple[str, Array, Array]] = []

    def input(self, name: str, x: Any) -> Any:
        """An input with the same values; numbers stay as they are."""
        if not isinstance(x, Array):
            return x
        memory, view = placed(self.c, x.shape, x.dtype, self.layout)
        view[...] = x
        self._inputs.append((name, memory, memory.copy()))
        return view

    def output(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Memory for an output."""
        memory, view = placed(self.c, shape, np.dtype(dtype), self.layout)
        self._outputs.append((name, memory, view))
        return view

    def touched(self) -> str:
        """What has changed that is no output, or nothing; afterwards outputs hold the pattern."""
        for name, memory, before in self._inputs:
            if not np.array_equal(memory, before):
                return f"memory of the input {name}, or beside it, has changed"
        for name, memory, view in self._outputs:
            fresh = pattern(memory.size)
            other = np.ndarray(view.shape, view.dtype, fresh, _offset(view, memory), view.strides)
            _bits(view)[...] = _bits(other)
            if not np.array_equal(memory, fresh):
                return f"memory beside the output {name} has changed"
        return ""


def pattern(count: int) -> Array:
    """Bytes of words of 0x7fff."""
    return np.resize(np.array([0xFF, 0x7F], np.uint8), count)


def placed(c: Choices, shape: tuple[int, ...], dtype: Any, layout: str) -> tuple[Array, Array]:
    """Memory, and an array of a shape in it, not at the begin of a line of the cache in general."""
    steps = [1] * len(shape)
    order = list(range(len(shape)))
    padded = [max(n, 1) for n in shape]
    match layout:
        case "rows" if shape:
            padded[-1] += c.integer(1, 5)
        case "steps":
            steps = [c.integer(1, 3) for _ in shape]
        case "backwards":
            steps = [c.pick((-1, -1, 1, -2)) for _ in shape]
        case "transposed":
            order = sorted(order, key=lambda _: c.integer(0, 99))
    strides, step = [0] * len(shape), dtype.itemsize
    for axis in reversed(order):
        strides[axis] = step * steps[axis]
        step *= padded[axis] * abs(steps[axis])
    low = -sum((padded[a] - 1) * strides[a] for a in order if strides[a] < 0)
    memory = pattern(step + 2 * _ZONE)
    first = _ZONE + low + dtype.itemsize * c.integer(0, 7)
    return memory, np.ndarray(shape, dtype, memory, first, tuple(strides))


def _offset(view: Array, memory: Array) -> int:
    start = view.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return int(start) if view.size else 0


def _bits(x: Array) -> Array:
    return x.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[x.dtype.itemsize])
