"""Warp-level instructions of tensor cores: `mma.sync`, and the `ldmatrix` loads of its operands.

    acc[i, j] += a[i, k] * b[k, j]         mma.sync: 16 x 8 sums, of f64 also 8 x 8
    fragment[i, j] = tile[i, j]            ldmatrix: from shared memory, transposed if the tile needs it

A register of 4 bytes holds consecutive elements along k. Operands of two-byte types may be row-major or
column-major in memory: `ldmatrix` transposes them while it loads. The instructions are rows of tables; `find`
returns the `Instruction` of a name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tdsl.core.node import frozen
from tdsl.errors import did_you_mean
from tdsl.lang.casts import cast
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, u8
from tdsl.lang.value import vars
from tdsl.machine.instructions.block_scaled import BlockScaledMma, declare_block_scaled
from tdsl.machine.instructions.block_scaled import rows as block_scaled_rows
from tdsl.machine.instructions.bulk_store import BulkStore, declare_bulk_store
from tdsl.machine.instructions.bulk_store import rows as bulk_store_rows
from tdsl.machine.instructions.instruction import INSTRUCTIONS, Instruction, instruction
from tdsl.machine.instructions.stmatrix import Stmatrix, declare_stmatrix
from tdsl.machine.instructions.stmatrix import rows as stmatrix_rows
from tdsl.machine.instructions.tcgen05 import declare_tcgen05
from tdsl.machine.instructions.tcgen05 import rows as tcgen05_rows
from tdsl.machine.instructions.warpgroups import C_TYPES, PTX_TYPES, GroupMma, declare_wgmma
from tdsl.machine.instructions.warpgroups import rows as wgmma_rows

ROWS, COLUMNS = 16, 8  # the shape of the accumulator tile
_BYTES = 32  # bytes of a row of `a` and of a column of `b`


@frozen
class Mma:
    """A row for `mma.sync`: the types of operands and accumulators; `kind` is the PTX type if it differs.

    It makes `rows` x COLUMNS sums of `k` terms each, on GPUs of the compute capability `arch` and later.
    """

    left: DType
    right: DType
    acc_type: DType
    kind: str = ""
    rows: int = ROWS
    k: int = 16
    arch: int = 80

    @property
    def columns(self) -> int:
        """The columns of the accumulator tile."""
        return COLUMNS

    @property
    def name(self) -> str:
        """The name of the instruction."""
        return f"mma_m{self.rows}n8k{self.k}_{self.kind or self.left.name}_{self.kind or self.right.name}"


MMAS = (
    Mma(f16, f16, f32, k=16), Mma(bf16, bf16, f32, k=16), Mma(f32, f32, f32, "tf32", k=8),
    *(Mma(x, y, f32, k=32, arch=89) for x in (f8e4m3, f8e5m2) for y in (f8e4m3, f8e5m2)),
    *(Mma(x, y, i32, k=32) for x in (i8, u8) for y in (i8, u8)),
    Mma(f64, f64, f64, k=8, arch=90), Mma(f64, f64, f64, rows=8, k=4),
)  # fmt: skip


@frozen
class Load:
    """A row for `ldmatrix`: the operand, its type, whether it is transposed, the number of 8 x 8 matrices."""

    operand: str
    dtype: DType
    transposed: bool
    matrices: int = 4

    @property
    def name(self) -> str:
        """The name of the instruction."""
        transposed = "_trans" if self.transposed else ""
        return f"ldmatrix_x{self.matrices}{transposed}_{self.operand}_{self.dtype.name}"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the tile in memory: k is the last axis, or the first if the load transposes."""
        k = _BYTES // self.dtype.bytes
        other = ROWS if self.matrices == 4 else COLUMNS
        return (k, other) if self.transposed else (other, k)


