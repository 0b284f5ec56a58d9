"""Dot-product instructions of x86 (VNNI, AVX512-BF16, AMX), which add several narrow products to each lane.

    total[j] += sum of left[k] * right[j, k] over k = 0 .. terms-1          j = 0 .. lanes-1

`left` is broadcast; `right` stores the terms of a lane contiguously, the order in which its panel is packed.
AMX instructions compute several rows of `left` at once on tiles (`amx.py`).
The instructions are rows of a table; `declare` returns the `Instruction` of a row, for `tensorize`.
"""

from __future__ import annotations

import functools

import numpy as np

from tdsl.core.node import frozen
from tdsl.lang.casts import cast
from tdsl.lang.expr import Binary, Cast, Expr, Read
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import UNSIGNED, DType, bf16, f32, i8, i16, i32, u8
from tdsl.lang.value import vars
from tdsl.machine.instructions import amx
from tdsl.machine.instructions.instruction import Instruction, instruction
from tdsl.machine.model import Machine

_VNNI = "call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> {}, <64 x i8> {}, <64 x i8> {})"
_SUM = "%sum = " + _VNNI


@frozen
class Dot:
    """A dot-product instruction: the CPU feature that it needs, its shape, its types, and its LLVM code.

    `body` computes %sum from the vectors %total, %left and %right by calls of the intrinsic. If `rows` > 1,
    the operands are tiles in AMX registers, with `contiguous` of the terms contiguous in memory.
    """

    name: str
    feature: str
    lanes: int
    terms: int
    left: DType
    right: DType
    total: DType
    intrinsic: str
    body: str = ""
    rows: int = 1
    contiguous: int = 0

    @property
    def packed(self) -> int:
        """The number of terms that are contiguous for each lane in a packed panel."""
        return self.contiguous or self.terms


def _tile(name: str, contiguous: int, left: DType, right: DType, total: DType, intrinsic: str) -> Dot:
    feature = f"amx-{'bf16' if total.is_float else 'int8'}"
    return Dot(
        f"tile_{name}", feature, 16, 16 * contiguous, left, right, total, f"llvm.x86.{intrinsic}",
        rows=amx.ROWS, contiguous=contiguous,
    )  # fmt: skip


DOTS = (
    _tile("bf16", 2, bf16, bf16, f32, "tdpbf16ps"),
    _tile("i8", 4, i8, i8, i32, "tdpbssd"),
    _tile("i8_u8", 4, i8, u8, i32, "tdpbsud"),
    _tile("u8_i8", 4, u8, i8, i32, "tdpbusd"),
    _tile("u8", 4, u8, u8, i32, "tdpbuud"),
    Dot(
        "dot_bf16", "avx512bf16", 16, 2, bf16, bf16, f32, "llvm.x86.avx512bf16.dpbf16ps.512",
        "%sum = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512"
        "(<16 x float> %total, <32 x bfloat> %right, <32 x bfloat> %left)",
    ),
    Dot(
        "dot_i16", "avx512vnni", 16, 2, i16, i16, i32, "llvm.x86.avx512.vpdpwssd.512",
        "%sum = call <16 x i32> @llvm.x86.avx512.vpdpwssd.512"
        "(<16 x i32> %total, <32 x i16> %right, <32 x i16> %left)",
    ),
    Dot(
        "dot_i8_u8", "avx512vnni", 16, 4, i8, u8, i32, "llvm.x86.avx512.vpdpbusd.512",
        _SUM.format("%total", "%right", "%left"),
    ),
    Dot(
        "dot_u8_i8", "avx512vnni", 16, 4, u8, i8, i32, "llvm.x86.avx512.vpdpbusd.512",
        _SUM.format("%total", "%left", "%right"),
    ),
)  # fmt: skip

_LLVM = {bf16: "bfloat", f32: "float", i8: "i8", u8: "i8", i16: "i16", i32: "i32"}


def find_dots(value: Expr, moving: Read, machine: Machine) -> list[Dot]:
    """The instructions for a product of two reads, each cast to the type of the sum, best first.

    `moving` is the read that differs between lanes; some instructions need its operand as unsigned.
    """
    match value:
        case Binary("mul", Cast(Read() as x, total), Cast(Read() as y, _)):
            left = y if x == moving else x
            supported = [d for d in DOTS if d.feature in machine.features]
            fitting = [d for d in supported if (d.left, d.total) == (left.dtype, total)]
            right_types = (moving.dtype, UNSIGNED.get(moving.dtype))
            return [d for right in right_types for d in fitting if d.right == right]
        case _:
            return []


@functools.cache
def declare(dot: Dot) -> Instruction:
    """The `Instruction` of a row of the table, declared on first use."""
    return _declare_tile(dot) if dot.rows > 1 else _declare_vector(dot)


def _declare_vector(dot: Dot) -> Instruction:
    j, k = vars("j k")
    left, right = (
        Tensor("left", (dot.terms,), dot.left),
        Tensor("right", (dot.lanes, dot.terms), dot.right),
    )
    total = Func("total")
    total[j] += cast(left[k], dot.total) * cast(right[j, k], dot.total)

    def run(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
        total += right.astype(total.dtype) @ left.astype(total.dtype)

    return instruction(
        dot.name, total, llvm=_text(dot), python=run,
        strides={"total": (1,), "left": (1,), "right": (dot.terms, 1)},
    )  # fmt: skip


def _declare_tile(dot: Dot) -> Instruction:
    i, j, q, t = vars("i j q t")
    groups = dot.terms // dot.contiguous
    left = Tensor("left", (dot.rows, groups, dot.contiguous), dot.left)
    right = Tensor("right", (groups, dot.lanes, dot.contiguous), dot.right)
    total = Func("total")
    total[i, j] += cast(left[i, q, t], dot.total) * cast(right[q, j, t], dot.total)

    def run(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
        total += np.tensordot(left.astype(total.dtype), right.astype(total.dtype), ((1, 2), (0, 2)))

    text = f"call void @{dot.intrinsic}(i8 {{total}}, i8 {{left}}, i8 {{right}})"
    return instruction(dot.name, total, llvm=text, python=run, registers=amx.TILES)


def _text(dot: Dot) -> str:
    n, size = dot.lanes, dot.total.bytes
    total_type, operand_type = (
        f"<{n} x {_LLVM[dot.total]}>",
        f"<{n * dot.terms} x {_LLVM[dot.left]}>",
    )
    operands = "ptr %t, i64 %ts, ptr %l, i64 %ls, ptr %r, i64 %rs, i64 %rt"
    return f"""declare {total_type} @{dot.intrinsic}({total_type}, {operand_type}, {operand_type})
define internal void @{dot.name}({operands}) alwaysinline nounwind {{
  %total = load {total_type}, ptr %t, align {size}
  %right = load {operand_type}, ptr %r, align {dot.right.bytes}
  %word = load i32, ptr %l, align {dot.left.bytes}
  %first = insertelement <{n} x i32> poison, i32 %word, i64 0
  %words = shufflevector <{n} x i32> %first, <{n} x i32> poison, <{n} x i32> zeroinitializer
  %left = bitcast <{n} x i32> %words to {operand_type}
  {dot.body}
  store {total_type} %sum, ptr %t, align {size}
  ret void
}}
"""
