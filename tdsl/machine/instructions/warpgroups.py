"""Warpgroup-level matrix products of Hopper (128 threads): `wgmma.mma_async`.

    acc[i, j] += a[i, k] * b[k, j]         64 x n sums; k runs over 32 bytes of a row of `a`

The accumulators are a fragment of 128 threads. Operands are read from swizzled shared memory by a descriptor,
row-major or column-major if their type has two bytes; `a` may be a fragment instead. The instructions are
rows of a table; `find` of `tensor_cores.py` returns the `Instruction` of a name.
"""

from __future__ import annotations

from collections.abc import Iterator

from tdsl.core.node import frozen
from tdsl.lang.casts import cast
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, u8
from tdsl.lang.value import vars
from tdsl.machine.instructions.instruction import Instruction, instruction

ROWS = 64  # rows of the accumulator tile
COLUMNS = (*range(256, 32, -16), 32, 24, 16, 8)
THREADS = 128
_BYTES = 32  # bytes of a row of `a` and of a column of `b`
C_TYPES = {
    f16: "half", bf16: "nv_bfloat16", f32: "float", f8e4m3: "unsigned char", f8e5m2: "unsigned char",
    i8: "signed char", u8: "unsigned char", i32: "int", f64: "double",
}  # fmt: skip
PTX_TYPES = {
    f16: "f16", bf16: "bf16", f32: "tf32", f8e4m3: "e4m3", f8e5m2: "e5m2", i8: "s8", u8: "u8", i32: "s32",
    f64: "f64",
}  # fmt: skip


@frozen
class GroupMma:
    """A product of 128 threads: types, number of columns, and the storage order of the operands.

    `a` is "mk" (k contiguous), "km" (m contiguous) or "rk" (in registers); `b` is "nk" or "kn". `rows` is the
    number of sums in a column, and `unit` the instruction, wgmma or tcgen05.
    """

    operand: DType
    acc_type: DType
    columns: int
    a: str
    b: str
    rows: int = ROWS
    unit: str = "wgmma"

    @property
    def k(self) -> int:
        """The extent of k: the number of products added to each accumulator."""
        return _BYTES // self.operand.bytes

    @property
    def name(self) -> str:
        """The name of the instruction."""
        kind = PTX_TYPES[self.operand]
        return f"{self.unit}_m{self.rows}n{self.columns}k{self.k}_{kind}_{self.a}_{self.b}"


def rows() -> Iterator[GroupMma]:
    """All instructions of the table: every combination of types, columns and storage orders in hardware."""
    for n in COLUMNS:
        for t in (f16, bf16):
            for a in ("mk", "km", "rk"):
                yield from (GroupMma(t, f32, n, a, b) for b in ("nk", "kn"))
        for t, acc_type in ((f32, f32), (f8e4m3, f32), (f8e5m2, f32), (i8, i32), (u8, i32)):
            yield from (GroupMma(t, acc_type, n, a, "nk") for a in ("mk", "rk"))


def declare_wgmma(row: GroupMma) -> Instruction:
    """The `Instruction` of a row of the table."""
    i, j, k = vars("i j k")
    n, per_register, half = row.columns, 4 // row.operand.bytes, 16 // row.operand.bytes
    a, b = Tensor("a", (ROWS, row.k), row.operand), Tensor("b", (row.k, n), row.operand)
    acc = Func("acc")
    left, right = a[i, k], b[k, j]
    if row.operand != row.acc_type:
        left, right = cast(left, row.acc_type), cast(right, row.acc_type)
    acc[i, j] += left * right
    fragments = {
        "acc": lambda i, j: (
            i // 16 * 32 + i % 8 * 4 + j % 8 // 2,
            j // 8 * 4 + i % 16 // 8 * 2 + j % 2,
        )
    }
    strides: dict[str, tuple[int | None, ...]] = {
        "b": (1, None) if row.b == "nk" else (None, 1),
        "a": (None, 1) if row.a == "mk" else (1, None),
    }
    if row.a == "rk":
        del strides["a"]
        fragments["a"] = lambda i, k: (
            i // 16 * 32 + i % 8 * 4 + k % half // per_register,
            k // half * 2 * per_register + i % 16 // 8 * per_register + k % per_register,
        )
    return instruction(
        row.name, acc, cuda=_text(row), fragments=fragments, strides=strides, threads=THREADS,
        arch="90a", descriptors=tuple(sorted(strides)), asynchronous=True,
    )  # fmt: skip


def _text(row: GroupMma) -> str:
    sums = row.columns // 2
    kind, acc_type = PTX_TYPES[row.operand], "f32" if row.acc_type == f32 else "s32"
    results = ", ".join(f"%{n}" for n in range(sums))
    constraint = "f" if row.acc_type == f32 else "r"
    outputs = ", ".join(f'"+{constraint}"(acc[{n}])' for n in range(sums))
    at = sums
    if row.a == "rk":
        a, input_constraints, left = (
            f"{{%{at}, %{at + 1}, %{at + 2}, %{at + 3}}}",
            [],
            f"const {C_TYPES[row.operand]} *a",
        )
        input_constraints += [f'"r"(x[{n}])' for n in range(4)]
        at += 4
    else:
        a, input_constraints, left = f"%{at}", ['"l"(a)'], "unsigned long long a"
        at += 1
    b, one = f"%{at}", f"%{at + 1}"
    input_constraints += ['"l"(b)', '"r"(1)']
    scales = "1, 1" if row.acc_type == f32 else ""
    if row.operand in (f16, bf16):
        transposes = [str(int(row.a == "km"))] * (row.a != "rk") + [str(int(row.b == "kn"))]
        scales = ", ".join([scales, *transposes])
    options = f", p, {scales}" if scales else ", p"
    shape = f"m64n{row.columns}k{row.k}"
    head = f"void {row.name}({C_TYPES[row.acc_type]} *acc, {left}, unsigned long long b) {{"
    return "\n".join(
        [
            "",
            f"__device__ __forceinline__ {head}",
            *(["  const unsigned *x = (const unsigned *)a;"] if row.a == "rk" else []),
            '  asm volatile("{.reg .pred p; setp.ne.b32 p, ' + one + ', 0; "',
            f'    "wgmma.mma_async.sync.aligned.{shape}.{acc_type}.{kind}.{kind} "',
            f'    "{{{results}}}, {a}, {b}{options};}}"',
            f"    : {outputs} : {', '.join(input_constraints)});",
            "}",
            "",
        ]
    )
