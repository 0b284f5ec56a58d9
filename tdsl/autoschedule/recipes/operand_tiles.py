"""Tiles of operands of tensor cores: swizzled in shared memory, and in the registers of warps."""

from __future__ import annotations

from tdsl.autoschedule.recipes.operands import Operand
from tdsl.machine.instructions.tensor_cores import LOADS, Load
from tdsl.schedule.fluent import Stage
from tdsl.schedule.state import SWIZZLES


def swizzle_rows(tile: Stage, x: Operand, row: int) -> None:
    """Swizzle a tile with rows of so many bytes."""
    wide = [n for n in SWIZZLES if row % n == 0]
    if wide and x.axes[1] == len(x.read.index) - 1:
        tile.swizzle(max(wide))


def load_of(x: Operand, operand: str, rows: int) -> Load | None:
    """The instruction that loads an operand for rows or columns of a warp, if there is one."""
    matrices = 4 if operand == "a" or rows % 16 == 0 else 2
    key = (operand, x.read.dtype, x.transposed, matrices)
    rows_of = {(r.operand, r.dtype, r.transposed, r.matrices): r for r in LOADS}
    return rows_of.get(key)


def load_by(fragment: Stage, x: Operand, load: Load | None) -> None:
    """Have a stage of an operand's tile in registers made by an instruction, or each thread load its part."""
    if load is None:
        fragment.cooperate()
        return
    loops = fragment.loops
    rows, columns, tile, inner = fragment.tile([loops[axis] for axis in x.axes], load.shape)
    others = [loop for n, loop in enumerate(loops) if n not in x.axes]
    fragment.reorder(*others, rows, columns, tile, inner)
    fragment.tensorize(tile, load.name).unroll(rows).unroll(columns)
