"""A tile tree: how one definition is cut into tiles, outermost first, and what a tile copies before it runs.

    o: i:32* j:64 | a(i) | i:8 k | i:u8 j:v8x2

is a nest over tiles of 32 rows (shared by threads) and 64 columns; a tile copies what it reads of `a` so that
`i` is contiguous, then runs over blocks of 8 rows and over `k`, with 8 rows of two vectors of 8 in registers.
"""

from __future__ import annotations

from tdsl.core.node import frozen

SERIAL, THREADS, UNROLL, LANES = "serial", "threads", "unroll", "lanes"
_MARKS = {SERIAL: "", THREADS: "*"}  # axes of a GPU launch are named


@frozen
class Cut:
    """A loop over tiles of `size` values of an axis; lanes are `size` elements in `vectors` vectors."""

    axis: str
    size: int
    how: str = SERIAL
    vectors: int = 1

    def __str__(self) -> str:
        if self.how == LANES:
            vectors = f"x{self.vectors}" if self.vectors > 1 else ""
            return f"{self.axis}:v{self.size // self.vectors}{vectors}"
        if self.how == UNROLL:
            return f"{self.axis}:u{self.size}"
        size = f":{self.size}" if self.size > 1 else ""
        return f"{self.axis}{size}{_MARKS.get(self.how, f'@{self.how}')}"


@frozen
class Copy:
    """What a tile reads of an array is copied, with the elements along an axis contiguous."""

    array: str
    axis: str

    def __str__(self) -> str:
        return f"{self.array}({self.axis})"


@frozen
class Tree:
    """The cuts of a func: loops over `tiles`, what a tile copies, loops in a tile, and one piece of code."""

    func: str
    tiles: tuple[Cut, ...]
    copies: tuple[Copy, ...]
    inner: tuple[Cut, ...]
    registers: tuple[Cut, ...]

    def __str__(self) -> str:
        parts = (self.tiles, self.copies, self.inner, self.registers)
        return f"{self.func}: " + " | ".join(" ".join(map(str, part)) for part in parts if part)