LOADS = (
    *(Load("a", t, transposed=False) for t in (f16, bf16, f32, f8e4m3, f8e5m2, i8, u8)),
    *(
        Load("b", t, transposed=False, matrices=n)
        for t in (f16, bf16, f32, f8e4m3, f8e5m2, i8, u8)
        for n in (4, 2)
    ),
    *(Load("a", t, transposed=True) for t in (f16, bf16)),
    *(Load("b", t, transposed=True, matrices=n) for t in (f16, bf16) for n in (4, 2)),
)


Row = Mma | BlockScaledMma | Load | Stmatrix | BulkStore | GroupMma


def find(name: str) -> Instruction | None:
    """The instruction of a name, declared by the user or built in; None for an unknown name.

    >>> find("mma_m16n8k16_f16_f16").shapes()
    ((16, 8), (16, 16), (16, 8))
    """
    rows = _rows()
    return declare(rows[name]) if name in rows else INSTRUCTIONS.get(name)


def name_hint(name: str) -> str:
    """The hint for an unknown name: similar names of instructions with the same prefix."""
    known = {**INSTRUCTIONS, **_rows()}
    kind = name.partition("_")[0]
    return did_you_mean(name, [n for n in known if n.startswith(kind)] or INSTRUCTIONS)


def is_built_in(name: str) -> bool:
    """True for a built-in Tensor Core instruction; False for one that a user declares."""
    return name in _rows()


@functools.cache
def _rows() -> dict[str, Row]:
    listed: list[Row] = [*MMAS, *block_scaled_rows(), *LOADS, *stmatrix_rows(), *bulk_store_rows()]
    listed += [*wgmma_rows(), *tcgen05_rows()]
    return {row.name: row for row in listed}


@functools.cache
def declare(row: Row) -> Instruction:
    """The `Instruction` of a row of the tables, declared on first use."""
    if isinstance(row, GroupMma):
        return declare_wgmma(row) if row.unit == "wgmma" else declare_tcgen05(row)
    if isinstance(row, BlockScaledMma):
        return declare_block_scaled(row)
    if isinstance(row, Stmatrix):
        return declare_stmatrix(row)
    if isinstance(row, BulkStore):
        return declare_bulk_store(row)
    return _product(row) if isinstance(row, Mma) else _load(row)


