"""Tensor maps (CUtensorMap): the arrays and boxes that the TMA copies of a kernel need, and their limits."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from tdsl.codegen.ir.loops import Alloc, Argument, BufferParam, CopyTile, Stmt, row_major
from tdsl.codegen.ir.statements import walk
from tdsl.core.node import frozen
from tdsl.core.source import Loc
from tdsl.errors import ScheduleError
from tdsl.lang.expr import Const
from tdsl.schedule.pipelines import BULK_ROW_BYTES, BULK_TILE_BYTES

_MAX_EXTENT = 256  # elements of a box along an axis
_MAX_AXES = 5  # axes of a box


@frozen
class TensorMapSpec:
    """A tensor map: the shape of a row-major array, the shape of the boxes that are copied, and the swizzle.

    The swizzle, in bytes, is at least as wide as the rows of a box; 0 for none. A launch has one tensor map
    for each array, shape of boxes and swizzle.
    """

    array: str
    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0


def tensor_map_specs(body: Stmt, params: Iterable[Argument]) -> tuple[TensorMapSpec, ...]:
    """The tensor maps of a kernel in order of first use; ScheduleError for a box that TMA cannot copy.

    >>> from tdsl.lang.expr import ZERO, const
    >>> from tdsl.lang.types import f32
    >>> a = BufferParam("a", f32, (const(100), const(64)), (64, 1), False)
    >>> tensor_map_specs(CopyTile("t", (ZERO, ZERO), "a", (ZERO, ZERO), (8, 32)), (a,))
    (TensorMapSpec(array='a', dtype='f32', shape=(100, 64), box=(8, 32), swizzle=0),)
    """
    arrays = {p.name: p for p in params if isinstance(p, BufferParam)}
    swizzles = {s.name: s.swizzle for s in walk(body) if isinstance(s, Alloc)}
    specs: dict[TensorMapSpec, None] = {}
    for s in walk(body):
        if isinstance(s, CopyTile):
            if s.source not in arrays:
                raise ScheduleError(
                    f"{s.buffer!r} is copied by TMA from {s.source!r}, which the same kernel computes",
                    loc=s.loc,
                    label="scheduled here",
                    hint="compute_root() what is copied, or copy by threads: cooperate()",
                )
            specs[tensor_map_spec(s, arrays[s.source], swizzles.get(s.buffer, 0))] = None
    return tuple(specs)


def tensor_map_spec(s: CopyTile, p: BufferParam, swizzle: int) -> TensorMapSpec:
    """The tensor map of a copy; for a swizzled tile with longer rows, the map of each of its panels."""
    shape = tuple(int(e.value) for e in p.extents if isinstance(e, Const))
    if len(shape) < len(p.extents):
        raise ScheduleError(
            f"tiles of {p.name!r} are copied by TMA, which needs sizes that are known",
            loc=s.loc,
            label="this copy",
            hint="copy by threads: cooperate() instead of bulk_copy(), or leave out dynamic=",
        )
    size, wide = p.dtype.bytes, s.extents[-1]
    inner = min(wide, swizzle // size) if swizzle else wide
    box = (*s.extents[:-1], inner)
    rows = [n * size for n in row_major(shape)[:-1]]
    checks = (
        (len(shape) > _MAX_AXES, f"{p.name!r} has {len(shape)} axes", f"{_MAX_AXES} at most"),
        (
            max(box) > _MAX_EXTENT,
            f"a tile of {p.name!r} has {max(box)} elements along an axis",
            f"{_MAX_EXTENT} at most",
        ),
        (
            inner * size % BULK_ROW_BYTES != 0,
            f"the rows of a tile of {p.name!r} have {inner * size} bytes",
            f"a multiple of {BULK_ROW_BYTES}",
        ),
        (
            prod(box) * size % BULK_TILE_BYTES != 0,
            f"a tile of {p.name!r} has {prod(box) * size} bytes",
            f"a multiple of {BULK_TILE_BYTES}",
        ),
        (
            wide % inner != 0 or (wide > inner and sum(n > 1 for n in box[:-1]) > 1),
            f"a tile of {p.name!r} of {s.extents} elements is swizzled by {swizzle} bytes",
            "rows of a multiple of that, in two axes",
        ),
        (
            any(n % BULK_ROW_BYTES for n in rows),
            f"the rows of {p.name!r} are {min(n for n in rows or [0])} bytes apart",
            f"a multiple of {BULK_ROW_BYTES}",
        ),
    )
    for wrong, what, requirement in checks:
        if wrong:
            raise _tma_error(what, requirement, s.loc)
    return TensorMapSpec(p.name, p.dtype.name, shape, box, swizzle)


def _tma_error(what: str, requirement: str, loc: Loc | None) -> ScheduleError:
    return ScheduleError(
        f"{what}; copies by TMA need {requirement}",
        loc=loc,
        label="scheduled here",
        hint="choose other tiles or sizes, or copy by threads: cooperate() instead of bulk_copy()",
    )
