"""The layout of a block's shared memory: the offset of each buffer, and the swizzle of its 16-byte chunks.

Shared memory has 32 banks of 4 bytes. A buffer swizzled by n bytes is cut into panels, n bytes wide and as
high as the buffer, stored one after the other. Each row of a panel stores its chunks in a permuted order, so
that equal columns of neighbouring rows are in different banks: the swizzle modes of tensor maps and wgmma.

    chunks of a panel of 64 bytes      0 1 2 3  0 1 2 3 | 1 0 3 2  1 0 3 2 | 2 3 0 1  2 3 0 1 | ...
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tdsl.codegen.ir.loops import SHARED, Alloc, InitBarriers, Invoke, Stmt
from tdsl.codegen.ir.statements import walk
from tdsl.core.node import frozen
from tdsl.cost.block_memory import ALIGN, ALIGN_SWIZZLED, MBARRIER_BYTES
from tdsl.cost.block_memory import CHUNK as CHUNK
from tdsl.errors import ScheduleError
from tdsl.lang.affine import AffineSum, as_expr, as_sum
from tdsl.lang.bounds import Facts, lower
from tdsl.lang.expr import Binary, Const, Expr, const
from tdsl.lang.simplify import simplify
from tdsl.machine.instructions.instruction import INSTRUCTIONS

TENSOR_STATE = "tensor memory"  # a buffer; no name of a program has a space
TENSOR_GROUPS, TENSOR_COMMITS = 8, 4  # groups of threads of a block; commits of a group that are tracked
LINE = 128  # bytes that touch each of the 32 banks once
_ROWS = 8  # rows; after them the permutations of chunks repeat


@frozen
class Swizzle:
    """A swizzle of panels with `width` columns and `height` rows: an XOR of the offset of each element.

    The element at offset n is stored at n ^ (n // line % count * chunk). All fields are numbers of elements;
    `line` is the number in 128 bytes.
    """

    width: int
    height: int
    line: int
    chunk: int

    @property
    def count(self) -> int:
        """The number of different permutations of the chunks of a row."""
        return self.width // self.chunk

    def swizzled(self, n: Any) -> Any:
        """The swizzled offset of the element at offset n of the panels, a number or an array.

        >>> [Swizzle(32, 64, 64, 8).swizzled(n) for n in (0, 8, 64, 72, 128)]
        [0, 8, 72, 64, 144]
        """
        return n ^ (n // self.line % self.count * self.chunk)

    def offset(self, index: Sequence[Any], strides: tuple[int, ...]) -> Any:
        """The swizzled offset of an element of a buffer with these strides; indices are numbers or arrays.

        >>> Swizzle(32, 64, 64, 8).offset((2, 9), (32, 1))
        65
        """
        *outer, column = index
        panel, rest = column // self.width, column % self.width
        total = panel * (self.width * self.height) + rest
        for i, n in zip(outer, strides[:-1], strict=True):
            total = total + i * (self.width if n == strides[-2] else n)
        return self.swizzled(total)

    def panel_offset(self, index: tuple[Expr, ...], strides: tuple[int, ...]) -> Expr:
        """The offset in the panels, before the swizzle, of an element of a buffer with these strides.

        Axes of one element may lie between the axis of rows and the axis of columns.
        """
        *outer, column = index
        width, total, row = const(self.width), AffineSum(), strides[-2:][0]
        for n, i in enumerate(outer):
            total = total.plus(as_sum(i), self.width if strides[n] == row else strides[n])
        total = total.plus(as_sum(Binary("floordiv", column, width)), self.width * self.height)
        return as_expr(total.plus(as_sum(Binary("mod", column, width))))

    def split_offset(self, at: Expr, facts: Facts) -> tuple[Expr, Expr]:
        """Splits an offset into a sum (inner, outer): swizzled(inner) + outer is the swizzled offset."""
        whole, s = self.line * self.count, as_sum(simplify(at, facts))
        outer = AffineSum({a: c for a, c in s.terms.items() if c % whole == 0}, s.constant // whole * whole)
        inner = as_expr(s.plus(outer, -1))
        least = lower(inner, facts)
        if least is None or least < 0:
            return at, as_expr(AffineSum())
        return inner, as_expr(outer)


@frozen
class SharedMemory:
    """The `starts` of buffers in bytes by name, their total `size`, and the swizzles of swizzled buffers."""

    starts: dict[str, int]
    size: int
    swizzles: dict[str, Swizzle]


def shared_memory(body: Stmt) -> SharedMemory:
    """The layout of a kernel's shared memory; ScheduleError for a buffer that cannot be swizzled.

    >>> from tdsl.codegen.ir.loops import Block
    >>> from tdsl.lang.expr import const
    >>> from tdsl.lang.types import f16
    >>> tile = Alloc("t", f16, (const(64), const(32)), SHARED, Block(()), swizzle=64)
    >>> layout = shared_memory(Alloc("s", f16, (const(3),), SHARED, tile))
    >>> layout.starts, layout.size, layout.swizzles["t"]
    ({'s': 0, 't': 1024}, 5120, Swizzle(width=32, height=64, line=64, chunk=8))
    """
    starts: dict[str, int] = {}
    swizzles = {}
    end = 0
    for s in walk(body):
        if isinstance(s, Alloc) and s.scope == SHARED:
            align = ALIGN_SWIZZLED if s.swizzle else ALIGN if _size(s) >= ALIGN else CHUNK
            starts[s.name] = -(-end // align) * align
            end = starts[s.name] + -(-_size(s) // CHUNK) * CHUNK
            if s.swizzle:
                swizzles[s.name] = _swizzle(s)
        elif isinstance(s, InitBarriers):
            starts[s.name] = end
            end += -(-s.slots * MBARRIER_BYTES // CHUNK) * CHUNK
    if any(isinstance(s, Invoke) and INSTRUCTIONS[s.instruction].tensor_memory for s in walk(body)):
        starts[TENSOR_STATE] = end  # an mbarrier for each commit, and the address of the columns
        end += -(-(TENSOR_GROUPS * TENSOR_COMMITS + 1) * MBARRIER_BYTES // CHUNK) * CHUNK
    return SharedMemory(starts, end, swizzles)


def _size(s: Alloc) -> int:
    return prod(int(e.value) for e in s.extents if isinstance(e, Const)) * s.dtype.bytes


def _swizzle(s: Alloc) -> Swizzle:
    *outer, row = [int(e.value) for e in s.extents if isinstance(e, Const)]
    height = next((n for n in reversed(outer) if n > 1), 1)
    size = s.dtype.bytes
    several = row * size > s.swizzle
    if row * size % s.swizzle or (several and height % _ROWS):
        raise ScheduleError(
            f"{s.name!r} has {height} rows of {row * size} bytes; a swizzle of {s.swizzle} needs rows of as "
            f"many bytes, or a multiple of {_ROWS} rows of a multiple of that",
            loc=s.loc,
            label="stored here",
            hint="choose another tile, or leave its layout as it is",
        )
    return Swizzle(s.swizzle // size, height, LINE // size, CHUNK // size)
