"""Products of block-scaled operands by the tensor cores of a warp: `mma.sync` with `block_scale`.

    acc[i, j] += a[i, k] * b[k, j] * 2^(sa[i] - 127) * 2^(sb[j] - 127)      16 x 8 sums of 32 products

Each row of `a` and each column of `b` has one scale for the terms of an instruction, a byte that is an
exponent (e8m0; byte 255 is NaN in the instruction, infinity as an expression). Each thread passes the scales
of one row and of one column, by pointers. The instructions need sm_120a; `find` of `tensor_cores.py` returns
them.
"""

from __future__ import annotations

from tdsl.core.node import frozen
from tdsl.lang.casts import cast
from tdsl.lang.functions import exp2
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, f8e4m3, f8e5m2, f32, u8
from tdsl.lang.value import Value, vars
from tdsl.machine.instructions.instruction import Instruction, instruction
from tdsl.machine.instructions.warpgroups import C_TYPES, PTX_TYPES

ARCH = "120a"
_ROWS, _COLUMNS, _TERMS = 16, 8, 32
BIAS = 127  # of the exponents of scales


@frozen
class BlockScaledMma:
    """A row for `mma.sync` with `block_scale`: the types of the operands."""

    left: DType
    right: DType
    rows: int = _ROWS
    columns: int = _COLUMNS
    k: int = _TERMS

    @property
    def name(self) -> str:
        """The name of the instruction."""
        return f"mma_m{self.rows}n{self.columns}k{self.k}_mx_{self.left}_{self.right}"


def rows() -> tuple[BlockScaledMma, ...]:
    """The forms of the instruction.

    >>> [row.name for row in rows()][:2]
    ['mma_m16n8k32_mx_f8e4m3_f8e4m3', 'mma_m16n8k32_mx_f8e4m3_f8e5m2']
    """
    return tuple(BlockScaledMma(x, y) for x in (f8e4m3, f8e5m2) for y in (f8e4m3, f8e5m2))


def declare_block_scaled(row: BlockScaledMma) -> Instruction:
    """The `Instruction` of a row: fragments of factors and sums as `mma.sync`, scales in memory."""
    i, j, k = vars("i j k")
    a, b = Tensor("a", (row.rows, row.k), row.left), Tensor("b", (row.k, row.columns), row.right)
    sa, sb = Tensor("sa", (row.rows,), u8), Tensor("sb", (row.columns,), u8)
    acc = Func("acc")
    acc[i, j] += cast(a[i, k], f32) * cast(b[k, j], f32) * (_scale(sa[i]) * _scale(sb[j]))
    return instruction(
        row.name, acc, cuda=_text(row), arch=ARCH,
        fragments={
            "acc": lambda i, j: (i % 8 * 4 + j // 2, i // 8 * 2 + j % 2),
            "a": lambda i, k: (i % 8 * 4 + k % 16 // 4, k // 16 * 8 + i // 8 * 4 + k % 4),
            "b": lambda k, j: (j % 8 * 4 + k % 16 // 4, k // 16 * 4 + k % 4),
        },
        points={"sa": lambda lane: (lane // 4 + lane % 2 * 8,), "sb": lambda lane: (lane // 4,)},
    )  # fmt: skip


def _scale(exponent: Value) -> Value:
    return exp2(cast(exponent, f32) - BIAS)


def _text(row: BlockScaledMma) -> str:
    a, b = C_TYPES[row.left], C_TYPES[row.right]
    kind = "kind::mxf8f6f4.block_scale.scale_vec::1X"
    types = f"f32.{PTX_TYPES[row.left]}.{PTX_TYPES[row.right]}.f32.ue8m0"
    sums = ", ".join(f'"+f"(acc[{n}])' for n in range(4))
    factors = ", ".join([f'"r"(x[{n}])' for n in range(4)] + [f'"r"(y[{n}])' for n in range(2)])
    return f"""
__device__ __forceinline__ void {row.name}(float *acc, const {a} *a, const {b} *b,
    const unsigned char *sa, const unsigned char *sb) {{
  const unsigned *x = (const unsigned *)a, *y = (const unsigned *)b;
  asm volatile("mma.sync.aligned.m{row.rows}n{row.columns}k{row.k}.row.col.{kind}.{types} "
    "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}}, "
    "{{%10}}, {{0, 0}}, {{%11}}, {{0, 0}};"
    : {sums} : {factors}, "r"((unsigned)*sa), "r"((unsigned)*sb));
}}
"""
