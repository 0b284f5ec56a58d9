"""Instructions of tensor cores for the operands of a product: of warps, and of groups of 128 threads."""

from __future__ import annotations

from collections.abc import Iterable

from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.autoschedule.recipes.operands import Operand
from tdsl.lang.types import DType, f32
from tdsl.machine.instructions.tcgen05 import rows as tcgen05_rows
from tdsl.machine.instructions.tensor_cores import MMAS, Mma
from tdsl.machine.instructions.warpgroups import GroupMma
from tdsl.machine.instructions.warpgroups import rows as wgmma_rows
from tdsl.machine.model import Machine

Form = Mma | GroupMma


def no_instruction(
    left: Operand, right: Operand, total: str, unit: str, columns: int, *, tf32: bool
) -> Unsuited:  # fmt: skip
    """The error that names the types that tensor cores multiply, and those of the operands.

    `unit` is the instruction with which 128 threads multiply tiles of so many columns, "" if warps do.
    """
    types = f"{left.read.dtype} and {right.read.dtype} in {total}"
    if types == "f32 and f32 in f32" and not tf32:
        return Unsuited(
            "tensor cores count 10 bits of factors in f32 only",
            "tf32=True, where that is enough; else td.recipes.block_tiles",
        )
    if unit:
        forms = _group_forms(left, right, total, unit, tf32=tf32)
        if any((x.a, x.b) == _layout(left, right) for x in forms):
            least, rows = min((x.columns, x.rows) for x in forms)
            return Unsuited(
                f"{unit} makes a multiple of {least} columns, not {columns}",
                f"choose warp=({rows}, n) with a multiple of {least}, or leave warpgroups= out",
            )
        if forms:
            transposed = " and ".join(repr(x.read.name) for x in (left, right) if x.transposed)
            return Unsuited(
                f"{unit} multiplies {types} only where terms are contiguous in memory (K-major), and those "
                f"of {transposed} are not",
                "make the terms the last dimension, x[i, k] and w[j, k], or leave warpgroups= out",
            )
    if unit:
        return Unsuited(f"{unit} does not multiply {types}", "leave warpgroups= out")
    known = dict.fromkeys(f"{m.left} and {m.right} in {m.acc_type}" for m in MMAS)
    return Unsuited(f"no instruction multiplies {types}", f"td.cast: there are {', '.join(known)}")


def _layout(left: Operand, right: Operand) -> tuple[str, str]:
    return "km" if left.transposed else "mk", "kn" if right.transposed else "nk"


def _group_forms(
    left: Operand, right: Operand, total: str, unit: str, *, tf32: bool
) -> list[GroupMma]:  # fmt: skip
    """The products of 128 threads for operands of these types, in any storage order."""
    rows: Iterable[GroupMma] = tcgen05_rows() if unit == "tcgen05" else wgmma_rows()
    same = (x for x in rows if x.operand == left.read.dtype == right.read.dtype and x.acc_type.name == total)
    return [x for x in same if tf32 or x.operand != f32]


def group_form(
    left: Operand, right: Operand, total: str, columns: int, unit: str = "wgmma", *,
    tf32: bool = False, in_registers: bool = False,
) -> GroupMma | None:  # fmt: skip
    """The product of 128 threads for these operands, with as many columns as divide those of a group.

    Registers have the left operand if `in_registers`.
    """
    a, b = _layout(left, right)
    layout = ("rk" if in_registers else a, b)
    forms = _group_forms(left, right, total, unit, tf32=tf32)
    return next((x for x in forms if (x.a, x.b) == layout and columns % x.columns == 0), None)


def mma_of(
    left: Operand, right: Operand, total: str, machine: Machine | None = None, *, tf32: bool = False
) -> Mma | None:
    """The product of warps for these operands, if there is one."""
    return mma_for(left.read.dtype, right.read.dtype, total, machine, tf32=tf32)


def mma_for(
    left: DType, right: DType, total: str, machine: Machine | None = None, *, tf32: bool = False
) -> Mma | None:
    """The product of warps for operands of these types, if there is one; of several the one of a machine."""
    types = left, right, total
    forms = [x for x in MMAS if (x.left, x.right, x.acc_type.name) == types and (tf32 or x.kind != "tf32")]
    supported = (x for x in forms if machine is None or machine.supports(x.name))
    return next(supported, forms[0] if forms else None)
