"""Buffers of a launch whose accesses are counted: addresses of elements, and values that indices need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tdsl.codegen.emulation.memory import Array
from tdsl.codegen.gpu.shared_memory import Swizzle
from tdsl.codegen.ir.loops import row_major


@dataclass(slots=True)
class CountedBuffer:
    """Where a buffer is: `data` has its values, a row for each instance, if indices depend on them."""

    name: str
    space: str
    extents: tuple[int, ...]
    itemsize: int
    start: int = 0
    swizzle: Swizzle | None = None
    data: Array | None = None
    row_of: Array | None = None

    def offset(self, index: Sequence[Array]) -> Array:
        """The offset of the element at an index, in elements of the row-major array."""
        steps = row_major(self.extents)
        return np.asarray(sum((i * n for i, n in zip(index, steps, strict=True)), np.zeros((1, 1), np.int64)))

    def address(self, index: Sequence[Array]) -> Array:
        """The address of the element at an index, in bytes; an array begins at a multiple of 256."""
        if self.swizzle is None:
            return np.asarray(self.start + self.offset(index) * self.itemsize)
        swizzled = self.swizzle.offset(index, row_major(self.extents))
        return np.asarray(self.start + swizzled * self.itemsize)

    def elements(self, index: Sequence[Array]) -> Array:
        """The flat positions in `data` of the elements at an index; for inactive threads, of any element."""
        assert self.data is not None
        offset = np.clip(self.offset(index), 0, max(self.data.shape[1] - 1, 0))
        return offset if self.row_of is None else offset + self.row_of[:, None] * self.data.shape[1]
