"""Products of block-scaled operands by the tensor cores of a warp: `mma.sync` with `block_scale`.

    acc[i, j] += a[i, k] * b[k, j] * 2^(sa[i] - 127) * 2^(sb[j] - 127)
    acc[i, j] += f4(a[i, k // 2], k % 2) * f4(b[k // 2, j], k % 2) * |sa[i, k // 16]| * |sb[j, k // 16]|

These are 16 x 8 sums of 32 products of 8-bit floats, or of 64 of 4-bit floats (`f4e2m1`). The scales of a row
of `a`, and of a column of `b`, are bytes that are exponents (e8m0) of blocks of 32 terms, or for 4-bit floats
e4m3 floats of blocks of 16, whose signs do not count. The exponent 255 is NaN in the instruction, infinity as
an expression. Each thread passes the scales of one row and of one column, by pointers. The instructions need
sm_120a; `find` of `tensor_cores.py` returns them.
"""

from __future__ import annotations

from tdsl.core.node import frozen
from tdsl.lang.casts import cast, f4e2m1
from tdsl.lang.functions import absolute, exp2
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, f8e4m3, f8e5m2, f32, u8
from tdsl.lang.value import Value, vars
from tdsl.machine.instructions.instruction import Instruction, instruction
from tdsl.machine.instructions.warpgroups import C_TYPES, PTX_TYPES

BIAS = 127  # of the exponents of scales
_ARCH = "120a"
_ROWS, _COLUMNS, _BYTES = 16, 8, 32  # bytes of a row of `a` and of a column of `b`


@frozen
class BlockScaledMma:
    """A row for `mma.sync` with `block_scale`: types of the operands and scales, and terms of a scale.

    Operands of type u8 are 4-bit floats, two in a byte.
    """

    left: DType
    right: DType
    scale: DType = u8
    block: int = 32
    rows: int = _ROWS
    columns: int = _COLUMNS

    @property
    def packed(self) -> int:
        """The terms in a byte."""
        return 2 if self.left == u8 else 1

    @property
    def k(self) -> int:
        """The terms that are added to each sum."""
        return _BYTES * self.packed

    @property
    def name(self) -> str:
        """The name of the instruction."""
        kinds = f"mx_{self.left}_{self.right}" if self.packed == 1 else "mxf4" if self.scale == u8 else "nvf4"
        return f"mma_m{self.rows}n{self.columns}k{self.k}_{kinds}"


def rows() -> tuple[BlockScaledMma, ...]:
    """The forms of the instruction.

    >>> [row.name for row in rows()][3:]
    ['mma_m16n8k32_mx_f8e5m2_f8e5m2', 'mma_m16n8k64_mxf4', 'mma_m16n8k64_nvf4']
    """
    of_bytes = (BlockScaledMma(x, y) for x in (f8e4m3, f8e5m2) for y in (f8e4m3, f8e5m2))
    return (*of_bytes, BlockScaledMma(u8, u8), BlockScaledMma(u8, u8, f8e4m3, 16))


def declare_block_scaled(row: BlockScaledMma) -> Instruction:
    """The `Instruction` of a row: fragments of factors and sums as `mma.sync`, scales in memory."""
    i, j, k = vars("i j k")
    a, b = Tensor("a", (row.rows, _BYTES), row.left), Tensor("b", (_BYTES, row.columns), row.right)
    blocks, at, acc = row.k // row.block, k // row.packed, Func("acc")
    several = (blocks,) if blocks > 1 else ()
    sa, sb = (Tensor(n, (e, *several), row.scale) for n, e in (("sa", row.rows), ("sb", row.columns)))
    of_a, of_b = (sa[i, k // row.block], sb[j, k // row.block]) if several else (sa[i], sb[j])
    left, right = (cast(x, f32) for x in (_element(a[i, at], row, k), _element(b[at, j], row, k)))
    acc[i, j] += left * right * (_scale(of_a) * _scale(of_b))
    return instruction(
        row.name, acc, cuda=_text(row), arch=_ARCH,
        fragments={
            "acc": lambda i, j: (i % 8 * 4 + j // 2, i // 8 * 2 + j % 2),
            "a": lambda i, k: (i % 8 * 4 + k % 16 // 4, k // 16 * 8 + i // 8 * 4 + k % 4),
            "b": lambda k, j: (j % 8 * 4 + k % 16 // 4, k // 16 * 4 + k % 4),
        },
        points={
            "sa": lambda lane: (lane // 4 + lane % 2 * 8, 0 * lane)[: 1 + len(several)],
            "sb": lambda lane: (lane // 4, 0 * lane)[: 1 + len(several)],
        },
        strides={n: (None, 1) for n in ("sa", "sb") if several},
    )  # fmt: skip


def _element(x: Value, row: BlockScaledMma, k: Value) -> Value:
    return f4e2m1(x, k % 2) if row.packed > 1 else x


def _scale(x: Value) -> Value:
    return exp2(cast(x, f32) - BIAS) if x.dtype == u8 else absolute(cast(x, f32))


def _text(row: BlockScaledMma) -> str:
    a, b, s = (C_TYPES[t] for t in (row.left, row.right, row.scale))
    count = row.k // row.block
    kind = f"kind::{'mxf8f6f4' if row.packed == 1 else 'mxf4nvf4'}.block_scale.scale_vec::{count}X"
    left, right = ("e2m1", "e2m1") if row.packed > 1 else (PTX_TYPES[row.left], PTX_TYPES[row.right])
    types = f"f32.{left}.{right}.f32.{'ue8m0' if row.scale == u8 else 'ue4m3'}"
    sums = ", ".join(f'"+f"(acc[{n}])' for n in range(4))
    factors = ", ".join([f'"r"(x[{n}])' for n in range(4)] + [f'"r"(y[{n}])' for n in range(2)])
    mask = "" if row.scale == u8 else " & 0x7f7f7f7fu"  # without signs
    scales = [
        f"({' | '.join(f'(unsigned){n}[{m}] << {8 * m}' for m in range(count))}){mask}" for n in ("sa", "sb")
    ]
    return f"""
__device__ __forceinline__ void {row.name}(float *acc, const {a} *a, const {b} *b,
    const {s} *sa, const {s} *sb) {{
  const unsigned *x = (const unsigned *)a, *y = (const unsigned *)b;
  asm volatile("mma.sync.aligned.m{row.rows}n{row.columns}k{row.k}.row.col.{kind}.{types} "
    "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}}, "
    "{{%10}}, {{0, 0}}, {{%11}}, {{0, 0}};"
    : {sums} : {factors}, "r"({scales[0]}), "r"({scales[1]}));
}}
"""