def _product(row: Mma) -> Instruction:
    i, j, k = vars("i j k")
    a, b = Tensor("a", (row.rows, row.k), row.left), Tensor("b", (row.k, COLUMNS), row.right)
    acc = Func("acc")
    left, right = a[i, k], b[k, j]
    if row.left != row.acc_type:
        left, right = cast(left, row.acc_type), cast(right, row.acc_type)
    acc[i, j] += left * right
    rules = {
        "acc": lambda i, j: (i % 8 * 4 + j // 2, i // 8 * 2 + j % 2),
        "a": _layout_of_a(row.left),
        "b": _layout_of_b(row.right),
    }
    return instruction(row.name, acc, cuda=_product_text(row), fragments=rules, arch=row.arch)


def _layout_of_a(t: DType) -> Callable[[Any, Any], tuple[Any, Any]]:
    """The layout of `a`: a function from (i, k) to (lane, register)."""
    per_register = max(4 // t.bytes, 1)
    half = 4 * per_register
    return lambda i, k: (
        i % 8 * 4 + k % half // per_register,
        k // half * 2 * per_register + i // 8 * per_register + k % per_register,
    )


def _layout_of_b(t: DType) -> Callable[[Any, Any], tuple[Any, Any]]:
    """The layout of `b`, of one or two adjacent tiles of 8 columns: from (k, j) to (lane, register)."""
    per_register = max(4 // t.bytes, 1)
    half = 4 * per_register
    return lambda k, j: (
        j % 8 * 4 + k % half // per_register,
        j // 8 * 2 * per_register + k // half * per_register + k % per_register,
    )


def _product_text(row: Mma) -> str:
    left, right, acc_type = (PTX_TYPES[t] for t in (row.left, row.right, row.acc_type))
    acc_type = "f32" if row.acc_type == f32 else acc_type
    of_sums = {"f32": "f", "f64": "d"}.get(acc_type, "r")
    word, of_factors = ("double", "d") if row.left == f64 else ("unsigned", "r")
    sums, x, y = (
        range(n * t.bytes // (32 * max(t.bytes, 4)))  # registers of a thread
        for n, t in (
            (row.rows * COLUMNS, row.acc_type), (row.rows * row.k, row.left), (COLUMNS * row.k, row.right),
        )
    )  # fmt: skip
    inputs = [f"x[{n}]" for n in x] + [f"y[{n}]" for n in y]
    acc, a, b = (C_TYPES[t] for t in (row.acc_type, row.left, row.right))
    lines = []
    if row.kind == "tf32":
        lines.append(f"  unsigned z[{len(inputs)}];")
        for n, e in enumerate(inputs):
            lines.append(f'  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(z[{n}]) : "f"(__uint_as_float({e})));')
        inputs = [f"z[{n}]" for n in range(len(inputs))]
    names = [f"%{n}" for n in range(len(sums) + len(inputs))]
    parts = (sums, [n + len(sums) for n in x], [n + len(sums) + len(x) for n in y], sums)
    operands = ", ".join(f"{{{', '.join(names[n] for n in part)}}}" for part in parts)
    outputs = ", ".join(f'"+{of_sums}"(acc[{n}])' for n in sums)
    input_constraints = ", ".join(f'"{of_factors}"({e})' for e in inputs)
    shape = f"m{row.rows}n{COLUMNS}k{row.k}"
    return "\n".join(
        [
            "",
            f"__device__ __forceinline__ void {row.name}({acc} *acc, const {a} *a, const {b} *b) {{",
            f"  const {word} *x = (const {word} *)a, *y = (const {word} *)b;",
            *lines,
            f'  asm volatile("mma.sync.aligned.{shape}.row.col.{acc_type}.{left}.{right}.{acc_type} "',
            f'    "{operands};"',
            f"    : {outputs} : {input_constraints});",
            "}",
            "",
        ]
    )


def _load(row: Load) -> Instruction:
    i, j = vars("i j")
    tile, fragment = Tensor("tile", row.shape, row.dtype), Func("fragment")
    fragment[i, j] = tile[i, j]
    operand_layout = _layout_of_a(row.dtype) if row.operand == "a" else _layout_of_b(row.dtype)
    in_operand_order = row.transposed == (
        row.operand == "b"
    )  # True if the axes of the tile are in the operand's order
    rule = operand_layout if in_operand_order else lambda i, j: operand_layout(j, i)
    half = 16 // row.dtype.bytes
    if row.operand == "a":
        points = lambda x: (x % 16, x // 16 * half)
        transposed = lambda x: (x % 8 + x // 16 * 8, x // 8 % 2 * 8)
    else:
        points = lambda x: (x % 8 + x // 16 * 8, x // 8 % 2 * half)
        transposed = lambda x: (x % 16, x // 16 * 8)
        if row.matrices == 2:
            points = lambda x: (x % 8, x // 8 % 2 * half)
            transposed = lambda x: (x % 16, x * 0)
    return instruction(
        row.name, fragment, cuda=_load_text(row), fragments={"fragment": rule},
        points={"tile": transposed if row.transposed else points}, strides={"tile": (None, 1)}, arch=75,
    )  # fmt: skip


def _load_text(row: Load) -> str:
    count = row.matrices
    registers = ", ".join(f"%{n}" for n in range(count))
    results = ", ".join(f'"=r"(r[{n}])' for n in range(count))
    transposed = ".trans" if row.transposed else ""
    c = C_TYPES[row.dtype]
    return "\n".join(
        [
            "",
            f"__device__ __forceinline__ void {row.name}({c} *fragment, const {c} *tile) {{",
            "  unsigned *r = (unsigned *)fragment;",
            f'  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16 "',
            f'    "{{{registers}}}, [%{count}];"',
            f'    : {results} : "r"((unsigned)__cvta_generic_to_shared(tile)));',
            "}",
            "",
        ]
    )
