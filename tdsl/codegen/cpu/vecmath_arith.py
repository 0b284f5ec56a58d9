"""`Arith` writes float arithmetic on vectors of one type as LLVM IR, for the math functions.

No instruction carries fast-math flags: the math functions split numbers, round by adding a large constant and
compute exact differences, none of which survives reassociation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tdsl.codegen.cpu import vecmath_avx512
from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import literal, register_type, suffix, vector
from tdsl.lang.types import DType, f32

# Architectures with fused multiply-add in the base instruction set; on x86 it is a feature.
_ALWAYS_FUSED = ("aarch64", "arm64", "ppc64le", "riscv64", "s390x")


class Integral(NamedTuple):
    """An integral number, both as a float and as an integer of the same width."""

    value: str
    integer: str


class Arith:
    """Writes arithmetic on `<lanes x t>` through `b`; values are operands in IR text.

    `fused` is true if `mad` rounds once.
    """

    def __init__(self, b: Builder, t: DType, lanes: int) -> None:
        self.b, self.t, self.lanes = b, t, lanes
        self.type = register_type(t, lanes)
        self.bits_type = vector(f"i{t.bits}", lanes)
        self.mask_type = vector("i1", lanes)
        self.mantissa, self.bias = (23, 127) if t == f32 else (52, 1023)
        # adding it leaves the nearest integer in the low bits
        self.shifter = 1.5 * 2.0**self.mantissa
        self.smallest_normal = 2.0 ** (1 - self.bias)
        has, arch = b.target.has, b.target.architecture
        self.fused = arch in _ALWAYS_FUSED or "fma" in has or "avx512f" in has

    def c(self, value: float) -> str:
        """A constant in every lane."""
        return self._splat(register_type(self.t), literal(value, self.t))

    def i(self, value: int) -> str:
        """An integer constant, as wide as the float type, in every lane."""
        return self._splat(f"i{self.t.bits}", str(value))

    def _splat(self, element: str, text: str) -> str:
        return text if self.lanes == 1 else f"splat ({element} {text})"

    def add(self, x: str, y: str) -> str:
        """x + y."""
        return self.b.v(f"fadd {self.type} {x}, {y}")

    def sub(self, x: str, y: str) -> str:
        """x - y."""
        return self.b.v(f"fsub {self.type} {x}, {y}")

    def mul(self, x: str, y: str) -> str:
        """x * y."""
        return self.b.v(f"fmul {self.type} {x}, {y}")

    def div(self, x: str, y: str) -> str:
        """x / y."""
        return self.b.v(f"fdiv {self.type} {x}, {y}")

    def neg(self, x: str) -> str:
        """-x, with the sign of NaN and zero changed, too."""
        return self.b.v(f"fneg {self.type} {x}")

    def mad(self, x: str, y: str, z: str) -> str:
        """x * y + z, rounded once if the CPU has fused multiply-add."""
        return self.fma(x, y, z) if self.fused else self.add(self.mul(x, y), z)

    def fma(self, x: str, y: str, z: str) -> str:
        """x * y + z rounded once, by a library call if the CPU has no fused multiply-add."""
        return self.intrinsic("fma", x, y, z)

    def poly(self, x: str, coefficients: Sequence[float]) -> str:
        """A polynomial in x by Horner's rule; coefficients from the highest power."""
        first, *rest = map(self.c, coefficients)
        for k in rest:
            first = self.mad(first, x, k)
        return first

    def intrinsic(self, name: str, *args: str) -> str:
        """An LLVM intrinsic whose operands and result are of this type."""
        given = [(self.type, x) for x in args]
        return self.b.call(self.type, f"llvm.{name}.{suffix(self.type)}", *given)

    def abs(self, x: str) -> str:
        """|x|."""
        return self.intrinsic("fabs", x)

    def sqrt(self, x: str) -> str:
        """The square root, rounded correctly."""
        return self.intrinsic("sqrt", x)

    def copysign(self, x: str, sign: str) -> str:
        """`x` with the sign of `sign`."""
        return self.intrinsic("copysign", x, sign)

    def two_sum(self, x: str, y: str) -> tuple[str, str]:
        """The rounded sum of x and y, and its exact error."""
        s = self.add(x, y)
        part = self.sub(s, x)
        return s, self.add(self.sub(x, self.sub(s, part)), self.sub(y, part))

    def cmp(self, predicate: str, x: str, y: str) -> str:
        """The mask of a comparison; `predicate` as in `fcmp`."""
        return self.b.v(f"fcmp {predicate} {self.type} {x}, {y}")

    def select(self, mask: str, yes: str, no: str) -> str:
        """`yes` in the lanes where a mask is true, else `no`."""
        return self.b.v(f"select {self._mask(mask)}, {self.type} {yes}, {self.type} {no}")

    def select_bits(self, mask: str, yes: str, no: str) -> str:
        """`select` for integers as wide as the float type."""
        return self.b.v(f"select {self._mask(mask)}, {self.bits_type} {yes}, {self.bits_type} {no}")

    def in_bits(self, x: str, low: float, high: float) -> str:
        """low < x < high for low >= 0, in one unsigned comparison; false for NaN."""
        low_bits, high_bits = (_bits_of(v, self.t) for v in (low, high))
        offset = self.integer("sub", self.bits(x), low_bits + 1)
        return self.b.v(f"icmp ult {self.bits_type} {offset}, {self.i(high_bits - low_bits - 1)}")

    def mask_and(self, p: str, q: str) -> str:
        """The mask where both masks are true."""
        return self.b.v(f"and {self._mask(p)}, {q}")

    def mask_or(self, p: str, q: str) -> str:
        """The mask where at least one of two masks is true."""
        return self.b.v(f"or {self._mask(p)}, {q}")

    def mask_not(self, p: str) -> str:
        """The mask where a mask is false."""
        return self.b.v(f"xor {self._mask(p)}, {self._splat('i1', 'true')}")

    def _mask(self, x: str) -> str:
        return f"{self.mask_type} {x}"

    def at_least(self, x: str, low: float) -> str:
        """max(x, low); NaN if x is NaN."""
        return self.select(self.cmp("olt", x, self.c(low)), self.c(low), x)

    def at_most(self, x: str, high: float) -> str:
        """min(x, high); NaN if x is NaN."""
        return self.select(self.cmp("ogt", x, self.c(high)), self.c(high), x)

    def bits(self, x: str) -> str:
        """The bits of a float as an integer."""
        return self.b.v(f"bitcast {self.type} {x} to {self.bits_type}")

    def from_bits(self, x: str) -> str:
        """The float of these bits."""
        return self.b.v(f"bitcast {self.bits_type} {x} to {self.type}")

    def integer(self, op: str, x: str, y: str | int) -> str:
        """An integer instruction: add, sub, and, xor, shl, ashr."""
        other = self.i(y) if isinstance(y, int) else y
        return self.b.v(f"{op} {self.bits_type} {x}, {other}")

    def to_integral(self, shifted: str) -> Integral:
        """The integer nearest to a value, given value + `shifter`; its magnitude is below 2^(mantissa - 1).

        The result for NaN is well-defined but meaningless.
        """
        integer = self.integer("sub", self.bits(shifted), _shifter_bits(self))
        return Integral(self.sub(shifted, self.c(self.shifter)), integer)

    def from_int(self, n: str) -> str:
        """A small integer as a float, without the 64-bit conversion that most vector units lack."""
        shifted = self.from_bits(self.integer("add", n, _shifter_bits(self)))
        return self.sub(shifted, self.c(self.shifter))

    def pow2(self, n: str) -> str:
        """2^n for the integer exponent of a normal number."""
        biased = self.integer("add", n, self.bias)
        return self.from_bits(self.integer("shl", biased, self.mantissa))

    def scale(self, x: str, n: Integral, down: int = 0) -> str:
        """x * 2^(n - down), rounded once; for each half of n - down, 2^half is a normal number."""
        if vecmath_avx512.usable(self.b.target, self.t, self.lanes):
            power = self.sub(n.value, self.c(down)) if down else n.value
            return vecmath_avx512.scalef(self.b, self.t, self.lanes, x, power)
        power = self.integer("sub", n.integer, down) if down else n.integer
        half = self.integer("ashr", power, 1)
        once = self.mul(x, self.pow2(half))
        return self.mul(once, self.pow2(self.integer("sub", power, half)))

    def exponent_and_mantissa(self, x: str) -> tuple[str, str]:
        """e and m with x = m 2^e and 3/4 <= m < 3/2, for a positive finite x."""
        if vecmath_avx512.usable(self.b.target, self.t, self.lanes):
            m = vecmath_avx512.getmant(self.b, self.t, self.lanes, x)
            e, of_m = (vecmath_avx512.getexp(self.b, self.t, self.lanes, v) for v in (x, m))
            return self.sub(e, of_m), m
        up = self.mantissa + 1
        tiny = self.cmp("olt", x, self.c(self.smallest_normal))
        e, m = self.split_normal(self.select(tiny, self.mul(x, self.c(2.0**up)), x))
        e = self.select_bits(tiny, self.integer("sub", e, up), e)
        return self.from_int(e), m

    def split_normal(self, x: str) -> tuple[str, str]:
        """`exponent_and_mantissa` for a normal number; e is an integer."""
        three_quarters = (self.bias << self.mantissa) - (1 << (self.mantissa - 1))
        offset = self.integer("sub", self.bits(x), three_quarters)
        e = self.integer("ashr", offset, self.mantissa)
        m = self.integer("sub", self.bits(x), self.integer("shl", e, self.mantissa))
        return e, self.from_bits(m)

    def widen(self, x: str, to: Arith) -> str:
        """A value of `self` in the wider float type of `to`."""
        return self.b.v(f"fpext {self.type} {x} to {to.type}")

    def narrow(self, x: str, to: Arith) -> str:
        """A value of `self` rounded to the narrower float type of `to`."""
        return self.b.v(f"fptrunc {self.type} {x} to {to.type}")

    def libm(self, name: str, *args: str) -> str:
        """Call a function of the C library on each lane; `name` is that of the double version."""
        scalar = register_type(self.t)
        symbol = name + ("f" if self.t == f32 else "")
        operands = ", ".join([scalar] * len(args))
        self.b.declare(f"declare {scalar} @{symbol}({operands}) nounwind willreturn memory(none)")
        out = "poison"
        for lane in range(self.lanes):
            given = args
            if self.lanes > 1:
                given = tuple(self.b.v(f"extractelement {self.type} {x}, i64 {lane}") for x in args)
            one = self.b.v(f"call {scalar} @{symbol}({', '.join(f'{scalar} {x}' for x in given)})")
            if self.lanes == 1:
                return one
            out = self.b.v(f"insertelement {self.type} {out}, {scalar} {one}, i64 {lane}")
        return out


def _shifter_bits(a: Arith) -> int:
    # sign 0, exponent bias + mantissa, the leading bit of the fraction
    return ((a.bias + a.mantissa) << a.mantissa) + (1 << (a.mantissa - 1))


def _bits_of(value: float, t: DType) -> int:
    return int(np.asarray(value, t.numpy).view(f"u{t.bytes}"))
