"""A tile tree of a GPU: how one definition is cut into blocks, threads, registers and steps of its sums.

    c: i:16x8 j:16x8 | k:8 | x w(+4/32) | 2 stages

is a nest of blocks of 128 x 128 points of 16 x 16 threads, each of which has 8 x 8 points in registers. Steps
of 8 terms copy what they read of `x` and `w` to shared memory, of `w` with 4 elements of padding after 32.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod

from tdsl.core.node import frozen


@frozen
class Cut:
    """A block has `threads` threads along a free axis, each of them `each` neighbouring values."""

    axis: str
    threads: int = 1
    each: int = 1

    @property
    def size(self) -> int:
        """The values of a block."""
        return self.threads * self.each

    def __str__(self) -> str:
        return f"{self.axis}:{self.threads}" + (f"x{self.each}" if self.each > 1 else "")


@frozen
class Shared:
    """A copy of an operand in shared memory, `vector` elements of which a thread loads at once.

    `order` lists the dimensions as they are in memory. Padding extends to `row` elements (0: there is none)
    each row of the last dimension, or each group of `group` elements in it; or to `row` indices the dimension
    `padded`, or each `run` of its indices. With `window`, a thread loads what its points read to registers as
    vectors, once. Threads that follow each other copy `lanes` neighbours of the source, then those of the
    next row; 0 for a row after the other. Vectors go across the ends of the last `rows` dimensions, which are
    whole in the source and the copy. Rows that are `shifted` begin anywhere in the source: a thread takes
    each vector of 16 bytes from the two aligned ones that hold it. Where `order` ends with another dimension
    than the source's, a vector is one load, and its elements are stored one by one.
    """

    array: str
    along: str | None
    vector: int
    order: tuple[int, ...]
    row: int = 0
    group: int = 0
    window: bool = False
    padded: int | None = None
    lanes: int = 0
    run: int = 0
    rows: int = 1
    shifted: bool = False

    @property
    def is_scattered(self) -> bool:
        """True if the elements of a vector of the source are not neighbours in the copy."""
        return self.vector > 1 and self.order[-1] != len(self.order) - 1

    def __str__(self) -> str:
        padded = f"+{self.row - self.group}/{self.group}" if self.group else f"{self.row}" * bool(self.row)
        padded += f"/{self.run}" * bool(self.run) + f":{self.lanes}" * bool(self.lanes)
        turned = "" if self.order == tuple(sorted(self.order)) else "t"
        turned += "v" * self.is_scattered + "w" * self.window + "f" * (self.rows > 1) + "s" * self.shifted
        return self.array + (f"({turned}{padded})" if padded or turned else "")


@frozen(slots=False)
class BlockTree:
    """The cuts of a func, the threads by axis, fastest first, the terms of a step and what a step copies.

    An axis of threads may be in two parts. A thread loads `registers` as vectors before it uses them.
    `vector` neighbours of the result are written at once. `stages` steps are in shared memory at a time. The
    terms are in `parts`, added up by another kernel, or in as many as a call needs if 0; `epilogue` reads the
    sums in registers. By `lanes`, the threads of a block take turns at neighbouring terms of an axis. Blocks
    of a `group` of rows follow each other, column by column.
    """

    func: str
    cuts: tuple[Cut, ...]
    order: tuple[tuple[str, int], ...]
    steps: tuple[tuple[str, int], ...] = ()
    shared: tuple[Shared, ...] = ()
    vector: int = 1
    stages: int = 1
    parts: int = 1
    epilogue: str = ""
    registers: tuple[Shared, ...] = ()
    lanes: tuple[Cut, ...] = ()
    group: int = 1

    @cached_property
    def threads(self) -> int:
        """The threads of a block."""
        return prod(c.threads for c in self.cuts)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The values of each axis in a step of a block."""
        return {c.axis: c.size for c in self.cuts} | dict(self.steps)

    @cached_property
    def values(self) -> Mapping[str, int]:
        """The values of each free axis in a thread."""
        return {c.axis: c.each for c in self.cuts}

    def cut(self, axis: str) -> Cut:
        """The cut of a free axis."""
        return self._cut_of.get(axis) or Cut(axis)

    @cached_property
    def _cut_of(self) -> Mapping[str, Cut]:
        return {c.axis: c for c in self.cuts}

    def __str__(self) -> str:
        parts = [
            " ".join(str(c) for c in self.cuts if c.size > 1),
            " ".join(f"{c} lanes" for c in self.lanes),
            " ".join(f"{axis}:{size}" for axis, size in self.steps),
            " ".join(map(str, self.shared)),
            " ".join(f"r({s.array}:{s.vector})" for s in self.registers),
            f"{self.stages} stages" if self.stages > 1 else "",
            f"{self.parts} parts" if self.parts > 1 else "",
        ]
        return f"{self.func}: " + " | ".join(p for p in parts if p)
