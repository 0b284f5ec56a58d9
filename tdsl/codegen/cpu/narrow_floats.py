"""Conversions between f32 and floats of 8 and 16 bits, as LLVM IR that lowers to instructions.

LLVM lowers some of its own conversions to calls of a run-time library that a process need not have, and x86's
bf16 instruction flushes subnormal numbers: the first are avoided, the second is used with fast math only.
"""

from __future__ import annotations

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import suffix, vector
from tdsl.codegen.cpu.values import select, splat
from tdsl.lang.types import DType, bf16, f8e4m3, f8e5m2, f16

BIAS = {f8e4m3: 7, f8e5m2: 15, f16: 15}  # exponent bias
OVERFLOW = {f8e4m3: 0x7F, f8e5m2: 0x7C, f16: 0x7C00}  # the bits of the largest number, plus 1
NAN = {f8e4m3: 0x7F, f8e5m2: 0x7E, f16: 0x7E00}


def widen(b: Builder, x: str, t: DType, lanes: int) -> str:
    """Convert a float of 8 or 16 bits to f32, exactly."""
    if t == f16 and _converts_f16(b):
        half = b.v(f"bitcast {vector('i16', lanes)} {x} to {vector('half', lanes)}")
        return b.v(f"fpext {vector('half', lanes)} {half} to {vector('float', lanes)}")
    if t == f8e5m2 and _converts_f16(b):  # an f8e5m2 is the upper byte of an f16
        words = vector("i16", lanes)
        word = b.v(f"zext {vector('i8', lanes)} {x} to {words}")
        word = b.v(f"shl {words} {word}, {splat(b, 'i16', '8', lanes)}")
        return widen(b, word, f16, lanes)
    w = _WordBuilder(b, lanes)
    word = b.v(f"zext {vector(f'i{t.bits}', lanes)} {x} to {w.int}")
    if t == bf16:
        return w.as_float(w.op("shl", word, 16))
    if t.bits == 8:
        return _widen_byte(w, word, t)
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
    """Round f32 to a float of 8 or 16 bits, to nearest even; overflow of f8e4m3 gives NaN."""
    if t == f16 and _converts_f16(b):
        if b.target.architecture == "x86_64":  # LLVM calls a library for f64 to f32 to f16 in one
            type_ = vector("float", lanes)
            x = b.call(type_, f"llvm.arithmetic.fence.{suffix(type_)}", (type_, x))
        half = b.v(f"fptrunc {vector('float', lanes)} {x} to {vector('half', lanes)}")
        return b.v(f"bitcast {vector('half', lanes)} {half} to {vector('i16', lanes)}")
    if t != bf16:
        return _narrow(b, x, t, lanes)
    if b.module.fast and "avx512bf16" in b.target.has:
        brief = b.v(f"fptrunc {vector('float', lanes)} {x} to {vector('bfloat', lanes)}")
        return b.v(f"bitcast {vector('bfloat', lanes)} {brief} to {vector('i16', lanes)}")
    w = _WordBuilder(b, lanes)
    word = w.as_int(x)
    top = w.op("lshr", word, 16)
    rounded = w.op("lshr", w.op("add", w.op("add", word, 0x7FFF), w.op("and", top, 1)), 16)
    nan = b.v(f"fcmp uno {w.float} {x}, {x}")
    return w.lowest(select(b, w.int, nan, w.op("or", top, 0x40), rounded), 16)


def round_to_odd(b: Builder, x: str, lanes: int) -> str:
    """Round f64 to f32 by round-to-odd: rounding the result to f16 then equals rounding `x` to f16 once."""
    w = _WordBuilder(b, lanes)
    double = vector("double", lanes)
    rounded = b.v(f"fptrunc {double} {x} to {w.float}")
    back = b.v(f"fpext {w.float} {rounded} to {double}")
    fabs = f"llvm.fabs.{suffix(double)}"
    above = b.v(
        f"fcmp ogt {double} {b.call(double, fabs, (double, back))}, {b.call(double, fabs, (double, x))}"
    )
    inexact = b.v(f"fcmp one {double} {back}, {x}")
    bits = w.as_int(rounded)
    toward_zero = select(b, w.int, above, w.op("sub", bits, 1), bits)
    return w.as_float(select(b, w.int, inexact, w.op("or", toward_zero, 1), bits))


def _converts_f16(b: Builder) -> bool:
    return not b.target.architecture.startswith("x86") or "f16c" in b.target.has


def _widen_byte(w: _WordBuilder, word: str, t: DType) -> str:
    """Convert a float of 8 bits to f32: rebias the exponent; multiply subnormals by the smallest of them."""
    b, bias = w.b, BIAS[t]
    rest = w.op("and", word, 0x7F)
    normal = w.op("add", w.op("shl", rest, 23 - t.fraction), (127 - bias) << 23)
    whole = b.v(f"uitofp {w.int} {rest} to {w.float}")
    step = w.float_constant((128 - bias - t.fraction) << 23)
    tiny = w.as_int(b.v(f"fmul {w.float} {whole}, {step}"))
    number = select(b, w.int, w.below(rest, 1 << t.fraction), tiny, normal)
    nan = w.op("or", w.op("shl", rest, 23 - t.fraction), 0x7F800000)
    number = select(b, w.int, w.below(rest, OVERFLOW[t]), number, nan)
    return w.as_float(w.op("or", number, w.op("shl", w.op("and", word, 0x80), 24)))


def _narrow(b: Builder, x: str, t: DType, lanes: int) -> str:
    w, dropped_bits, bias = _WordBuilder(b, lanes), 23 - t.fraction, BIAS[t]
    word = w.as_int(x)
    sign = w.op("and", word, 0x80000000)
    rest = w.op("xor", word, sign)
    # Adding this number aligns the fraction of a subnormal result, and rounds it.
    magic = ((127 - bias) + dropped_bits + 1) << 23
    aligned = b.v(f"fadd {w.float} {w.as_float(rest)}, {w.float_constant(magic)}")
    tiny = w.op("sub", w.as_int(aligned), magic)
    is_odd = w.op("and", w.op("lshr", rest, dropped_bits), 1)
    down = ((bias - 127) << 23) + (1 << (dropped_bits - 1)) - 1
    normal = w.op("lshr", w.op("add", w.op("add", rest, down), is_odd), dropped_bits)
    result = select(b, w.int, w.below(rest, (128 - bias) << 23), tiny, normal)
    # overflow: the rounded magnitude exceeds the largest number
    result = select(b, w.int, w.below(result, OVERFLOW[t]), result, w.constant(OVERFLOW[t]))
    result = select(b, w.int, w.below(rest, (255 << 23) + 1), result, w.constant(NAN[t]))
    return w.lowest(w.op("or", result, w.op("lshr", sign, 32 - t.bits)), t.bits)


class _WordBuilder:
    """Writes bit operations on vectors of i32 and f32."""

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

    def lowest(self, x: str, bits: int) -> str:
        return self.b.v(f"trunc {self.int} {x} to {vector(f'i{bits}', self.lanes)}")
