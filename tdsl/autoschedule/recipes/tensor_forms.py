"""Instructions of tensor cores for the operands of a product: of warps, and of groups of 128 threads."""

from __future__ import annotations

from collections.abc import Iterator

from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.autoschedule.recipes.operands import Operand
from tdsl.autoschedule.recipes.tensor_tiles import GROUP_TILES
from tdsl.lang.types import DType, f32
from tdsl.machine.instructions.tcgen05 import rows as tcgen05_rows
from tdsl.machine.instructions.tensor_cores import MMAS, Mma
from tdsl.machine.instructions.warpgroups import GroupMma
from tdsl.machine.instructions.warpgroups import rows as wgmma_rows
from tdsl.machine.model import Machine

Form = Mma | GroupMma


def no_instruction(
    left: Operand, right: Operand, total: str, unit: str, columns: int, *, tf32: bool
) -> Unsuited:
    """The error that names the types that tensor cores multiply, and those of the operands.

    `unit` is the instruction with which 128 threads multiply tiles of so many columns, "" if warps do.
    """
    types = f"{left.read.dtype} and {right.read.dtype} in {total}"
    if "f32" == left.read.dtype.name == right.read.dtype.name == total and not tf32:
        return Unsuited(
            "tensor cores count 10 bits of factors in f32 only",
            "tf32=True, where that is enough; else td.recipes.block_tiles",
        )
    if not unit:
        known = dict.fromkeys(f"{m.left} and {m.right} in {m.acc_type}" for m in MMAS)
        return Unsuited(f"no instruction multiplies {types}", f"td.cast: there are {', '.join(known)}")
    forms = [
        x
        for x in _group_forms(unit)
        if x.operand == left.read.dtype == right.read.dtype and x.acc_type.name == total
    ]
    if not forms:
        return Unsuited(f"{unit} does not multiply {types}", "leave warpgroups= out")
    if all((x.a, x.b) != _layout(left, right) for x in forms):
        transposed = " and ".join(repr(x.read.name) for x in (left, right) if x.transposed)
        return Unsuited(
            f"{unit} multiplies {types} only where terms lie side by side in memory (K-major), and those of "
            f"{transposed} lie apart",
            "make the terms the last dimension, x[i, k] and w[j, k], or leave warpgroups= out",
        )
    least = min(x.columns for x in forms)
    return Unsuited(
        f"{unit} makes a multiple of {least} columns, not {columns}",
        f"choose warp=({GROUP_TILES[unit][0]}, n) with a multiple of {least}, or leave warpgroups= out",
    )


def _layout(left: Operand, right: Operand) -> tuple[str, str]:
    return "km" if left.transposed else "mk", "kn" if right.transposed else "nk"


def group_unit(machine: Machine) -> str:
    """The instruction with which 128 threads multiply on a machine, wgmma or tcgen05; "" if it has none.

    >>> from tdsl.machine.devices import describe_gpu
    >>> [group_unit(describe_gpu(x)) for x in ("sm_80", "sm_90a", "sm_100a")]
    ['', 'wgmma', 'tcgen05']
    """
    return next((x for x in GROUP_TILES if x in machine.features), "")


def _group_forms(unit: str) -> Iterator[GroupMma]:
    return tcgen05_rows() if unit == "tcgen05" else wgmma_rows()


def group_form(
    left: Operand, right: Operand, total: str, columns: int, unit: str = "wgmma", *,
    tf32: bool = False, in_registers: bool = False,
) -> GroupMma | None:  # fmt: skip
    """The product of 128 threads for these operands, with as many columns as divide those of a group.

    Registers have the left operand if `in_registers`.
    """
    a, b = _layout(left, right)
    a = "rk" if in_registers else a
    for form in _group_forms(unit):
        same = form.operand == left.read.dtype == right.read.dtype and form.acc_type.name == total
        if same and (form.a, form.b) == (a, b) and columns % form.columns == 0:
            return form if tf32 or form.operand != f32 else None
    return None


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


def shape_of(form: Form) -> tuple[int, int, int]:
    """Rows, columns and terms of a product of tiles."""
    return form.rows, form.columns, form.k
