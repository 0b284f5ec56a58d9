"""Bulk asynchronous stores (TMA): each lane of a warp stores a row of a tile in shared to global memory.

    tile[i, j] = staged[i, j]              32 rows of 64 to 512 bytes

A lane issues one `cp.async.bulk` for its row, without a tensor map, and waits until the row is in memory:
threads compute no addresses and load no elements. Rows begin at multiples of 16 bytes, in both memories.
"""

from __future__ import annotations

from tdsl.core.node import frozen
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, bf16, f16, f32, f64
from tdsl.lang.value import vars
from tdsl.machine.instructions.instruction import Instruction, instruction

_ROWS = 32  # a lane for each
_ROW_BYTES = (64, 128, 256, 512)
_ARCH = 90
_C_TYPES = {f16: "half", bf16: "nv_bfloat16", f32: "float", f64: "double"}
_ALIGNED = 16  # bytes


@frozen
class BulkStore:
    """A row for `cp.async.bulk`: the type of the elements, and the columns of a tile."""

    dtype: DType
    columns: int

    @property
    def name(self) -> str:
        """The name of the instruction."""
        return f"bulk_store_m{_ROWS}n{self.columns}_{self.dtype.name}"


def rows() -> tuple[BulkStore, ...]:
    """The forms of the instruction.

    >>> [row.name for row in rows()][:2]
    ['bulk_store_m32n32_f16', 'bulk_store_m32n64_f16']
    """
    return tuple(BulkStore(t, n // t.bytes) for t in _C_TYPES for n in _ROW_BYTES)


def declare_bulk_store(row: BulkStore) -> Instruction:
    """The `Instruction` of a row: its output is a tile in global memory, its input one in shared memory.

    The wait is for the writes, and not only for the reads of shared memory, so that a barrier orders them.
    """
    i, j = vars("i j")
    staged = Tensor("staged", (_ROWS, row.columns), row.dtype)
    tile = Func("tile")
    tile[i, j] = staged[i, j]
    c = _C_TYPES[row.dtype]
    text = f"""
__device__ __forceinline__ void {row.name}({c} *tile, const {c} *staged) {{
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
    :: "l"(__cvta_generic_to_global(tile)), "r"((unsigned)__cvta_generic_to_shared(staged)),
       "n"({row.columns * row.dtype.bytes}) : "memory");
  asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}}
"""
    rows_of_lanes = {name: lambda lane: (lane, 0 * lane) for name in ("tile", "staged")}
    return instruction(
        row.name, tile, cuda=text, arch=_ARCH, strides={"tile": (None, 1), "staged": (None, 1)},
        points=rows_of_lanes, bulk=_ALIGNED,
    )  # fmt: skip
