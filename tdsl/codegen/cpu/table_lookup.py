"""Gathers from a small range of memory: loads the range into registers and permutes their lanes.

A gather accesses the cache once for each lane. If the offsets are known to span at most two registers of
elements, two loads and one permutation of registers replace it.
"""

from __future__ import annotations

from tdsl.codegen.cpu.address import Address
from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import vector
from tdsl.machine.cpu import CpuTarget

# (type, lanes) -> the permutations of one register and of two, and the features that they need
_PERMUTES = {
    ("float", 16): ("avx512.permvar.sf.512", "avx512.vpermi2var.ps.512", "avx512f", "avx512f"),
    ("i32", 16): ("avx512.permvar.si.512", "avx512.vpermi2var.d.512", "avx512f", "avx512f"),
    ("double", 8): ("avx512.permvar.df.512", "avx512.vpermi2var.pd.512", "avx512f", "avx512f"),
    ("i64", 8): ("avx512.permvar.di.512", "avx512.vpermi2var.q.512", "avx512f", "avx512f"),
    ("float", 8): ("avx2.permps", "avx512.vpermi2var.ps.256", "avx2", "avx512vl"),
    ("i32", 8): ("avx2.permd", "avx512.vpermi2var.d.256", "avx2", "avx512vl"),
}


def count_registers(target: CpuTarget, at: Address) -> int:
    """The number of registers that hold all elements which the lanes can access: 1, 2, or 0 for a gather."""
    permutes = _PERMUTES.get((at.element, at.lanes))
    if at.offset_range is None or permutes is None:
        return 0
    lo, hi = at.offset_range
    count = -(-(hi - lo + 1) // at.lanes)
    return count if count <= 2 and permutes[count + 1] in target.has else 0


def register_slices(at: Address) -> list[tuple[int, int]]:
    """(offset of the first element, number of elements) of each register."""
    assert at.offset_range is not None
    lo, hi = at.offset_range
    return [(k, min(at.lanes, hi + 1 - k)) for k in range(lo, hi + 1, at.lanes)]


def permute(b: Builder, at: Address, registers: list[str]) -> str:
    """The lanes of an access, permuted from `registers`, the loaded `register_slices`."""
    assert at.offset_range is not None
    lanes, type_ = at.lanes, vector(at.element, at.lanes)
    offsets, index = at.offsets, "i64"
    if at.offset_range[0]:
        offsets = b.v(f"sub <{lanes} x i64> {offsets}, splat (i64 {at.offset_range[0]})")
    if at.element in ("float", "i32"):
        index = "i32"
        offsets = b.v(f"trunc <{lanes} x i64> {offsets} to <{lanes} x i32>")
    name = f"llvm.x86.{_PERMUTES[at.element, lanes][len(registers) - 1]}"
    first, *others = ((type_, table) for table in registers)
    return b.call(type_, name, first, (f"<{lanes} x {index}>", offsets), *others)
