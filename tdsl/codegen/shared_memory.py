"""The shared memory of a block: where each memory begins, and the order of 16-byte chunks in swizzled ones.

Shared memory has 32 banks of 4 bytes. A swizzled memory has the chunks of each 128 bytes in an order of
their own, row by row, so that equal columns of neighbouring rows lie in different banks:

    chunk of a row, of 64 bytes      0 1 2 3  0 1 2 3 | 1 0 3 2  1 0 3 2 | 2 3 0 1  2 3 0 1 | ...
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tdsl.codegen.loops import SHARED, Alloc, Phases, Stmt
from tdsl.codegen.passes.statements import walk
from tdsl.codegen.tiles import WORD
from tdsl.errors import ScheduleError
from tdsl.lang.affine import Sum, as_expr, as_sum
from tdsl.lang.bounds import Facts, lower
from tdsl.lang.expr import Const, Expr

CHUNK = 16  # bytes that stay together
LINE = 128  # bytes in which all banks are once
_ALIGN = 128
_ALIGN_SWIZZLED = 1024  # where the hardware's own patterns begin


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Element n is kept at n ^ (n // row % count * chunk), in elements."""

    row: int
    count: int
    chunk: int

    def place(self, n: int) -> int:
        """Where an element is kept.

        >>> [Swizzle(32, 4, 8).place(n) for n in (0, 8, 32, 40, 64)]
        [0, 8, 40, 32, 80]
        """
        return n ^ (n // self.row % self.count * self.chunk)

    def parts(self, at: Expr, facts: Facts) -> tuple[Expr, Expr]:
        """An offset as a part whose place is to be found, and one that is only added to it."""
        whole, s = self.row * self.count, as_sum(at)
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

    >>> from tdsl.codegen.loops import Block
    >>> from tdsl.lang.expr import const
    >>> from tdsl.lang.types import f16
    >>> tile = Alloc("t", f16, (const(64), const(32)), SHARED, Block(()), swizzle=64)
    >>> shared_memory(Alloc("s", f16, (const(3),), SHARED, tile))
    SharedMemory(starts={'s': 0, 't': 1024}, size=5120, swizzles={'t': Swizzle(row=64, count=4, chunk=8)})
    """
    starts: dict[str, int] = {}
    swizzles = {}
    end = 0
    for s in walk(body):
        if isinstance(s, Alloc) and s.scope == SHARED:
            align = _ALIGN_SWIZZLED if s.swizzle else _ALIGN if _size(s) >= _ALIGN else CHUNK
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
    last = s.extents[-1] if s.extents else None
    row = int(last.value) * s.dtype.bytes if isinstance(last, Const) else 0
    if row < s.swizzle or row & (row - 1):
        raise ScheduleError(
            f"rows of {s.name!r} have {row} bytes, and a swizzle of {s.swizzle} bytes needs rows of "
            f"{s.swizzle} bytes or a power of two above",
            loc=s.loc,
            label="stored here",
            hint="choose another tile, or leave its layout as it is",
        )
    size = s.dtype.bytes
    return Swizzle(max(row, LINE) // size, s.swizzle // CHUNK, CHUNK // size)
