"""Matrix products of the tensor cores of Blackwell: `tcgen05.mma`, whose sums are in tensor memory.

    acc[i, j] += a[i, k] * b[k, j]         128 x n sums; k runs over 32 bytes of a row of `a`

One thread issues the instruction for its group of 128 threads, and the tensor core adds to 32-bit sums in
tensor memory: 128 lanes, one for each row, of 512 columns for each multiprocessor. Both operands are read
from swizzled shared memory by a descriptor, row-major or column-major if their type has two bytes. Threads
read and write tensor memory by `tcgen05.ld` and `tcgen05.st`, thread n of a group only lane n: outside of
products the sums are a fragment with one row for each thread (`codegen/cuda/tensor_memory.py`).

Source: the PTX manual, "Tensor Core 5th generation instructions". A program for sm_100a is the only one that
has them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tdsl.lang.casts import cast
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, u8
from tdsl.lang.value import vars
from tdsl.machine.instructions.instruction import Instruction, instruction
from tdsl.machine.instructions.warpgroups import C_TYPES, THREADS, GroupMma

ROWS = 128  # rows of the sums, one for each thread of a group and each lane of tensor memory
COLUMNS = (256, *range(240, 0, -16))
TENSOR_COLUMNS = 512  # columns of the tensor memory of a multiprocessor
_KINDS = {f16: "f16", bf16: "f16", f32: "tf32", f8e4m3: "f8f6f4", f8e5m2: "f8f6f4", i8: "i8", u8: "i8"}
_FORMATS = {f16: 0, bf16: 1, f32: 2, f8e4m3: 0, f8e5m2: 1, u8: 0, i8: 1}  # codes of the operands' types


def instruction_descriptor(row: GroupMma) -> int:
    """The instruction descriptor of a product: types, storage orders and shape, as bit fields.

    >>> hex(instruction_descriptor(GroupMma(f16, f32, 128, "mk", "kn", ROWS, "tcgen05")))
    '0x8210010'
    """
    sums, code = 1 if row.acc_type == f32 else 2, _FORMATS[row.operand]
    orders = (row.a == "km") << 15 | (row.b == "kn") << 16
    return sums << 4 | code << 7 | code << 10 | orders | row.columns // 8 << 17 | row.rows // 16 << 24


def rows() -> Iterator[GroupMma]:
    """All instructions of the table: every combination of types, columns and storage orders in hardware."""
    orders = [(a, b) for a in ("mk", "km") for b in ("nk", "kn")]
    types = [(t, f32, orders) for t in (f16, bf16)]
    types += [(t, f32, [("mk", "nk")]) for t in (f32, f8e4m3, f8e5m2)]
    types += [(t, i32, [("mk", "nk")]) for t in (i8, u8)]
    for n in COLUMNS:
        for t, acc_type, among in types:
            if acc_type != i32 or n % 32 == 0 or n == 16:
                yield from (GroupMma(t, acc_type, n, a, b, ROWS, "tcgen05") for a, b in among)


def declare_tcgen05(row: GroupMma) -> Instruction:
    """The `Instruction` of a row of the table."""
    i, j, k = vars("i j k")
    a, b = Tensor("a", (ROWS, row.k), row.operand), Tensor("b", (row.k, row.columns), row.operand)
    acc = Func("acc")
    left, right = a[i, k], b[k, j]
    if row.operand != row.acc_type:
        left, right = cast(left, row.acc_type), cast(right, row.acc_type)
    acc[i, j] += left * right
    strides: dict[str, tuple[int | None, ...]] = {
        "a": (None, 1) if row.a == "mk" else (1, None),
        "b": (1, None) if row.b == "nk" else (None, 1),
    }
    return instruction(
        row.name, acc, cuda=_text(row), fragments={"acc": lambda i, j: (i, j)}, strides=strides,
        threads=THREADS, arch="100a", descriptors=("a", "b"), asynchronous=True, tensor_memory=True,
    )  # fmt: skip


def _text(row: GroupMma) -> str:
    return f"""
// {row.columns} columns of {C_TYPES[row.acc_type]} sums, from the column `acc` of tensor memory
__device__ __forceinline__ void {row.name}(unsigned acc, unsigned long long a, unsigned long long b) {{
  if (threadIdx.x == 0)
    asm volatile("{{.reg .pred p; setp.ne.b32 p, %4, 0; "
      "tcgen05.mma.cta_group::1.kind::{_KINDS[row.operand]} [%0], %1, %2, %3, p;}}"
      :: "r"(acc), "l"(a | 1ull << 46), "l"(b | 1ull << 46), "r"({instruction_descriptor(row)}u), "r"(1)
      : "memory");
}}
"""
