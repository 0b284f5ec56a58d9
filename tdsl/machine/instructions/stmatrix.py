"""`stmatrix`, which stores the registers of a tile of results to shared memory, 8 x 8 matrices at a time.

    tile[i, j] = fragment[i, j]            16 x 16 elements of two bytes by a warp, 64 x 16 by four warps

The fragment has the layout of the accumulators of `mma.sync` or `wgmma`, converted to two bytes: each thread
passes the address of a row of 8 elements, and one instruction takes the place of four stores of 4 bytes.
"""

from __future__ import annotations

from tdsl.core.node import frozen
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, bf16, f16
from tdsl.lang.value import vars
from tdsl.machine.instructions.instruction import Instruction, instruction
from tdsl.machine.instructions.warpgroups import C_TYPES

_COLUMNS, _ROWS = 16, 16  # of the tile of a warp
_ARCH = 90


@frozen
class Stmatrix:
    """A row for `stmatrix`: the type of the elements, and the warps that store a tile together."""

    dtype: DType
    warps: int

    @property
    def name(self) -> str:
        """The name of the instruction."""
        return f"stmatrix_m{_ROWS * self.warps}n{_COLUMNS}_{self.dtype.name}"


def rows() -> tuple[Stmatrix, ...]:
    """The forms of the instruction.

    >>> [row.name for row in rows()][:2]
    ['stmatrix_m16n16_f16', 'stmatrix_m64n16_f16']
    """
    return tuple(Stmatrix(t, n) for t in (f16, bf16) for n in (1, 4))


def declare_stmatrix(row: Stmatrix) -> Instruction:
    """The `Instruction` of a row, whose output is a tile in shared memory."""
    i, j = vars("i j")
    fragment = Tensor("fragment", (_ROWS * row.warps, _COLUMNS), row.dtype)
    tile = Func("tile")
    tile[i, j] = fragment[i, j]
    c = C_TYPES[row.dtype]
    text = f"""
__device__ __forceinline__ void {row.name}({c} *tile, const {c} *fragment) {{
  const unsigned *r = (const unsigned *)fragment;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {{%1, %2, %3, %4}};"
    :: "r"((unsigned)__cvta_generic_to_shared(tile)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}}
"""
    return instruction(
        row.name, tile, cuda=text, threads=32 * row.warps, arch=_ARCH, strides={"tile": (None, 1)},
        fragments={
            "fragment": lambda i, j: (
                i // 16 * 32 + i % 8 * 4 + j % 8 // 2,
                j // 8 * 4 + i % 16 // 8 * 2 + j % 2,
            )
        },
        points={"tile": lambda x: (x // 32 * 16 + x % 16, x % 32 // 16 * 8)},
    )  # fmt: skip
