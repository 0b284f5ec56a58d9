"""Checks rows that instructions copy by TMA: where they are, and where they begin."""

from __future__ import annotations

from collections.abc import Iterable

from tdsl.codegen.ir.loops import SHARED, Alloc, Argument, BufferParam, Invoke, Operand, Stmt
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.ir.strides import constant_strides, dense_strides
from tdsl.errors import ScheduleError
from tdsl.lang.affine import known_divisor
from tdsl.lang.expr import ZERO
from tdsl.machine.instructions.instruction import INSTRUCTIONS


def check_bulk_rows(body: Stmt, params: Iterable[Argument]) -> None:
    """ScheduleError unless bulk instructions copy aligned rows from shared to global memory, not swizzled."""
    buffers: dict[str, Alloc | BufferParam] = {p.name: p for p in params if isinstance(p, BufferParam)}
    buffers |= {s.name: s for s in walk(body) if isinstance(s, Alloc)}
    for s in walk(body):
        if not isinstance(s, Invoke) or not INSTRUCTIONS[s.instruction].bulk:
            continue
        output, *tiles = (buffers[o.buffer] for o in s.operands)
        if isinstance(output, Alloc):
            raise _error(s, f"{output.name!r} is not in global memory", "copy to a func at the root")
        for x in tiles:
            if isinstance(x, BufferParam) or x.scope != SHARED:
                raise _error(s, f"{x.name!r} is not in shared memory", 'cache_write(..., scope="shared")')
            if x.swizzle:
                raise _error(s, f"{x.name!r} is swizzled", "align_storage() instead of swizzle()")
        for o in s.operands:
            _check_aligned(s, o, buffers[o.buffer])


def _check_aligned(s: Invoke, o: Operand, buffer: Alloc | BufferParam) -> None:
    """ScheduleError unless each row of a tile is known to begin at a multiple of `bulk` bytes."""
    size, least = buffer.dtype.bytes, INSTRUCTIONS[s.instruction].bulk
    given = buffer.strides if isinstance(buffer, Alloc) and buffer.strides else dense_strides(buffer.extents)
    strides = constant_strides(given)
    offsets = [n * known_divisor(e) for n, e in zip(strides, o.index, strict=True) if e != ZERO]
    offsets += [strides[axis] for axis in o.axes[:-1]]
    if any(n * size % least for n in offsets):
        raise _error(
            s, f"rows of {buffer.name!r} are not known to begin at multiples of {least} bytes",
            "choose tiles and rows of such a multiple, or leave out tensorize()",
        )  # fmt: skip


def _error(s: Invoke, reason: str, hint: str) -> ScheduleError:
    return ScheduleError(
        f"instruction {s.instruction!r} copies rows by TMA, and {reason}", loc=s.loc, label="this directive",
        hint=hint,
    )  # fmt: skip
