"""The shared memory of a block: where each memory begins, and the order of 16-byte chunks in swizzled ones.

Shared memory has 32 banks of 4 bytes. A memory swizzled by n bytes is kept in panels of n bytes of each row,
one below the other, and the chunks of each panel in an order of their own, row by row, so that equal columns
of neighbouring rows lie in different banks. It is the order that tensor maps and wgmma know:

    chunks of a panel of 64 bytes      0 1 2 3  0 1 2 3 | 1 0 3 2  1 0 3 2 | 2 3 0 1  2 3 0 1 | ...
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tdsl.codegen.ir.loops import SHARED, Alloc, Phases, Stmt
from tdsl.codegen.ir.statements import walk
from tdsl.errors import ScheduleError
from tdsl.lang.affine import Sum, as_expr, as_sum
from tdsl.lang.bounds import Facts, lower
from tdsl.lang.expr import Binary, Const, Expr, const
from tdsl.lang.simplify import simplify
from tdsl.schedule.cost.block_memory import ALIGN, ALIGN_SWIZZLED, WORD
from tdsl.schedule.cost.block_memory import CHUNK as CHUNK

LINE = 128  # bytes in which all banks are once
_ROWS = 8  # after which the orders of chunks begin again


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Panels of `width` columns, `height` rows each; element n is kept at n ^ (n // line % count * chunk).

    All are numbers of elements; `line` are those of 128 bytes.
    """

    width: int
    height: int
    line: int
    chunk: int

    @property
    def count(self) -> int:
        """In how many orders chunks lie."""
        return self.width // self.chunk

    def place(self, n: int) -> int:
        """Where an element of the panels is kept.

        >>> [Swizzle(32, 64, 64, 8).place(n) for n in (0, 8, 64, 72, 128)]
        [0, 8, 72, 64, 144]
        """
        return n ^ (n // self.line % self.count * self.chunk)

    def in_panels(self, index: tuple[Expr, ...], strides: tuple[int, ...]) -> Expr:
        """The offset of an element in the panels, of memory with these strides.

        Rows may have axes of one element inside.
        """
        *outer, column = index
        width, total, row = const(self.width), Sum(), strides[-2:][0]
        for n, i in enumerate(outer):
            total = total.plus(as_sum(i), self.width if strides[n] == row else strides[n])
        total = total.plus(as_sum(Binary("floordiv", column, width)), self.width * self.height)
        return as_expr(total.plus(as_sum(Binary("mod", column, width))))

    def parts(self, at: Expr, facts: Facts) -> tuple[Expr, Expr]:
        """An offset as a part whose place is to be found, and one that is only added to it."""
        whole, s = self.line * self.count, as_sum(simplify(at, facts))
        outer = Sum(
            {a: c for a, c in s.terms.items() if c % whole == 0}, s.constant // whole * whole
        )
        inner = as_expr(s.plus(outer, -1))
        least = lower(inner, facts)
        if least is None or least < 0:
            return at, as_expr(Sum())
        return inner, as_expr(outer)


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """`starts` in bytes by name, the `size` of all, and the swizzled ones."""

    starts: dict[str, int]
    size: int
    swizzles: dict[str, Swizzle]


def shared_memory(body: Stmt) -> SharedMemory:
    """The shared memory of a kernel; ScheduleError for a memory that cannot be swizzled.

    >>> from tdsl.codegen.ir.loops import Block
    >>> from tdsl.lang.expr import const
    >>> from tdsl.lang.types import f16
    >>> tile = Alloc("t", f16, (const(64), const(32)), SHARED, Block(()), swizzle=64)
    >>> found = shared_memory(Alloc("s", f16, (const(3),), SHARED, tile))
    >>> found.starts, found.size, found.swizzles["t"]
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
        elif isinstance(s, Phases):
            starts[s.name] = end
            end += -(-s.slots * WORD // CHUNK) * CHUNK
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
