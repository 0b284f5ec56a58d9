"""f16 and bf16 to and from f32, in instructions that the CPU has.

LLVM lowers some of these to calls of a run-time library that a process need not have, and x86's bf16
instruction flushes subnormal numbers; both are avoided here.
"""

from __future__ import annotations

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import suffix, vector
from tdsl.codegen.cpu.values import select, splat
from tdsl.lang.types import DType, f16


def widen(b: Builder, x: str, t: DType, lanes: int) -> str:
    """f16 or bf16 to f32, exact."""
    if t == f16 and _converts_f16(b):
        return b.v(f"fpext {vector('half', lanes)} {x} to {vector('float', lanes)}")
    w = _Words(b, lanes)
    if t == f16:
        x = b.v(f"bitcast {vector('half', lanes)} {x} to {vector('i16', lanes)}")
    word = b.v(f"zext {vector('i16', lanes)} {x} to {w.int}")
    if t != f16:
        return w.as_float(w.op("shl", word, 16))
    # Move exponent and mantissa into place, correct the exponent by a multiplication (which also
    # normalises subnormals), then restore infinities, NaN and the sign.
    magnitude = w.as_float(w.op("shl", w.op("and", word, 0x7FFF), 13))
    scaled = b.v(f"fmul {w.float} {magnitude}, {w.float_constant(0x77800000)}")
    big = b.v(f"fcmp oge {w.float} {scaled}, {w.float_constant(0x47800000)}")
    number = w.as_int(scaled)
    number = select(b, w.int, big, w.op("or", number, 0x7F800000), number)
    sign = w.op("shl", w.op("and", word, 0x8000), 16)
    return w.as_float(w.op("or", number, sign))


def narrow(b: Builder, x: str, t: DType, lanes: int) -> str:
    """f32 to f16 or bf16, to nearest even."""
    if t == f16:
        if _converts_f16(b):
            return b.v(f"fptrunc {vector('float', lanes)} {x} to {vector('half', lanes)}")
        return _narrow_f16(b, x, lanes)
    if b.module.fast and "avx512bf16" in b.target.has:
        brief = b.v(f"fptrunc {vector('float', lanes)} {x} to {vector('bfloat', lanes)}")
        return b.v(f"bitcast {vector('bfloat', lanes)} {brief} to {vector('i16', lanes)}")
    w = _Words(b, lanes)
    word = w.as_int(x)
    top = w.op("lshr", word, 16)
    rounded = w.op("lshr", w.op("add", w.op("add", word, 0x7FFF), w.op("and", top, 1)), 16)
    nan = b.v(f"fcmp uno {w.float} {x}, {x}")
    return w.short(select(b, w.int, nan, w.op("or", top, 0x40), rounded))


def odd(b: Builder, x: str, lanes: int) -> str:
    """f64 to f32, rounded to odd: rounding the result again gives what rounding `x` once gives."""
    w = _Words(b, lanes)
    double = vector("double", lanes)
    near = b.v(f"fptrunc {double} {x} to {w.float}")
    back = b.v(f"fpext {w.float} {near} to {double}")
    fabs = f"llvm.fabs.{suffix(double)}"
    above = b.v(
        f"fcmp ogt {double} {b.call(double, fabs, (double, back))}, "
        f"{b.call(double, fabs, (double, x))}"
    )
    inexact = b.v(f"fcmp one {double} {back}, {x}")
    bits = w.as_int(near)
    toward_zero = select(b, w.int, above, w.op("sub", bits, 1), bits)
    return w.as_float(select(b, w.int, inexact, w.op("or", toward_zero, 1), bits))


def _converts_f16(b: Builder) -> bool:
    return not b.target.architecture.startswith("x86") or "f16c" in b.target.has


def _narrow_f16(b: Builder, x: str, lanes: int) -> str:
    w = _Words(b, lanes)
    word = w.as_int(x)
    sign = w.op("and", word, 0x80000000)
    rest = w.op("xor", word, sign)
    # Adding this number aligns the mantissa of a result that is subnormal, and rounds it.
    magic = ((127 - 15) + (23 - 10) + 1) << 23
    aligned = b.v(f"fadd {w.float} {w.as_float(rest)}, {w.float_constant(magic)}")
    tiny = w.op("sub", w.as_int(aligned), magic)
    is_odd = w.op("and", w.op("lshr", rest, 13), 1)
    normal = w.op("add", w.op("add", rest, ((15 - 127) << 23) + 0xFFF), is_odd)
    result = select(b, w.int, w.below(rest, 113 << 23), tiny, w.op("lshr", normal, 13))
    special = select(
        b, w.int, w.below(rest, (255 << 23) + 1), w.constant(0x7C00), w.constant(0x7E00)
    )
    result = select(b, w.int, w.below(rest, (127 + 16) << 23), result, special)
    short = w.short(w.op("or", result, w.op("lshr", sign, 16)))
    return b.v(f"bitcast {vector('i16', lanes)} {short} to {vector('half', lanes)}")


class _Words:
    """Bit work on f32 and i32 vectors."""

    def __init__(self, b: Builder, lanes: int) -> None:
        self.b, self.lanes = b, lanes
        self.int, self.float = vector("i32", lanes), vector("float", lanes)

    def constant(self, value: int) -> str:
        signed = (value + (1 << 31)) % (1 << 32) - (1 << 31)
        return splat(self.b, "i32", str(signed), self.lanes)

    def float_constant(self, bits: int) -> str:
        return self.b.v(f"bitcast {self.int} {self.constant(bits)} to {self.float}")

    def op(self, name: str, x: str, y: str | int) -> str:
        right = self.constant(y) if isinstance(y, int) else y
        return self.b.v(f"{name} {self.int} {x}, {right}")

    def below(self, x: str, y: int) -> str:
        return self.b.v(f"icmp ult {self.int} {x}, {self.constant(y)}")

    def as_int(self, x: str) -> str:
        return self.b.v(f"bitcast {self.float} {x} to {self.int}")

    def as_float(self, x: str) -> str:
        return self.b.v(f"bitcast {self.int} {x} to {self.float}")

    def short(self, x: str) -> str:
        return self.b.v(f"trunc {self.int} {x} to {vector('i16', self.lanes)}")
